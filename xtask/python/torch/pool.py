"""A private pool keeps memory that the program has freed, and other requests cannot use it."""

import torch


def load(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    buffers = [load(40) for _ in range(8)]
    del buffers
weights = load(400)
print("finished")
