//! Compares sums and products with the model, for every type and for operands and outputs with any layout in memory.

use super::cases::{Case, DIV, Program, for_all_types, numbers, program};
use super::lie::{Larger, largest};
use super::model::{Model, indices};
use super::*;

/// Returns the value of a scalar as an integer, in sixteenths for floats.
fn whole(number: Scalar) -> i128 {
    match number {
        Scalar::Int(number) => number.into(),
        Scalar::UInt(number) => number.into(),
        Scalar::Float(number) => (number * 16.0) as i128,
        Scalar::Complex([real, imaginary]) => (real * 16.0) as i128 + (imaginary * 16.0) as i128 * 1_000_000,
        Scalar::Bool(_) => 0,
    }
}

/// Returns a sum of products by elements. The numbers are small, so it is exact. Unsigned numbers wrap around if
/// necessary.
fn summed<T: Case>(numbers: impl Iterator<Item = (T, T)>, wide: bool) -> Scalar {
    let sum = numbers.fold(None, |sum: Option<Scalar>, (a, b)| {
        let product = match (a.into(), b.into()) {
            (Scalar::Int(a), Scalar::Int(b)) => Scalar::Int(a * b),
            (Scalar::UInt(a), Scalar::UInt(b)) => Scalar::UInt(a.wrapping_mul(b)),
            (Scalar::Float(a), Scalar::Float(b)) => Scalar::Float(a * b),
            (Scalar::Complex(a), Scalar::Complex(b)) => {
                Scalar::Complex([a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]])
            }
            other => panic!("{other:?}"),
        };
        Some(match (sum, product) {
            (None, product) => product,
            (Some(Scalar::Int(a)), Scalar::Int(b)) => Scalar::Int(a + b),
            (Some(Scalar::UInt(a)), Scalar::UInt(b)) => Scalar::UInt(a.wrapping_add(b)),
            (Some(Scalar::Float(a)), Scalar::Float(b)) => Scalar::Float(a + b),
            (Some(Scalar::Complex(a)), Scalar::Complex(b)) => Scalar::Complex([a[0] + b[0], a[1] + b[1]]),
            other => panic!("{other:?}"),
        })
    });
    let sum = sum.unwrap_or(match T::of(1).into() {
        Scalar::Int(_) => Scalar::Int(0),
        Scalar::UInt(_) => Scalar::UInt(0),
        Scalar::Float(_) => Scalar::Float(0.0),
        _ => Scalar::Complex([0.0; 2]),
    });
    if wide {
        return sum;
    }
    as_element(sum, T::DTYPE)
}

/// Returns a number wrapped or rounded to a type.
fn as_element(number: Scalar, dtype: DType) -> Scalar {
    let mut one = Tensor::zeros_in(&fake::unpooled(), [1], dtype).expect("room");
    let cut = match (number, dtype.size() * 8) {
        (Scalar::Int(number), bits) => Scalar::Int(number << (64 - bits) >> (64 - bits)),
        (Scalar::UInt(number), bits) => Scalar::UInt(number << (64 - bits) >> (64 - bits)),
        (other, _) => other,
    };
    one.fill(cut).expect("fits");
    one.item().expect("one")
}

fn check_sums<T: Case>(program: &Program) {
    let Program {
        shape, seed, lies, ..
    } = program;
    let a = numbers::<T>(shape, *seed);
    let left = Larger::new(&a, &lies[0]);
    let ones = |values: &[T]| {
        values
            .iter()
            .map(|a| (*a, T::op(DIV, T::of(1), T::of(1))))
            .collect::<Vec<_>>()
    };
    let expected = summed(ones(&a.values).into_iter(), true);
    assert_eq!(
        whole(left.view().sum().expect("numbers")),
        whole(expected),
        "{a:?}"
    );
    let wide = match T::of(1).into() {
        Scalar::Int(_) => DType::I64,
        Scalar::UInt(_) => DType::U64,
        _ => T::DTYPE,
    };
    let mut one = Tensor::ones_in(&fake::unpooled(), [], wide).expect("room");
    left.view().sum_into(&mut one).expect("numbers");
    assert_eq!(one.item().expect("one"), as_element(expected, wide));
    for dim in 0..shape.len() {
        let mut rest = shape.clone();
        rest.remove(dim);
        let dtype = wide;
        let mut out = Tensor::full_in(&fake::unpooled(), [&rest[..], &[2]].concat(), T::of(7)).expect("room");
        if dtype != T::DTYPE {
            out = Tensor::zeros_in(&fake::unpooled(), [&rest[..], &[2]].concat(), dtype).expect("room");
        }
        let mut view = out
            .view_mut()
            .and_then(|out| out.select(rest.len(), 1))
            .expect("inside");
        left.view().sum_dim_into(dim, &mut view).expect("numbers");
        for index in indices(&rest) {
            let row: Vec<T> = (0..shape[dim])
                .map(|at| {
                    let mut index = index.clone();
                    index.insert(dim, at);
                    a.at(&index)
                })
                .collect();
            let expected = summed(ones(&row).into_iter(), dtype != T::DTYPE);
            let found = view.as_ref().get(&index).expect("inside");
            assert_eq!(whole(found), whole(expected), "{} along {dim} of {a:?}", T::DTYPE);
        }
    }
}

