"""Trains or runs a small transformer or a convolutional network on the CPU, in batches of varying sizes.

Usage: torch_cpu.py transformer|convolution train|infer

For each line of the standard input, makes two steps with each batch and prints a line. Other processes may have used the processor's
caches in the meantime, so only the second steps count. At the end of the input, prints the mean over the batches of the median
milliseconds of a step, the peak of resident bytes, and the last step's loss or mean to four digits.
"""

import resource
import statistics
import sys
import time

import torch
from torch import nn

network, task = sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(2)
if network == "transformer":
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(5000, 256), encoder, nn.Linear(256, 5000))
    batches = [torch.randint(0, 5000, (8, length)) for length in (64, 96, 128, 80, 112)]
    targets = batches
else:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    batches = [torch.randn(size, 3, 64, 64) for size in (16, 24, 32, 20, 28)]
    targets = [torch.randint(0, 10, (len(batch),)) for batch in batches]
optimizer = torch.optim.Adam(model.parameters())


def train(at):
    optimizer.zero_grad()
    answer = model(batches[at])
    loss = nn.functional.cross_entropy(answer.reshape(-1, answer.shape[-1]), targets[at].flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


def infer(at):
    with torch.inference_mode():
        return model(batches[at]).abs().mean()


step = train if task == "train" else infer
for at in range(len(batches)):
    step(at)
print("ready", flush=True)
times = [[] for _ in batches]
for _ in sys.stdin:
    for at in range(len(batches)):
        step(at)
    for at in range(len(batches)):
        begin = time.perf_counter()
        result = step(at)
        times[at].append(time.perf_counter() - begin)
    print("done", flush=True)
print(statistics.mean(map(statistics.median, times)) * 1000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(f"{float(result):.3e}")
