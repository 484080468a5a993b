//! Sets the driver's name as SONAME, so that a program that has loaded the library by path finds it again as `libcuda.so`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
