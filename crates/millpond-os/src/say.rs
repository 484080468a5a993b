//! Writes messages without the standard library's locks and buffers.

/// Writes a line to standard error with a system call only. A message of the program's allocator may not allocate, and
/// may not wait for a lock of the standard library that the caller holds.
pub fn say(line: &str) {
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        // SAFETY: the bytes live through the call, which reads no more than this number of bytes.
        let written = unsafe { libc::write(libc::STDERR_FILENO, rest.as_ptr().cast(), rest.len()) };
        let Some(after) = usize::try_from(written).ok().filter(|written| *written > 0) else {
            return;
        };
        rest = rest.get(after..).unwrap_or(&[]);
    }
}