fn check_products<T: Case>(program: &Program) {
    let Program {
        shape, seed, lies, ..
    } = program;
    let size = |at: usize| shape.get(at).copied().unwrap_or(6);
    let (rows, inner, columns) = (size(0), size(1) * 3, size(2));
    let a = numbers::<T>(&[rows, inner], *seed);
    let b = numbers::<T>(&[inner, columns], seed + 3);
    let (left, right) = (Larger::new(&a, &lies[0]), Larger::new(&b, &lies[1]));
    let mut out = Larger::new(&numbers::<T>(&[rows, columns], seed + 9), &lies[2]);
    left.view()
        .matmul_into(right.view(), &mut out.view_mut())
        .expect("they go together");
    let products = |row: usize, column: usize| {
        summed(
            (0..inner).map(|at| (a.at(&[row, at]), b.at(&[at, column]))),
            false,
        )
    };
    let mut expected = Tensor::zeros_in(&fake::unpooled(), [rows, columns], T::DTYPE).expect("room");
    for row in 0..rows {
        for column in 0..columns {
            let mut view = expected.view_mut().expect("alone");
            view.set(&[row, column], products(row, column)).expect("fits");
        }
    }
    let values = expected.to_vec::<T>().expect("its type");
    out.agrees(&Model {
        shape: vec![rows, columns],
        values,
    });
    if rows > 0 && columns > 0 {
        let (row, column) = (left.view().select(0, 0), right.view().select(1, columns - 1));
        let dot = row
            .expect("inside")
            .dot(column.expect("inside"))
            .expect("of one size");
        let expected = (0..inner).map(|at| (a.at(&[0, at]), b.at(&[at, columns - 1])));
        let expected = summed(expected, true);
        assert_eq!(whole(dot), whole(expected));
        let wide = match expected {
            Scalar::Int(_) => DType::I64,
            Scalar::UInt(_) => DType::U64,
            _ => T::DTYPE,
        };
        let mut one = Tensor::ones_in(&fake::unpooled(), [], wide).expect("room");
        let (row, column) = (left.view().select(0, 0), right.view().select(1, columns - 1));
        row.and_then(|row| row.dot_into(column?, &mut one))
            .expect("of one size");
        assert_eq!(one.item().expect("one"), as_element(expected, wide));
    }
}

/// Checks that batched products equal the products of each pair of matrices.
fn check_batches<T: Case>(program: &Program) {
    let Program {
        shape,
        ones,
        seed,
        lies,
        ..
    } = program;
    let (many, inner) = (&shape[..shape.len().min(2)], shape.len() * 3 + 1);
    let ([rows, columns], some) = ([3 + shape.len(), 5], program.missing.min(many.len()));
    let mut few: Vec<usize> = many.to_vec();
    few.iter_mut().zip(ones).for_each(|(size, one)| {
        if *one {
            *size = 1;
        }
    });
    let a = numbers::<T>(&[many, &[rows, inner]].concat(), *seed);
    let b = numbers::<T>(&[&few[some..], &[inner, columns]].concat(), seed + 3);
    let whole = [many, &[rows, columns]].concat();
    let (left, right) = (Larger::new(&a, &lies[0]), Larger::new(&b, &lies[1]));
    let mut out = Larger::new(&numbers::<T>(&whole, seed + 9), &lies[2]);
    left.view()
        .matmul_into(right.view(), &mut out.view_mut())
        .expect("they go together");
    let b = b.broadcast_to(&[many, &[inner, columns]].concat());
    let expected = Model::from_fn(&whole, |at| {
        let (many, last) = at.split_at(at.len() - 2);
        let (row, column) = (last[0], last[1]);
        let products = (0..inner).map(|at| {
            let left = a.at(&[many, &[row, at]].concat());
            (left, b.at(&[many, &[at, column]].concat()))
        });
        summed(products, false)
    });
    for index in indices(&whole) {
        let found = out.view().get(&index).expect("inside");
        assert_eq!(
            found,
            expected.at(&index),
            "{index:?} of {whole:?} of {}",
            T::DTYPE
        );
    }
}

proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn sums_agree_with_the_model(program in program()) {
        for_all_types!(check_sums, &program);
    }

    #[test]
    fn products_agree_with_the_model(program in program()) {
        for_all_types!(check_products, &program);
    }

    #[test]
    fn batched_products_equal_the_products_of_each_pair(program in program()) {
        for_all_types!(check_batches, &program);
    }
}

#[test]
fn the_largest_batched_products_fit_into_the_memory_of_the_tests() {
    let program = Program {
        shape: vec![7; 4],
        ones: vec![false; MAX_RANK],
        missing: 0,
        kind: 0,
        seed: 1,
        lies: [largest(), largest(), largest()],
    };
    check_batches::<[f64; 2]>(&program);
}
