//! The padding in an array of the structure, as a value and a table.

use std::fmt;

/// The memory layout of a structure, and the bytes that an array of it wastes compared with a structure of arrays.
///
/// ```
/// use millpond::Soa;
///
/// #[derive(Soa)]
/// #[repr(C)]
/// struct Reading { value: f32, flag: u8, result: f64 }
///
/// assert_eq!(
///     Reading::layout_report().to_string(),
///     "\
/// Reading: 16 bytes in an array of structures, 13 in a structure of arrays; 3 lost (19 %)
///   offset   bytes   align
///        0       4       4  value
///        4       1       1  flag
///        5       3          lost after flag
///        8       8       8  result
/// "
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoaLayout {
    /// The structure's name.
    pub name: &'static str,
    /// The bytes of an element in an array of structures.
    pub bytes: usize,
    /// The alignment of an element in an array of structures.
    pub align: usize,
    /// The fields in the order of their offsets.
    pub fields: &'static [SoaField],
}

/// One field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoaField {
    /// The field's name.
    pub name: &'static str,
    /// The offset from the beginning of the structure, in bytes.
    pub offset: usize,
    /// The bytes of the field.
    pub bytes: usize,
    /// The alignment of the field.
    pub align: usize,
    /// The unused bytes between the field's end and the next field or the structure's end.
    pub padding: usize,
}

impl SoaLayout {
    #[doc(hidden)]
    #[must_use]
    pub const fn of<T>(name: &'static str, fields: &'static [SoaField]) -> Self {
        Self {
            name,
            bytes: size_of::<T>(),
            align: align_of::<T>(),
            fields,
        }
    }

    /// Returns the bytes of an element in a structure of arrays, which are those of its fields.
    #[must_use]
    pub const fn soa_bytes(&self) -> usize {
        self.bytes - self.padding()
    }

    /// Returns the unused bytes of an element in an array of structures.
    #[must_use]
    pub const fn padding(&self) -> usize {
        let (mut sum, mut at) = (0, 0);
        while at < self.fields.len() {
            sum += self.fields[at].padding;
            at += 1;
        }
        sum
    }

    /// Returns the field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&SoaField> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl SoaField {
    #[doc(hidden)]
    #[must_use]
    pub const fn of<T>(name: &'static str, offset: usize) -> Self {
        Self {
            name,
            offset,
            bytes: size_of::<T>(),
            align: align_of::<T>(),
            padding: 0,
        }
    }

    const fn end(&self) -> usize {
        self.offset + self.bytes
    }
}

/// Returns the fields of `T` in the order of their offsets, with the padding after each.
#[must_use]
pub const fn arrange<T, const N: usize>(mut fields: [SoaField; N]) -> [SoaField; N] {
    let mut sorted = 1;
    while sorted < N {
        let mut at = sorted;
        while at > 0 && fields[at].offset < fields[at - 1].offset {
            (fields[at], fields[at - 1]) = (fields[at - 1], fields[at]);
            at -= 1;
        }
        sorted += 1;
    }
    let mut at = 0;
    while at < N {
        let next = if at + 1 < N {
            fields[at + 1].offset
        } else {
            size_of::<T>()
        };
        fields[at].padding = next - fields[at].end();
        at += 1;
    }
    fields
}

/// Returns the padding after the field at an offset, in bytes.
#[must_use]
pub const fn padding_after(layout: &SoaLayout, offset: usize) -> usize {
    let mut at = 0;
    while at < layout.fields.len() {
        if layout.fields[at].offset == offset {
            return layout.fields[at].padding;
        }
        at += 1;
    }
    0
}

/// Fails to compile if bytes are lost. The error message consists of their number and `rest`. A panic in a constant cannot format a
/// number, so this function writes the digits itself.
#[track_caller]
pub const fn forbid_padding(lost: usize, rest: &str) {
    if lost == 0 {
        return;
    }
    let (said, length) = counted::<1024>(lost, if lost == 1 { " byte is " } else { " bytes are " }, rest);
    let (said, _) = said.split_at(length);
    match std::str::from_utf8(said) {
        Ok(said) => panic!("{}", said),
        // The text was truncated within a character, which happens only if a name is very long.
        Err(_) => panic!("{}", rest),
    }
}

/// Joins a number and two texts, up to `ROOM` bytes, and returns them with their length.
const fn counted<const ROOM: usize>(number: usize, first: &str, second: &str) -> ([u8; ROOM], usize) {
    let (mut said, mut length) = ([0; ROOM], 0);
    let mut place = 1;
    while number / place >= 10 {
        place *= 10;
    }
    while place > 0 && length < ROOM {
        said[length] = b'0' + (number / place % 10) as u8;
        length += 1;
        place /= 10;
    }
    let texts = [first.as_bytes(), second.as_bytes()];
    let mut which = 0;
    while which < texts.len() {
        let mut at = 0;
        while at < texts[which].len() && length < ROOM {
            said[length] = texts[which][at];
            length += 1;
            at += 1;
        }
        which += 1;
    }
    (said, length)
}

impl fmt::Display for SoaLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bytes, lost) = (self.name, self.bytes, self.padding());
        let percent = (100 * lost + bytes / 2).checked_div(bytes).unwrap_or(0);
        writeln!(
            f,
            "{name}: {bytes} bytes in an array of structures, {} in a structure of arrays; {lost} lost ({percent} %)",
            self.soa_bytes()
        )?;
        writeln!(f, "{:>8}{:>8}{:>8}", "offset", "bytes", "align")?;
        for field in self.fields {
            let SoaField {
                name,
                offset,
                bytes,
                align,
                padding,
            } = field;
            writeln!(f, "{offset:>8}{bytes:>8}{align:>8}  {name}")?;
            if *padding > 0 {
                writeln!(f, "{:>8}{padding:>8}{:>8}  lost after {name}", field.end(), "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_sorted_by_offset_regardless_of_their_order() {
        let (late, early) = (SoaField::of::<u16>("late", 4), SoaField::of::<u8>("early", 0));
        let found = arrange::<u64, 3>([late, SoaField::of::<u8>("middle", 1), early]);
        let found = found.map(|field| (field.name, field.padding));
        assert_eq!(found, [("early", 0), ("middle", 2), ("late", 2)]);
    }

    #[test]
    #[should_panic(expected = "120 bytes are lost after field `b`")]
    fn forbidden_padding_is_reported_with_its_size() {
        forbid_padding(0, "lost after field `a`");
        forbid_padding(120, "lost after field `b`");
    }

    #[test]
    fn a_text_that_is_too_long_is_truncated() {
        assert_eq!(counted::<8>(1, " byte", " is lost"), (*b"1 byte i", 8));
        assert_eq!(counted::<2>(1234, "", ""), (*b"12", 2));
        assert_eq!(counted::<6>(usize::MAX, "", ""), (*b"184467", 6));
    }
}
