//! Compares arithmetic with the model, for every type and for operands and outputs with any layout in memory.

use super::cases::{ADD, Case, DIV, MUL, Program, SUB, for_all_types, numbers, program};
use super::lie::Larger;
use super::model::Model;
use super::*;

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

/// The operations with reversed operands, for which the order makes a difference.
const REVERSED: [(usize, Into3, New, Assign); 2] = [
    (
        SUB,
        |a, b, out| a.rsub_into(b, out),
        |a, b| a.rsub(b),
        |out, b| out.rsub_assign(b),
    ),
    (
        DIV,
        |a, b, out| a.rdiv_into(b, out),
        |a, b| a.rdiv(b),
        |out, b| out.rdiv_assign(b),
    ),
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
    // The smaller operand may also be the first. It is broadcast as well.
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

    let number = T::of(2);
    for (kind, into, new, assign) in REVERSED {
        let reversed = both(&|a, b| T::op(kind, b, a));
        into(left.view(), right.view().into(), &mut out.view_mut()).expect("they go together");
        out.agrees(&reversed);
        // The smaller operand may also be the first. It is broadcast as well.
        into(right.view(), left.view().into(), &mut out.view_mut()).expect("they go together");
        out.agrees(&both(&|a, b| T::op(kind, a, b)));
        let mut place = Larger::new(&a, &lies[0]);
        assign(&mut place.view_mut(), right.view().into()).expect("they go together");
        place.agrees(&reversed);
        let mut place = Larger::new(&a, &lies[0]);
        assign(&mut place.view_mut(), number.into().into()).expect("a number");
        place.agrees(&both(&|a, _| T::op(kind, number, a)));
        if !cfg!(miri) {
            let made = new(left.view(), right.view().into()).and_then(|new| new.to_vec::<T>());
            assert_eq!(made.expect("they go together"), reversed.values);
        }
    }

    let mut place = Larger::new(&a, &lies[2]);
    place
        .view_mut()
        .axpy(T::of(3), right.view())
        .expect("they go together");
    let scaled = both(&|a, b| T::op(ADD, a, T::op(MUL, T::of(3), b)));
    place.agrees(&scaled);
    left.view()
        .add_scaled_into(T::of(3), right.view(), &mut out.view_mut())
        .expect("they go together");
    out.agrees(&scaled);

    let mut place = Larger::new(&a, &lies[0]);
    place
        .view_mut()
        .copy_from(right.view())
        .expect("they go together");
    place.agrees(&repeated);

    // The right operand is a number.
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
        let new = left.view().add_scaled(T::of(3), right.view());
        let new = new.and_then(|new| new.to_vec::<T>());
        assert_eq!(new.expect("they go together"), scaled.values);
        let new = NEW[kind](left.view(), number.into().into()).expect("a number");
        assert_eq!(new.to_vec::<T>().expect("its type"), by_number.values);
    }
}

proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn arithmetic_agrees_with_the_model(program in program()) {
        for_all_types!(check, &program);
    }
}
