//! The library is loaded under the driver's name: a program that has it loaded by path finds it again as `libcuda.so`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
