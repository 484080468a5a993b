//! Operations against the model, for every type, over operands and outputs that lie in memory in any way.

use super::model::{Model, indices};
use super::views::{order, shape};
use super::*;
use std::fmt::Debug;

/// Elements as the model computes with them: by another way than the code under test.
trait Case: Element + PartialEq + Debug + Into<Scalar> {
    fn of(number: i64) -> Self;
    fn op(kind: usize, a: Self, b: Self) -> Self;
}

const ADD: usize = 0;
const MUL: usize = 2;
const DIV: usize = 3;

macro_rules! integers {
    ($($type:ty)*) => {
        $(
            impl Case for $type {
                fn of(number: i64) -> Self {
                    number as Self
                }
                fn op(kind: usize, a: Self, b: Self) -> Self {
                    let (a, b) = (i128::from(a), i128::from(b));
                    [a + b, a - b, a.wrapping_mul(b), a / b][kind] as Self
                }
            }
        )*
    };
}

integers! { i8 i16 i32 i64 u8 u16 u32 u64 }

macro_rules! floats {
    ($($type:ty)*) => {
        $(
            impl Case for $type {
                fn of(number: i64) -> Self {
                    number as Self / 4.0
                }
                fn op(kind: usize, a: Self, b: Self) -> Self {
                    [a + b, a - b, a * b, a / b][kind]
                }
            }
            impl Case for [$type; 2] {
                fn of(number: i64) -> Self {
                    // Both parts of one size, a power of two, so that quotients are exact.
                    let size = (1 << (number.unsigned_abs() % 3)) as $type * number.signum() as $type;
                    [size, if number % 2 == 0 { size } else { -size }]
                }
                fn op(kind: usize, [a, b]: Self, [c, d]: Self) -> Self {
                    let square = c * c + d * d;
                    [
                        [a + c, b + d],
                        [a - c, b - d],
                        [a * c - b * d, a * d + b * c],
                        [(a * c + b * d) / square, (b * c - a * d) / square],
                    ][kind]
                }
            }
        )*
    };
}

floats! { f32 f64 }

#[cfg(feature = "half")]
macro_rules! halves {
    ($($type:ty)*) => {
        $(
            impl Case for $type {
                fn of(number: i64) -> Self {
                    Self::from_f32(number as f32 / 4.0)
                }
                fn op(kind: usize, a: Self, b: Self) -> Self {
                    let (a, b) = (a.to_f32(), b.to_f32());
                    Self::from_f32([a + b, a - b, a * b, a / b][kind])
                }
            }
        )*
    };
}

#[cfg(feature = "half")]
halves! { half::f16 half::bf16 }

/// How a view lies in a larger tensor: which order its dimensions have there, the steps and what is left out before.
#[derive(Clone, Debug)]
struct Lie {
    order: usize,
    steps: Vec<usize>,
    before: Vec<usize>,
}

fn lie() -> impl Strategy<Value = Lie> {
    let numbers = |most: usize| proptest::collection::vec(0..most, MAX_RANK);
    let order = prop_oneof![2 => Just(0), 3 => 0..64usize];
    let plain = prop_oneof![Just(true), Just(false)];
    (order, numbers(3), numbers(3), plain).prop_map(|(order, steps, before, plain)| Lie {
        order: if plain { usize::MAX } else { order },
        steps: steps
            .iter()
            .map(|step| if plain { 1 } else { step + 1 })
            .collect(),
        before: before.iter().map(|many| if plain { 0 } else { *many }).collect(),
    })
}

/// The dimensions' order in the larger tensor.
fn places(lie: &Lie, rank: usize) -> Vec<usize> {
    if lie.order == usize::MAX {
        (0..rank).collect()
    } else {
        order(rank, lie.order)
    }
}

/// A larger tensor, and where in it each element of the view lies.
struct Larger<T> {
    whole: Tensor,
    order: Vec<usize>,
    lie: Lie,
    shape: Vec<usize>,
    filler: T,
}

impl<T: Case> Larger<T> {
    fn new(model: &Model<T>, lie: &Lie) -> Self {
        let rank = model.shape.len();
        let order = places(lie, rank);
        let size = |at: usize| lie.before[at] + model.shape[order[at]] * lie.steps[at];
        let sizes: Vec<usize> = (0..rank).map(size).collect();
        let filler = T::of(99);
        let mut larger = Self {
            whole: Tensor::full_in(&fake::unpooled(), &sizes, filler).expect("room"),
            order,
            lie: lie.clone(),
            shape: model.shape.clone(),
            filler,
        };
        for index in indices(&model.shape) {
            let place = larger.place(&index);
            larger
                .whole
                .view_mut()
                .expect("alone")
                .set(&place, model.at(&index))
                .expect("inside");
        }
        larger
    }

    fn place(&self, index: &[usize]) -> Vec<usize> {
        let at = self.order.iter().enumerate();
        at.map(|(at, dim)| self.lie.before[at] + index[*dim] * self.lie.steps[at])
            .collect()
    }

