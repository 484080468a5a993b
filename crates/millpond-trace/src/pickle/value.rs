//! One value of a pickle in four bytes: three bits of kind, 29 of payload (a small number, or an index).

use std::fmt;

/// One value; an index into its [`super::Arena`] where it does not fit.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Value(u32);

const PAYLOAD: u32 = (1 << 29) - 1;
/// Payloads of [`Value::small`] are moved up by this.
const HALF: i64 = 1 << 28;
/// Of a dict's payload: that it counts the dicts taken whole, and not all containers.
const WHOLE: u32 = 1 << 28;

/// What a value is; what remains is 0, the constants.
const SMALL: u32 = 1;
pub(super) const INT: u32 = 2;
pub(super) const FLOAT: u32 = 3;
pub(super) const STRING: u32 = 4;
pub(super) const LIST: u32 = 5;
pub(super) const DICT: u32 = 6;
pub(super) const TUPLE: u32 = 7;

/// How the bits of dicts that were taken whole begin.
const TAKEN: u32 = DICT << 29 | WHOLE;

impl Value {
    pub(crate) const NONE: Self = Self(0);
    pub(super) const FALSE: Self = Self(1);
    pub(super) const TRUE: Self = Self(2);
    /// Bytes and the like: nothing a snapshot needs, so only its presence is kept.
    pub(super) const OPAQUE: Self = Self(3);
    /// An integer above `i64::MAX`.
    pub(super) const HUGE: Self = Self(4);
    /// An integer below `i64::MIN`.
    pub(super) const MINUS_HUGE: Self = Self(5);
    /// A memo entry never written.
    pub(super) const UNSET: Self = Self(6);

    /// The value of a kind at an index, if that fits.
    #[inline]
    pub(super) fn new(kind: u32, index: usize) -> Option<Self> {
        let most = if kind == DICT { WHOLE - 1 } else { PAYLOAD };
        let index = u32::try_from(index).ok().filter(|&index| index <= most)?;
        Some(Self(kind << 29 | index))
    }

    /// An integer that needs no arena.
    #[inline]
    pub(super) fn small(int: i64) -> Option<Self> {
        (-HALF..HALF)
            .contains(&int)
            .then(|| Self(SMALL << 29 | (int + HALF) as u32))
    }

    /// A dict that the sieve took whole and keeps under `number`.
    #[inline]
    pub(super) fn whole(number: u32) -> Option<Self> {
        (number < WHOLE).then_some(Self(TAKEN | number))
    }

    #[inline]
    pub(super) fn kind(self) -> u32 {
        self.0 >> 29
    }

    /// The index; of no use for constants, [`Self::small`] and [`Self::whole`].
    #[inline]
    pub(super) fn index(self) -> usize {
        (self.0 & PAYLOAD) as usize
    }

    /// The integer of [`Self::small`].
    #[inline]
    pub(super) fn as_small(self) -> Option<i64> {
        (self.kind() == SMALL).then(|| i64::from(self.0 & PAYLOAD) - HALF)
    }

    /// The number of [`Self::whole`].
    #[inline]
    pub(super) fn as_whole(self) -> Option<u32> {
        (self.0 & !(WHOLE - 1) == TAKEN).then_some(self.0 & (WHOLE - 1))
    }

    /// Distinct for distinct values; 0 for `None`.
    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// The number of a string in [`super::Arena::strings`].
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

    /// The number of a dict among all containers; none for one that was taken whole.
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
