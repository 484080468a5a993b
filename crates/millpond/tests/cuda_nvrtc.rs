//! CUDA C of the program itself, which is compiled by NVRTC, loaded and launched on the emulated driver.

#![cfg(target_os = "linux")]

#[path = "support/example.rs"]
mod example;
#[path = "support/nvrtc.rs"]
mod nvrtc;
mod support;

use millpond::cuda::{
    CompileOptions, CudaDevice, CudaError, CudaModule, CudaStream, DevicePool, KernelError, emulate_kernel,
};
use std::path::Path;
use support::emulator;

const SOURCE: &str = r#"
#ifndef BY
#error "say by how much"
#endif

extern "C" __global__ void grow(float *out, const float *in, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = BY * in[i];
}
"#;

/// Registers the function that the emulated driver runs for the kernel.
fn emulate_grow() {
    let registered = emulate_kernel("grow", |launch, (out, from, n): (u64, u64, u64)| {
        let mut numbers = vec![0.0f32; n as usize];
        launch.read(from, &mut numbers)?;
        numbers.iter_mut().for_each(|number| *number *= 3.0);
        launch.write(out, &numbers)
    });
    registered.expect("a kernel");
}

/// Runs the body in a process with NVRTC and a driver with these options.
fn with_nvrtc(test: &str, options: &str, body: impl FnOnce()) {
    if emulator::is_child(test) {
        assert!(emulator::load());
        return body();
    }
    if !emulator::load() {
        return;
    }
    let Some(library) = nvrtc::library() else { return };
    let library = library.to_str().expect("a path of text");
    let variables = [("MILLPOND_CUDA_EMU", options), ("MILLPOND_NVRTC", library)];
    let (passed, text) = emulator::child_with(test, &variables);
    assert!(passed, "{text}");
}

