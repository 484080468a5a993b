//! Every kind of driver call that the library makes. Each kind has a preparation, the call itself, and a cleanup.

use crate::card::{Card, PTX};
use crate::driver::{AllocationProperties, Code, Failed, PoolProperties, call};
use std::ffi::CString;
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// The addresses and handles that the parts of a kind share. By convention, device memory and graphs are in slot 0, host memory, pools,
/// physical handles, modules and executable graphs in slot 1, streams in slot 2, and events and functions in slot 3.
#[derive(Default)]
pub(super) struct Slots([AtomicU64; 4]);

impl Slots {
    fn get(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::SeqCst)
    }

    fn set(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::SeqCst);
    }

    fn handle(&self, index: usize) -> usize {
        self.get(index) as usize
    }

    /// Clears a slot and returns a pointer to it, through which a call writes a value of at most 64 bits.
    fn out<T>(&self, index: usize) -> *mut T {
        self.set(index, 0);
        self.0[index].as_ptr().cast()
    }
}

type Part = fn(&Card, &Slots) -> Code;

/// One kind of call. Only `call` is probed: `before` prepares it, and `after` cleans up.
pub(super) struct Kind {
    pub(super) name: &'static str,
    before: &'static [Part],
    call: Part,
    after: &'static [Part],
}

impl Kind {
    pub(super) fn prepare(&self, card: &Card, slots: &Slots) -> Result<(), Failed> {
        let codes = self.before.iter().map(|part| part(card, slots));
        let code = codes.max().unwrap_or_default();
        card.driver.check(&format!("preparing {}", self.name), code)
    }

    pub(super) fn call(&self, card: &Card, slots: &Slots) -> Code {
        (self.call)(card, slots)
    }

    /// Cleans up after a call that succeeded. The codes do not matter, because the probe goes on in any case.
    pub(super) fn clean_up(&self, card: &Card, slots: &Slots) {
        for part in self.after {
            let _ = part(card, slots);
        }
    }

    /// Returns whether the purpose of the call is to wait for the device's work.
    pub(super) fn waits(&self) -> bool {
        self.name == "cuCtxSynchronize"
    }
}

const BYTES: usize = 4 << 20;
/// The size of memory that is copied, pinned, registered or managed.
const SMALL: usize = 1 << 20;
/// `CU_MEM_ATTACH_GLOBAL`.
const GLOBAL: u32 = 1;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: i32 = 2;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: the bytes that a pool keeps before it releases memory.
const THRESHOLD: i32 = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED_NOW: i32 = 5;

/// Defines parts that make one call of the driver.
macro_rules! parts {
    ($($part:ident($card:ident, $slots:pat) $function:ident($($argument:expr),*);)*) => {
        $(fn $part($card: &Card, $slots: &Slots) -> Code {
            call!($card.driver, $function($($argument),*))
        })*
    };
}

