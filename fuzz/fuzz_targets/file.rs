//! Bytes as a file that has a path and is on no disk.

use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// The file goes when it is dropped.
pub fn file(bytes: &[u8]) -> (File, PathBuf) {
    let mut file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file"));
    file.write_all(bytes).expect("room");
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    (file, path)
}
