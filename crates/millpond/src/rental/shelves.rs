//! Buffers that wait to be rented, by class; how many were.
#![forbid(unsafe_code)]

use crate::error::AllocError;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const LEAST: usize = 1 << 10;
const MOST: usize = 1 << 20;
const CLASSES: usize = 11;

/// The class of so many bytes, if there is one, and the bytes of what is rented for them.
pub(crate) fn class_of(bytes: usize) -> Result<(Option<usize>, usize), AllocError> {
    if bytes > MOST {
        let whole = bytes.checked_next_multiple_of(MOST);
        return Ok((None, whole.ok_or(AllocError::UNCOUNTABLE)?));
    }
    let rounded = bytes.max(LEAST).next_power_of_two();
    let class = rounded.trailing_zeros() - LEAST.trailing_zeros();
    Ok((Some(class as usize), rounded))
}

/// Bytes of a class.
pub(crate) fn class_bytes(class: usize) -> usize {
    LEAST << class
}

/// What a rental has done and keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RentalStats {
    /// Buffers rented.
    pub rents: u64,
    /// Of these, served by what was given back before.
    pub reuses: u64,
    /// Bytes of buffers that wait to be rented.
    pub kept_bytes: u64,
}

pub(crate) struct Shelves<B> {
    /// Each as long as its class says.
    kept: [Mutex<Vec<B>>; CLASSES],
    most: usize,
    rents: AtomicU64,
    reuses: AtomicU64,
}

impl<B> Shelves<B> {
    /// Keeps up to so many of each class.
    pub(crate) fn new(most: usize) -> Self {
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

    /// For somebody who rents: of a class that is kept, the buffer given back last that will do.
    pub(crate) fn take(&self, class: Option<usize>, will_do: impl Fn(&B) -> bool) -> Option<B> {
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

    /// Keeps a buffer of the class, if there is room; else it goes back where it is from.
    pub(crate) fn keep(&self, class: usize, buffer: B) {
        let mut shelf = self.shelf(class);
        if shelf.len() < self.most {
            shelf.push(buffer);
        }
    }

    pub(crate) fn stats(&self) -> RentalStats {
        let kept = |class| (self.shelf(class).len() * class_bytes(class)) as u64;
        RentalStats {
            rents: self.rents.load(Ordering::Relaxed),
            reuses: self.reuses.load(Ordering::Relaxed),
            kept_bytes: (0..CLASSES).map(kept).sum(),
        }
    }

    pub(crate) fn clear(&self) {
        for class in 0..CLASSES {
            let kept = std::mem::take(&mut *self.shelf(class));
            drop(kept);
        }
    }
}
