//! Any bytes as packed data, and any bytes that are packed and unpacked.
#![no_main]

use millpond_codec::{self as codec, Scheme};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else {
        return;
    };
    // A length that the bytes themselves name decides about memory, as it does for a caller.
    if let Ok(len) = codec::unpacked_len(bytes)
        && len <= 1 << 20
    {
        let _ = codec::unpack(bytes, &mut vec![0; len as usize]);
    }
    let scheme = Scheme::all().nth(usize::from(*choice) % 16).expect("there are 16");
    let mut packed = vec![0; codec::bound(bytes.len())];
    let len = codec::pack(bytes, &mut packed, scheme).expect("there is room");
    let mut unpacked = vec![1; bytes.len()];
    codec::unpack(&packed[..len], &mut unpacked).expect("it was packed");
    assert_eq!(unpacked, bytes);
});
