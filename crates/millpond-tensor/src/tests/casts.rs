//! Conversions between element types, and numbers at the limits of types.

use super::*;

/// Compares the conversions between all Rust types that `as` supports, for values at the limits of the types.
macro_rules! casts {
    ($($from:ident $values:tt;)*) => {
        $( casts!(@to $from $values; f64 f32 i8 i16 i32 i64 u8 u16 u32 u64); )*
    };
    (@to $from:ident $values:tt; $($to:ident)*) => {
        $({
            let source = fake::unpooled();
            let values: Vec<$from> = vec! $values;
            let tensor = Tensor::from_slice_in(&source, &values, [values.len()]).expect("room");
            let mut out = Tensor::zeros_in(&source, [values.len(), 2], $to::DTYPE).expect("room");
            let mut view = out.view_mut().and_then(|out| out.select(1, 1)).expect("inside");
            tensor.cast_into(&mut view).expect("numbers");
            let found: Vec<$to> = view.as_ref().to_vec().expect("its type");
            let expected: Vec<$to> = values.iter().map(|value| *value as $to).collect();
            // The `Debug` output distinguishes NaN from other values, and is the same for every NaN.
            assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{} to {}", $from::DTYPE, $to::DTYPE);
        })*
    };
}

#[test]
#[allow(clippy::cast_lossless, reason = "`as` is what a cast is held against")]
fn casts_agree_with_the_operator_as() {
    casts! {
        f64 [0.0, -0.0, 1.5, -1.5, 1e10, -1e300, 1e20, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 255.5, 1e-40];
        f32 [0.0, 1.5, -1.5, 1e10, -1e30, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 16_777_216.0];
        i8 [0, 1, -1, i8::MIN, i8::MAX];
        i16 [0, 1, -1, i16::MIN, i16::MAX];
        i32 [0, 1, -1, i32::MIN, i32::MAX, 16_777_217];
        i64 [0, 1, -1, i64::MIN, i64::MAX, (1 << 53) + 1, 16_777_217];
        u8 [0, 1, u8::MAX];
        u16 [0, 1, u16::MAX];
        u32 [0, 1, u32::MAX];
        u64 [0, 1, u64::MAX, (1 << 53) + 1, (1 << 63) + 1025];
    }
}

#[test]
fn booleans_and_complex_numbers_are_cast() {
    let source = fake::unpooled();
    let to = |from: &Tensor, dtype: DType| {
        let mut out = Tensor::zeros_in(&source, from.shape(), dtype).expect("room");
        from.cast_into(&mut out).map(|()| out)
    };
    let numbers = Tensor::from_slice_in(&source, &[0.0, -0.5, f64::NAN, 200.0], [2, 2]).expect("room");
    let bools = to(&numbers, DType::Bool).expect("numbers");
    assert_eq!(bools.to_bools().expect("bool"), [false, true, true, true]);
    assert_eq!(bools.storage().as_bools(), Some(&[false, true, true, true][..]));
    assert_eq!(bools.sum().expect("counted"), Scalar::UInt(3));
    assert_eq!(
        to(&bools, DType::I16)
            .and_then(|ints| ints.to_vec::<i16>())
            .expect("i16"),
        [0, 1, 1, 1]
    );
    let complex = to(&bools, DType::Complex64).expect("numbers");
    assert_eq!(complex.to_vec::<[f32; 2]>().expect("pairs")[1], [1.0, 0.0]);
    let pairs = Tensor::from_slice_in(&source, &[[1.5, 2.0], [0.0, 3.0]], [2]).expect("room");
    assert_eq!(
        to(&pairs, DType::F32)
            .and_then(|real| real.to_vec::<f32>())
            .expect("f32"),
        [1.5, 0.0]
    );
    assert_eq!(
        to(&pairs, DType::Bool)
            .and_then(|bools| bools.to_bools())
            .expect("bool"),
        [true, true]
    );
    let half = to(&numbers, DType::BF16);
    if cfg!(feature = "half") {
        let back = to(&half.expect("the feature"), DType::F64).and_then(|back| back.to_vec::<f64>());
        assert_eq!(back.expect("f64")[3], 200.0);
    } else {
        assert!(
            matches!(
                half,
                Err(TensorError::Unsupported {
                    dtype: DType::BF16,
                    ..
                })
            ),
            "{half:?}"
        );
    }
    assert!(
        numbers
            .cast_into(&mut Tensor::zeros_in(&source, [4], DType::I8).expect("room"))
            .is_err()
    );
}

#[test]
fn quotients_of_complex_numbers_stay_in_range() {
    let source = fake::unpooled();
    for (a, b) in [
        ([1e300, 1e300], [1e300, -1e300]),
        ([1e-300, 0.0], [0.0, 1e-300]),
        ([3.0, 4.0], [0.0, -2.0]),
    ] {
        let mut quotient = Tensor::from_slice_in(&source, &[a], [1]).expect("room");
        quotient.div_assign(b).expect("numbers");
        quotient.mul_assign(b).expect("numbers");
        let Scalar::Complex([real, imaginary]) = quotient.item().expect("one") else {
            panic!("complex")
        };
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * a.abs().max(b.abs());
        assert!(close(real, a[0]) && close(imaginary, a[1]), "{real} {imaginary}");
    }
}
