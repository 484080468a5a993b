//! Tests that operations have the same result on any number of threads, bit for bit, and tests of functions of the
//! caller.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Numbers of very different magnitude, so another order of additions would change the sum.
#[cfg(feature = "rayon")]
fn wild(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    };
    (0..len)
        .map(|_| (next() as f32 - 2e9) * 2f32.powi((next() >> 27) as i32 - 16))
        .collect()
}

/// Returns the results of all operations, as bits, for tensors with several layouts.
#[cfg(feature = "rayon")]
fn results(lie: usize) -> Vec<u64> {
    let source = fake::unpooled();
    let tensor = |seed| Tensor::from_slice_in(&source, &wild(90 * 80, seed), [90, 80]).expect("room");
    let view = |tensor: &Tensor| {
        let view = match lie {
            0 => tensor.reshape([7200]),
            1 => tensor.transpose(0, 1),
            2 => tensor.slice(1, 3..60).and_then(|view| view.step(0, 2)),
            _ => tensor
                .reshape([9, 10, 80])
                .and_then(|view| view.permute([2, 0, 1])),
        };
        view.expect("it lies so")
    };
    let (a, b) = (tensor(1), tensor(2));
    let (a, b) = (view(&a), view(&b));
    let mut bits: Vec<u64> = Vec::new();
    let of = |tensor: &Tensor| {
        let values = tensor.to_vec::<f32>().expect("f32");
        values.into_iter().map(|value| u64::from(value.to_bits()))
    };
    let mut place = Tensor::zeros_in(&source, a.shape(), DType::F32).expect("room");
    let mut done = || -> Result<(), TensorError> {
        a.add_into(&b, &mut place)?;
        bits.extend(of(&place));
        place.axpy(0.3, &b)?;
        place.scal(1.7)?;
        place.div_assign(&a)?;
        bits.extend(of(&place));
        a.add_scaled_into(-0.3, &b, &mut place)?;
        bits.extend(of(&place));
        place.copy_from(&b)?;
        bits.extend(of(&place));
        place.fill(3.5)?;
        place.sub_assign(&b)?;
        place.par_map_in_place(|x: f32| x.sqrt())?;
        bits.extend(of(&place));
        place.par_zip_in_place(&a, f32::max)?;
        bits.extend(of(&place));
        a.par_zip_into(&b, &mut place, |x: f32, y: f32| x.hypot(y))?;
        bits.extend(of(&place));
        b.par_map_into(&mut place, |x: f32| x.cbrt())?;
        bits.extend(of(&place));
        let mut whole = Tensor::zeros_in(&source, a.shape(), DType::I64)?;
        b.cast_into(&mut whole)?;
        bits.extend(whole.to_vec::<i64>()?.iter().map(|number| *number as u64));
        let bits_of = |number: Scalar| number.to_f64().expect("real").to_bits();
        bits.extend([bits_of(a.sum()?), bits_of(b.sum()?)]);
        if a.rank() == 1 {
            bits.push(bits_of(a.dot(&b)?));
        }
        if a.rank() > 1 {
            let rank = a.rank();
            let square = a.transpose(rank - 1, rank - 2)?;
            let mut shape = a.shape()[..rank - 1].to_vec();
            shape.push(a.shape()[rank - 2]);
            let mut product = Tensor::zeros_in(&source, &shape, DType::F32)?;
            b.matmul_into(&square, &mut product)?;
            bits.extend(of(&product));
        }
        Ok(())
    };
    done().expect("they go together");
    bits
}

#[cfg(feature = "rayon")]
#[test]
fn results_are_the_same_on_any_number_of_threads() {
    for lie in 0..4 {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("threads").install(|| results(lie))
        };
        let one = on(1);
        assert!(one.len() > 10_000);
        for threads in [2, 3, 7] {
            assert!(on(threads) == one, "{threads} threads, lie {lie}");
        }
    }
}

/// Checks that work is distributed to several threads, but not to more than requested.
#[cfg(feature = "rayon")]
#[test]
fn work_runs_on_the_requested_number_of_threads() {
    use std::collections::HashSet;
    use std::sync::Mutex;
    use std::time::Duration;
    let source = fake::unpooled();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(4)
        .build()
        .expect("threads");
    let mut tensor = Tensor::zeros_in(&source, [1 << 10], DType::F64).expect("room");
    let mut work = || {
        let seen = Mutex::new(HashSet::new());
        pool.install(|| {
            tensor.par_for_each_batch(0, 1 << 8, |_, mut batch| {
                std::thread::sleep(Duration::from_millis(30));
                seen.lock().expect("no panic").insert(std::thread::current().id());
                batch.add_assign(1.0)
            })
        })
        .expect("whole rows");
        seen.into_inner().expect("no panic").len()
    };
    let many = work();
    millpond_os::set_threads(1);
    let one = (work(), pool.install(millpond_os::threads));
    millpond_os::set_threads(2);
    let two = (work(), pool.install(millpond_os::threads));
    millpond_os::set_threads(0);
    assert_eq!(pool.install(millpond_os::threads), 4);
    assert_eq!((one, two.1), ((1, 1), 2));
    assert!((2..=4).contains(&many) && two.0 <= 2, "{many} {two:?}");
    assert_eq!(tensor.to_vec::<f64>().expect("f64"), [3.0; 1 << 10]);
}

