//! Element by element: sums, differences, products, quotients; multiples added; casts to another type.
//!
//! Each is there three times: as a new tensor, into an output, and in place. The loops are written over slices where
//! elements follow one another, which compiles to wide loads and stores, and by places where they do not.

use super::Tensor;
use super::copy::SharedOrCopied;
use super::error::TensorError;
use super::layout::{Layout, broadcast};
use super::make::collect;
use super::number::{Number, Wide, with_number};
use super::operand::Operand;
use super::view::{TensorMut, TensorRef};
use super::walk::Walk;
use crate::dtype::DType;
use crate::pool::Pool;
use crate::pools::draw;

/// An operation on two elements, and its names.
#[derive(Clone, Copy)]
enum Binary {
    Add,
    Sub,
    Mul,
    Div,
}

/// The names of an operation: new, into an output, in place.
type Names = [&'static str; 3];

impl Binary {
    fn names(self) -> Names {
        match self {
            Self::Add => ["add", "add_into", "add_assign"],
            Self::Sub => ["sub", "sub_into", "sub_assign"],
            Self::Mul => ["mul", "mul_into", "mul_assign"],
            Self::Div => ["div", "div_into", "div_assign"],
        }
    }

    fn refuse<R>(operation: &'static str, dtype: DType) -> Result<R, TensorError> {
        Err(TensorError::Unsupported { operation, dtype })
    }

    /// Whether elements are integers of which one is 0, where the operation is one that divides by them.
    fn check<T: Number>(
        self,
        operation: &'static str,
        right: &[T],
        layout: &Layout,
    ) -> Result<(), TensorError> {
        if !(T::INTEGER && matches!(self, Self::Div)) {
            return Ok(());
        }
        let zero = T::of_u64(0);
        let walk = Walk::in_any_order([layout]);
        let mut found = false;
        walk.rows(|[start]| {
            let [step] = walk.strides;
            found |= (0..walk.len)
                .any(|at| bytemuck::bytes_of(&right[start + at * step]) == bytemuck::bytes_of(&zero));
        });
        if found {
            return Err(TensorError::DivisionByZero { operation });
        }
        Ok(())
    }
}

/// Does something with the function of an operation, which is compiled for each by itself.
macro_rules! with_binary {
    ($binary:expr, $number:ty, $function:ident => $body:expr) => {
        match $binary {
            Binary::Add => {
                let $function = <$number as Number>::plus;
                $body
            }
            Binary::Sub => {
                let $function = <$number as Number>::minus;
                $body
            }
            Binary::Mul => {
                let $function = <$number as Number>::times;
                $body
            }
            Binary::Div => {
                let $function = <$number as Number>::over;
                $body
            }
        }
    };
}

/// `out = f(left, right)`, all of one shape.
fn write<T: Number>(
    out: (&mut [T], &Layout),
    left: (&[T], &Layout),
    right: (&[T], &Layout),
    f: impl Fn(T, T) -> T + Copy,
) {
    let walk = Walk::in_any_order([out.1, left.1, right.1]);
    let (out, left, right, len) = (out.0, left.0, right.0, walk.len);
    walk.rows(|[to, a, b]| match walk.strides {
        [1, 1, 1] => {
            let both = left[a..a + len].iter().zip(&right[b..b + len]);
            for (out, (left, right)) in out[to..to + len].iter_mut().zip(both) {
                *out = f(*left, *right);
            }
        }
        [1, 1, 0] => {
            let right = right[b];
            for (out, left) in out[to..to + len].iter_mut().zip(&left[a..a + len]) {
                *out = f(*left, right);
            }
        }
        [1, 0, 1] => {
            let left = left[a];
            for (out, right) in out[to..to + len].iter_mut().zip(&right[b..b + len]) {
                *out = f(left, *right);
            }
        }
        [to_step, a_step, b_step] => {
            for at in 0..len {
                out[to + at * to_step] = f(left[a + at * a_step], right[b + at * b_step]);
            }
        }
    });
}

/// `out = f(out, right)`, both of one shape.
fn update<T: Number>(out: (&mut [T], &Layout), right: (&[T], &Layout), f: impl Fn(T, T) -> T + Copy) {
    let walk = Walk::in_any_order([out.1, right.1]);
    let (out, right, len) = (out.0, right.0, walk.len);
    walk.rows(|[to, b]| match walk.strides {
        [1, 1] => {
            for (out, right) in out[to..to + len].iter_mut().zip(&right[b..b + len]) {
                *out = f(*out, *right);
            }
        }
        [1, 0] => {
            let right = right[b];
            for out in &mut out[to..to + len] {
                *out = f(*out, right);
            }
        }
        [to_step, b_step] => {
            for at in 0..len {
                let out = &mut out[to + at * to_step];
                *out = f(*out, right[b + at * b_step]);
            }
        }
    });
}

impl Binary {
    /// A new tensor. What is contiguous is written once, to memory of which nothing is known before.
    fn make(self, left: TensorRef<'_>, right: Operand<'_>) -> Result<Tensor, TensorError> {
        let [operation, ..] = self.names();
        let dtype = left.dtype();
        right.expect(operation, dtype)?;
        let shape = broadcast(operation, left.shape(), right.shape())?;
        let whole = Layout::contiguous(&shape)?;
        let dense = left.is_contiguous() && *left.shape() == *shape;
        let other = right.tensor()?;
        let paired = other.is_some_and(|other| other.is_contiguous() && *other.shape() == *shape);
        if !(dense && (paired || other.is_none())) {
            let mut out = Tensor::zeros(&*shape, dtype)?;
            self.write_into(operation, left, right, out.view_mut()?)?;
            return Ok(out);
        }
        with_number!(
            dtype,
            T => {
                let mut one = [T::of_u64(0)];
                let (right, layout) = right.elements(operation, &mut one, &whole)?;
                self.check(operation, right, &layout)?;
                let left = left.as_slice::<T>()?;
                let right = &right[layout.offset()..];
                draw(|pool: &Pool| with_binary!(self, T, f => if paired {
                    let both = left.iter().zip(&right[..left.len()]);
                    collect(pool, &shape, both.map(|(left, right)| f(*left, *right)))
                } else {
                    let right = right[0];
                    collect(pool, &shape, left.iter().map(|left| f(*left, right)))
                }))
            },
            else Self::refuse(operation, dtype)
        )
    }

    /// Into an output, whose shape has to be the result's.
    fn write_into(
        self,
        operation: &'static str,
        left: TensorRef<'_>,
        right: Operand<'_>,
        mut out: TensorMut<'_>,
    ) -> Result<(), TensorError> {
        let dtype = left.dtype();
        right.expect(operation, dtype)?;
        let shape = broadcast(operation, left.shape(), right.shape())?;
        output(operation, &out, dtype, &shape)?;
        with_number!(
            dtype,
            T => {
                let whole = *out.layout();
                let mut one = [T::of_u64(0)];
                let (right, right_layout) = right.elements(operation, &mut one, &whole)?;
                self.check(operation, right, &right_layout)?;
                let left_layout = left.layout().repeat_to(operation, &shape)?;
                let (left, right) = ((left.plain::<T>(), &left_layout), (right, &right_layout));
                with_binary!(self, T, f => write((out.plain_mut(), &whole), left, right, f));
                Ok(())
            },
            else Self::refuse(operation, dtype)
        )
    }

    /// In place.
    fn assign(self, out: &mut TensorMut<'_>, right: Operand<'_>) -> Result<(), TensorError> {
        let [.., operation] = self.names();
        let dtype = out.dtype();
        right.expect(operation, dtype)?;
        with_number!(
            dtype,
            T => {
                let whole = *out.layout();
                let mut one = [T::of_u64(0)];
                let (right, layout) = right.elements(operation, &mut one, &whole)?;
                self.check(operation, right, &layout)?;
                with_binary!(self, T, f => update((out.plain_mut(), &whole), (right, &layout), f));
                Ok(())
            },
            else Self::refuse(operation, dtype)
        )
    }
}

/// Refuses an output of another type or shape than the result has.
pub(super) fn output(
    operation: &'static str,
    out: &TensorMut<'_>,
    dtype: DType,
    shape: &[usize],
) -> Result<(), TensorError> {
    if out.dtype() != dtype {
        return Err(TensorError::DTypes {
            operation,
            left: dtype,
            right: out.dtype(),
        });
    }
    if out.shape() != shape {
        return Err(TensorError::Shapes {
            operation,
            left: out.shape().into(),
            right: shape.into(),
            rule: "the output's shape has to be that of the result",
        });
    }
    Ok(())
}

/// What can be written to: a tensor of which there are no other views, or a view that borrows.
pub trait Output {
    /// A view to write.
    ///
    /// # Errors
    /// Where other tensors share the storage, or elements of this one share memory.
    fn output(&mut self) -> Result<TensorMut<'_>, TensorError>;
}

impl Output for Tensor {
    fn output(&mut self) -> Result<TensorMut<'_>, TensorError> {
        self.view_mut()
    }
}

