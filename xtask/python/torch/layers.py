"""Training keeps activations for the backward pass, and gradients until the next one. The argument is the size of the batch."""

import sys
import torch


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, batch, weight):
        ctx.save_for_backward(batch, weight)
        return torch.empty_like(batch)

    @staticmethod
    def backward(ctx, gradient):
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors)


size = int(sys.argv[1]) if len(sys.argv) > 1 else 6
weights = [torch.empty(5 << 20, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(8)]
for _ in range(3):
    batch = torch.empty(size, 4 << 20, device="cuda", dtype=torch.bfloat16)
    for weight in weights:
        batch = Linear.apply(batch, weight)
    for weight in weights:
        weight.grad = None
    batch.backward(torch.empty_like(batch))
print("finished")
