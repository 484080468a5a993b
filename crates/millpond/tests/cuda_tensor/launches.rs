//! Custom kernels of the caller.

use crate::{device, emulator, in_any_order, in_children};
use emulator::alone;
use millpond::cuda::{CudaDevice, CudaError, CudaKernel, CudaModule, CudaStream, DevicePool, KernelError};

/// The kernel `scale(out, in, a, n)`. The emulated driver runs its own function of that name.
pub(crate) const SCALE: &str = ".version 7.0
.target sm_70
.address_size 64
.visible .entry scale(.param .u64 out, .param .u64 in, .param .f32 a, .param .u64 n) {
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [in];
    ld.param.f32 %f1, [a];
    ld.param.u64 %rd3, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %rd4, %r1, %r2;
    cvt.u64.u32 %rd5, %r3;
    add.u64 %rd4, %rd4, %rd5;
    setp.ge.u64 %p, %rd4, %rd3;
    @%p ret;
    shl.b64 %rd4, %rd4, 2;
    add.u64 %rd1, %rd1, %rd4;
    add.u64 %rd2, %rd2, %rd4;
    ld.global.f32 %f2, [%rd2];
    mul.f32 %f2, %f2, %f1;
    st.global.f32 [%rd1], %f2;
    ret;
}
";

const LEN: usize = 10_000;

fn scale(device: &CudaDevice) -> Result<CudaKernel, KernelError> {
    CudaModule::load(device, SCALE)?.kernel("scale")
}

/// Doubles each number, from a buffer of one stream to one of another, on a third stream. Then halves them in the other
/// direction.
fn twice(device: &CudaDevice, pool: &DevicePool) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let scale = scale(device)?;
    let stream = || CudaStream::new(device);
    let (first, second, third) = (stream()?, stream()?, stream()?);
    let numbers: Vec<f32> = (0..LEN as u16).map(f32::from).collect();
    let mut input = pool.alloc_from(&numbers, &first)?;
    let mut output = pool.alloc_zeroed::<f32>(LEN, &second)?;
    let (blocks, n) = (LEN.div_ceil(128) as u32, LEN as u64);
    let launch = scale.launch(&third).grid(blocks).block(128);
    let launch = launch.arg_mut(&mut output).arg(&input).arg(2.0f32).arg(n);
    // SAFETY: the arguments are the kernel's parameters, and both buffers have this number of elements.
    unsafe { launch.launch() }?;
    // Later work on the input's stream comes after the kernel has read the input.
    input.fill_zero()?;
    let launch = scale.launch(&first).grid(blocks).block(128);
    let launch = launch.arg_mut(&mut input).arg(&output).arg(0.5f32).arg(n);
    // SAFETY: as above.
    unsafe { launch.launch() }?;
    drop(output);
    // The next owner of the block comes after the kernel that reads it.
    let next = pool.alloc_zeroed::<f32>(LEN, &second)?;
    drop(next);
    Ok(input.to_vec()?)
}

fn numbers_are_back(numbers: &[f32]) {
    assert_eq!(numbers.len(), LEN);
    assert!(
        numbers
            .iter()
            .enumerate()
            .all(|(at, number)| *number == at as f32)
    );
}

#[test]
fn a_kernel_runs_on_buffers_of_any_stream() {
    let Some((device, pool, _)) = device() else { return };
    numbers_are_back(&twice(&device, &pool).expect("nothing fails"));
    assert_eq!(pool.stats().requested.current, 0);
}

