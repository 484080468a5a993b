//! Tensors for people: brackets around every dimension, columns below one another, large ones in part.

use super::Tensor;
use super::error::TensorError;
use super::scalar::Scalar;
use super::view::{TensorMut, TensorRef};
use crate::dtype::DType;
use std::fmt;

/// More elements are not shown in whole.
const WHOLE: usize = 1000;
/// Of a dimension that is not shown in whole: as many from its beginning, and from its end.
const EDGE: usize = 3;
/// Columns of text after which a row goes on in the next line.
const WIDTH: usize = 100;

/// Half precision, of either kind, as its bits.
pub(super) fn half_as_f64(dtype: DType, bits: u16) -> f64 {
    if dtype == DType::BF16 {
        return f32::from_bits(u32::from(bits) << 16).into();
    }
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (u64::from(bits >> 10 & 31), f64::from(bits & 1023));
    // By its bits, as `powi` need not be exact.
    let two_to = |power: u64| f64::from_bits((1023 + power) << 52);
    match exponent {
        0 => sign * fraction / two_to(24),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1024.0 + fraction) * two_to(exponent) / two_to(25),
    }
}

/// How numbers of floating point are written, all of a tensor alike.
#[derive(Clone, Copy)]
enum Style {
    /// None has a fraction.
    Whole,
    /// With so many digits after the point.
    Fixed(usize),
    /// The same, and a power of ten.
    Scientific(usize),
}

impl Style {
    /// For numbers that differ too much, are too large or too small to be read by their places, powers of ten.
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

/// The places of a dimension that are shown; none stands for those left out.
fn shown(size: usize, summarised: bool) -> impl Iterator<Item = Option<usize>> {
    let cut = summarised && size > 2 * EDGE + 1;
    let (head, tail) = if cut { (EDGE, size - EDGE) } else { (size, size) };
    let gap = cut.then_some(None);
    (0..head).map(Some).chain(gap).chain((tail..size).map(Some))
}

/// Text to be, dimension by dimension.
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

    /// The elements that are shown.
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
                        // Between matrices an empty line, between those of matrices two.
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
            // What stands for those left out needs no place of a column.
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

/// The elements in brackets, those of a tensor of more than 1,000 in part, then type and shape.
///
/// A precision says how many digits follow the point.
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

/// As a tensor.
impl fmt::Display for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let drawn = Picture::of(*self, f.precision()).and_then(|picture| picture.draw(*self, 0, &mut text));
        // What is shown lies inside.
        drawn.map_err(|_| fmt::Error)?;
        write!(f, "{text}\n{} {:?}", self.dtype(), self.shape())
    }
}

/// As a tensor.
impl fmt::Display for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

/// What it is, without its elements.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor({} {:?}, strides {:?}, {}",
            self.dtype(),
            self.shape(),
            self.strides(),
            self.device()
        )?;
        match self.pool() {
            Some(pool) => write!(f, ", {pool:?})"),
            None => f.write_str(")"),
        }
    }
}

/// What it is, without its elements.
impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TensorRef({} {:?}, strides {:?})",
            self.dtype(),
            self.shape(),
            self.strides()
        )
    }
}

/// What it is, without its elements.
impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TensorMut({} {:?}, strides {:?})",
            self.dtype(),
            self.shape(),
            self.strides()
        )
    }
}
