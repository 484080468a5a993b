//! Bytes behind the beginning that selects the chrome reader.
#![no_main]

mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::check(&[&b"["[..], bytes].concat());
});
