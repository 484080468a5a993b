//! Text output of tensors: brackets around every dimension, aligned columns, and a summary of large tensors.

use super::Tensor;
use super::error::TensorError;
use super::layout::Layout;
use super::scalar::Scalar;
use super::view::{TensorMut, TensorRef};
use millpond_pool::dtype::DType;
use std::fmt;

/// The largest number of elements of a tensor that is shown completely.
const WHOLE: usize = 1000;
/// The number of indices that are shown at the beginning and at the end of a summarised dimension.
const EDGE: usize = 3;
/// The number of columns of text after which a row continues on the next line.
const WIDTH: usize = 100;

/// The format of floating-point numbers, the same for all numbers of a tensor.
#[derive(Clone, Copy)]
enum Style {
    /// No number has a fraction.
    Whole,
    /// With this number of digits after the point.
    Fixed(usize),
    /// With this number of digits after the point, and a power of ten.
    Scientific(usize),
}

impl Style {
    /// Chooses scientific notation if the numbers differ too much, or are too large or too small, for a fixed point.
    fn of(parts: impl Iterator<Item = f64>, digits: Option<usize>) -> Self {
        let (mut least, mut most, mut whole) = (f64::INFINITY, 0.0_f64, true);
        for part in parts.filter(|part| part.is_finite() && *part != 0.0) {
            least = least.min(part.abs());
            most = most.max(part.abs());
            whole &= part.trunc() == part;
        }
        let places = digits.unwrap_or(4);
        if most >= 1e8 || (most > 0.0 && !whole && (least < 1e-4 || most / least > 1e7)) {
            Self::Scientific(places)
        } else if whole && digits.is_none() {
            Self::Whole
        } else {
            Self::Fixed(places)
        }
    }

    fn write(self, number: f64, signed: bool) -> String {
        let sign = if signed && !number.is_sign_negative() {
            "+"
        } else {
            ""
        };
        match self {
            _ if number.is_nan() => format!("{sign}nan"),
            _ if number.is_infinite() => format!("{sign}{}inf", if number < 0.0 { "-" } else { "" }),
            Self::Whole => format!("{sign}{number:.0}."),
            Self::Fixed(places) => format!("{sign}{number:.places$}"),
            Self::Scientific(places) => format!("{sign}{number:.places$e}"),
        }
    }
}

fn write(number: Scalar, style: Style) -> String {
    match number {
        Scalar::Float(number) => style.write(number, false),
        Scalar::Complex([real, imaginary]) => {
            format!("{}{}i", style.write(real, false), style.write(imaginary, true))
        }
        other => other.to_string(),
    }
}

/// Returns the indices of a dimension that are shown. `None` stands for the omitted ones.
fn shown(size: usize, summarised: bool) -> impl Iterator<Item = Option<usize>> {
    let cut = summarised && size > 2 * EDGE + 1;
    let (head, tail) = if cut { (EDGE, size - EDGE) } else { (size, size) };
    let gap = cut.then_some(None);
    (0..head).map(Some).chain(gap).chain((tail..size).map(Some))
}

/// The state of a tensor's text, which is built dimension by dimension.
struct Picture {
    summarised: bool,
    style: Style,
    width: usize,
}

impl Picture {
    fn of(view: TensorRef<'_>, digits: Option<usize>) -> Result<Self, TensorError> {
        let mut picture = Self {
            summarised: view.len() > WHOLE,
            style: Style::Whole,
            width: 0,
        };
        let mut numbers = Vec::new();
        picture.gather(view, &mut numbers)?;
        let parts = numbers.iter().flat_map(|number| match number {
            Scalar::Float(number) => [*number, 0.0],
            Scalar::Complex(parts) => *parts,
            _ => [0.0; 2],
        });
        picture.style = Style::of(parts, digits);
        let widths = numbers
            .iter()
            .map(|number| write(*number, picture.style).chars().count());
        picture.width = widths.max().unwrap_or(0);
        Ok(picture)
    }

