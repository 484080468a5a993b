//! Any bytes behind NumPy's magic string, as a file that is opened, read as a tensor and row by row.
#![no_main]

mod file;

use millpond::{Npy, Tensor};

fn look(npy: &Npy, bytes: usize) -> Result<Tensor, millpond::data::NpyError> {
    let elements: u64 = npy.shape().iter().product();
    let tensor = npy.tensor()?;
    // No more than the file has.
    assert!(tensor.storage().bytes() <= bytes);
    assert_eq!(tensor.len() as u64, elements);
    let shape: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
    assert_eq!((tensor.dtype(), &shape[..]), (npy.dtype(), npy.shape()));
    let rows = npy.rows::<u8>()?;
    let mut read = 0;
    let pass = rows.pass().ahead(0).budget(1 << 20);
    let passed = pass.for_each(|chunk| read += chunk.len() as u64)?;
    assert_eq!((passed.rows, read), (rows.rows(), elements));
    Ok(tensor)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (_file, path) = file::file(&[&b"\x93NUMPY"[..], bytes].concat());
    let looked = Npy::open(&path).and_then(|npy| look(&npy, bytes.len()));
    if let Err(error) = looked {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
});
