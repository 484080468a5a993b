//! Lookup of functions by name, and names of errors.

use super::args::{In, Out, Text};
use super::entries;
use crate::calls::{Call, Entry};
use crate::error::{Answer, Code};

/// The result of a lookup: `CUdriverProcAddressQueryResult`.
const FOUND: i32 = 0;
const NO_SUCH_NAME: i32 = 1;
const TOO_OLD: i32 = 2;

/// Finds the function that a name means to a program built for a version of CUDA: the newest function of that name in this
/// version.
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
    // Flag 2 requests the variant with each thread's own default stream.
    let address = match entry.per_thread {
        Some((address, _)) if flags & 2 != 0 || ends => address,
        _ => entry.legacy,
    };
    Ok(address.0.expose_provenance())
}

/// Writes the address of a function, or 0 if there is none, and returns whether it was found.
fn look_up(call: &Call, name: Text, function: Out<usize>, version: i32, flags: u64) -> Answer<i32> {
    function.check()?;
    Code::INVALID_VALUE.when(flags > 2)?;
    let found = find(call, &name.get()?, version, flags);
    function.set(found.unwrap_or(0))?;
    Ok(found.err().unwrap_or(FOUND))
}

entries! {
    /// Succeeds also if there is no such function, and writes the reason.
    cuGetProcAddress_v2 none 12000 Nothing (name: Text, function: Out<usize>, version: i32, flags: u64, status: Out<i32>) |call| {
        status.offer(look_up(call, name, function, version, flags)?);
        Ok(())
    }
    cuGetProcAddress none 11030 Nothing (name: Text, function: Out<usize>, version: i32, flags: u64) |call| {
        Code::NOT_FOUND.when(look_up(call, name, function, version, flags)? != FOUND)
    }
    /// Returns a private table of functions, which only NVIDIA's own libraries use.
    cuGetExportTable none 3000 Nothing (table: Out<usize>, id: In<u8>) |_call| {
        table.check()?;
        Code::INVALID_VALUE.when(id.is_null())?;
        table.set(0)?;
        table.set(crate::abi::runtime::find(id)?)
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
