// The kernels of tensors, as one module. `cargo xtask ptx` makes `tensor.ptx` of it.

#include "walk.cuh"
#include "half.cuh"
#include "number.cuh"
#include "elementwise.cu"
#include "sum.cu"
#include "matmul.cu"
#include "unpack.cu"
