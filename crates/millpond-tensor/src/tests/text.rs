//! Tests of the text output of tensors.

use super::*;

fn text<T: Element>(values: &[T], shape: &[usize]) -> String {
    let source = fake::unpooled();
    Tensor::from_slice_in(&source, values, shape)
        .expect("room")
        .to_string()
}

#[test]
fn elements_are_in_brackets_and_columns() {
    assert_eq!(text(&[1.5f32], &[]), "1.5000\nf32 []");
    assert_eq!(text(&[1.0, 20.0, -3.0], &[3]), "[ 1., 20., -3.]\nf64 [3]");
    assert_eq!(
        text(&[1u8, 2, 30, 4, 5, 255, 7, 8], &[2, 2, 2]),
        "[[[  1,   2],\n  [ 30,   4]],\n\n [[  5, 255],\n  [  7,   8]]]\nu8 [2, 2, 2]"
    );
    assert_eq!(text::<f32>(&[], &[2, 0]), "[[],\n []]\nf32 [2, 0]");
    assert_eq!(
        text(&[f64::NAN, f64::INFINITY, -0.5], &[3]),
        "[    nan,     inf, -0.5000]\nf64 [3]"
    );
    assert_eq!(text(&[1e-7, 2.0], &[2]), "[1.0000e-7,  2.0000e0]\nf64 [2]");
    assert_eq!(text(&[1e12, 0.0], &[2]), "[1.0000e12,  0.0000e0]\nf64 [2]");
    assert_eq!(
        text(&[[1.0f32, -2.0], [0.5, 0.0]], &[2]),
        "[1.0000-2.0000i, 0.5000+0.0000i]\ncomplex64 [2]"
    );
    let source = fake::unpooled();
    let bools = Tensor::from_bools_in(&source, &[true, false], [2]).expect("room");
    assert_eq!(bools.to_string(), "[ true, false]\nbool [2]");
    let tensor = Tensor::zeros_in(&source, [2, 3], DType::F16).expect("room");
    let turned = tensor.transpose(0, 1).expect("two");
    assert_eq!(
        turned.to_string(),
        "[[0., 0.],\n [0., 0.],\n [0., 0.]]\nf16 [3, 2]"
    );
    assert_eq!(format!("{turned:?}"), "Tensor(f16 [3, 2], strides [1, 3], host)");
    assert_eq!(
        format!("{tensor:.1}"),
        "[[0.0, 0.0, 0.0],\n [0.0, 0.0, 0.0]]\nf16 [2, 3]"
    );
}

#[test]
fn large_tensors_are_abbreviated_and_long_rows_are_wrapped() {
    let source = fake::unpooled();
    let table = Tensor::arange_in(&source, 0, 10_000, 1)
        .and_then(|all| all.reshape([100, 100]))
        .expect("room");
    let lines: Vec<String> = table.to_string().lines().map(str::to_owned).collect();
    assert_eq!(lines[0], "[[   0,    1,    2, ...,   97,   98,   99],");
    assert_eq!(lines[3], " ...,");
    assert_eq!(lines[6], " [9900, 9901, 9902, ..., 9997, 9998, 9999]]");
    assert_eq!(lines.len(), 8);
    let row = Tensor::arange_in(&source, 0, 100, 1).expect("room").to_string();
    assert!(
        row.lines().count() > 3 && row.lines().all(|line| line.len() <= 102),
        "{row}"
    );
    assert!(row.lines().nth(1).is_some_and(|line| line.starts_with(' ')));
    // The text is short for any number of elements.
    let wide = Tensor::zeros_in(&source, [1, 1, 1], DType::U8)
        .and_then(|one| one.broadcast_to([1 << 20, 1 << 20, 1 << 20]));
    assert!(wide.expect("counted").to_string().len() < 2000);
}

#[test]
fn half_precision_is_read_from_its_bits() {
    use crate::scalar::half_as_f64;
    for (bits, number) in [
        (0x3C00, 1.0),
        (0xC000, -2.0),
        (0x0001, 1.0 / 16_777_216.0),
        (0x0400, 1.0 / 16_384.0),
        (0x7BFF, 65504.0),
        (0x7C00, f64::INFINITY),
        (0xFC00, f64::NEG_INFINITY),
    ] {
        assert_eq!(half_as_f64(DType::F16, bits), number);
    }
    assert!(half_as_f64(DType::F16, 0x7E00).is_nan());
    assert_eq!(half_as_f64(DType::BF16, 0xC040), -3.0);
    #[cfg(feature = "half")]
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (half_as_f64(DType::F16, bits), half::f16::from_bits(bits).to_f64());
        assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{bits:x}");
    }
}
