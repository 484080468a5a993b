"""Takes memory with Numba, and prints how often."""

import numpy
from numba import cuda

kept = [cuda.device_array(1 << 16, dtype=numpy.float32) for _ in range(20)]
kept.append(cuda.to_device(numpy.ones(1000)))
kept.append(cuda.pinned_array(1 << 14, dtype=numpy.float32))
kept.append(cuda.managed_array(1 << 14, dtype=numpy.float32))
print(len(kept))
