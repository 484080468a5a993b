//! Reads and writes the header of a `.npy` file.
//!
//! The header has a magic string, a version, a length, and a dictionary of Python literals with type, order and shape.
//! Of these, only the length determines how much memory is allocated, and it has a limit.

use super::NpyError;
use crate::DataError;
use crate::files::Opened;
use millpond_pool::dtype::DType;
use std::str;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// The maximum number of bytes of a header. NumPy reads at most 10,000 bytes from files that it does not trust.
const MOST_HEADER: u32 = 64 << 10;
/// The maximum number of dimensions. NumPy has the same limit.
pub(super) const MOST_DIMS: usize = 64;
/// The alignment of the first element in a written file, in bytes. NumPy's files have the same alignment.
const ALIGN: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NpyHeader {
    pub(super) dtype: DType,
    pub(super) fortran: bool,
    pub(super) shape: Vec<u64>,
}

/// Returns the header of a file and the byte position of its first element.
pub(super) fn read(file: &Opened) -> Result<(NpyHeader, u64), NpyError> {
    let header = |why: String| NpyError::Header {
        path: file.path().to_owned(),
        why,
    };
    let short = |error| match error {
        DataError::Truncated { .. } => header("it ends inside its header".to_owned()),
        error => error.into(),
    };
    let mut start = [0; 8];
    file.read(0, &mut start).map_err(short)?;
    let [magic @ .., major, minor] = start;
    if magic != *MAGIC {
        return Err(header("it does not begin with \\x93NUMPY".to_owned()));
    }
    let width = match major {
        1 => 2,
        2 | 3 => 4,
        _ => {
            return Err(header(format!(
                "its version is {major}.{minor}, not 1.0, 2.0 or 3.0"
            )));
        }
    };
    // The length follows the version, in little-endian order.
    let mut length = [0; 4];
    file.read(8, &mut length[..width]).map_err(short)?;
    let (length, before) = (u32::from_le_bytes(length), 8 + width as u64);
    if length > MOST_HEADER {
        return Err(header(format!(
            "its header has {length} bytes, more than the limit of {MOST_HEADER}"
        )));
    }
    let mut text = millpond_set::pools::alloc_zeroed::<u8>(length as usize).map_err(DataError::Memory)?;
    file.read(before, &mut text).map_err(short)?;
    let text = str::from_utf8(&text).map_err(|_| header("its header is not valid UTF-8".to_owned()))?;
    match DictionaryParser::new(text).head().map_err(header)? {
        Ok(head) => Ok((head, before + u64::from(length))),
        Err(descr) => Err(NpyError::Type {
            path: file.path().to_owned(),
            descr,
        }),
    }
}

/// Element types and their NumPy names without the byte order.
const NAMES: [(DType, &str); 15] = [
    (DType::F64, "f8"),
    (DType::F32, "f4"),
    (DType::F16, "f2"),
    // NumPy has no bf16. ml_dtypes saves it as untyped data of two bytes.
    (DType::BF16, "V2"),
    (DType::I8, "i1"),
    (DType::I16, "i2"),
    (DType::I32, "i4"),
    (DType::I64, "i8"),
    (DType::U8, "u1"),
    (DType::U16, "u2"),
    (DType::U32, "u4"),
    (DType::U64, "u8"),
    (DType::Bool, "b1"),
    (DType::Complex64, "c8"),
    (DType::Complex128, "c16"),
];

const NATIVE: char = if cfg!(target_endian = "little") { '<' } else { '>' };

/// Returns a header for elements that follow in C order (the last dimension is contiguous).
pub(super) fn made(dtype: DType, shape: &[u64]) -> Vec<u8> {
    let name = NAMES
        .iter()
        .find(|(of, _)| *of == dtype)
        .map_or("", |(_, name)| name);
    let order = if dtype.size() == 1 || dtype == DType::BF16 {
        '|'
    } else {
        NATIVE
    };
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let sizes = if shape.len() > 1 {
        sizes.trim_end_matches(", ")
    } else {
        sizes.trim_end()
    };
    let text = format!("{{'descr': '{order}{name}', 'fortran_order': False, 'shape': ({sizes}), }}");
    // The parts are the magic string, the version, two bytes of length, the text, spaces, and a newline.
    let whole = (10 + text.len() + 1).next_multiple_of(ALIGN);
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    // The text of 64 dimensions with 20 digits each is far shorter than the maximum of a two-byte length.
    header.extend(((whole - 10) as u16).to_le_bytes());
    header.extend(text.bytes());
    header.resize(whole - 1, b' ');
    header.push(b'\n');
    header
}

