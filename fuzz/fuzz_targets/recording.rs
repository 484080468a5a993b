//! A recording of Millpond's: bytes as they are, or rows that no program of ours would write.
#![no_main]

mod file;
mod rows;
mod walk;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let written = match bytes.split_first() {
        Some((0, file)) => file.to_vec(),
        Some((_, rows)) => rows::written(rows),
        None => return,
    };
    let (_file, path) = file::file(&written);
    walk::walk(&path, 256 << 20);
});
