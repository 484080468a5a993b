//! Bytes behind the beginning that selects the csv reader.
#![no_main]

mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::check(&[&b"time_us,action,id,bytes,stream,tag\n"[..], bytes].concat());
});