/// Parses the dictionary. It supports only the Python literals that NumPy writes there.
struct DictionaryParser<'a> {
    text: &'a str,
    rest: &'a str,
}

/// A header, or `Err` with the file's description of an unsupported element type.
type Found = Result<NpyHeader, String>;

impl<'a> DictionaryParser<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, rest: text }
    }

    fn wrong<R>(&self, wanted: &str) -> Result<R, String> {
        let at = self.text.len() - self.rest.len();
        let found: String = self.rest.chars().take(12).collect();
        Err(format!(
            "expected {wanted} at byte {at} of its dictionary, got {found:?}"
        ))
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Consumes `what` and returns true if the text continues with it.
    fn comes(&mut self, what: &str) -> bool {
        self.skip_blanks();
        match self.rest.strip_prefix(what) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, what: &str) -> Result<(), String> {
        if self.comes(what) {
            Ok(())
        } else {
            self.wrong(what)
        }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        self.skip_blanks();
        for quote in ['\'', '"'] {
            if let Some(rest) = self.rest.strip_prefix(quote)
                && let Some((string, rest)) = rest.split_once(quote)
                && !string.contains('\\')
            {
                self.rest = rest;
                return Ok(string);
            }
        }
        self.wrong("a string")
    }

    fn truth(&mut self) -> Result<bool, String> {
        if self.comes("True") {
            Ok(true)
        } else if self.comes("False") {
            Ok(false)
        } else {
            self.wrong("True or False")
        }
    }

    fn number(&mut self) -> Result<u64, String> {
        self.skip_blanks();
        let digits = self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = self.rest.split_at(digits);
        let Ok(number) = number.parse() else {
            return self.wrong("a size");
        };
        // Python 2 appended an L to long integers.
        self.rest = rest.strip_prefix('L').unwrap_or(rest);
        Ok(number)
    }

    fn sizes(&mut self) -> Result<Vec<u64>, String> {
        let mut sizes = Vec::new();
        self.expect("(")?;
        while !self.comes(")") {
            if sizes.len() == MOST_DIMS {
                return Err(format!("it has more than {MOST_DIMS} dimensions"));
            }
            sizes.push(self.number()?);
            // A comma follows a single size as well.
            if !self.comes(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(sizes)
    }

    /// Returns the text up to the end of a value without interpreting it.
    fn anything(&mut self) -> Result<&'a str, String> {
        self.skip_blanks();
        let mut depth = 0usize;
        let mut quote = None;
        for (at, c) in self.rest.char_indices() {
            match (quote, c) {
                (Some(open), _) if open == c => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(c),
                (None, '(' | '[' | '{') => depth += 1,
                (None, ')' | ']' | '}') if depth > 0 => depth -= 1,
                (None, ',' | '}') if depth == 0 => {
                    let (value, rest) = self.rest.split_at(at);
                    self.rest = rest;
                    return Ok(value.trim_end());
                }
                _ => {}
            }
        }
        self.wrong("a value")
    }

    fn head(&mut self) -> Result<Found, String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect("{")?;
        while !self.comes("}") {
            let key = self.string()?;
            self.expect(":")?;
            let twice = match key {
                "descr" => {
                    self.skip_blanks();
                    let before = descr.is_some();
                    let simple = self.rest.starts_with(['\'', '"']);
                    descr = Some(if simple { self.string()? } else { self.anything()? });
                    before
                }
                "fortran_order" => fortran.replace(self.truth()?).is_some(),
                "shape" => shape.replace(self.sizes()?).is_some(),
                _ => {
                    return Err(format!("its dictionary has the unknown key {key:?}"));
                }
            };
            if twice {
                return Err(format!("its dictionary has {key} twice"));
            }
            if !self.comes(",") {
                self.expect("}")?;
                break;
            }
        }
        self.skip_blanks();
        if !self.rest.is_empty() {
            return self.wrong("the end");
        }
        let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
            return Err("its dictionary lacks one of descr, fortran_order and shape".to_owned());
        };
        let elements = shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
        // A dimension of 0 makes the product 0, but the product of the other dimensions may still overflow.
        let row = shape
            .iter()
            .skip(1)
            .try_fold(1u64, |all, size| all.checked_mul(*size));
        if elements.is_none() || row.is_none() {
            return Err(format!(
                "its shape {shape:?} has more elements than a 64-bit number can count"
            ));
        }
        let dtype = dtype_of(descr);
        Ok(dtype
            .map(|dtype| NpyHeader {
                dtype,
                fortran,
                shape,
            })
            .ok_or_else(|| descr.to_owned()))
    }
}

