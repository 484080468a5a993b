//! Memory-mapped files of a data set: slices without a copy, for callers that can guarantee that the files do not change.

use super::error::DataError;
use super::files::{Files, Opened, failed};
use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};
use millpond_pool::dtype::Element;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// The way in which a map is expected to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// The default of the system.
    Normal,
    /// From the beginning to the end. The system reads further ahead.
    Sequential,
    /// At random places. The system does not read ahead.
    Random,
    /// Completely and soon. The system begins to read now.
    Soon,
}

impl Access {
    fn advice(self) -> Advice {
        match self {
            Self::Normal => Advice::Normal,
            Self::Sequential => Advice::Sequential,
            Self::Random => Advice::Random,
            Self::Soon => Advice::WillNeed,
        }
    }
}

/// A map of a file. It begins at the beginning of the file, so that elements that are aligned in the file are aligned in memory.
///
/// Invariant: the file does not change while this value exists.
pub(super) struct FileMap(Mmap);

impl FileMap {
    /// Maps the first `length` bytes.
    ///
    /// # Safety
    /// The file must not be written or truncated while the map exists.
    pub(super) unsafe fn new(file: &Opened, length: u64) -> Result<Self, DataError> {
        file.check()?;
        let failed = |source| failed(file.path(), "map it")(source);
        let length = usize::try_from(length)
            .map_err(|_| failed(io::Error::other("it is larger than the address space")))?;
        // SAFETY: the caller guarantees that the file does not change while the map exists.
        let map = unsafe { MmapOptions::new().len(length).map(file.file()) };
        map.map(Self).map_err(failed)
    }

    /// Returns the bytes of a range, or an empty slice if the range does not lie inside the map.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.0.get(range).unwrap_or(&[])
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Advises the system about the way in which the map is going to be read. Errors are ignored.
    pub(super) fn advise(&self, access: Access) {
        let _ = self.0.advise(access.advice());
    }

    /// Advises the system to begin to read a range.
    pub(super) fn expect(&self, range: Range<usize>) {
        let _ = self.0.advise_range(Advice::WillNeed, range.start, range.len());
    }

    /// Releases the memory of a range, which is read again at the next access.
    pub(super) fn forget(&self, range: Range<usize>) {
        let advice = UncheckedAdvice::DontNeed;
        // SAFETY: this is a private map of a file that is never written through the map, so the dropped pages are read from the
        // file again. By the invariant the file has not changed, so slices contain the same bytes.
        let _ = unsafe { self.0.unchecked_advise_range(advice, range.start, range.len()) };
    }
}

/// Returns an error if elements that begin at `skip` would not be aligned in a map.
pub(super) fn expect_aligned(file: &Opened, skip: u64, align: usize) -> Result<(), DataError> {
    if skip.is_multiple_of(align as u64) {
        return Ok(());
    }
    Err(DataError::Misaligned {
        path: file.path().to_owned(),
        skip,
        align,
    })
}

/// The memory-mapped files of a [`DataSet`](super::DataSet). A batch is a slice of a map, so it needs no copy and no system call.
///
/// Pages that were accessed count as resident memory of the process until they are [forgotten](Self::forget) or the system reclaims
/// them.
///
/// Invariant: the mapped files do not change while this value exists. The caller of [`DataSet::map`](super::DataSet::map)
/// guarantees it.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-map-{}.u8", std::process::id()));
/// # std::fs::write(&path, vec![1u8; 1 << 20])?;
/// use millpond::{data::Access, DataSet};
///
/// let data = DataSet::<u8>::builder().file(&path).row(1024).open()?;
/// // SAFETY: no other code writes to the file.
/// let map = unsafe { data.map()? };
/// map.advise(Access::Sequential);
/// let mut sum = 0;
/// for start in (0..map.rows()).step_by(256) {
///     sum += map.batch(start, 256).iter().map(|byte| u64::from(*byte)).sum::<u64>();
///     map.forget(start, 256);                            // at most one batch is resident
/// }
/// assert_eq!(sum, 1 << 20);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mapped<T> {
    files: Arc<Files>,
    /// One for each file. It is `None` for a file without rows.
    maps: Vec<Option<FileMap>>,
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
    /// The requirements of [`DataSet::map`](super::DataSet::map) hold.
    pub(super) unsafe fn new(files: &Arc<Files>) -> Result<Self, DataError> {
        let mut maps = Vec::new();
        for part in files.parts() {
            expect_aligned(&part.file, part.skip, align_of::<T>())?;
            let bytes = part.skip + part.rows * files.row_bytes() as u64;
            // SAFETY: the caller guarantees that the file does not change while the map exists.
            let map = (part.rows > 0).then(|| unsafe { FileMap::new(&part.file, bytes) });
            maps.push(map.transpose()?);
        }
        Ok(Self {
            files: Arc::clone(files),
            maps,
            of: PhantomData,
        })
    }

    /// Returns the number of rows in all files.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.files.rows()
    }

    /// Returns `count` rows from `start` on, or fewer at the end of the file that contains `start`. The slice is empty if `start`
    /// is past the end of the data.
    #[must_use]
    pub fn batch(&self, start: u64, count: usize) -> &[T] {
        let Some((map, range)) = self.place(start, count) else {
            return &[];
        };
        bytemuck::cast_slice(map.bytes(range))
    }

    /// Returns the map that contains the rows, and their bytes in it.
    fn place(&self, start: u64, count: usize) -> Option<(&FileMap, Range<usize>)> {
        let parts = self.files.parts_from(start);
        let (part, which) = (parts.first()?, self.files.count() - parts.len());
        let map = self.maps.get(which)?.as_ref()?;
        let row = start - part.first;
        let rows = (part.rows - row).min(count as u64);
        // The place lies inside the map, whose length is a `usize`.
        let from = (part.skip + row * self.files.row_bytes() as u64) as usize;
        Some((map, from..from + rows as usize * self.files.row_bytes()))
    }

    /// Advises the system about the way in which the maps are going to be read. Errors are ignored.
    pub fn advise(&self, access: Access) {
        self.maps.iter().flatten().for_each(|map| map.advise(access));
    }

    /// Advises the system to begin to read rows.
    pub fn expect(&self, start: u64, count: usize) {
        if let Some((map, range)) = self.place(start, count) {
            map.expect(range);
        }
    }

    /// Releases the memory of rows, which are read again at the next access. A pass over files larger than memory can call this for
    /// the rows that it has processed, to keep resident memory small.
    pub fn forget(&self, start: u64, count: usize) {
        if let Some((map, range)) = self.place(start, count) {
            map.forget(range);
        }
    }
}