    /// Collects the elements that are shown.
    fn gather(&self, view: TensorRef<'_>, numbers: &mut Vec<Scalar>) -> Result<(), TensorError> {
        if view.rank() == 0 {
            numbers.push(view.item()?);
            return Ok(());
        }
        for at in shown(view.shape()[0], self.summarised).flatten() {
            self.gather(view.select(0, at)?, numbers)?;
        }
        Ok(())
    }

    fn draw(&self, view: TensorRef<'_>, depth: usize, text: &mut String) -> Result<(), TensorError> {
        match view.rank() {
            0 => *text += &write(view.item()?, self.style),
            1 => self.row(view, depth, text)?,
            rank => {
                *text += "[";
                for (place, at) in shown(view.shape()[0], self.summarised).enumerate() {
                    if place > 0 {
                        // Matrices are separated by one empty line, and batches of matrices by two.
                        *text += ",";
                        *text += &"\n".repeat(rank - 1);
                        *text += &" ".repeat(depth + 1);
                    }
                    match at {
                        Some(at) => self.draw(view.select(0, at)?, depth + 1, text)?,
                        None => *text += "...",
                    }
                }
                *text += "]";
            }
        }
        Ok(())
    }

    fn row(&self, view: TensorRef<'_>, depth: usize, text: &mut String) -> Result<(), TensorError> {
        *text += "[";
        let mut column = depth + 1;
        for (place, at) in shown(view.shape()[0], self.summarised).enumerate() {
            let element = match at {
                Some(at) => write(view.select(0, at)?.item()?, self.style),
                None => "...".to_owned(),
            };
            // The ellipsis for the omitted elements is narrower than a column.
            let width = if at.is_some() { self.width } else { 3 };
            if place > 0 {
                *text += ",";
                if column + width + 2 > WIDTH {
                    *text += "\n";
                    *text += &" ".repeat(depth + 1);
                    column = depth + 1;
                } else {
                    *text += " ";
                    column += 2;
                }
            }
            *text += &format!("{element:>width$}");
            column += width;
        }
        *text += "]";
        Ok(())
    }
}

/// Writes the elements in brackets, or a part of them if there are more than 1,000, followed by the type and the shape.
///
/// The precision of the format sets the number of digits after the point.
///
/// ```
/// use millpond::Tensor;
///
/// let table = Tensor::from_slice(&[1.0f32, -0.25, 10.0, 3.5], [2, 2])?;
/// assert_eq!(format!("{table:.2}"), "[[ 1.00, -0.25],\n [10.00,  3.50]]\nf32 [2, 2]");
/// assert_eq!(Tensor::arange(0, 5000, 1)?.to_string(), "[   0,    1,    2, ..., 4997, 4998, 4999]\ni32 [5000]");
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().map_err(|_| fmt::Error)?.fmt(f)
    }
}

/// Writes the same text as for a [`Tensor`].
impl fmt::Display for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let drawn = Picture::of(*self, f.precision()).and_then(|picture| picture.draw(*self, 0, &mut text));
        // The indices that are shown are valid, so this does not fail.
        drawn.map_err(|_| fmt::Error)?;
        write!(f, "{text}\n{} {:?}", self.dtype(), self.shape())
    }
}

/// Writes the same text as for a [`Tensor`].
impl fmt::Display for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

/// Writes the type and the layout, without the elements and the closing parenthesis.
fn describe(name: &str, dtype: DType, layout: &Layout, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (shape, strides) = (layout.shape(), layout.strides());
    write!(f, "{name}({dtype} {shape:?}, strides {strides:?}")
}

/// Writes the properties without the elements.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("Tensor", self.dtype(), self.layout(), f)?;
        write!(f, ", {}", self.device())?;
        match self.pool() {
            Some(pool) => write!(f, ", {pool:?})"),
            None => f.write_str(")"),
        }
    }
}

/// Writes the properties without the elements.
impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("TensorRef", self.dtype(), self.layout(), f)?;
        f.write_str(")")
    }
}

/// Writes the properties without the elements.
impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe("TensorMut", self.dtype(), self.layout(), f)?;
        f.write_str(")")
    }
}
