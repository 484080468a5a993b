//! cuBLAS: the state of a handle, and the checks of a product's arguments.
#![forbid(unsafe_code)]

use crate::error::{Answer, Code};
use crate::kernels::Params;

/// Values of `cublasStatus_t`, returned in place of the driver's codes.
pub(crate) const NOT_INITIALIZED: Code = Code(1);
pub(crate) const INVALID_VALUE: Code = Code(7);
pub(crate) const EXECUTION_FAILED: Code = Code(13);
pub(crate) const NOT_SUPPORTED: Code = Code(15);

/// A cuBLAS handle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Blas {
    /// `None` is the default stream.
    pub(crate) stream: Option<u64>,
    /// Address and length of the workspace that the client provides.
    pub(crate) workspace: Option<(u64, u64)>,
    pub(crate) math: i32,
}

/// One matrix of a product, stored by columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) at: u64,
    pub(crate) kind: i32,
    pub(crate) leading: i32,
    /// The number of elements between matrices of a batch.
    pub(crate) apart: i64,
}

/// `many` products `c = op(a) op(b)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gemm {
    pub(crate) operations: [i32; 2],
    /// Rows and columns of the product, and the inner dimension.
    pub(crate) sizes: [i32; 3],
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) c: Side,
    pub(crate) many: i32,
    pub(crate) compute: i32,
}

/// A checked product, in the form that `millpond_matmul_*` takes.
pub(crate) struct Product {
    pub(crate) kernel: &'static str,
    pub(crate) params: Params,
}

impl Gemm {
    /// Returns whether products are accumulated in double precision.
    pub(crate) fn is_double(&self) -> bool {
        self.compute == 70
    }

    /// Refuses everything that cuBLAS refuses or that its documentation forbids.
    pub(crate) fn check(&self, math: i32) -> Answer<Product> {
        let (kernel, size) = self.types(math)?;
        let [m, n, k] = self.sizes;
        INVALID_VALUE.when(m < 0 || n < 0 || k < 0 || self.many < 0)?;
        let [transposed_a, transposed_b] = self.operations.map(|operation| operation == 1);
        INVALID_VALUE.when(
            self.operations
                .iter()
                .any(|operation| !(0..=1).contains(operation)),
        )?;
        let rows = [
            (self.a, if transposed_a { k } else { m }),
            (self.b, if transposed_b { n } else { k }),
            (self.c, m),
        ];
        for (side, rows) in rows {
            INVALID_VALUE.when(
                side.leading < rows.max(1) || !side.at.is_multiple_of(size) || side.at == 0 || side.apart < 0,
            )?;
        }
        INVALID_VALUE.when(self.many > 1 && !self.is_disjoint())?;
        let strides = |side: Side, transposed: bool| {
            let leading = u64::from(side.leading.unsigned_abs());
            if transposed { [leading, 1] } else { [1, leading] }
        };
        let [m, n, k] = self.sizes.map(|size| u64::from(size.unsigned_abs()));
        let product = [
            [m, n].as_slice(),
            &[k],
            &strides(self.c, false),
            &strides(self.a, transposed_a),
            &strides(self.b, transposed_b),
        ]
        .concat();
        let addresses = [self.c.at, self.a.at, self.b.at].map(|at| vec![at]);
        let all = [[self.walk(), product].as_slice(), &addresses].concat();
        let bytes = |numbers: &Vec<u64>| numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        Ok(Product {
            kernel,
            params: Params(all.iter().map(bytes).collect()),
        })
    }