#[test]
fn a_function_is_called_once_for_each_element_in_any_layout() {
    let source = fake::unpooled();
    let mut whole = Tensor::zeros_in(&source, [40, 30], DType::I32).expect("room");
    let mut view = whole
        .view_mut()
        .and_then(|view| view.slice(0, 1..39)?.step(1, 3)?.transpose(0, 1));
    let view = view.as_mut().expect("inside");
    view.par_map_in_place(|x: i32| x + 1).expect("i32");
    view.map_in_place(|x: i32| x + 10).expect("i32");
    let steps = Tensor::arange_in(&source, 0, 38, 1).expect("room");
    view.par_zip_in_place(&steps, |x: i32, step| x + 100 * step)
        .expect("i32");
    view.par_zip_in_place(1000, |x: i32, number| x + number)
        .expect("i32");
    for at in super::model::indices(&[40, 30]) {
        let inside = (1..39).contains(&at[0]) && at[1] % 3 == 0;
        let expected = if inside {
            1011 + 100 * (at[0] as i64 - 1)
        } else {
            0
        };
        assert_eq!(whole.get(&at).expect("inside").to_i64(), Some(expected), "{at:?}");
    }

    let mut rows = Tensor::zeros_in(&source, [23, 7], DType::U16).expect("room");
    rows.par_for_each_batch(0, 5, |at, mut batch| {
        assert_eq!(batch.shape(), [if at < 4 { 5 } else { 3 }, 7]);
        batch.add_assign(at as u16 + 1)
    })
    .expect("whole rows");
    rows.par_for_each_chunk(10, |first, chunk: &mut [u16]| {
        for (at, x) in chunk.iter_mut().enumerate() {
            *x += 100 * (first + at) as u16;
        }
    })
    .expect("contiguous");
    let expected: Vec<u16> = (0..23 * 7).map(|at| 100 * at + at / 35 + 1).collect();
    assert_eq!(rows.to_vec::<u16>().expect("u16"), expected);

    let nothing = |_: usize, _: TensorMut<'_>| Ok(());
    assert!(matches!(
        rows.par_for_each_batch(1, 2, nothing),
        Err(TensorError::Interleaved { dim: 1, .. })
    ));
    assert!(matches!(
        rows.par_for_each_batch(0, 0, nothing),
        Err(TensorError::Zero { .. })
    ));
    assert!(matches!(
        rows.par_for_each_chunk(0, |_, _: &mut [u16]| {}),
        Err(TensorError::Zero { .. })
    ));
    assert!(rows.par_map_in_place(|x: i16| x).is_err() && rows.map_in_place(|x: f32| x).is_err());
    let refused = rows.par_for_each_batch(0, 1, |at, mut batch| batch.fill(if at == 11 { -1 } else { 1 }));
    assert!(matches!(refused, Err(TensorError::Scalar { .. })));
    let mut none = Tensor::zeros_in(&source, [0, 3], DType::U16).expect("nothing");
    none.par_for_each_batch(0, 2, |_, _| panic!("there is none"))
        .expect("nothing");
    none.par_for_each_chunk(2, |_, _: &mut [u16]| panic!("there is none"))
        .expect("nothing");
}

