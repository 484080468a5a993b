//! The kernels' own CUDA C without a GPU: it is compiled for the host, replaces the functions of the emulated driver,
//! and is compared with the host's tensors.

use crate::support::packed::the_device_unpacks_like_the_host;
use crate::{agree, device, emulator, in_children};
use std::path::Path;
use std::process::Command;

/// Compiles the kernels, or prints a message and returns `None` if no compiler supports half precision.
fn compiled() -> Option<std::path::PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libkernels.so");
    let output = Command::new("c++")
        .args([
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fPIC",
            "-shared",
            "-w",
            "-I",
        ])
        .arg(here.join("../millpond-cuda/src/kernels"))
        .arg(here.join("tests/cuda_tensor/native.cpp"))
        .arg("-o")
        .arg(&library)
        .output();
    match output {
        Ok(output) if output.status.success() => Some(library),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // The compiler is old or for another machine. Any other message is an error in the kernels.
            assert!(said.contains("_Float16"), "{said}");
            eprintln!("skipped: this c++ has no _Float16");
            None
        }
        Err(error) => {
            eprintln!("skipped: c++ cannot be run: {error}");
            None
        }
    }
}

#[test]
fn the_kernels_sources_agree_with_the_host() {
    let options = std::iter::once(String::new());
    in_children("native::the_kernels_sources_agree_with_the_host", options, || {
        let Some(library) = compiled() else { return };
        // The driver is loaded from here on.
        let _device = device().expect("a device");
        assert_eq!(emulator::register_kernels(&library), 37);
        agree::arithmetic_equals_the_hosts_bit_for_bit();
        agree::arithmetic_in_place_and_into_outputs_equals_the_hosts();
        agree::copies_and_casts_equal_the_hosts_bit_for_bit();
        agree::sums_are_close_to_the_hosts();
        agree::products_of_matrices_are_close_to_the_hosts();
        agree::emulated_kernels_have_the_parameters_of_the_kernels();
        packed_data_is_unpacked();
    });
}

/// Tests the kernel that unpacks on data that the host packs.
fn packed_data_is_unpacked() {
    let (_, pool, stream) = device().expect("a device");
    the_device_unpacks_like_the_host(&pool, &stream, 60, 20_000);
}