#[test]
fn a_programs_own_source_is_compiled_and_launched() {
    let options = "streams:seeded,strict:on";
    with_nvrtc("a_programs_own_source_is_compiled_and_launched", options, || {
        let device = CudaDevice::get(0).expect("a device");
        let pool = DevicePool::new(&device).expect("a pool");
        let stream = || CudaStream::new(&device).expect("a stream");
        let options = CompileOptions::new().define("BY", "3.0f").option("--std=c++17");
        let module = CudaModule::compile_with(&device, SOURCE, &options).expect("it compiles");

        if !emulator::is_real() {
            let error = module
                .kernel("grow")
                .expect_err("the emulated driver has none of that name");
            assert!(matches!(error, KernelError::NotEmulated { .. }), "{error}");
        }
        emulate_grow();
        let grow = module.kernel("grow").expect("it has one now");

        let numbers: Vec<f32> = (0..1000_u16).map(f32::from).collect();
        let (first, second) = (stream(), stream());
        let input = pool.alloc_from(&numbers, &first).expect("memory");
        let mut output = pool.alloc_zeroed::<f32>(1000, &second).expect("memory");
        let launch = grow.launch(&first).grid(4).block(256);
        let launch = launch.arg_mut(&mut output).arg(&input).arg(1000_u64);
        // SAFETY: the arguments are the kernel's parameters, and both buffers have this number of elements.
        unsafe { launch.launch() }.expect("it is launched");
        let expected: Vec<f32> = numbers.iter().map(|number| 3.0 * number).collect();
        assert_eq!(output.to_vec().expect("a copy"), expected);
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn the_ptx_is_for_the_device_or_as_the_options_say() {
    with_nvrtc("the_ptx_is_for_the_device_or_as_the_options_say", "", || {
        let device = CudaDevice::get(0).expect("a device");
        let (major, minor) = device.compute_capability();
        let options = CompileOptions::new().define("BY", 2);
        let ptx = options.to_ptx(&device, SOURCE).expect("it compiles");
        assert!(ptx.contains(&format!(".target sm_{major}{minor}")), "{ptx}");
        assert!(ptx.contains(".entry grow"), "{ptx}");
        let other = options.option("--gpu-architecture=compute_75");
        let ptx = other.to_ptx(&device, SOURCE).expect("it compiles");
        assert!(ptx.contains(".target sm_75"), "{ptx}");
    });
}

/// A driver refuses PTX from a newer compiler, so it gets a binary instead.
#[test]
fn a_driver_older_than_the_compiler_is_given_a_binary() {
    if emulator::is_real() {
        eprintln!("skipped: the driver of the card is as new as the compiler");
        return;
    }
    let options = "version:12000";
    with_nvrtc(
        "a_driver_older_than_the_compiler_is_given_a_binary",
        options,
        || {
            let device = CudaDevice::get(0).expect("a device");
            let options = CompileOptions::new().define("BY", "3.0f");
            let ptx = options.to_ptx(&device, SOURCE).expect("it compiles");
            let error = CudaModule::load(&device, &ptx).expect_err("the compiler is newer");
            assert!(
                matches!(
                    error,
                    KernelError::Refused {
                        why: CudaError::Driver { code: 222, .. },
                        ..
                    }
                ),
                "{error}"
            );
            let module = CudaModule::compile_with(&device, SOURCE, &options).expect("a binary is loaded");
            // A driver this old does not report a kernel's parameters, but it has the kernel.
            let found = |name| !matches!(module.kernel(name), Err(KernelError::NoEntry { .. }));
            emulate_grow();
            assert!(found("grow") && !found("shrink"));
        },
    );
}

#[test]
fn headers_are_found_where_the_options_say() {
    with_nvrtc("headers_are_found_where_the_options_say", "", || {
        let device = CudaDevice::get(0).expect("a device");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvrtc-headers");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("by.cuh"), "#define BY 7\n").expect("a file");
        let source = format!("#include \"by.cuh\"\n{SOURCE}");
        let ptx = CompileOptions::new().include(&folder).to_ptx(&device, &source);
        assert!(ptx.expect("it compiles").contains(".entry grow"));
    });
}

#[test]
fn a_compile_error_has_the_line() {
    with_nvrtc("a_compile_error_has_the_line", "", || {
        let device = CudaDevice::get(0).expect("a device");
        let options = CompileOptions::new().name("mine.cu");
        let error = CudaModule::compile_with(&device, SOURCE, &options).expect_err("no BY");
        let KernelError::Compile { name, log } = &error else {
            panic!("{error}");
        };
        assert_eq!(name, "mine.cu");
        assert!(
            log.contains("mine.cu(3)") && log.contains("say by how much"),
            "{log}"
        );
        assert!(
            error.to_string().starts_with("mine.cu cannot be compiled:\n"),
            "{error}"
        );

        let error = CudaModule::compile(&device, "\0").expect_err("no text");
        assert_eq!(error, KernelError::NoText { at: 0 });
        let options = CompileOptions::new().option("--no-such-option");
        let error = CudaModule::compile_with(&device, SOURCE, &options).expect_err("no such option");
        assert!(
            matches!(&error, KernelError::Compiler { name, log, .. }
                if name.contains("INVALID_OPTION") && log.contains("no-such-option")),
            "{error}"
        );
    });
}

#[test]
fn without_nvrtc_one_sentence_says_what_to_install() {
    const TEST: &str = "without_nvrtc_one_sentence_says_what_to_install";
    if emulator::is_child(TEST) {
        assert!(emulator::load());
        let device = CudaDevice::get(0).expect("a device");
        let error = CudaModule::compile(&device, SOURCE).expect_err("no compiler");
        assert!(matches!(error, KernelError::NoCompiler { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("pip install nvidia-cuda-nvrtc-cu12"), "{said}");
        assert!(!said.contains('\n'), "{said}");
        let expected = std::env::var("SAYS").expect("what it says");
        assert!(said.contains(&expected), "{said}");
        return;
    }
    if emulator::is_real() || !emulator::load() {
        eprintln!("skipped: on the emulated driver only");
        return;
    }
    // The first path has no file, and the second is a library without NVRTC's functions.
    let other = emulator::library().expect("it is loaded");
    for (path, says) in [
        ("/nowhere/libnvrtc.so", "MILLPOND_NVRTC is set, but "),
        (
            other.to_str().expect("a path of text"),
            "has no nvrtcCreateProgram",
        ),
    ] {
        let (passed, text) = emulator::child_with(TEST, &[("MILLPOND_NVRTC", path), ("SAYS", says)]);
        assert!(passed, "{text}");
    }
}

/// Runs the example as a new user without a GPU would.
#[test]
fn the_example_runs_and_proves_its_claims() {
    if emulator::is_real() || !emulator::load() {
        eprintln!("skipped: on the emulated driver only");
        return;
    }
    let Some(nvrtc) = nvrtc::library() else { return };
    let library = emulator::library().expect("it is loaded");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvrtc-driver");
    std::fs::create_dir_all(&folder).expect("a folder");
    let link = folder.join("libcuda.so");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&library, &link).expect("a link");
    let built = example::example("cuda_kernel", "cuda_kernel");
    let output = std::process::Command::new(built)
        .env("LD_LIBRARY_PATH", &folder)
        .env("MILLPOND_NVRTC", nvrtc)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("proven"),
        "{said}{error}"
    );
}
