"""Reads one file that `millpond convert` wrote with the program that it is for, and compares sums.

    check.py FORMAT RECORDING FILE

What is expected is computed here from the recording itself, an Arrow stream. Ends with 77 where a reader is not there.
"""

import gzip
import importlib.util
import json
import os
import pickle
import re
import shutil
import subprocess
import sys

SKIPPED = 77
ALLOC, FREE, REQUESTED, COMPLETED, KEYFRAME, LIVE, LOST = 1, 2, 3, 4, 12, 13, 9
BATCH = 0


def skip(why):
    print(why)
    sys.exit(SKIPPED)


def need(module):
    try:
        return __import__(module)
    except ImportError:
        skip(f"no Python package {module}")


def rows(path):
    """The recording's rows with absolute times and serial numbers."""
    pa = need("pyarrow")
    table = pa.ipc.open_stream(path).read_all().to_pylist()
    time = newest = 0
    for row in table:
        if row["kind"] == BATCH:
            time, newest = row["time"], row["id"]
            continue
        row["time"] += time
        if row["kind"] != LIVE:
            time = row["time"]
        if row["kind"] in (ALLOC, FREE, REQUESTED, COMPLETED, LIVE):
            row["id"] = newest - row["id"]
            newest = max(newest, row["id"])
        yield row


def expected(path):
    """Bytes asked for: the most at once, all of them, those that live at the end; and how many blocks there were."""
    live, known, most, total = {}, set(), 0, 0
    now = 0
    for row in rows(path):
        kind = row["kind"]
        if kind not in (LIVE, KEYFRAME):
            most = max(most, now)
        if kind == KEYFRAME:
            live.clear()
        elif kind in (ALLOC, LIVE):
            live[row["id"]] = row["requested"]
            if row["id"] not in known:
                known.add(row["id"])
                total += row["requested"]
        elif kind in (FREE, REQUESTED):
            live.pop(row["id"], None)
        now = sum(live.values()) if kind in (KEYFRAME, LIVE, ALLOC, FREE, REQUESTED) else now
    return {"peak": max(most, now), "total": total, "end": now, "blocks": len(known)}


def same(found, wanted, what):
    if found != wanted:
        raise SystemExit(f"{what}: {found} where {wanted} was expected")


def recording(source, path):
    pd = need("pandas")
    want = expected(source)
    table = pd.DataFrame(rows(path))
    allocations = table[table.kind == ALLOC]
    same(int(allocations.requested.sum()), want["total"], "bytes allocated")
    print(f"{len(table)} rows, {len(allocations)} allocations")


def parquet(source, path):
    duckdb = need("duckdb")
    want = expected(source)
    query = f"select sum(requested), count(*) from '{path}' where kind = 'alloc'"
    connection = duckdb.connect()
    total, blocks = connection.execute(query).fetchone()
    same((int(total), blocks), (want["total"], want["blocks"]), "bytes and blocks")
    pools = connection.execute(f"select count(distinct (memory, pool, device)) from '{path}' where pool is not null").fetchone()[0]
    same(pools, 4, "pools")
    stacks = connection.execute(f"select count(*) from '{path}' where stack like '%main (src/main.rs:1)%'").fetchone()[0]
    if stacks == 0:
        raise SystemExit("no stack has a name")
    print(f"{blocks} allocations, {pools} pools, {stacks} rows under main")


def snapshot(source, path):
    place = os.environ.get("MEMORY_VIZ")
    if not place:
        skip("PyTorch's _memory_viz.py could not be fetched")
    spec = importlib.util.spec_from_file_location("memory_viz", place)
    viz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(viz)
    want = expected(source)
    with open(path, "rb") as file:
        data = pickle.load(file)
    for segment in data["segments"]:
        same(sum(block["size"] for block in segment["blocks"]), segment["total_size"], "blocks of a segment")
    blocks = [block for segment in data["segments"] for block in segment["blocks"]]
    live = sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated")
    same(live, want["end"], "bytes live at the end")
    # It asserts that the sizes of segments and blocks agree.
    summary = viz.segsum(data)
    events = viz.trace(data)
    lines = []
    viz.memory(data, format_flamegraph=lines.append)
    viz.trace_plot(data)
    categories = {event["category"] for trace in data["device_traces"] for event in trace if "category" in event}
    if "unknown" not in categories:
        raise SystemExit("no event has the category that the viewer wants")
    web_viewer(path)
    print(f"{len(data['segments'])} segments, {len(events.splitlines())} lines of events, {len(lines[0].splitlines())} stacks, {len(summary.splitlines())} lines of summary")


