"""The program halves its batch when memory runs out, and gives up at the smallest batch."""

import torch


def step(mib):
    return [torch.empty(mib << 20, dtype=torch.uint8, device="cuda") for _ in range(6)]


weights = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
batch = 200
while True:
    try:
        step(batch)
        break
    except torch.OutOfMemoryError:
        if batch == 50:
            raise
        batch //= 2
print("finished")
