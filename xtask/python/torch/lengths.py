"""Sentences have other lengths in each step, and a small result of each step is kept between their activations."""

import torch


def activations(length):
    return [torch.empty(length * width << 10, dtype=torch.uint8, device="cuda") for width in (64, 96, 128, 160)]


results = []
for step in range(40):
    length = 128 + (step * 53) % 256
    layers = [activations(length) for _ in range(3)]
    results.append(torch.empty(1536 << 10, dtype=torch.uint8, device="cuda"))
    del layers
print("finished")
