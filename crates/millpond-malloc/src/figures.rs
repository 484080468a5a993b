//! Statistics of the pool in the forms of the C library, and the return of free memory.

use crate::POOL;
use crate::blocks::set_errno;
use libc::{EINVAL, FILE, c_int};
use millpond_os::say;

/// Returns free memory to the system. Returns 1 if the reserved bytes decreased. `pad` is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    let before = bytes().0;
    if let Some(pool) = POOL.pool() {
        pool.trim();
    }
    c_int::from(bytes().0 < before)
}

/// Returns 1 for success and changes nothing. The parameters are those of another allocator.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    1
}

/// Returns the bytes of the pool: from the system (`arena`), in blocks (`uordblks`), at most in blocks so far (`usmblks`), and free
/// (`fordblks`, `keepcost`).
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> libc::mallinfo2 {
    let (reserved, allocated, peak) = bytes();
    libc::mallinfo2 {
        arena: reserved,
        ordblks: 0,
        smblks: 0,
        hblks: 0,
        hblkhd: 0,
        usmblks: peak,
        fsmblks: 0,
        uordblks: allocated,
        fordblks: reserved.saturating_sub(allocated),
        keepcost: reserved.saturating_sub(allocated),
    }
}

/// Returns the figures of [`mallinfo2`]. A figure that is too large for the type is the largest value of the type.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> libc::mallinfo {
    let [arena, uordblks, fordblks, usmblks] = {
        let info = mallinfo2();
        [info.arena, info.uordblks, info.fordblks, info.usmblks]
            .map(|bytes| c_int::try_from(bytes).unwrap_or(c_int::MAX))
    };
    libc::mallinfo {
        arena,
        ordblks: 0,
        smblks: 0,
        hblks: 0,
        hblkhd: 0,
        usmblks,
        fsmblks: 0,
        uordblks,
        fordblks,
        keepcost: fordblks,
    }
}

/// Writes the statistics of the pool to standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    if let Some(pool) = POOL.pool() {
        say(&format!("{}\n", pool.stats()));
    }
}

/// Writes the statistics of the pool to a stream as XML. `options` must be 0.
///
/// # Safety
/// `stream` is null or an open stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut FILE) -> c_int {
    if options != 0 || stream.is_null() {
        set_errno(EINVAL);
        return -1;
    }
    let (reserved, allocated, peak) = bytes();
    let text = format!(
        "<malloc version=\"1\">\n<system type=\"current\" size=\"{reserved}\"/>\n\
         <total type=\"allocated\" size=\"{allocated}\"/>\n<total type=\"peak\" size=\"{peak}\"/>\n</malloc>\n"
    );
    // SAFETY: the text has as many bytes, and the caller guarantees that the stream is open.
    let written = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream) };
    if written == text.len() { 0 } else { -1 }
}

/// Returns the bytes from the system, the bytes in blocks, and the most bytes that were in blocks.
fn bytes() -> (usize, usize, usize) {
    POOL.pool().map_or((0, 0, 0), |pool| {
        let stats = pool.stats();
        let [reserved, allocated, peak] = [
            stats.reserved.current,
            stats.allocated.current,
            stats.allocated.peak,
        ]
        .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        (reserved, allocated, peak)
    })
}
