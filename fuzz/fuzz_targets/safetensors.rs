//! A header and as many bytes of data as the first two bytes say, or any bytes at all: opened, loaded and mapped, beside the
//! format's own library.
#![no_main]

mod file;

use millpond::{SafeTensors, Tensor, data::SafeTensorsError};

/// What both say of a tensor: name, type, shape, bytes.
type Found = Vec<(String, String, Vec<usize>, Vec<u8>)>;

/// All tensors that are of our types, and whether those are all.
fn ours(file: &SafeTensors) -> Result<(Found, bool), SafeTensorsError> {
    // SAFETY: nobody else has the file.
    let mapped = unsafe { file.map() }?;
    let (mut found, mut whole) = (Vec::new(), true);
    for info in file.tensors() {
        assert_eq!(file.info(info.name())?, info);
        let Some(dtype) = info.dtype() else {
            whole = false;
            assert!(matches!(file.load(info.name()), Err(SafeTensorsError::Type { .. })));
            continue;
        };
        let loaded = match file.load(info.name()) {
            Ok(loaded) => loaded,
            // More dimensions than tensors have, sizes that cannot be counted, bytes that are no truth values.
            Err(error) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                whole = false;
                continue;
            }
        };
        assert_eq!((loaded.dtype(), loaded.storage().bytes() as u64), (dtype, info.bytes()));
        let mut into = Tensor::zeros(loaded.shape(), dtype)?;
        file.load_into(info.name(), &mut into)?;
        assert_eq!(into.storage().as_bytes(), loaded.storage().as_bytes());
        if let Ok(view) = mapped.get(info.name()) {
            let copy = view.to_tensor()?;
            assert_eq!(copy.shape(), loaded.shape());
            assert_eq!(copy.storage().as_bytes(), loaded.storage().as_bytes());
        }
        let bytes = loaded.storage().as_bytes().to_vec();
        found.push((info.name().to_owned(), info.type_name().to_owned(), loaded.shape().to_vec(), bytes));
    }
    found.sort();
    Ok((found, whole))
}

fn check(bytes: &[u8]) {
    let (_file, path) = file::file(bytes);
    let theirs = safetensors::SafeTensors::deserialize(bytes);
    match SafeTensors::open(&path) {
        Ok(file) => {
            let (found, whole) = ours(&file).expect("nobody changes it");
            let known = file.tensors().all(|tensor| tensor.dtype().is_some());
            let Ok(theirs) = theirs else {
                assert!(!known, "the library refuses what is read here");
                return;
            };
            let mut all: Found = theirs
                .iter()
                .map(|(name, view)| (name.to_owned(), view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec()))
                .collect();
            all.sort();
            assert!(all.len() == file.len() && found.iter().all(|one| all.contains(one)));
            assert!(!whole || all == found);
        }
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            // What the library writes of what it has read is read here.
            if let Ok(theirs) = theirs {
                let (_, said) = safetensors::SafeTensors::read_metadata(bytes).expect("it has");
                let written = safetensors::serialize(theirs.iter(), said.metadata().clone()).expect("room");
                let (_file, path) = file::file(&written);
                match SafeTensors::open(&path) {
                    Ok(file) => assert_eq!(file.len(), theirs.len()),
                    // Of more dimensions than are read here there may be some.
                    Err(error) => assert!(error.to_string().contains("64 dimensions"), "{error}"),
                }
            }
        }
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((length, header)) = bytes.split_first_chunk() else {
        return;
    };
    if let [b'?', b'?'] = length {
        return check(header);
    }
    let data = usize::from(u16::from_le_bytes(*length));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + data, 1);
    check(&file);
});
