"""The program may use half of the device. The argument is another share."""

import sys
import torch

torch.cuda.set_per_process_memory_fraction(float(sys.argv[1]) if len(sys.argv) > 1 else 0.5)
weights = [torch.empty(40 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
print("finished")