parts! {
    allocate(card, slots) cuMemAlloc_v2(slots.out(0), BYTES);
    free(card, slots) cuMemFree_v2(slots.get(0));
    host_allocate(card, slots) cuMemHostAlloc(slots.out(1), SMALL, 0);
    host_free(card, slots) cuMemFreeHost(slots.handle(1));
    register(card, slots) cuMemHostRegister_v2(slots.handle(1), SMALL, 0);
    unregister(card, slots) cuMemHostUnregister(slots.handle(1));
    host_flags(card, slots) cuMemHostGetFlags(slots.out(0), slots.handle(1));
    device_pointer(card, slots) cuMemHostGetDevicePointer_v2(slots.out(0), slots.handle(1), 0);
    memory_type(card, slots) cuPointerGetAttribute(slots.out(1), MEMORY_TYPE, slots.get(0));
    managed(card, slots) cuMemAllocManaged(slots.out(0), SMALL, GLOBAL);
    prefetch(card, slots) cuMemPrefetchAsync(slots.get(0), SMALL, card.device, slots.handle(2));
    info(card, slots) cuMemGetInfo_v2(slots.out(0), slots.out(1));
    pool_create(card, slots) cuMemPoolCreate(slots.out(1), &PoolProperties::on(card.device, 0));
    pool_destroy(card, slots) cuMemPoolDestroy(slots.handle(1));
    pool_get(card, slots) cuMemPoolGetAttribute(slots.handle(1), RESERVED_NOW, slots.out(0));
    pool_trim(card, slots) cuMemPoolTrimTo(slots.handle(1), 0);
    device_pool(card, slots) cuDeviceGetMemPool(slots.out(1), card.device);
    pool_allocate(card, slots) cuMemAllocFromPoolAsync(slots.out(0), BYTES, slots.handle(1), slots.handle(2));
    pool_free(card, slots) cuMemFreeAsync(slots.get(0), slots.handle(2));
    granularity(card, slots) cuMemGetAllocationGranularity(slots.out(0), &AllocationProperties::on(card.device), 1);
    reserve(card, slots) cuMemAddressReserve(slots.out(0), 2 * BYTES, 0, 0, 0);
    free_addresses(card, slots) cuMemAddressFree(slots.get(0), 2 * BYTES);
    create(card, slots) cuMemCreate(slots.out(1), BYTES, &AllocationProperties::on(card.device), 0);
    release(card, slots) cuMemRelease(slots.get(1));
    map(card, slots) cuMemMap(slots.get(0), BYTES, 0, slots.get(1), 0);
    unmap(card, slots) cuMemUnmap(slots.get(0), BYTES);
    stream(card, slots) cuStreamCreate(slots.out(2), NON_BLOCKING);
    end_stream(card, slots) cuStreamDestroy_v2(slots.handle(2));
    query(card, slots) cuStreamQuery(slots.handle(2));
    wait(card, slots) cuStreamSynchronize(slots.handle(2));
    wait_event(card, slots) cuStreamWaitEvent(slots.handle(2), slots.handle(3), 0);
    is_capturing(card, slots) cuStreamIsCapturing(slots.handle(2), slots.out(0));
    event(card, slots) cuEventCreate(slots.out(3), 0);
    end_event(card, slots) cuEventDestroy_v2(slots.handle(3));
    record(card, slots) cuEventRecord(slots.handle(3), slots.handle(2));
    query_event(card, slots) cuEventQuery(slots.handle(3));
    synchronize_event(card, slots) cuEventSynchronize(slots.handle(3));
    elapsed(card, slots) cuEventElapsedTime(slots.out(0), slots.handle(3), slots.handle(3));
    upload(card, slots) cuMemcpyHtoDAsync_v2(slots.get(0), with_exposed_provenance(slots.handle(1)), SMALL, slots.handle(2));
    download(card, slots) cuMemcpyDtoHAsync_v2(with_exposed_provenance_mut(slots.handle(1)), slots.get(0), SMALL, slots.handle(2));
    copy(card, slots) cuMemcpyDtoDAsync_v2(slots.get(0), slots.get(0) + SMALL as u64, SMALL, slots.handle(2));
    fill(card, slots) cuMemsetD8Async(slots.get(0), 7, SMALL, slots.handle(2));
    unload(card, slots) cuModuleUnload(slots.handle(1));
    function(card, slots) cuModuleGetFunction(slots.out(3), slots.handle(1), c"millpond_card_spin".as_ptr());
    parameter(card, slots) cuFuncGetParamInfo(slots.handle(3), 0, slots.out(0), slots.out(2));
    begin_capture(card, slots) cuStreamBeginCapture_v2(slots.handle(2), RELAXED);
    end_capture(card, slots) cuStreamEndCapture(slots.handle(2), slots.out(0));
    end_graph(card, slots) cuGraphDestroy(slots.handle(0));
    instantiate(card, slots) cuGraphInstantiateWithFlags(slots.out(1), slots.handle(0), 0);
    end_executable(card, slots) cuGraphExecDestroy(slots.handle(1));
    launch_graph(card, slots) cuGraphLaunch(slots.handle(1), slots.handle(2));
    retain_context(card, slots) cuDevicePrimaryCtxRetain(slots.out(0), card.device);
    release_context(card, _) cuDevicePrimaryCtxRelease_v2(card.device);
    push_context(card, _) cuCtxPushCurrent_v2(card.context);
    pop_context(card, slots) cuCtxPopCurrent_v2(slots.out(0));
    wait_context(card, _) cuCtxSynchronize();
}

fn host_map(_: &Card, slots: &Slots) -> Code {
    match crate::pages::map(SMALL) {
        Some(at) => {
            slots.set(1, at as u64);
            0
        }
        None => 2,
    }
}

fn host_unmap(_: &Card, slots: &Slots) -> Code {
    crate::pages::unmap(slots.handle(1), SMALL);
    0
}

fn pool_set(card: &Card, slots: &Slots) -> Code {
    let mut most = u64::MAX;
    let most = (&raw mut most).cast();
    call!(
        card.driver,
        cuMemPoolSetAttribute(slots.handle(1), THRESHOLD, most)
    )
}

fn access(card: &Card, slots: &Slots) -> Code {
    card.access(slots.get(0), BYTES as u64)
}

fn load(card: &Card, slots: &Slots) -> Code {
    let Ok(text) = CString::new(PTX) else { return 1 };
    let (text, no_options, no_values) = (text.as_ptr().cast(), null_mut(), null_mut());
    let module = slots.out(1);
    call!(
        card.driver,
        cuModuleLoadDataEx(module, text, 0, no_options, no_values)
    )
}

fn launch(card: &Card, slots: &Slots) -> Code {
    let mut nanoseconds = 0u64;
    card.launch(
        slots.handle(3),
        1,
        1,
        slots.handle(2),
        &mut [(&raw mut nanoseconds).cast()],
    )
}

fn push_and_pop_context(card: &Card, slots: &Slots) -> Code {
    push_context(card, slots).max(pop_context(card, slots))
}

