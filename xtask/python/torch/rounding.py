"""Each tensor of 11.2 MiB takes a segment of 12 MiB, so that a part of every segment is lost."""

import torch

tables = []
for _ in range(51):
    tables.append(torch.empty(11_744_051, dtype=torch.uint8, device="cuda"))
print("finished")
