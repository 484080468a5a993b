//! Compares tensors with a model without strides: a shape, and the values in order.

mod cases;
mod casts;
#[cfg(feature = "dlpack")]
mod dlpack;
mod exchange;
mod lie;
pub(super) mod model;
mod operations;
mod origins;
mod parallel;
mod sums;
mod text;
mod views;

use super::*;
use millpond_pool::unpooled::fake;
use proptest::prelude::*;

pub(super) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 1 } else { cases },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[test]
fn a_storage_is_freed_only_if_no_other_tensor_shares_it() {
    let source = fake::unpooled();
    let tensor = Tensor::zeros_in(&source, [4, 4], DType::F32).expect("room");
    let (row, column) = (
        tensor.select(0, 1).expect("inside"),
        tensor.select(1, 1).expect("inside"),
    );
    let refused = tensor.free().expect_err("two others");
    assert_eq!((refused.others, refused.tensor.holders()), (2, 3));
    drop(column);
    let refused = refused.tensor.try_into_storage().expect_err("another");
    assert_eq!(refused.others, 1);
    drop(refused);
    assert_eq!(row.holders(), 1);
    // This is the whole storage, although the row is a part of it.
    let storage = row.try_into_storage().expect("alone");
    assert_eq!(storage.elements(), 16);
    storage.free();
    assert_eq!(source.held_bytes(), 0);
}

