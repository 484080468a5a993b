"""Trains a small transformer on batches of varying lengths, records PyTorch's allocations, and prints one JSON object.

Usage: torch_train.py SNAPSHOT [--limit BYTES | --free BYTES]

--limit sets PyTorch's own limit of memory. --free leaves this many bytes of the device free before the program begins: the script takes
the others from the driver. The snapshot is written also if memory runs out.
"""

import ctypes
import json
import sys
import time

import torch
from torch import nn

STEPS, BATCH, VOCABULARY, WIDTH, LAYERS, HEADS = 40, 8, 32000, 1024, 8, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.attend(self.before(x)).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(nn.functional.gelu(self.widen(self.between(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(4096, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words, labels):
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def step(model, optimizer, length):
    words = torch.randint(0, VOCABULARY, (BATCH, length), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(words, words)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main(snapshot, option=None, value="0"):
    torch.manual_seed(0)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=200_000)
    free, total = torch.cuda.mem_get_info()
    if option == "--limit":
        # Half a byte more, because PyTorch rounds the product down.
        torch.cuda.set_per_process_memory_fraction((int(value) + 0.5) / total)
    elif option == "--free":
        driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
        code = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(free - int(value)))
        assert code == 0, code
    chosen = torch.Generator().manual_seed(7)
    lengths = torch.randint(300, 2000, (STEPS,), generator=chosen).tolist()
    facts = {"steps": 0, "error": None}
    begun = time.perf_counter()
    try:
        model = Model().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for length in lengths:
            step(model, optimizer, length)
            facts["steps"] += 1
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as error:
        facts["error"] = str(error)
    facts["seconds"] = round(time.perf_counter() - begun, 3)
    facts["peak_reserved"] = torch.cuda.max_memory_reserved()
    facts["peak_allocated"] = torch.cuda.max_memory_allocated()
    facts["retries"] = torch.cuda.memory_stats()["num_alloc_retries"]
    torch.cuda.memory._dump_snapshot(snapshot)
    print(json.dumps(facts))


main(*sys.argv[1:])
