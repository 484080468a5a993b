"""A second stream has freed most of its memory, and the first stream cannot use it."""

import torch


def load(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


side = torch.cuda.Stream()
with torch.cuda.stream(side):
    batch = load(400)
    del batch
    flags = load(2)
weights = load(250)
print("finished")