impl Output for TensorMut<'_> {
    fn output(&mut self) -> Result<TensorMut<'_>, TensorError> {
        Ok(self.reborrow())
    }
}

macro_rules! reads {
    ($self:ident, $view:expr; $($name:ident $into:ident $binary:ident $what:literal;)*) => {
        $(
            #[doc = concat!($what, ", as a new tensor of the [set of pools](crate::pools) that holds here.")]
            ///
            /// # Errors
            /// Where types differ or shapes do not go together, and when there is no memory for it.
            pub fn $name<'b>(&$self, other: impl Into<Operand<'b>>) -> Result<Tensor, TensorError> {
                Binary::$binary.make($view, other.into())
            }

            #[doc = concat!($what, ", into an output. No memory is allocated.")]
            ///
            /// # Errors
            /// Where types differ, shapes do not go together or the output has another, and where it cannot be written.
            pub fn $into<'b>(
                &$self,
                other: impl Into<Operand<'b>>,
                out: &mut impl Output,
            ) -> Result<(), TensorError> {
                let [_, operation, _] = Binary::$binary.names();
                Binary::$binary.write_into(operation, $view, other.into(), out.output()?)
            }
        )*
    };
}

macro_rules! all_reads {
    ($self:ident, $view:expr) => {
        reads! {
            $self, $view;
            add add_into Add "The sum of each two elements";
            sub sub_into Sub "The difference of each two elements";
            mul mul_into Mul "The product of each two elements";
            div div_into Div "The quotient of each two elements; of integers without the rest, and never by 0";
        }

        /// The elements as another type, as Rust's `as` has it: integers wrap around, numbers of floating point are rounded
        /// or cut off and stay inside what the type can hold, of complex numbers the real part is kept. As `bool` is what is
        /// not 0. No memory is allocated.
        ///
        /// # Errors
        /// Where the output has another shape or cannot be written, and for half precision without the feature `half`.
        pub fn cast_into(&$self, out: &mut impl Output) -> Result<(), TensorError> {
            cast($view, out.output()?)
        }
    };
}