# What the web viewer's own unpickler knows.
OPCODES = set(
    "PROTO FRAME STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE APPEND APPENDS SETITEM SETITEMS LIST DICT TUPLE TUPLE1 TUPLE2 "
    "TUPLE3 BININT BININT1 BININT2 LONG1 BINFLOAT NONE NEWTRUE NEWFALSE SHORT_BINUNICODE BINUNICODE MEMOIZE BINPUT "
    "LONG_BINPUT BINGET LONG_BINGET".split()
)


def web_viewer(path):
    import pickletools

    with open(path, "rb") as file:
        used = {opcode.name for opcode, _, _ in pickletools.genops(file)}
    if used - OPCODES:
        raise SystemExit(f"opcodes that the web viewer does not know: {used - OPCODES}")


def perfetto(source, path):
    need("perfetto")
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
    except ImportError:
        skip("the package perfetto has no schema")
    want = expected(source)
    trace = schema.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    weight, counters, stacks, tracks = 0, {}, set(), {}
    for packet in trace.packet:
        unknown(packet)
        for stack in packet.interned_data.callstacks:
            stacks.add(stack.iid)
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            event = packet.track_event
            if event.track_uuid not in tracks:
                raise SystemExit("an event on a track that is not described")
            if event.HasField("callstack_iid"):
                same(event.callstack_iid in stacks, True, "an interned stack")
                weight += event.callstack_weight
            if event.type == schema.TrackEvent.TYPE_COUNTER:
                counters[event.track_uuid] = event.counter_value
    same(int(weight), want["total"], "weights")
    devices = [u for u, t in tracks.items() if t.name.startswith("device ") or t.name == "host"]
    live = sum(
        value for uuid, value in counters.items() if tracks[uuid].name == "requested" and tracks[uuid].parent_uuid in devices
    )
    same(live, want["end"], "counters of devices")
    print(f"{len(trace.packet)} packets, {len(tracks)} tracks, {len(stacks)} stacks")


