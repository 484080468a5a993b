//! The kept buffers of a rental, by class, and its counters.
#![forbid(unsafe_code)]

use millpond_account::error::AllocError;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const LEAST: usize = 1 << 10;
const MOST: usize = 1 << 20;
const CLASSES: usize = 11;

/// Returns the class for `bytes` bytes, if there is one, and the size of the buffer to rent.
pub fn class_of(bytes: usize) -> Result<(Option<usize>, usize), AllocError> {
    if bytes > MOST {
        let whole = bytes.checked_next_multiple_of(MOST);
        return Ok((None, whole.ok_or(AllocError::UNCOUNTABLE)?));
    }
    let rounded = bytes.max(LEAST).next_power_of_two();
    let class = rounded.trailing_zeros() - LEAST.trailing_zeros();
    Ok((Some(class as usize), rounded))
}

/// Returns the bytes of a class.
pub fn class_bytes(class: usize) -> usize {
    LEAST << class
}

/// The counters of a rental.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RentalStats {
    /// The number of rented buffers.
    pub rents: u64,
    /// The number of them that were served by kept buffers.
    pub reuses: u64,
    /// The bytes of kept buffers.
    pub kept_bytes: u64,
}

/// Returned buffers, by class.
pub struct Shelves<B> {
    /// Each buffer has the size of its class.
    kept: [Mutex<Vec<B>>; CLASSES],
    most: usize,
    rents: AtomicU64,
    reuses: AtomicU64,
}

impl<B> Shelves<B> {
    /// Creates empty shelves that keep up to `most` buffers of each class.
    pub fn new(most: usize) -> Self {
        Self {
            kept: std::array::from_fn(|_| Mutex::new(Vec::with_capacity(most))),
            most,
            rents: AtomicU64::new(0),
            reuses: AtomicU64::new(0),
        }
    }

    fn shelf(&self, class: usize) -> impl DerefMut<Target = Vec<B>> + '_ {
        self.kept[class].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the most recently returned buffer of a class for which `will_do` returns true. Counts a rent in any case.
    pub fn take(&self, class: Option<usize>, will_do: impl Fn(&B) -> bool) -> Option<B> {
        self.rents.fetch_add(1, Ordering::Relaxed);
        let taken = class.and_then(|class| {
            let mut shelf = self.shelf(class);
            let place = shelf.iter().rposition(will_do);
            place.map(|place| shelf.remove(place))
        });
        if taken.is_some() {
            self.reuses.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Keeps a buffer of the class if there is room, and frees it otherwise.
    pub fn keep(&self, class: usize, buffer: B) {
        let mut shelf = self.shelf(class);
        if shelf.len() < self.most {
            shelf.push(buffer);
        }
    }

    /// Returns the statistics.
    pub fn stats(&self) -> RentalStats {
        let kept = |class| (self.shelf(class).len() * class_bytes(class)) as u64;
        RentalStats {
            rents: self.rents.load(Ordering::Relaxed),
            reuses: self.reuses.load(Ordering::Relaxed),
            kept_bytes: (0..CLASSES).map(kept).sum(),
        }
    }

    /// Frees the kept buffers.
    pub fn clear(&self) {
        for class in 0..CLASSES {
            let kept = std::mem::take(&mut *self.shelf(class));
            drop(kept);
        }
    }
}
