//! A word to the user where the standard library's way may not be gone.

/// Writes a line to standard error, by nothing but the system: what is written by the allocator of the whole program
/// may not allocate, nor wait for a lock of the standard library that the caller holds.
pub(crate) fn say(line: &str) {
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        // SAFETY: the bytes live through the call, which reads just so many.
        let written = unsafe { libc::write(libc::STDERR_FILENO, rest.as_ptr().cast(), rest.len()) };
        let Some(after) = usize::try_from(written).ok().filter(|written| *written > 0) else {
            return;
        };
        rest = rest.get(after..).unwrap_or(&[]);
    }
}
