//! One value of a pickle in four bytes: three bits of kind, 29 of payload (a small number, or an index).

use std::fmt;

/// One value, or an index into its [`super::Arena`] if the value does not fit.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Value(u32);

const PAYLOAD: u32 = (1 << 29) - 1;
/// The offset that is added to the payload of [`Value::small`].
const HALF: i64 = 1 << 28;
/// A bit in the payload of a dict: the index counts the dicts that were taken completely, not all containers.
const WHOLE: u32 = 1 << 28;

/// The kinds of values. Kind 0 is for the constants.
const SMALL: u32 = 1;
pub(super) const INT: u32 = 2;
pub(super) const FLOAT: u32 = 3;
pub(super) const STRING: u32 = 4;
pub(super) const LIST: u32 = 5;
pub(super) const DICT: u32 = 6;
pub(super) const TUPLE: u32 = 7;

/// The first bits of dicts that were taken completely.
const TAKEN: u32 = DICT << 29 | WHOLE;

impl Value {
    pub(crate) const NONE: Self = Self(0);
    pub(super) const FALSE: Self = Self(1);
    pub(super) const TRUE: Self = Self(2);
    /// Bytes and similar values, which a snapshot does not need. Only their presence is recorded.
    pub(super) const OPAQUE: Self = Self(3);
    /// An integer above `i64::MAX`.
    pub(super) const HUGE: Self = Self(4);
    /// An integer below `i64::MIN`.
    pub(super) const MINUS_HUGE: Self = Self(5);
    /// A memo entry that was never written.
    pub(super) const UNSET: Self = Self(6);

    /// Returns the value of a kind at an index, if it fits.
    #[inline]
    pub(super) fn new(kind: u32, index: usize) -> Option<Self> {
        let most = if kind == DICT { WHOLE - 1 } else { PAYLOAD };
        let index = u32::try_from(index).ok().filter(|&index| index <= most)?;
        Some(Self(kind << 29 | index))
    }

    /// Returns an integer that needs no arena, if it fits.
    #[inline]
    pub(super) fn small(int: i64) -> Option<Self> {
        (-HALF..HALF)
            .contains(&int)
            .then(|| Self(SMALL << 29 | (int + HALF) as u32))
    }

    /// Returns a dict that the sieve took completely and keeps under `number`.
    #[inline]
    pub(super) fn whole(number: u32) -> Option<Self> {
        (number < WHOLE).then_some(Self(TAKEN | number))
    }

    #[inline]
    pub(super) fn kind(self) -> u32 {
        self.0 >> 29
    }

    /// Returns the index. It has no meaning for constants, [`Self::small`] and [`Self::whole`].
    #[inline]
    pub(super) fn index(self) -> usize {
        (self.0 & PAYLOAD) as usize
    }

    /// Returns the integer of [`Self::small`].
    #[inline]
    pub(super) fn as_small(self) -> Option<i64> {
        (self.kind() == SMALL).then(|| i64::from(self.0 & PAYLOAD) - HALF)
    }

    /// Returns the number of [`Self::whole`].
    #[inline]
    pub(super) fn as_whole(self) -> Option<u32> {
        (self.0 & !(WHOLE - 1) == TAKEN).then_some(self.0 & (WHOLE - 1))
    }

    /// Returns bits that are distinct for distinct values, and 0 for `None`.
    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// Returns the number of a string in [`super::Arena::strings`].
    #[inline]
    pub(crate) fn string(self) -> Option<u32> {
        (self.kind() == STRING).then_some(self.0 & PAYLOAD)
    }

    #[inline]
    pub(crate) fn is_list(self) -> bool {
        self.kind() == LIST
    }

    #[inline]
    pub(crate) fn is_dict(self) -> bool {
        self.kind() == DICT
    }

    /// Returns the number of a dict among all containers, or `None` if it was taken completely.
    #[inline]
    pub(crate) fn dict(self) -> Option<usize> {
        (self.is_dict() && self.as_whole().is_none()).then(|| self.index())
    }

    pub(crate) fn boolean(self) -> Option<bool> {
        match self {
            Self::TRUE => Some(true),
            Self::FALSE => Some(false),
            _ => None,
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = [
            "constant", "small", "int", "float", "string", "list", "dict", "tuple",
        ];
        write!(f, "{}:{}", NAMES[self.kind() as usize], self.index())
    }
}
