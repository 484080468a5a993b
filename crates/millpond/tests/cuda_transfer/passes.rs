//! Passes over files to a device.

use crate::files::Folder;
use crate::{Outcome, Place, numbers};
use millpond::cuda::CudaError;
use millpond::{DataError, DataSet, Pool};
use std::error::Error;

/// Writes a file of `len` numbers.
fn file(folder: &Folder, len: usize) -> std::path::PathBuf {
    let path = folder.0.join(format!("{len}.u32"));
    let bytes: Vec<u8> = numbers(len).iter().flat_map(|n| n.to_ne_bytes()).collect();
    std::fs::write(&path, bytes).expect("a file");
    path
}

pub(crate) fn data_of(folder: &Folder, len: usize, row: usize) -> DataSet<u32> {
    let data = DataSet::builder().file(file(folder, len)).row(row).open();
    data.expect("a data set")
}

/// Passes over a data set on the device, and returns its elements in order.
pub(crate) fn through(
    place: &Place,
    data: &DataSet<u32>,
    readers: usize,
    depth: usize,
) -> Result<Vec<u32>, Box<dyn Error>> {
    // The pass gets this block again, and may not write to it before the stream has.
    drop(place.pool.alloc_zeroed::<u32>(64 * data.row(), &place.first)?);
    let mut all = Vec::new();
    let mut kept = Vec::new();
    let pass = data
        .pass()
        .rows(64)
        .readers(readers)
        .to_device(&place.pool, &place.first, depth);
    let passed = pass.try_for_each(|chunk| -> Outcome {
        assert_eq!(chunk.row_number(0), Some(chunk.number() * 64));
        assert!(!chunk.is_empty() && chunk.row_number(64).is_none());
        let mut copy = place.pool.alloc::<u32>(chunk.buffer().len(), &place.first)?;
        copy.copy_from(chunk.buffer())?;
        // The next use of the buffer must come after this.
        chunk.buffer_mut().fill_zero()?;
        kept.push((copy, chunk.len()));
        Ok(())
    })?;
    for (copy, len) in kept {
        all.extend_from_slice(&copy.to_vec()?[..len]);
    }
    assert_eq!(passed.rows, data.rows());
    Ok(all)
}

#[test]
fn a_pass_copies_a_data_set_to_the_device() {
    let Some(place) = Place::new() else { return };
    let folder = Folder::new("cuda-pass");
    for (len, row) in [(10_000, 10), (640, 10), (50, 50), (65, 1)] {
        let data = data_of(&folder, len, row);
        for (readers, depth) in [(1, 0), (1, 2), (1, 3), (3, 4)] {
            assert_eq!(
                through(&place, &data, readers, depth).expect("it comes"),
                numbers(len)
            );
        }
    }
    let data = data_of(&folder, 10_000, 10);
    let pass = || {
        data.pass()
            .rows(64)
            .pool(&place.pinned)
            .to_device(&place.pool, &place.first, 2)
    };
    let stopped = pass().try_for_each(|chunk| {
        if chunk.number() == 3 {
            Err("enough".into())
        } else {
            Ok::<_, Box<dyn Error>>(())
        }
    });
    assert_eq!(stopped.expect_err("it ends").to_string(), "enough");
    let swapped = pass().try_for_each(|chunk| {
        *chunk.buffer_mut() = place.pool.alloc(5, &place.first).expect("memory");
        Ok::<_, DataError>(())
    });
    assert!(matches!(
        swapped,
        Err(DataError::Cuda(CudaError::Length { found: 5, .. }))
    ));
    let ordinary = Pool::host().expect("a pool");
    let pass = data
        .pass()
        .pool(&ordinary)
        .to_device(&place.pool, &place.first, 2)
        .for_each(|_| {});
    assert!(matches!(pass, Err(DataError::Cuda(CudaError::Pageable))));
    let small = data
        .pass()
        .rows(64)
        .budget(1000)
        .to_device(&place.pool, &place.first, 2)
        .for_each(|_| {});
    assert!(matches!(small, Err(DataError::Budget { .. })));
    // The pass reports errors of the files, whichever thread finds them.
    std::fs::write(file(&folder, 10_000), [0; 40]).expect("a file");
    assert!(matches!(
        data.pass()
            .to_device(&place.pool, &place.first, 2)
            .for_each(|_| {}),
        Err(DataError::Truncated { .. } | DataError::Changed { .. })
    ));
    assert_eq!(
        (
            place.pool.stats().requested.current,
            place.pinned.stats().requested.current
        ),
        (0, 0)
    );
}