/// Element by element. The other operand is a tensor, a view or a number; shapes go together as they do in NumPy: from the
/// last dimension on, sizes are the same, or the one that is 1 is repeated. Types are never mixed; integers wrap around.
///
/// ```
/// use millpond::{DType, Tensor};
///
/// let table = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let row = Tensor::from_slice(&[10.0f32, 20.0], [2])?;
/// let sum = table.add(&row)?;
/// assert_eq!(sum.as_slice::<f32>()?, [11.0, 22.0, 13.0, 24.0]);
///
/// let mut out = Tensor::zeros([2, 2], DType::F32)?;
/// table.mul_into(0.5, &mut out)?;
/// out.axpy(2.0, &row)?;
/// out.sub_assign(&table)?;
/// assert_eq!(out.as_slice::<f32>()?, [19.5, 39.0, 18.5, 38.0]);
///
/// let error = table.add(&Tensor::zeros([3], DType::F32)?).unwrap_err();
/// assert!(error.to_string().starts_with("add: shapes [2, 2] and [3] do not go together"));
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl Tensor {
    all_reads!(self, self.view()?);

    /// The elements as another type; see [`cast_into`](Self::cast_into). Shared where it is the type already.
    ///
    /// # Errors
    /// When there is no memory for it, and for half precision without the feature `half`.
    pub fn cast(&self, dtype: DType) -> Result<SharedOrCopied, TensorError> {
        if dtype == self.dtype() {
            return Ok(SharedOrCopied::Shared(self.clone()));
        }
        let mut out = Self::zeros(self.shape(), dtype)?;
        self.cast_into(&mut out)?;
        Ok(SharedOrCopied::Copied(out))
    }
}

/// Element by element, as with a [`Tensor`].
impl TensorRef<'_> {
    all_reads!(self, *self);
}

macro_rules! writes {
    ($self:ident, $view:expr; $($name:ident $binary:ident $what:literal;)*) => {
        $(
            #[doc = concat!($what, " No memory is allocated.")]
            ///
            /// # Errors
            /// Where types differ, the other cannot be repeated to this one's shape, and where this one cannot be written.
            pub fn $name<'b>(&mut $self, other: impl Into<Operand<'b>>) -> Result<(), TensorError> {
                Binary::$binary.assign(&mut $view, other.into())
            }
        )*
    };
}