    fn back(&self) -> Vec<usize> {
        (0..self.order.len())
            .map(|dim| self.order.iter().position(|of| *of == dim).expect("each once"))
            .collect()
    }

    fn view(&self) -> TensorRef<'_> {
        let mut view = self.whole.view().expect("host");
        for at in 0..self.order.len() {
            let (before, step) = (self.lie.before[at], self.lie.steps[at]);
            view = view
                .slice(at, before..)
                .and_then(|view| view.step(at, step))
                .expect("inside");
        }
        let view = view.permute(self.back()).expect("each once");
        assert_eq!(view.shape(), self.shape);
        view
    }

    fn view_mut(&mut self) -> TensorMut<'_> {
        let back = self.back();
        let mut view = self.whole.view_mut().expect("alone");
        for at in 0..self.order.len() {
            let (before, step) = (self.lie.before[at], self.lie.steps[at]);
            view = view
                .slice(at, before..)
                .and_then(|view| view.step(at, step))
                .expect("inside");
        }
        view.permute(back).expect("each once")
    }

    /// The view's elements are the model's, and all others what they were.
    fn agrees(&self, model: &Model<T>) {
        assert_eq!(self.view().to_vec::<T>().expect("its type"), model.values);
        let mut places: Vec<Vec<usize>> = indices(&model.shape)
            .iter()
            .map(|index| self.place(index))
            .collect();
        places.sort();
        let all = self.whole.to_vec::<T>().expect("its type");
        for (index, element) in indices(self.whole.shape()).iter().zip(all) {
            assert!(
                places.binary_search(index).is_ok() || element == self.filler,
                "{index:?} was written"
            );
        }
    }
}

#[derive(Clone, Debug)]
struct Program {
    shape: Vec<usize>,
    /// Which dimensions the second operand has in size 1, and how many of the first it has not at all.
    ones: Vec<bool>,
    missing: usize,
    kind: usize,
    seed: i64,
    lies: [Lie; 3],
}

fn program() -> impl Strategy<Value = Program> {
    let ones = proptest::collection::vec(any::<bool>(), MAX_RANK);
    (
        shape(),
        ones,
        0..4usize,
        0..4usize,
        1..1000i64,
        [lie(), lie(), lie()],
    )
        .prop_map(|(shape, ones, missing, kind, seed, lies)| Program {
            shape,
            ones,
            missing,
            kind,
            seed,
            lies,
        })
}

/// Small numbers, none of them 0.
fn numbers<T: Case>(shape: &[usize], seed: i64) -> Model<T> {
    let mut at = seed;
    Model::from_fn(shape, |_| {
        at = (at * 31 + 17) % 1009;
        let number = at % 11 - 5;
        T::of(if number >= 0 { number + 1 } else { number })
    })
}

