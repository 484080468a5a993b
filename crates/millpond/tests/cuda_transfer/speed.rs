//! The durations of copies and passes, in the time that the emulated driver models.

use crate::Place;
use crate::files::Folder;
use crate::passes::data_of;
use crate::support::emulator::{self, in_children};
use cudarc::driver::sys;
use millpond::cuda::{CudaDevice, CudaStream, Staging, Transfer};
use std::ffi::CStr;
use std::ptr;

/// Returns the modelled nanoseconds of `work`.
pub(crate) fn modelled(work: impl FnOnce()) -> u64 {
    let began = emulator::host_work(0);
    work();
    emulator::host_work(0) - began
}

/// Returns a staging whose copies on the host take modelled time, at `speed` gigabytes per second.
pub(crate) fn staging_at(device: &CudaDevice, speed: u64) -> Staging {
    let (slots, bytes) = (3, 8 << 20);
    let copy = move |to: &mut [u8], from: &[u8]| {
        to.copy_from_slice(from);
        emulator::host_work(from.len() as u64 / speed);
    };
    Staging::with_copy(device, slots, bytes, copy).expect("slots")
}

/// On a link of 25 GB/s and with copies at 30 GB/s on the host, staged copies of ordinary memory take at most a tenth
/// longer than copies of pinned memory, in both directions. The driver alone takes twice as long. With 12 GB/s, the
/// host is the bottleneck.
#[test]
fn staged_copies_are_nearly_as_fast_as_pinned_ones() {
    let name = "speed::staged_copies_are_nearly_as_fast_as_pinned_ones";
    in_children(name, std::iter::once("link:25".to_owned()), || {
        const BYTES: usize = 256 << 20;
        let Place {
            device,
            pool,
            pinned,
            first,
            ..
        } = Place::on(CudaDevice::get(0).expect("a device"));
        let mut there = pool.alloc_zeroed::<u8>(BYTES, &first).expect("memory");
        let mut ordinary = vec![7u8; BYTES];
        first.synchronize().expect("done");

        let mut ends = Some((pinned.alloc_zeroed::<u8>(BYTES).expect("memory"), there));
        let mut pinned_way = |up: bool| {
            modelled(|| {
                let (host, there) = ends.take().expect("both");
                let going = if up {
                    first.upload(host, there)
                } else {
                    first.download(there, host)
                };
                ends = Some(going.and_then(Transfer::wait).expect("a copy"));
            })
        };
        let [up, down] = [true, false].map(&mut pinned_way);
        there = ends.take().expect("both").1;

        let pageable = modelled(|| there.copy_from_host(&ordinary).expect("a copy"));
        let mut staged_at = |speed| {
            let staging = staging_at(&device, speed);
            let up = modelled(|| {
                staging.upload(&ordinary, &mut there).expect("a copy");
                first.synchronize().expect("done");
            });
            (
                up,
                modelled(|| staging.download(&there, &mut ordinary).expect("a copy")),
            )
        };
        let (fast, slow) = (staged_at(30), staged_at(12));
        let host = BYTES as u64 / 12;
        println!(
            "256 MiB, up and down, in modelled us: pinned {} {}, staged {} {} (the host at 30 GB/s), {} {} (at 12 GB/s), pageable {}",
            up / 1000,
            down / 1000,
            fast.0 / 1000,
            fast.1 / 1000,
            slow.0 / 1000,
            slow.1 / 1000,
            pageable / 1000
        );
        assert!(
            up >= BYTES as u64 / 25 && down >= BYTES as u64 / 25,
            "the link is a limit"
        );
        assert!(fast.0 * 10 <= up * 11 && fast.1 * 10 <= down * 11);
        assert!(pageable * 10 >= up * 19);
        assert!(slow.0 >= host && slow.0 * 10 <= host * 11 && slow.1 >= host && slow.1 * 10 <= host * 11);
        assert!(ordinary.iter().all(|byte| *byte == 7));
    });
}

/// A kernel of the test that takes modelled time.
struct Kernel(sys::CUfunction);

impl Kernel {
    fn new(name: &CStr, nanoseconds: u64) -> Self {
        emulator::register(name, nanoseconds);
        let name_of = name.to_str().expect("a name");
        let text = std::ffi::CString::new(format!(
            ".version 8.0\n.target sm_70\n.visible .entry {name_of}() {{ }}"
        ));
        let text = text.expect("no zero in it");
        let (mut context, mut module, mut function) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: the pointer is to a local, and there is a device 0.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, 0) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        // SAFETY: the context was retained just now.
        let code = unsafe { sys::cuCtxSetCurrent(context) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        // SAFETY: the first pointer is to a local, the other to a C string.
        let code = unsafe { sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        // SAFETY: the module was loaded just now, and the name is a C string.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        Self(function)
    }

    fn launch(&self, stream: &CudaStream) {
        let none = ptr::null_mut();
        let stream = stream.as_raw().cast();
        // SAFETY: the function takes no parameters, and the stream lives.
        let code = unsafe { sys::cuLaunchKernel(self.0, 1, 1, 1, 1, 1, 1, 0, stream, none, ptr::null_mut()) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    }
}

/// A pass to the device takes at most a tenth longer than its slowest stage alone, whichever that is. Copying and
/// computing overlap by nine tenths of the shorter of the two. The reader's thread models reading by work on each
/// chunk.
#[test]
fn a_pass_is_as_fast_as_its_slowest_stage() {
    let name = "speed::a_pass_is_as_fast_as_its_slowest_stage";
    let options = [
        "link:1",
        "link:1,streams:threads",
        "link:1,streams:seeded,seed:3,strict:on",
    ];
    in_children(name, options.into_iter().map(str::to_owned), || {
        const CHUNKS: u64 = 64;
        const CHUNK: usize = 128 << 10;
        let place = Place::on(CudaDevice::get(0).expect("a device"));
        let folder = Folder::new("cuda-stages");
        let data = data_of(&folder, CHUNK * CHUNKS as usize, 1);
        // The duration of a chunk of 512 KiB on a link of 1 GB/s, with the latency of the first byte.
        let copying = 4 * CHUNK as u64 + 8_000;
        for (reading, computing) in [
            (800_000, 400_000),
            (200_000, 500_000),
            (100_000, 800_000),
            (532_000, 532_000),
        ] {
            let kernel = Kernel::new(c"takes_its_time", computing);
            place.first.synchronize().expect("done");
            let pass = data.pass().rows(CHUNK).prepare(|_| {
                emulator::host_work(reading);
            });
            let taken = modelled(|| {
                let pass = pass.to_device(&place.pool, &place.first, 3);
                let passed = pass.for_each(|_| kernel.launch(&place.first)).expect("it comes");
                assert_eq!(passed.rows, data.rows());
                place.first.synchronize().expect("done");
            });
            let slowest = CHUNKS * reading.max(copying).max(computing);
            let (copies, work) = (CHUNKS * copying, CHUNKS * computing);
            let overlap = (copies + work).saturating_sub(taken);
            println!(
                "{CHUNKS} chunks, in modelled us: reading {} each, copying {}, computing {}: {} in all, {} for the slowest alone",
                reading / 1000,
                copying / 1000,
                computing / 1000,
                taken / 1000,
                slowest / 1000
            );
            assert!(taken >= slowest && taken * 10 <= slowest * 11);
            // If reading is the slowest stage, the others wait for it and not for each other.
            assert!(reading > copying.max(computing) || overlap * 10 >= copies.min(work) * 9);
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}
