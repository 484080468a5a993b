//! Bytes behind the beginning that selects the rmm reader.
#![no_main]

mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::check(&[&b"Thread,Time,Action,Pointer,Size,Stream\n"[..], bytes].concat());
});
