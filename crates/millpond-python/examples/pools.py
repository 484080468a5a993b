"""A pool with a limit names who holds its memory."""

import millpond

pool = millpond.Pool(limit="64MiB", name="example")
with millpond.tag("weights"):
    weights = pool.block(40 << 20)
try:
    pool.block(30 << 20)
except MemoryError as error:
    print(error)
with millpond.limits(peak="2MiB", leaked=0) as part:
    memoryview(pool.block(1 << 20))[0] = 1
print(f"this part used {part.usage['peak']} bytes; live now: {[(live.tag, live.bytes) for live in millpond.leaks()]}")