#[test]
fn of_many_threads_that_free_a_shared_storage_at_most_one_succeeds() {
    let source = fake::unpooled();
    for _ in 0..if cfg!(miri) { 3 } else { 300 } {
        let tensor = Tensor::zeros_in(&source, [8], DType::U8).expect("room");
        let views: Vec<Tensor> = (0..4).map(|_| tensor.clone()).collect();
        drop(tensor);
        let freed: usize = std::thread::scope(|threads| {
            let free = |view: Tensor| match view.free() {
                Ok(()) => 1,
                Err(refused) => {
                    assert!((1..4).contains(&refused.others), "{}", refused.others);
                    drop(refused);
                    0
                }
            };
            let threads: Vec<_> = views
                .into_iter()
                .map(|view| threads.spawn(move || free(view)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .sum()
        });
        assert!(freed <= 1);
        assert_eq!(source.held_bytes(), 0);
    }
}

#[test]
fn a_shared_storage_is_not_written() {
    let source = fake::unpooled();
    let mut tensor = Tensor::zeros_in(&source, [2, 3], DType::I32).expect("room");
    let other = tensor.slice(0, 1..).expect("inside");
    for result in [
        tensor.fill(1),
        tensor.add_assign(1),
        tensor.axpy(2, &other),
        tensor.copy_from(&other),
        other.add_into(1, &mut tensor),
        tensor.as_mut_slice::<i32>().map(|_| ()),
    ] {
        assert!(
            matches!(result, Err(TensorError::Shared { others: 1 })),
            "{result:?}"
        );
    }
    drop(other);
    tensor.fill(1).expect("alone");
    let mut repeated = tensor
        .slice(1, ..1)
        .expect("inside")
        .broadcast_to([2, 5])
        .expect("of size 1");
    drop(tensor);
    assert!(matches!(repeated.fill(1), Err(TensorError::Overlapping { .. })));
    assert_eq!(repeated.to_vec::<i32>().expect("i32"), [1; 10]);
}

#[test]
fn outputs_and_operands_of_the_wrong_type_shape_or_value_are_refused() {
    let source = fake::unpooled();
    let a = Tensor::full_in(&source, [2, 2], 1.5f32).expect("room");
    let mut out = Tensor::zeros_in(&source, [2, 2], DType::F64).expect("room");
    let message = |result: Result<(), TensorError>| result.expect_err("refused").to_string();
    assert_eq!(
        message(a.add_into(&a, &mut out)),
        "add_into: one tensor has type f32 and shape [2, 2], the other has type f64 and shape [2, 2]: cast one of them"
    );
    let row = Tensor::zeros_in(&source, [2], DType::I8).expect("room");
    assert_eq!(
        message(a.mul(&row).map(drop)),
        "mul: one tensor has type f32 and shape [2, 2], the other has type i8 and shape [2]: cast one of them"
    );
    let mut out = Tensor::zeros_in(&source, [2, 3], DType::F32).expect("room");
    assert_eq!(
        message(a.add_into(1.0, &mut out)),
        "add_into: shapes [2, 3] and [2, 2] do not match: the output must have the shape of the result"
    );
    assert_eq!(
        message(out.mul_assign(&a)),
        "mul_assign: shapes [2, 3] and [2, 2] do not match: the sizes must be equal, counted from the last dimension, or \
         the size of the second must be 1"
    );
    let mut bools = Tensor::zeros_in(&source, [2], DType::Bool).expect("room");
    assert!(matches!(bools.add_assign(1), Err(TensorError::Scalar { .. })));
    assert!(message(bools.add_assign(true)).starts_with("add_assign is not supported for bool"));
    let mut whole = Tensor::full_in(&source, [3], 7).expect("room");
    let zero = Tensor::from_slice_in(&source, &[1, 0, 1], [3]).expect("room");
    assert!(matches!(
        whole.div_assign(&zero),
        Err(TensorError::DivisionByZero {
            operation: "div_assign"
        })
    ));
    assert!(matches!(
        whole.div_assign(0),
        Err(TensorError::DivisionByZero { .. })
    ));
    assert_eq!(whole.to_vec::<i32>().expect("i32"), [7; 3], "as it was");
    // In the reversed operation this tensor is the divisor.
    assert!(
        whole
            .rdiv_into(0, &mut whole.deep_copy_in(&source).expect("room"))
            .is_ok()
    );
    let refused = |outcome| matches!(outcome, Err(TensorError::DivisionByZero { .. }));
    let mut zero = zero.deep_copy_in(&source).expect("room");
    assert!(refused(zero.rdiv_assign(&whole)) && refused(zero.rdiv_assign(5)));
    assert!(refused(
        zero.rdiv_into(&whole, &mut whole.deep_copy_in(&source).expect("room"))
    ));
    let every_second = |tensor: &mut Tensor| tensor.view_mut()?.step(0, 2)?.rdiv_assign(4);
    every_second(&mut zero).expect("none of them is 0");
    assert_eq!(zero.to_vec::<i32>().expect("i32"), [4, 0, 4]);
    zero.view_mut()
        .and_then(|mut zero| zero.set(&[2], 0))
        .expect("inside");
    assert!(refused(every_second(&mut zero)));
    whole
        .fill(i32::MIN)
        .and_then(|()| whole.div_assign(-1))
        .expect("it wraps");
    assert_eq!(whole.to_vec::<i32>().expect("i32"), [i32::MIN; 3]);
}

#[test]
fn shapes_with_too_many_elements_or_dimensions_are_refused() {
    let source = fake::unpooled();
    let zeros = |shape: &[usize]| Tensor::zeros_in(&source, shape, DType::F64);
    for shape in [
        &[usize::MAX, 2][..],
        &[1 << 40, 1 << 40],
        &[1 << 62, 2],
        &[0, 1 << 40, 1 << 40],
        &[usize::MAX],
    ] {
        assert!(
            matches!(zeros(shape), Err(TensorError::TooLarge { .. })),
            "{shape:?}"
        );
    }
    assert!(matches!(zeros(&[1 << 61]), Err(TensorError::Alloc(_))));
    assert!(matches!(
        zeros(&[1; 9]),
        Err(TensorError::Rank { found: 9, most: 8 })
    ));
    let one = zeros(&[1, 1]).expect("room");
    assert!(matches!(
        one.broadcast_to([1 << 40, 1 << 40]),
        Err(TensorError::TooLarge { .. })
    ));
    // The number of elements only needs to fit in a `usize`.
    let many = one.broadcast_to([1 << 31, 1 << 31]).expect("counted");
    assert_eq!(many.len(), 1 << 62);
    assert_eq!(
        many.select(0, 5).and_then(|row| row.get(&[9])).expect("inside"),
        Scalar::Float(0.0)
    );
    let mut full = zeros(&[8]).expect("room");
    for _ in 0..7 {
        full = full.unsqueeze(0).expect("room for dimensions");
    }
    assert!(matches!(full.unsqueeze(0), Err(TensorError::Rank { .. })));
    let empty = zeros(&[3, 0, 2]).expect("nothing");
    assert!(empty.is_empty() && empty.is_contiguous() && empty.to_vec::<f64>().expect("f64").is_empty());
    assert_eq!(empty.reshape([0, 7]).expect("as many").shape(), [0, 7]);
    assert_eq!(empty.batches(1, 2).expect("a size").count(), 0);
    assert_eq!(empty.batches(0, 2).expect("a size").count(), 2);
}

#[test]
fn a_number_is_written_only_if_the_type_can_represent_it() {
    let source = fake::unpooled();
    let fits = |number: Scalar, dtype: DType| {
        let mut tensor = Tensor::zeros_in(&source, [2], dtype).expect("room");
        let filled = tensor.fill(number).is_ok();
        filled.then(|| tensor.get(&[1]).expect("inside"))
    };
    assert_eq!(fits(Scalar::Int(-128), DType::I8), Some(Scalar::Int(-128)));
    assert_eq!(fits(Scalar::Int(128), DType::I8), None);
    assert_eq!(fits(Scalar::Int(-1), DType::U64), None);
    assert_eq!(
        fits(Scalar::UInt(u64::MAX), DType::U64),
        Some(Scalar::UInt(u64::MAX))
    );
    assert_eq!(fits(Scalar::UInt(u64::MAX), DType::I64), None);
    assert_eq!(fits(Scalar::Float(3.0), DType::U8), Some(Scalar::UInt(3)));
    assert_eq!(fits(Scalar::Float(3.5), DType::U8), None);
    assert_eq!(fits(Scalar::Float(f64::NAN), DType::I64), None);
    assert_eq!(fits(Scalar::Float(9_223_372_036_854_775_808.0), DType::I64), None);
    assert_eq!(
        fits(Scalar::Float(9_223_372_036_854_775_808.0), DType::U64),
        Some(Scalar::UInt(1 << 63))
    );
    assert_eq!(
        fits(Scalar::Float(0.1), DType::F32),
        Some(Scalar::Float(f64::from(0.1f32)))
    );
    assert_eq!(fits(Scalar::Complex([1.0, 2.0]), DType::F64), None);
    assert_eq!(
        fits(Scalar::Int(2), DType::Complex64),
        Some(Scalar::Complex([2.0, 0.0]))
    );
    assert_eq!(fits(Scalar::Bool(true), DType::Bool), Some(Scalar::Bool(true)));
    assert_eq!(fits(Scalar::Bool(true), DType::U8), None);
    assert_eq!(fits(Scalar::Int(1), DType::Bool), None);
    let half = fits(Scalar::Float(0.5), DType::F16);
    assert_eq!(half, cfg!(feature = "half").then_some(Scalar::Float(0.5)));
}

#[test]
fn arange_returns_the_numbers_from_start_to_end() {
    let source = fake::unpooled();
    let ints = |start: i8, end, step| {
        Tensor::arange_in(&source, start, end, step).map(|tensor| tensor.to_vec::<i8>().expect("i8"))
    };
    assert_eq!(ints(-3, 4, 3).expect("room"), [-3, 0, 3]);
    assert_eq!(ints(4, -3, -3).expect("room"), [4, 1, -2]);
    assert_eq!(ints(4, 4, 1).expect("room"), [0; 0]);
    assert_eq!(ints(5, 4, 1).expect("room"), [0; 0]);
    assert_eq!(ints(-128, 127, 127).expect("room"), [-128, -1, 126]);
    assert!(matches!(ints(0, 1, 0), Err(TensorError::Zero { .. })));
    let large = Tensor::arange_in(&source, u64::MAX - 2, u64::MAX, 1).expect("room");
    assert_eq!(large.to_vec::<u64>().expect("u64"), [u64::MAX - 2, u64::MAX - 1]);
    assert!(matches!(
        Tensor::arange_in(&source, 0u64, u64::MAX, 1),
        Err(TensorError::TooLarge { .. })
    ));
    let two = Tensor::arange_in(&source, 0, 2, 1).expect("room");
    assert_eq!(
        two.item().expect_err("two elements").to_string(),
        "a tensor of shape [2] does not have exactly one element: select one, for example with `select`"
    );
    assert_eq!(
        two.squeeze(0).map(drop).expect_err("two elements").to_string(),
        "dimension 0 has the size 2, and only a dimension of size 1 can be removed"
    );
    let not_a_number = Tensor::arange_in(&source, 0.0, f64::NAN, 1.0).map(drop);
    assert_eq!(
        not_a_number.expect_err("no length").to_string(),
        "the end is not a number: choose another value"
    );
    for (start, end, step) in [(0.0, f64::INFINITY, 1.0), (0.0, 1.0, 1e-300)] {
        assert!(Tensor::arange_in(&source, start, end, step).is_err());
    }
    assert_eq!(
        Tensor::arange_in(&source, 0.0, -1.0, 0.25).expect("none").len(),
        0
    );
    assert!(Tensor::arange_in(&source, [0.0f32; 2], [1.0; 2], [1.0; 2]).is_err());
}

#[test]
fn borrowed_parts_are_written_independently() {
    let source = fake::unpooled();
    let mut tensor = Tensor::zeros_in(&source, [4, 6], DType::U8).expect("room");
    let whole = tensor.view_mut().expect("alone");
    assert!(matches!(
        whole.split_at(1, 2),
        Err(TensorError::Interleaved { dim: 1, .. })
    ));
    let whole = tensor.view_mut().expect("alone").transpose(0, 1).expect("two");
    assert!(whole.batches(0, 2).is_err());
    let whole = tensor.view_mut().expect("alone").slice(1, 1..5).expect("inside");
    let (mut above, mut below) = whole.split_at(0, 1).expect("rows");
    let (mut left, mut right) = above
        .reborrow()
        .select(0, 0)
        .expect("one")
        .split_at(0, 1)
        .expect("one row");
    left.fill(1).expect("u8");
    right
        .copy_from(
            below
                .as_ref()
                .select(0, 0)
                .expect("inside")
                .slice(0, 1..)
                .expect("inside"),
        )
        .expect("as many");
    right.add_assign(2).expect("u8");
    below.fill(3).expect("u8");
    below.set(&[2, 3], 9).expect("inside");
    assert!(below.set(&[3, 0], 9).is_err() && below.set(&[0, 0], 256).is_err());
    let rows = [
        [0, 1, 2, 2, 2, 0],
        [0, 3, 3, 3, 3, 0],
        [0, 3, 3, 3, 3, 0],
        [0, 3, 3, 3, 9, 0],
    ];
    assert_eq!(tensor.as_slice::<u8>().expect("whole"), rows.as_flattened());
    // One of the parts is empty.
    for at in [0, 4] {
        let (first, second) = tensor.view_mut().expect("alone").split_at(0, at).expect("inside");
        assert_eq!(
            (first.size(0).ok(), second.size(0).ok()),
            (Some(at), Some(4 - at))
        );
        assert_eq!(first.len() + second.len(), 24);
    }
    assert!(tensor.view_mut().expect("alone").split_at(0, 5).is_err());
}

#[test]
fn several_threads_read_views_of_one_tensor() {
    let source = fake::unpooled();
    let tensor = Tensor::from_fn_in(&source, [16, 16], |at| (at[0] * 16 + at[1]) as u32).expect("room");
    let sums: u32 = std::thread::scope(|threads| {
        let rows = tensor.batches(0, 5).expect("a size");
        let sum = |rows: Tensor| rows.to_vec::<u32>().expect("u32").iter().sum::<u32>();
        let threads: Vec<_> = rows.map(|rows| threads.spawn(move || sum(rows))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    });
    assert_eq!(sums, 255 * 128);
    assert_eq!(tensor.holders(), 1);
}
