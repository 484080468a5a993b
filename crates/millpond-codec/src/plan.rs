//! Chooses the codes of a plane from the frequencies of its bytes.

/// A window of neighbouring byte values, on a ring of 256. A value in the window is stored as its distance from `base`, in `width` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) base: u8,
    /// The bits of a code. With 8, bytes are stored unchanged.
    pub(crate) width: u8,
}

impl Window {
    pub(crate) const RAW: Self = Self { base: 0, width: 8 };

    /// Returns the largest code. It marks the values outside the window, if there are any.
    pub(crate) fn top(self) -> u8 {
        ((1_u16 << self.width) - 1) as u8
    }
}

/// The windows of a plane: the first for all bytes, the second for those outside the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) windows: [Window; 2],
    /// The expected bits per 256 bytes.
    pub(crate) bits: usize,
    /// The blocks that were packed since the plan was made.
    pub(crate) age: u8,
}

impl Plan {
    pub(crate) const RAW: Self = Self {
        windows: [Window::RAW; 2],
        bits: 8 * 256,
        age: u8::MAX,
    };
}

/// Removes the values below `top` from the ring of distances, so that the two sides of the window become neighbours. The distance is not
/// below `top`.
#[inline(always)]
pub(crate) fn close(distance: u8, top: u8) -> u8 {
    if distance < 128 {
        distance.wrapping_sub(top)
    } else {
        distance
    }
}

/// Undoes [`close`].
#[inline(always)]
pub(crate) fn open(closed: u8, top: u8) -> u8 {
    if closed < 128 {
        closed.wrapping_add(top)
    } else {
        closed
    }
}

/// The number of occurrences of each value.
type Counts = [u16; 256];

/// The sums of the counts before each value, twice around the ring.
struct Sums([u16; 512]);

impl Sums {
    #[inline(always)]
    fn new(counts: &Counts) -> Self {
        let (mut sums, mut sum) = ([0; 512], 0_u16);
        for (at, before) in sums.iter_mut().enumerate() {
            *before = sum;
            sum = sum.wrapping_add(counts[at % 256]);
        }
        Self(sums)
    }

    /// Returns the number of occurrences in the densest window of `limit` values.
    #[inline(always)]
    fn densest(&self, limit: usize) -> u16 {
        let windows = self.0.iter().zip(&self.0[limit..]).take(256);
        windows.fold(0, |most, (from, to)| most.max(to.wrapping_sub(*from)))
    }

    /// Returns the first value of a window of `limit` values with `inside` occurrences.
    #[inline(always)]
    fn base(&self, limit: usize, inside: u16) -> u8 {
        let mut windows = self.0.iter().zip(&self.0[limit..]).take(256);
        let at = windows.position(|(from, to)| to.wrapping_sub(*from) == inside);
        at.unwrap_or_default() as u8
    }
}

/// Returns the plan with the fewest bits for values with these counts. The sum of the counts is below 2^16.
#[inline(always)]
pub(crate) fn plan(counts: &Counts) -> Plan {
    let total: u16 = counts.iter().sum();
    let sums = Sums::new(counts);
    let mut best = (8 * usize::from(total), [Window::RAW; 2]);
    for width in 0..8 {
        // Without exceptions all codes are values.
        if sums.densest(1 << width) == total {
            let (base, bits) = (
                sums.base(1 << width, total),
                usize::from(total) * usize::from(width),
            );
            if bits < best.0 {
                best = (bits, [Window { base, width }, Window::RAW]);
            }
            break;
        }
        if width == 0 {
            continue;
        }
        let limit = (1 << width) - 1;
        let inside = sums.densest(limit);
        let outside = total - inside;
        let first = usize::from(total) * usize::from(width);
        // This assumes that the second window needs at least one bit for each value outside the first.
        if first + usize::from(outside) >= best.0 {
            continue;
        }
        let window = Window {
            base: sums.base(limit, inside),
            width,
        };
        let (bits, second) = second(&closed(counts, window), outside);
        if first + bits < best.0 {
            best = (first + bits, [window, second]);
        }
    }
    Plan {
        windows: best.1,
        bits: best.0 * 256 / usize::from(total).max(1),
        age: 0,
    }
}

/// Returns the counts of the values outside a window.
#[inline(always)]
fn closed(counts: &Counts, window: Window) -> Counts {
    let mut to = [0; 256];
    for distance in window.top()..=255 {
        let value = window.base.wrapping_add(distance);
        to[usize::from(close(distance, window.top()))] = counts[usize::from(value)];
    }
    to
}

/// Returns the bits for `total` values with the best single window, and the window.
#[inline(always)]
fn second(counts: &Counts, total: u16) -> (usize, Window) {
    let sums = Sums::new(counts);
    let mut best = (8 * usize::from(total), 8, 0, 0);
    for width in 0..8 {
        let codes = usize::from(total) * usize::from(width);
        if sums.densest(1 << width) == total {
            if codes < best.0 {
                best = (codes, width, 1 << width, total);
            }
            break;
        }
        let limit = (1 << width) - 1;
        let inside = sums.densest(limit);
        let bits = codes + 8 * usize::from(total - inside);
        if width > 0 && bits < best.0 {
            best = (bits, width, limit, inside);
        }
    }
    let (bits, width, limit, inside) = best;
    let base = if width == 8 { 0 } else { sums.base(limit, inside) };
    (bits, Window { base, width })
}