macro_rules! all_writes {
    ($self:ident, $view:expr) => {
        writes! {
            $self, $view;
            add_assign Add "Adds to each element another.";
            sub_assign Sub "Takes from each element another.";
            mul_assign Mul "Multiplies each element with another.";
            div_assign Div "Divides each element by another; integers without the rest, and never by 0.";
        }

        /// Multiplies each element with a number. With strides: `tensor.view_mut()?.step(0, 2)?.scal(a)`.
        ///
        /// # Errors
        /// Where the number is none of the elements' type, and where the tensor cannot be written.
        pub fn scal(&mut $self, factor: impl Into<super::Scalar>) -> Result<(), TensorError> {
            Binary::Mul.assign(&mut $view, factor.into().into())
        }

        /// Adds a multiple of another tensor: `self += factor * other`. No memory is allocated; either may have strides.
        ///
        /// # Errors
        /// Where types differ, the factor is none of them, the other cannot be repeated to this one's shape, and where
        /// this one cannot be written.
        pub fn axpy<'b>(
            &mut $self,
            factor: impl Into<super::Scalar>,
            other: impl Into<Operand<'b>>,
        ) -> Result<(), TensorError> {
            axpy(&mut $view, factor.into(), other.into())
        }
    };
}

/// In place. Takes the tensor alone: `&mut`, and a storage that no other tensor shares.
impl Tensor {
    all_writes!(self, self.view_mut()?);
}

/// In place.
impl TensorMut<'_> {
    all_writes!(self, self.reborrow());
}

fn axpy(out: &mut TensorMut<'_>, factor: super::Scalar, other: Operand<'_>) -> Result<(), TensorError> {
    let (operation, dtype) = ("axpy", out.dtype());
    other.expect(operation, dtype)?;
    Operand::from(factor).expect(operation, dtype)?;
    with_number!(
        dtype,
        T => {
            let whole = *out.layout();
            let mut one = [T::of_u64(0)];
            let (other, layout) = other.elements::<T>(operation, &mut one, &whole)?;
            let factor = T::of_scalar(factor);
            let f = |out: T, other: T| out.plus(factor.times(other));
            update((out.plain_mut(), &whole), (other, &layout), f);
            Ok(())
        },
        else Binary::refuse(operation, dtype)
    )
}

/// Elements that are looked at together on the way from one type to another.
pub(super) const TILE: usize = 64;

/// Writes what was counted as elements of the output's type.
pub(super) fn store<W: Wide>(
    operation: &'static str,
    values: &[W],
    out: &mut TensorMut<'_>,
    place: usize,
    step: usize,
) -> Result<(), TensorError> {
    let dtype = out.dtype();
    with_number!(
        dtype,
        T => {
            let out = &mut out.plain_mut::<T>()[place..];
            if step == 1 {
                for (out, value) in out.iter_mut().zip(values) {
                    *out = value.cast();
                }
            } else {
                for (at, value) in values.iter().enumerate() {
                    out[at * step] = value.cast();
                }
            }
        },
        else {
            if dtype != DType::Bool {
                return Binary::refuse(operation, dtype);
            }
            let out = out.plain_mut::<u8>();
            for (at, value) in values.iter().enumerate() {
                out[place + at * step] = u8::from(*value != W::default());
            }
        }
    );
    Ok(())
}

fn cast(from: TensorRef<'_>, mut out: TensorMut<'_>) -> Result<(), TensorError> {
    output("cast_into", &out, out.dtype(), from.shape())?;
    if from.dtype() == out.dtype() {
        return out.copy_from(from);
    }
    with_number!(
        from.dtype(),
        T => cast_by(from.plain::<T>(), from.layout(), &mut out, T::widen),
        else match from.dtype() {
            DType::Bool => {
                cast_by(from.plain::<u8>(), from.layout(), &mut out, |byte| u64::from(byte != 0))
            }
            dtype => Binary::refuse("cast", dtype),
        }
    )
}

fn cast_by<T: Copy, W: Wide>(
    from: &[T],
    layout: &Layout,
    out: &mut TensorMut<'_>,
    widen: impl Fn(T) -> W + Copy,
) -> Result<(), TensorError> {
    let whole = *out.layout();
    let walk = Walk::in_any_order([&whole, layout]);
    let [to_step, from_step] = walk.strides;
    let mut result = Ok(());
    walk.rows(|[to, start]| {
        let mut tile = [W::default(); TILE];
        for first in (0..walk.len).step_by(TILE) {
            let tile = &mut tile[..TILE.min(walk.len - first)];
            for (at, value) in tile.iter_mut().enumerate() {
                *value = widen(from[start + (first + at) * from_step]);
            }
            let stored = store("cast", tile, out, to + first * to_step, to_step);
            if stored.is_err() {
                result = stored;
            }
        }
    });
    result
}