type Into3 = fn(TensorRef<'_>, Operand<'_>, &mut TensorMut<'_>) -> Result<(), TensorError>;
type New = fn(TensorRef<'_>, Operand<'_>) -> Result<Tensor, TensorError>;
type Assign = fn(&mut TensorMut<'_>, Operand<'_>) -> Result<(), TensorError>;

const INTO: [Into3; 4] = [
    |a, b, out| a.add_into(b, out),
    |a, b, out| a.sub_into(b, out),
    |a, b, out| a.mul_into(b, out),
    |a, b, out| a.div_into(b, out),
];
const NEW: [New; 4] = [|a, b| a.add(b), |a, b| a.sub(b), |a, b| a.mul(b), |a, b| a.div(b)];
const ASSIGN: [Assign; 4] = [
    |out, b| out.add_assign(b),
    |out, b| out.sub_assign(b),
    |out, b| out.mul_assign(b),
    |out, b| out.div_assign(b),
];

fn check<T: Case>(program: &Program) {
    let Program {
        shape,
        kind,
        seed,
        lies,
        ..
    } = program;
    let kind = *kind;
    let mut small: Vec<usize> = shape.clone();
    for (size, one) in small.iter_mut().zip(&program.ones) {
        *size = if *one { 1 } else { *size };
    }
    let small = &small[program.missing.min(small.len())..];
    let (a, b) = (numbers::<T>(shape, *seed), numbers::<T>(small, seed + 5));
    let repeated = b.broadcast_to(shape);
    let both = |f: &dyn Fn(T, T) -> T| Model {
        shape: shape.clone(),
        values: a
            .values
            .iter()
            .zip(&repeated.values)
            .map(|(a, b)| f(*a, *b))
            .collect(),
    };
    let expected = both(&|a, b| T::op(kind, a, b));

    let (left, right) = (Larger::new(&a, &lies[0]), Larger::new(&b, &lies[1]));
    let mut out = Larger::new(&numbers::<T>(shape, seed + 9), &lies[2]);
    INTO[kind](left.view(), right.view().into(), &mut out.view_mut()).expect("they go together");
    out.agrees(&expected);
    // The smaller one first: it is repeated too.
    if matches!(kind, ADD | MUL) {
        out.view_mut().fill(T::of(1)).expect("a number");
        INTO[kind](right.view(), left.view().into(), &mut out.view_mut()).expect("they go together");
        out.agrees(&expected);
    }
    left.agrees(&a);
    right.agrees(&b);

    let mut place = Larger::new(&a, &lies[0]);
    ASSIGN[kind](&mut place.view_mut(), right.view().into()).expect("they go together");
    place.agrees(&expected);

    let mut place = Larger::new(&a, &lies[2]);
    place
        .view_mut()
        .axpy(T::of(3), right.view())
        .expect("they go together");
    place.agrees(&both(&|a, b| T::op(ADD, a, T::op(MUL, T::of(3), b))));

    let mut place = Larger::new(&a, &lies[0]);
    place
        .view_mut()
        .copy_from(right.view())
        .expect("they go together");
    place.agrees(&repeated);

    // Numbers as operands.
    let number = T::of(2);
    let by_number = Model {
        shape: shape.clone(),
        values: a.values.iter().map(|a| T::op(kind, *a, number)).collect(),
    };
    INTO[kind](left.view(), number.into().into(), &mut out.view_mut()).expect("a number");
    out.agrees(&by_number);
    let mut place = Larger::new(&a, &lies[0]);
    ASSIGN[kind](&mut place.view_mut(), number.into().into()).expect("a number");
    place.agrees(&by_number);

    // New tensors come from the default pool, which Miri cannot run.
    if !cfg!(miri) {
        let new = NEW[kind](left.view(), right.view().into()).expect("they go together");
        assert_eq!((new.shape(), new.is_contiguous()), (&shape[..], true));
        assert_eq!(new.to_vec::<T>().expect("its type"), expected.values);
        let new = NEW[kind](left.view(), number.into().into()).expect("a number");
        assert_eq!(new.to_vec::<T>().expect("its type"), by_number.values);
    }
}

macro_rules! for_all_types {
    ($check:ident, $program:expr) => {
        $check::<f64>($program);
        $check::<f32>($program);
        // The loops of the others are the same safe code, and take an interpreter minutes each.
        if !cfg!(miri) {
            $check::<i8>($program);
            $check::<i16>($program);
            $check::<i32>($program);
            $check::<i64>($program);
            $check::<u8>($program);
            $check::<u16>($program);
            $check::<u32>($program);
            $check::<u64>($program);
            $check::<[f32; 2]>($program);
            $check::<[f64; 2]>($program);
            #[cfg(feature = "half")]
            {
                $check::<half::f16>($program);
                $check::<half::bf16>($program);
            }
        }
    };
}

/// The number a scalar stands for, in whole.
fn whole(number: Scalar) -> i128 {
    match number {
        Scalar::Int(number) => number.into(),
        Scalar::UInt(number) => number.into(),
        Scalar::Float(number) => (number * 16.0) as i128,
        Scalar::Complex([real, imaginary]) => (real * 16.0) as i128 + (imaginary * 16.0) as i128 * 1_000_000,
        Scalar::Bool(_) => 0,
    }
}

/// A sum of products by elements. Numbers are small, so that it is exact; unsigned ones wrap around where they have to.
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
    // As an element of the type.
    let mut one = Tensor::zeros_in(&fake::unpooled(), [1], T::DTYPE).expect("room");
    let cut = match (sum, T::DTYPE.size() * 8) {
        (Scalar::Int(sum), bits) => Scalar::Int(sum << (64 - bits) >> (64 - bits)),
        (Scalar::UInt(sum), bits) => Scalar::UInt(sum << (64 - bits) >> (64 - bits)),
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
    for dim in 0..shape.len() {
        let mut rest = shape.clone();
        rest.remove(dim);
        let dtype = match T::of(1).into() {
            Scalar::Int(_) => DType::I64,
            Scalar::UInt(_) => DType::U64,
            _ => T::DTYPE,
        };
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
        assert_eq!(whole(dot), whole(summed(expected, true)));
    }
}

proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn arithmetic_is_what_the_model_says(program in program()) {
        for_all_types!(check, &program);
    }

    #[test]
    fn sums_are_what_the_model_says(program in program()) {
        for_all_types!(check_sums, &program);
    }

    #[test]
    fn products_are_what_the_model_says(program in program()) {
        for_all_types!(check_products, &program);
    }
}

/// Every type of Rust's that `as` leads between, and values at its ends.
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
            // Debug tells NaN from all else, and is the same for each.
            assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{} to {}", $from::DTYPE, $to::DTYPE);
        })*
    };
}

#[test]
#[allow(clippy::cast_lossless, reason = "`as` is what a cast is held against")]
fn casts_are_what_the_language_says() {
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
fn truth_values_and_complex_numbers_are_cast() {
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
