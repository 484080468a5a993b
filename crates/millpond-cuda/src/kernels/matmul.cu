// Products of matrices, many at once: a block forms a tile of one, whose factors it reads a tile at a time.

constexpr u32 TILE = 16;

// Rows and columns of the product, and what they have in common; how far rows and columns are apart in the product and in each
// factor.
struct Product {
    u64 rows;
    u64 columns;
    u64 inner;
    u64 stride[3][2];
};

// Integers are counted in their own type, fractions in what is computed with them; of singles and doubles products are not rounded
// before they are added.
template <class V> __device__ inline V add_product(V sum, V a, V b) { return plus(sum, times(a, b)); }
template <> __device__ inline float add_product<float>(float sum, float a, float b) { return fmaf(a, b, sum); }
template <> __device__ inline double add_product<double>(double sum, double a, double b) { return fma(a, b, sum); }

template <class T>
__device__ inline void matmul(const Walk &batches, const Product &of, T *to, const T *left, const T *right) {
    typedef Number<T> N;
    typedef typename N::Value V;
    // One column more than there are, so that a column's elements lie in different banks.
    __shared__ V a[TILE][TILE + 1];
    __shared__ V b[TILE][TILE + 1];
    u32 x = threadIdx.x, y = threadIdx.y;
    for (u64 batch = blockIdx.z; batch < batches.len; batch += gridDim.z) {
        Places p = places(batches, batch);
        for (u64 row = (u64)blockIdx.y * TILE; row < of.rows; row += (u64)gridDim.y * TILE) {
            for (u64 column = (u64)blockIdx.x * TILE; column < of.columns; column += (u64)gridDim.x * TILE) {
                V sum = 0;
                for (u64 at = 0; at < of.inner; at += TILE) {
                    bool in_left = row + y < of.rows && at + x < of.inner;
                    bool in_right = at + y < of.inner && column + x < of.columns;
                    a[y][x] = in_left
                        ? N::load(left[p.at[1] + (row + y) * of.stride[1][0] + (at + x) * of.stride[1][1]])
                        : (V)0;
                    b[y][x] = in_right
                        ? N::load(right[p.at[2] + (at + y) * of.stride[2][0] + (column + x) * of.stride[2][1]])
                        : (V)0;
                    __syncthreads();
                    for (u32 k = 0; k < TILE; k++)
                        sum = add_product(sum, a[y][k], b[k][x]);
                    __syncthreads();
                }
                if (row + y < of.rows && column + x < of.columns)
                    to[p.at[0] + (row + y) * of.stride[0][0] + (column + x) * of.stride[0][1]] = N::store(sum);
            }
        }
    }
}

#define MATMUL(name, T)                                                                                                              \
    extern "C" __global__ void millpond_matmul_##name(                                                                               \
        const Walk batches, const Product of, T *to, const T *left, const T *right) {                                                \
        matmul(batches, of, to, left, right);                                                                                        \
    }
TYPES(MATMUL)