#[test]
fn launches_are_ordered_whatever_runs_first() {
    in_any_order("launches::launches_are_ordered_whatever_runs_first", 30, || {
        let (device, pool, _) = device().expect("a device");
        for _ in 0..3 {
            numbers_are_back(&twice(&device, &pool).expect("nothing fails"));
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn a_wrong_launch_is_an_error() {
    let Some((device, pool, stream)) = device() else {
        return;
    };
    let none = CudaModule::load(&device, SCALE).expect("it loads").kernel("axpi");
    assert_eq!(
        none.expect_err("there is none"),
        KernelError::NoEntry {
            name: "axpi".to_owned()
        }
    );
    let scale = scale(&device).expect("it is there");
    assert_eq!(scale.name(), "scale");
    let mut out = pool.alloc_zeroed::<f32>(4, &stream).expect("memory");
    let input = pool.alloc_zeroed::<f32>(4, &stream).expect("memory");
    if scale.parameters().is_some() {
        assert_eq!(scale.parameters(), Some(&[8, 8, 4, 8][..]));
        let launch = scale.launch(&stream).arg_mut(&mut out).arg(&input).arg(2.0f32);
        // SAFETY: the call is refused.
        let few = unsafe { launch.launch() }.expect_err("one is missing");
        let says = "scale has 4 parameters, but 3 arguments were passed";
        assert_eq!(few.to_string(), says);
        let launch = scale.launch(&stream).arg_mut(&mut out).arg(&input);
        let launch = launch.arg(2.0f64).arg_value(4u64);
        // SAFETY: the call is refused.
        let wide = unsafe { launch.launch() }.expect_err("one is too large");
        let says = "parameter 2 of scale has 4 bytes, but the argument has 8";
        assert_eq!(wide.to_string(), says);
    }
    for (grid, block) in [
        ([0, 1, 1], [32, 1, 1]),
        ([1; 3], [32, 0, 1]),
        ([1; 3], [64, 64, 1]),
    ] {
        let launch = scale.launch(&stream).grid(grid).block(block);
        let launch = launch.arg_mut(&mut out).arg(&input).arg(2.0f32).arg(4u64);
        // SAFETY: the call is refused.
        let shape = unsafe { launch.launch() }.expect_err("no such shape");
        assert!(matches!(shape, KernelError::Shape { .. }), "{shape}");
        assert!(shape.to_string().contains("scale cannot be launched"), "{shape}");
    }
    assert!(out.to_vec().expect("a copy").iter().all(|x| *x == 0.0));
}

#[test]
fn a_module_that_cannot_be_loaded_is_an_error_with_the_reason() {
    let Some((device, ..)) = device() else { return };
    let refused = |ptx: &str| CudaModule::load(&device, ptx).expect_err("it is none");
    assert_eq!(refused("a\0b"), KernelError::NoText { at: 1 });
    assert_eq!(refused("\x7fELF\x02\x01\x01"), KernelError::Image);
    // A real driver takes a text without a version for a binary of an unknown kind.
    let reason = if emulator::is_real() {
        "Binary format"
    } else {
        "fatal"
    };
    let error = refused("fill(float *out) {}");
    assert!(
        matches!(&error, KernelError::Refused { log, .. } if log.contains(reason)),
        "{error}"
    );
    let error = refused(".version 8.0\n.target sm_70\n.visible .entry fill(");
    assert!(
        matches!(&error, KernelError::Refused { log, .. } if log.contains("fatal")),
        "{error}"
    );
    assert!(
        error.to_string().contains("the module cannot be loaded"),
        "{error}"
    );
}

#[test]
fn code_must_be_for_the_device_it_runs_on() {
    let options = std::iter::once("devices:2".to_owned());
    in_children(
        "launches::code_must_be_for_the_device_it_runs_on",
        options,
        || {
            let (device, pool, stream) = device().expect("a device");
            let ptx = SCALE.replace(" scale(", " unheard_of(");
            let module = CudaModule::load(&device, &ptx).expect("it loads");
            let error = module.kernel("unheard_of").expect_err("nobody has registered it");
            assert!(
                matches!(&error, KernelError::NotEmulated { name } if name == "unheard_of"),
                "{error}"
            );
            assert!(error.to_string().contains("`emulate_kernel`"), "{error}");
            // SAFETY: the image has a header that names its format.
            let binary = unsafe { CudaModule::load_image(&device, b"\x7fELF\x02\x01\x01\0") };
            let error = binary.expect_err("there is no code");
            assert!(
                matches!(error, KernelError::NoBinary { device: 0, .. }),
                "{error}"
            );
            assert!(error.to_string().contains("compute capability"), "{error}");
            // SAFETY: the text ends with a zero byte.
            let text = unsafe { CudaModule::load_image(&device, &[SCALE.as_bytes(), &[0]].concat()) };
            let scale = text.expect("it loads").kernel("scale").expect("it is there");

            let other = CudaDevice::get(1).expect("another device");
            let there = DevicePool::new(&other).expect("a pool");
            let far_stream = CudaStream::new(&other).expect("a stream");
            let far = there.alloc_zeroed::<f32>(4, &far_stream).expect("memory");
            let mut near = pool.alloc_zeroed::<f32>(4, &stream).expect("memory");
            let expected = KernelError::Cuda(CudaError::OtherDevice {
                expected: 0,
                found: 1,
            });
            let launch = scale.launch(&stream).arg_mut(&mut near).arg(&far);
            // SAFETY: the call is refused.
            let error = unsafe { launch.arg(1.0f32).arg(4u64).launch() }.expect_err("elsewhere");
            assert_eq!(error, expected);
            let launch = scale.launch(&far_stream).arg_mut(&mut near).arg(1.0f32);
            // SAFETY: the call is refused.
            assert_eq!(unsafe { launch.launch() }.expect_err("elsewhere"), expected);
        },
    );
}

/// Each call of the driver fails once. The failure is reported or handled, and the pool is intact and works.
#[test]
fn each_call_of_a_launch_fails_in_turn() {
    let options = std::iter::once("strict:on".to_owned());
    in_children("launches::each_call_of_a_launch_fails_in_turn", options, || {
        let (device, pool, _) = device().expect("a device");
        crate::each_call_fails(&pool, || {
            twice(&device, &pool).map(|numbers| numbers_are_back(&numbers))
        });
    });
}

/// A kernel that writes to an unmapped address breaks the context. Every later call returns an error, buffers are freed
/// without an endless wait, and nothing panics.
#[test]
fn an_illegal_address_is_reported_and_nothing_hangs() {
    let options = ["streams:threads", "streams:in-place"].map(str::to_owned);
    alone(
        "launches::an_illegal_address_is_reported_and_nothing_hangs",
        options,
        || {
            let (device, pool, stream) = device().expect("a device");
            let scale = scale(&device).expect("it is there");
            let held = pool.alloc_from(&[1u32; 1000], &stream).expect("memory");
            let other = pool.alloc_from(&[2u32; 1000], &stream).expect("memory");
            let (nowhere, n) = (0x1000_u64, 1_u64);
            let launch = scale.launch(&stream).arg(nowhere).arg(nowhere).arg(2.0f32).arg(n);
            // SAFETY: the addresses are unmapped on purpose, and the device does nothing else for this process.
            let launched = unsafe { launch.launch() };
            let ended = stream.synchronize();
            assert!(launched.is_err() || ended.is_err(), "{launched:?}, {ended:?}");
            assert!(held.to_vec().is_err());
            assert!(pool.alloc_from(&[1u8; 64], &stream).is_err());
            assert!(stream.synchronize().is_err(), "it stays so");
            drop(other);
            pool.compact();
            drop((held, scale, stream, pool));
        },
    );
}