def perfetto_answers(path):
    page = os.environ.get("PERFETTO_PAGE", "")
    if not page:
        skip("Perfetto's page could not be had")
    for program in ["node", "chromium", "chromedriver"]:
        if not shutil.which(program):
            skip(f"no {program} here")
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "perfetto.js")
    done = subprocess.run(["node", script, page, path], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(done.stderr.strip().replace("\n", " "))
    return json.loads(done.stdout)


def chrome_page(source, path):
    told = perfetto_answers(path)
    same(told["errors"], [], "errors")
    # Blocks have tracks by what they are for; other events have none that is named.
    blocks = sum(int(row["count"]) for row in told["slices"] if row["name"] != "null")
    same(blocks, expected(source)["blocks"], "blocks")
    print(f"{blocks} blocks")


def perfetto_page(source, path):
    told = perfetto_answers(path)
    want = expected(source)
    # Fields that came after this page was made, such as stacks of track events, are counted as unknown.
    errors = [row for row in told["errors"] if row["name"] != "unknown_extension_fields"]
    same(errors, [], "errors")
    live = sum(
        int(float(row["value"]))
        for row in told["counters"]
        if row["name"] == "requested" and (row["parent"].startswith("device ") or row["parent"] == "host")
    )
    same(live, want["end"], "counters of devices")
    served = [row for row in told["slices"] if row["name"] == "allocations" and row["refused"] == "0"]
    allocations = sum(int(row["count"]) for row in served)
    same(allocations, want["blocks"], "allocations")
    print(f"{len(told['counters'])} counters, {allocations} allocations")


def unknown(message):
    """No field is there that the schema does not have."""
    from google.protobuf import unknown_fields

    if len(unknown_fields.UnknownFieldSet(message)):
        raise SystemExit("a field that the schema does not have")
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            each = value if field.is_repeated else [value]
            for inner in each:
                unknown(inner)


def pprof(source, path):
    go = os.path.join(os.path.dirname(sys.executable), "go")
    go = go if os.path.exists(go) else shutil.which("go")
    if not go:
        skip("no Go here, whose tools have pprof")
    want = expected(source)
    for kind, total in [("inuse_space", want["peak"]), ("alloc_space", want["total"])]:
        command = [go, "tool", "pprof", "-top", "-unit=B", "-nodecount=100000", f"-sample_index={kind}", path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise SystemExit(done.stderr.strip().replace("\n", " "))
        found = re.search(r"of (\d+)B total", done.stdout)
        same(int(found.group(1)), total, kind)
    print(f"{len(done.stdout.splitlines())} lines of -top, both sums")


def heaptrack(source, path):
    if not shutil.which("heaptrack_print"):
        skip("no heaptrack_print here: the package heaptrack has it")
    want = expected(source)
    done = subprocess.run(["heaptrack_print", path, "-F", path + ".flame"], capture_output=True, text=True, errors="replace", timeout=300)
    if done.returncode:
        raise SystemExit(done.stderr.strip().replace("\n", " "))
    calls = int(re.search(r"calls to allocation functions: (\d+)", done.stdout).group(1))
    same(calls, want["blocks"], "allocations")
    leaked = re.search(r"total memory leaked: (\S+)", done.stdout).group(1)
    peak = re.search(r"peak heap memory consumption: (\S+)", done.stdout).group(1)
    near(peak, want["peak"], "the peak")
    near(leaked, want["end"], "bytes live at the end")
    print(f"{calls} allocations, peak {peak}, leaked {leaked}")


def near(text, wanted, what):
    """Sizes that a person reads: 12.34M, of thousands."""
    number, unit = re.fullmatch(r"([\d.]+)([BKMGT]?)B?", text).groups()
    found = float(number) * 1000 ** "BKMGT".index(unit or "B")
    if abs(found - wanted) > 0.006 * 1000 ** "BKMGT".index(unit or "B"):
        raise SystemExit(f"{what}: {text} where {wanted} was expected")


def speedscope(source, path):
    place = os.environ.get("SPEEDSCOPE_SCHEMA")
    if not place:
        skip("speedscope's package could not be fetched")
    jsonschema = need("jsonschema")
    with open(place) as file:
        schema = json.load(file)
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    jsonschema.validate(data, schema)
    profile = data["profiles"][0]
    same(sum(profile["weights"]), expected(source)["peak"], "weights")
    print(f"{len(profile['samples'])} stacks, {len(data['shared']['frames'])} frames")


def dhat(source, path):
    want = expected(source)
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    for key in ["dhatFileVersion", "mode", "verb", "bklt", "bkacc", "tu", "Mtu", "tuth", "cmd", "pid", "tg", "te"]:
        same(key in data, True, key)
    for field, wanted in [("tb", "total"), ("gb", "peak"), ("eb", "end"), ("tbk", "blocks")]:
        same(sum(point[field] for point in data["pps"]), want[wanted], field)
    same(all(0 < at < len(data["ftbl"]) for point in data["pps"] for at in point["fs"]), True, "frames")
    print(f"{len(data['pps'])} program points")


def folded(source, path):
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")[:-1]
    same(sum(int(line.rsplit(" ", 1)[1]) for line in lines), expected(source)["peak"], "bytes")
    print(f"{len(lines)} stacks")


def chrome(source, path):
    want = expected(source)
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    begun = [event["args"]["requested"] for event in events if event["ph"] == "b"]
    same((sum(begun), len(begun)), (want["total"], want["blocks"]), "slices")
    memory = [event["args"]["Bytes"] for event in events if event.get("name") == "[memory]"]
    same(sum(memory), want["end"], "[memory] events")
    print(f"{len(events)} events")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2], sys.argv[3])
