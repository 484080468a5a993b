// The same update of bodies in two layouts, for `millpond bench kernels`. `cargo xtask ptx` makes `motion.ptx` of it.

typedef unsigned long long u64;

#define EACH(number, len) \
    for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < (len); number += (u64)gridDim.x * blockDim.x)

// An array of structures: each body is `stride` numbers, of which the first three are its position and the next three its velocity.
extern "C" __global__ void millpond_move_structures(float *bodies, u64 stride, float dt, u64 n) {
    EACH(number, n) {
        float *body = bodies + number * stride;
        body[0] += body[3] * dt;
        body[1] += body[4] * dt;
        body[2] += body[5] * dt;
    }
}

// A structure of arrays.
extern "C" __global__ void millpond_move_arrays(
    float *x, float *y, float *z, const float *vx, const float *vy, const float *vz, float dt, u64 n) {
    EACH(number, n) {
        x[number] += vx[number] * dt;
        y[number] += vy[number] * dt;
        z[number] += vz[number] * dt;
    }
}
