"""Replays a recording with PyTorch's caching allocator and prints one JSON object.

Usage: torch_replay.py RECORDING.csv

The script makes the requests in the order of the recording. A PyTorch stream replaces each stream of the recording. Nothing is computed.
"""

import csv
import json
import sys
import time

import torch


def main(path):
    with open(path, newline="") as file:
        rows = [
            (row["action"], int(row["id"]), int(row["bytes"] or 0), row.get("stream") or "0")
            for row in csv.DictReader(line for line in file if not line.startswith("#"))
        ]
    torch.cuda.init()
    names = sorted({stream for _, _, _, stream in rows})
    # PyTorch's current stream replaces the stream whose name sorts first.
    streams = {
        name: torch.cuda.current_stream() if number == 0 else torch.cuda.Stream()
        for number, name in enumerate(names)
    }
    torch.cuda.reset_peak_memory_stats()
    live = {}
    seconds = 0.0
    for action, block, size, stream in rows:
        if action == "alloc" and size > 0:
            with torch.cuda.stream(streams[stream]):
                begun = time.perf_counter()
                live[block] = torch.empty(size, dtype=torch.uint8, device="cuda")
                seconds += time.perf_counter() - begun
        elif action in ("free", "free_requested", "free_completed"):
            begun = time.perf_counter()
            live.pop(block, None)
            seconds += time.perf_counter() - begun
    torch.cuda.synchronize()
    print(json.dumps({
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "ms": round(seconds * 1e3, 3),
        "events": len(rows),
    }))


main(*sys.argv[1:])