/// Tests every input layout with every output layout, and the order of the calls where it is guaranteed.
#[test]
fn a_function_writes_elements_of_another_type_in_any_layout() {
    let source = fake::unpooled();
    let from = Tensor::from_fn_in(&source, [12, 10], |at| (10 * at[0] + at[1]) as u8).expect("room");
    let views = [
        from.slice(0, ..5),
        from.transpose(0, 1).and_then(|view| view.slice(1, 2..7)),
        from.slice(0, 4..9).and_then(|view| view.step(1, 3)),
        from.slice(0, ..1).and_then(|view| view.broadcast_to([4, 10])),
    ];
    let row = Tensor::arange_in(&source, 0i64, 10, 1).expect("room");
    for view in views {
        let view = view.expect("inside");
        let bytes = view.to_vec::<u8>().expect("u8");
        let half: Vec<f64> = bytes.iter().map(|x| f64::from(*x) / 2.0).collect();
        let [rows, columns] = [view.shape()[0], view.shape()[1]];
        let mut whole = Tensor::full_in(&source, [2 * columns, rows + 1], -1.0f64).expect("room");
        for twice in 0..2 {
            whole.fill(-1).expect("f64");
            let mut out = whole
                .view_mut()
                .and_then(|out| out.step(0, 2)?.slice(1, 1..)?.transpose(0, 1))
                .expect("inside");
            let mut seen = Vec::new();
            if twice == 0 {
                view.map_into(&mut out, |x: u8| {
                    seen.push(x);
                    f64::from(x) / 2.0
                })
                .expect("as large");
                assert_eq!(seen, bytes);
            } else {
                view.par_map_into(&mut out, |x: u8| f64::from(x) / 2.0)
                    .expect("as large");
            }
            assert_eq!(out.as_ref().to_vec::<f64>().expect("f64"), half);
            let untouched = whole.to_vec::<f64>().expect("f64");
            assert_eq!(
                untouched.iter().filter(|x| **x == -1.0).count(),
                2 * columns * (rows + 1) - half.len()
            );
        }
        let mut sums = Tensor::zeros_in(&source, [rows, columns], DType::I16).expect("room");
        let steps = row.slice(0, ..columns).expect("inside");
        view.par_zip_into(&steps, &mut sums, |x: u8, y: i64| 2 * i16::from(x) - y as i16)
            .expect("they go together");
        let expected = bytes.iter().enumerate();
        let expected = expected.map(|(at, x)| 2 * i16::from(*x) - (at % columns) as i16);
        assert_eq!(sums.to_vec::<i16>().expect("i16"), expected.collect::<Vec<_>>());
        view.par_zip_into(3i64, &mut sums, |x: u8, y: i64| i16::from(x) * y as i16)
            .expect("a number");
        let expected: Vec<i16> = bytes.iter().map(|x| 3 * i16::from(*x)).collect();
        assert_eq!(sums.to_vec::<i16>().expect("i16"), expected);

        let mut small = Tensor::zeros_in(&source, [rows], DType::I16).expect("room");
        assert!(matches!(
            view.map_into(&mut small, |x: u8| i16::from(x)),
            Err(TensorError::Shapes {
                operation: "map_into",
                ..
            })
        ));
        assert!(matches!(
            view.par_map_into(&mut sums, |x: u8| x),
            Err(TensorError::DTypes {
                operation: "par_map_into",
                ..
            })
        ));
        assert!(view.map_into(&mut sums, |x: i8| i16::from(x)).is_err());
        let swapped = |x: u8, y: u8| i16::from(x) + i16::from(y);
        assert!(view.par_zip_into(&steps, &mut sums, swapped).is_err());
        let long = row.slice(0, ..columns - 1).expect("inside");
        assert!(matches!(
            view.par_zip_into(&long, &mut sums, |x: u8, y: i64| i16::from(x) + y as i16),
            Err(TensorError::Shapes { .. })
        ));
        // New ones come from the default pool, which Miri cannot run.
        if !cfg!(miri) {
            let new = view.map(|x: u8| f64::from(x) / 2.0).expect("room");
            assert_eq!(
                (new.shape(), new.to_vec::<f64>().expect("f64")),
                (view.shape(), half)
            );
        }
    }
}

#[test]
fn a_panic_propagates_and_leaves_the_tensor_usable() {
    let source = fake::unpooled();
    let mut tensor = Tensor::full_in(&source, [3000], 1.0f32).expect("room");
    let map = |tensor: &mut Tensor| {
        tensor.par_map_in_place(|x: f32| {
            assert!(x < 2.0, "too large");
            x + 0.5
        })
    };
    map(&mut tensor).expect("f32");
    tensor
        .view_mut()
        .and_then(|mut view| view.set(&[2900], 7))
        .expect("inside");
    let panic = catch_unwind(AssertUnwindSafe(|| map(&mut tensor))).expect_err("one is too large");
    assert!(
        panic
            .downcast_ref::<&str>()
            .is_some_and(|text| text.contains("too large"))
    );
    // Elements that the function did not reach are unchanged, and the others were written once.
    let values = tensor.to_vec::<f32>().expect("f32");
    assert_eq!(values[2900], 7.0);
    assert!(
        values
            .iter()
            .enumerate()
            .all(|(at, x)| at == 2900 || [1.5, 2.0].contains(x))
    );
    tensor.fill(1.0).expect("f32");
    map(&mut tensor).expect("f32");
    assert_eq!(tensor.sum().expect("f32"), Scalar::Float(4500.0));
    tensor.free().expect("alone");
    assert_eq!(source.held_bytes(), 0);
}