    /// Returns the kernel for these types, and the bytes of an element.
    fn types(&self, math: i32) -> Answer<(&'static str, u64)> {
        NOT_SUPPORTED.when([self.b.kind, self.c.kind] != [self.a.kind; 2])?;
        match (self.a.kind, self.compute) {
            (0, 68) if math & 3 == 3 => Ok(("millpond_matmul_tf32", 4)),
            (0, 68) => Ok(("millpond_matmul_f32", 4)),
            (1, 70) => Ok(("millpond_matmul_f64", 8)),
            (2, 68) => Ok(("millpond_matmul_f16", 2)),
            (14, 68) => Ok(("millpond_matmul_bf16", 2)),
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// Returns whether the products do not overlap. Each must lie entirely behind the previous one, or
    /// between its columns.
    fn is_disjoint(&self) -> bool {
        let [m, n, _] = self.sizes.map(i64::from);
        let (leading, apart) = (i64::from(self.c.leading), self.c.apart);
        let behind = apart >= leading * (n - 1).max(0) + m;
        let between = apart >= m && i64::from(self.many - 1) * apart + m <= leading;
        behind || between
    }

    /// Returns a walk with one dimension, the batch.
    fn walk(&self) -> Vec<u64> {
        let many = u64::from(self.many.unsigned_abs());
        let mut walk = vec![0; 34];
        (walk[0], walk[1], walk[2]) = (many, 1, many);
        for (view, side) in [self.c, self.a, self.b].into_iter().enumerate() {
            walk[2 + 8 * (view + 1)] = side.apart.unsigned_abs();
        }
        walk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns three products of 2 by 4 and 4 by 3, in single precision.
    fn gemm() -> Gemm {
        let side = |at, leading, apart| Side {
            at,
            kind: 0,
            leading,
            apart,
        };
        Gemm {
            operations: [0, 1],
            sizes: [2, 3, 4],
            a: side(0x1000, 2, 8),
            b: side(0x2000, 3, 0),
            c: side(0x3000, 2, 6),
            many: 3,
            compute: 68,
        }
    }

    fn refused(change: impl FnOnce(&mut Gemm)) -> Option<Code> {
        let mut gemm = gemm();
        change(&mut gemm);
        gemm.check(0).err()
    }

    #[test]
    fn products_are_converted_to_the_parameters_of_the_kernel() {
        let product = gemm().check(0).ok().unwrap();
        assert_eq!(product.kernel, "millpond_matmul_f32");
        let number = |param: usize, at: usize| {
            let bytes = &product.params.0[param][8 * at..][..8];
            u64::from_ne_bytes(bytes.try_into().unwrap())
        };
        let numbers: Vec<u64> = (0..9).map(|at| number(1, at)).collect();
        assert_eq!(numbers, [2, 3, 4, 1, 2, 1, 2, 3, 1]);
        assert_eq!([0, 1, 2, 10, 18, 26].map(|at| number(0, at)), [3, 1, 3, 6, 8, 0]);
        assert_eq!([2, 3, 4].map(|param| number(param, 0)), [0x3000, 0x1000, 0x2000]);
        assert_eq!(gemm().check(3).ok().unwrap().kernel, "millpond_matmul_tf32");
    }

    #[test]
    fn invalid_products_are_refused() {
        assert_eq!(refused(|_| ()), None);
        let invalid = Some(INVALID_VALUE);
        assert_eq!(refused(|gemm| gemm.a.leading = 1), invalid, "columns overlap");
        assert_eq!(refused(|gemm| gemm.b.leading = 2), invalid, "as it is transposed");
        assert_eq!(refused(|gemm| gemm.c.leading = 1), invalid);
        assert_eq!(refused(|gemm| gemm.a.at += 2), invalid, "not aligned");
        assert_eq!(refused(|gemm| gemm.c.at = 0), invalid);
        assert_eq!(refused(|gemm| gemm.sizes[1] = -1), invalid);
        assert_eq!(refused(|gemm| gemm.operations[0] = 2), invalid);
        assert_eq!(
            refused(|gemm| gemm.c.apart = 0),
            invalid,
            "one product is another"
        );
        assert_eq!(refused(|gemm| gemm.c.apart = 5), invalid);
        let between = |gemm: &mut Gemm| (gemm.c.leading, gemm.c.apart) = (6, 2);
        assert_eq!(refused(between), None, "columns of one between those of another");
        assert_eq!(refused(|gemm| gemm.b.kind = 1), Some(NOT_SUPPORTED));
        assert_eq!(refused(|gemm| gemm.compute = 70), Some(NOT_SUPPORTED));
    }
}
