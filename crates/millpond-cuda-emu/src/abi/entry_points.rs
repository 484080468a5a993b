//! How clients find functions, and what errors are called.

use super::args::{In, Out, Text};
use super::entries;
use crate::calls::{Call, Entry};
use crate::error::{Answer, Code};

/// What a search came to: `CUdriverProcAddressQueryResult`.
const FOUND: i32 = 0;
const NO_SUCH_NAME: i32 = 1;
const TOO_OLD: i32 = 2;

/// The function that a program built for a version of CUDA means by a name: the newest of that name that its version knows.
fn find(call: &Call, name: &str, version: i32, flags: u64) -> Result<usize, i32> {
    let (plain, ends) = match name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")) {
        Some(plain) => (plain, true),
        None => (name, false),
    };
    let there = |entry: &&'static Entry| entry.is_called(plain) && entry.there(call.options());
    let named: Vec<&Entry> = super::driver().filter(there).collect();
    if named.is_empty() {
        return Err(NO_SUCH_NAME);
    }
    let known = named.iter().filter(|entry| entry.since <= version);
    let entry = known.max_by_key(|entry| entry.since).ok_or(TOO_OLD)?;
    // 2 asks for each thread's own default stream.
    let address = match entry.per_thread {
        Some((address, _)) if flags & 2 != 0 || ends => address,
        _ => entry.legacy,
    };
    Ok(address.0.expose_provenance())
}

fn look_up(
    call: &Call,
    name: Text,
    function: Out<usize>,
    version: i32,
    flags: u64,
    status: Out<i32>,
) -> Answer {
    function.check()?;
    if flags > 2 {
        return Err(Code::INVALID_VALUE);
    }
    match find(call, &name.get()?, version, flags) {
        Ok(address) => {
            status.offer(FOUND);
            function.set(address)
        }
        Err(why) => {
            status.offer(why);
            function.set(0)?;
            Err(Code::NOT_FOUND)
        }
    }
}

entries! {
    cuGetProcAddress_v2 none 12000 Nothing (name: Text, function: Out<usize>, version: i32, flags: u64, status: Out<i32>) |call| {
        look_up(call, name, function, version, flags, status)
    }
    cuGetProcAddress none 11030 Nothing (name: Text, function: Out<usize>, version: i32, flags: u64) |call| {
        look_up(call, name, function, version, flags, crate::abi::args::nowhere())
    }
    /// Private tables of functions, which only NVIDIA's own libraries know: there are none, and NVRTC takes that for an answer.
    cuGetExportTable none 3000 Nothing (table: Out<usize>, _id: In<u8>) |_call| {
        table.offer(0);
        Err(Code::NOT_FOUND)
    }
    cuGetErrorName none 6000 Nothing (code: i32, text: Out<usize>) |_call| {
        let name = Code(code).name_c();
        text.set(name.map_or(0, |name| name.as_ptr().expose_provenance()))?;
        name.map(|_| ()).ok_or(Code::INVALID_VALUE)
    }
    cuGetErrorString none 6000 Nothing (code: i32, text: Out<usize>) |_call| {
        let found = Code(code).text_c();
        text.set(found.map_or(0, |found| found.as_ptr().expose_provenance()))?;
        found.map(|_| ()).ok_or(Code::INVALID_VALUE)
    }
}
