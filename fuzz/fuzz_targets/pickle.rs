//! Bytes behind the beginning that selects the pickle reader.
#![no_main]

mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::check(&[&b"\x80\x04"[..], bytes].concat());
});
