//! Files of a data set in the address space: slices without a copy, for who can promise that the files stay as they are.

use super::error::DataError;
use super::files::Files;
use crate::dtype::Element;
use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// How a map is going to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// As the system thinks best.
    Normal,
    /// From the beginning to the end: it reads further ahead.
    Sequential,
    /// Here and there: it reads nothing ahead.
    Random,
    /// All of it soon: it begins to read now.
    Soon,
}

impl Access {
    pub(super) fn advice(self) -> Advice {
        match self {
            Self::Normal => Advice::Normal,
            Self::Sequential => Advice::Sequential,
            Self::Random => Advice::Random,
            Self::Soon => Advice::WillNeed,
        }
    }
}

/// The files of a [`DataSet`](super::DataSet) as slices; no copy, and no call of the system for a batch.
///
/// Pages that were looked at count as resident memory of the process until they are [forgotten](Self::forget) or the system
/// takes them.
///
/// Invariant: the maps show bytes of the files that nobody changes as long as this lives, which is what
/// [`DataSet::map`](super::DataSet::map) has its caller promise.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-map-{}.u8", std::process::id()));
/// # std::fs::write(&path, vec![1u8; 1 << 20])?;
/// use millpond::{Access, DataSet};
///
/// let data = DataSet::<u8>::builder().file(&path).row(1024).open()?;
/// // SAFETY: nobody else knows of the file.
/// let map = unsafe { data.map()? };
/// map.advise(Access::Sequential);
/// let mut sum = 0;
/// for start in (0..map.rows()).step_by(256) {
///     sum += map.batch(start, 256).iter().map(|byte| u64::from(*byte)).sum::<u64>();
///     map.forget(start, 256);                            // resident memory stays at a batch
/// }
/// assert_eq!(sum, 1 << 20);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mapped<T> {
    files: Arc<Files>,
    /// One for each file; none of a file without rows.
    maps: Vec<Option<Mmap>>,
    of: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Mapped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Mapped({} rows in {} files)",
            self.files.rows(),
            self.files.count()
        )
    }
}

impl<T: Element> Mapped<T> {
    /// # Safety
    /// As [`DataSet::map`](super::DataSet::map).
    pub(super) unsafe fn new(files: &Arc<Files>) -> Result<Self, DataError> {
        let mut maps = Vec::new();
        for part in files.parts() {
            let skip = part.skip;
            if !skip.is_multiple_of(align_of::<T>() as u64) {
                return Err(DataError::Misaligned {
                    path: part.file.path().to_owned(),
                    skip,
                    align: align_of::<T>(),
                });
            }
            part.file.check()?;
            let bytes = skip + part.rows * files.row_bytes() as u64;
            let failed = |source| DataError::Io {
                path: part.file.path().to_owned(),
                what: "map it",
                source,
            };
            let length = usize::try_from(bytes)
                .map_err(|_| failed(std::io::Error::other("it is larger than the address space")))?;
            maps.push(if part.rows == 0 {
                None
            } else {
                // From the beginning of the file, so that what is aligned in it is aligned here.
                // SAFETY: nobody changes the file as long as the map lives, as the caller promises.
                Some(unsafe { MmapOptions::new().len(length).map(part.file.file()) }.map_err(failed)?)
            });
        }
        Ok(Self {
            files: Arc::clone(files),
            maps,
            of: PhantomData,
        })
    }

    /// Rows in all files.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.files.rows()
    }

    /// `count` rows from `start` on, or as many as there are to the end of the file that `start` is in; empty past the end.
    #[must_use]
    pub fn batch(&self, start: u64, count: usize) -> &[T] {
        let Some((map, from, to)) = self.place(start, count) else {
            return &[];
        };
        bytemuck::cast_slice(map.get(from..to).unwrap_or(&[]))
    }

    /// Where rows are: the map, and their first byte and end in it.
    fn place(&self, start: u64, count: usize) -> Option<(&Mmap, usize, usize)> {
        let parts = self.files.parts_from(start);
        let (part, which) = (parts.first()?, self.files.count() - parts.len());
        let map = self.maps.get(which)?.as_ref()?;
        let row = start - part.first;
        let rows = (part.rows - row).min(count as u64);
        // Inside the map, whose length is a usize.
        let from = (part.skip + row * self.files.row_bytes() as u64) as usize;
        Some((map, from, from + rows as usize * self.files.row_bytes()))
    }

    /// Tells the system how the maps are going to be read. Advice: what the system does not take is no error.
    pub fn advise(&self, access: Access) {
        for map in self.maps.iter().flatten() {
            let _ = map.advise(access.advice());
        }
    }

    /// Has the system begin to read rows.
    pub fn expect(&self, start: u64, count: usize) {
        if let Some((map, from, to)) = self.place(start, count) {
            let _ = map.advise_range(Advice::WillNeed, from, to - from);
        }
    }

    /// Lets go of the memory of rows, which are read again where they are looked at again: who goes through a file larger than
    /// memory forgets what it has passed, and resident memory stays small.
    pub fn forget(&self, start: u64, count: usize) {
        if let Some((map, from, to)) = self.place(start, count) {
            // SAFETY: the map is of a file and shared or private without writes, so what is dropped is read from the file
            // again, and that has not changed: slices show the same bytes after it.
            let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, to - from) };
        }
    }
}
