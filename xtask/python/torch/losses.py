"""The history keeps the tensor of every loss, where it was meant to keep a number. `number` keeps none."""

import sys
import torch


class Model(torch.nn.Module):
    def forward(self, batch):
        return torch.empty_like(batch)


def train(steps):
    model, history = Model(), []
    for _ in range(steps):
        batch = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        loss = model(batch)
        history.append(0.0 if "number" in sys.argv else loss)


train(20)
print("finished")