/// Defines the table of all kinds: the name of the call, the preparation, the call, and the cleanup.
macro_rules! kinds {
    ($($name:literal: [$($before:ident),*] $call:ident [$($after:ident),*];)*) => {
        /// All kinds of calls.
        pub(super) const KINDS: &[Kind] = &[$(Kind {
            name: $name,
            before: &[$($before),*],
            call: $call,
            after: &[$($after),*],
        }),*];
    };
}

kinds! {
    "cuMemAlloc": [] allocate [free];
    "cuMemFree": [allocate] free [];
    "cuMemHostAlloc": [] host_allocate [host_free];
    "cuMemFreeHost": [host_allocate] host_free [];
    "cuMemHostRegister": [host_map] register [unregister, host_unmap];
    "cuMemHostUnregister": [host_map, register] unregister [host_unmap];
    "cuMemHostGetFlags": [host_allocate] host_flags [host_free];
    "cuMemHostGetDevicePointer": [host_allocate] device_pointer [host_free];
    "cuPointerGetAttribute": [allocate] memory_type [free];
    "cuMemAllocManaged": [] managed [free];
    "cuMemPrefetchAsync": [managed, stream] prefetch [wait, free, end_stream];
    "cuMemGetInfo": [] info [];
    "cuMemPoolCreate": [] pool_create [pool_destroy];
    "cuMemPoolDestroy": [pool_create] pool_destroy [];
    "cuMemPoolSetAttribute": [pool_create] pool_set [pool_destroy];
    "cuMemPoolGetAttribute": [pool_create] pool_get [pool_destroy];
    "cuMemPoolTrimTo": [pool_create] pool_trim [pool_destroy];
    "cuDeviceGetMemPool": [] device_pool [];
    "cuMemAllocFromPoolAsync": [pool_create, stream] pool_allocate [pool_free, wait, end_stream, pool_destroy];
    "cuMemFreeAsync": [pool_create, stream, pool_allocate, wait] pool_free [wait, end_stream, pool_destroy];
    "cuMemGetAllocationGranularity": [] granularity [];
    "cuMemAddressReserve": [] reserve [free_addresses];
    "cuMemAddressFree": [reserve] free_addresses [];
    "cuMemCreate": [] create [release];
    "cuMemRelease": [create] release [];
    "cuMemMap": [reserve, create] map [unmap, release, free_addresses];
    "cuMemSetAccess": [reserve, create, map] access [unmap, release, free_addresses];
    "cuMemUnmap": [reserve, create, map, access] unmap [release, free_addresses];
    "cuStreamCreate": [] stream [end_stream];
    "cuStreamDestroy": [stream] end_stream [];
    "cuStreamQuery": [stream] query [end_stream];
    "cuStreamSynchronize": [stream] wait [end_stream];
    "cuStreamWaitEvent": [stream, event, record, wait] wait_event [end_event, end_stream];
    "cuStreamIsCapturing": [stream] is_capturing [end_stream];
    "cuEventCreate": [] event [end_event];
    "cuEventDestroy": [event] end_event [];
    "cuEventRecord": [stream, event] record [end_event, end_stream];
    "cuEventQuery": [stream, event, record, wait] query_event [end_event, end_stream];
    "cuEventSynchronize": [stream, event, record, wait] synchronize_event [end_event, end_stream];
    "cuEventElapsedTime": [stream, event, record, wait] elapsed [end_event, end_stream];
    "cuMemcpyHtoDAsync": [allocate, host_allocate, stream] upload [wait, end_stream, host_free, free];
    "cuMemcpyDtoHAsync": [allocate, host_allocate, stream] download [wait, end_stream, host_free, free];
    "cuMemcpyDtoDAsync": [allocate, host_allocate, stream] copy [wait, end_stream, host_free, free];
    "cuMemsetD8Async": [allocate, host_allocate, stream] fill [wait, end_stream, host_free, free];
    "cuModuleLoadDataEx": [] load [unload];
    "cuModuleUnload": [load] unload [];
    "cuModuleGetFunction": [load] function [unload];
    "cuFuncGetParamInfo": [load, function] parameter [unload];
    "cuLaunchKernel": [load, function, stream] launch [wait, end_stream, unload];
    "cuGraphInstantiate": [stream, begin_capture, end_capture] instantiate [wait, end_executable, end_graph, end_stream];
    "cuGraphLaunch": [stream, begin_capture, end_capture, instantiate] launch_graph [wait, end_executable, end_graph, end_stream];
    "cuGraphExecDestroy": [stream, begin_capture, end_capture, instantiate] end_executable [end_graph, end_stream];
    "cuGraphDestroy": [stream, begin_capture, end_capture] end_graph [end_stream];
    "cuDevicePrimaryCtxRetain": [] retain_context [release_context];
    "cuCtxPushCurrent, cuCtxPopCurrent": [] push_and_pop_context [];
    "cuCtxSynchronize": [] wait_context [];
}