fn dtype_of(descr: &str) -> Option<DType> {
    let name = descr.strip_prefix(['<', '>', '|', '=']).unwrap_or(descr);
    let (dtype, _) = NAMES.iter().find(|(_, of)| *of == name)?;
    let order = descr.chars().next()?;
    let native =
        dtype.size() == 1 || order == NATIVE || order == '=' || (order == '|' && *dtype == DType::BF16);
    native.then_some(*dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Result<Found, String> {
        DictionaryParser::new(text).head()
    }

    #[test]
    fn headers_in_different_python_notations_are_read() {
        let expected = NpyHeader {
            dtype: DType::F32,
            fortran: false,
            shape: vec![3, 4],
        };
        for text in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n",
            "{\"shape\":(3,4),\"descr\":\"<f4\",\"fortran_order\":False}",
            "{ 'shape' : ( 3L , 4L , ) , 'fortran_order' : False , 'descr' : '<f4' , }\n",
        ] {
            assert_eq!(head(text).expect(text).expect(text), expected);
        }
        let shape = |sizes| {
            let text = format!("{{'descr': '|u1', 'fortran_order': True, 'shape': {sizes}}}");
            head(&text).map(|found| found.expect("a type").shape)
        };
        assert_eq!(shape("()"), Ok(vec![]));
        assert_eq!(shape("(7,)"), Ok(vec![7]));
        assert_eq!(shape("(0, 5)"), Ok(vec![0, 5]));
        for wrong in [
            "(3, -1)",
            "(3",
            "3",
            "(3 4)",
            "(18446744073709551616,)",
            "(1.5,)",
            "(,)",
        ] {
            assert!(shape(wrong).is_err(), "{wrong}");
        }
        assert!(
            shape("(4294967296, 4294967296)").is_err(),
            "more than 64 bits count"
        );
        assert!(shape("(0, 4294967296, 4294967296)").is_err());
        assert!(shape(&format!("({})", "1, ".repeat(65))).is_err());
    }

    #[test]
    fn errors_of_damaged_headers_state_the_problem() {
        for (text, why) in [
            ("", "byte 0"),
            ("{'descr': '<f4', 'shape': (3,)}", "lacks"),
            (
                "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (3,)}",
                "True or False",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} more",
                "expected the end",
            ),
            (
                "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
                "twice",
            ),
            ("{'other': '<f4', 'fortran_order': False, 'shape': (3,)}", "other"),
            (
                "{'descr': '<f4 , 'fortran_order': False, 'shape': (3,)}",
                "expected",
            ),
        ] {
            let told = head(text).expect_err(text);
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn unsupported_element_types_are_reported_by_name() {
        for descr in [
            "'>f4'",
            "'<U8'",
            "'|O'",
            "[('x', '<f4'), ('y', '<f4')]",
            "'<M8[ns]'",
            "('<f4', (2,))",
            "'f4'",
        ] {
            let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (3,)}}");
            let found = head(&text).expect(descr).expect_err(descr);
            assert_eq!(found, descr.trim_matches('\''));
        }
    }

    proptest! {
        #[test]
        fn written_headers_are_read_back(shape in prop::collection::vec(0u64..1000, 0..7), at in 0usize..15) {
            let dtype = NAMES[at].0;
            let header = made(dtype, &shape);
            prop_assert_eq!(header.len() % ALIGN, 0);
            let text = std::str::from_utf8(&header[10..]).expect("text");
            let expected = NpyHeader { dtype, fortran: false, shape };
            prop_assert_eq!(head(text).expect("a header").expect("a type"), expected);
        }

        #[test]
        fn arbitrary_headers_do_not_panic(text in "[{}()\\[\\]':, 0-9a-zA-Z<_\\n\"L]{0,80}") {
            let _ = head(&text);
            let _ = head(&format!("{{'descr': '<f4', 'shape': {text}"));
            let _ = head(&format!("{{'descr': {text}"));
        }
    }
}
