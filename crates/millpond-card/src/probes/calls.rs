//! Every kind of driver call that the library makes. Each kind has a preparation, the call itself, and a cleanup.

use crate::card::{Card, PTX};
use crate::driver::{AllocationProperties, Code, PoolProperties, call};
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};

/// The addresses and handles that the three parts of a kind share.
#[derive(Default)]
pub(super) struct Slots([AtomicU64; 4]);

impl Slots {
    pub(super) fn get(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::SeqCst);
    }

    fn handle(&self, index: usize) -> usize {
        self.get(index) as usize
    }
}

type Part = fn(&Card, &Slots) -> Code;

/// One kind of call. Only `call` is probed: `before` prepares it, and `after` cleans up.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) before: Part,
    pub(super) call: Part,
    pub(super) after: Part,
    /// Whether the purpose of the call is to wait for the device's work.
    pub(super) waits: bool,
}

const fn kind(name: &'static str, before: Part, call: Part, after: Part) -> Kind {
    Kind {
        name,
        before,
        call,
        after,
        waits: false,
    }
}

const BYTES: usize = 4 << 20;
/// The size of memory that is copied, pinned, registered or managed.
const SMALL: usize = 1 << 20;

fn nothing(_: &Card, _: &Slots) -> Code {
    0
}

/// Makes a call that writes a handle or an address through a pointer, and stores the value in a slot.
macro_rules! made {
    ($of:ty, $slots:expr, $index:expr, |$out:ident| $call:expr) => {{
        let mut value: $of = 0;
        let $out = &raw mut value;
        let code = $call;
        $slots.set($index, value as u64);
        code
    }};
}

fn allocate(card: &Card, slots: &Slots) -> Code {
    made!(u64, slots, 0, |out| call!(card.driver, cuMemAlloc_v2(out, BYTES)))
}

fn free(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuMemFree_v2(slots.get(0)))
}

fn host_allocate(card: &Card, slots: &Slots) -> Code {
    made!(usize, slots, 1, |out| call!(
        card.driver,
        cuMemHostAlloc(out, SMALL, 0)
    ))
}

fn host_free(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuMemFreeHost(slots.handle(1)))
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

fn register(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuMemHostRegister_v2(slots.handle(1), SMALL, 0))
}

fn unregister(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuMemHostUnregister(slots.handle(1)))
}

fn registered(card: &Card, slots: &Slots) -> Code {
    host_map(card, slots).max(register(card, slots))
}

fn unregistered(card: &Card, slots: &Slots) -> Code {
    unregister(card, slots).max(host_unmap(card, slots))
}

fn managed(card: &Card, slots: &Slots) -> Code {
    let global = 1;
    made!(u64, slots, 0, |out| call!(
        card.driver,
        cuMemAllocManaged(out, SMALL, global)
    ))
}

fn pool_create(card: &Card, slots: &Slots) -> Code {
    let properties = PoolProperties::on(card.device, 0);
    made!(usize, slots, 1, |out| call!(
        card.driver,
        cuMemPoolCreate(out, &raw const properties)
    ))
}

fn pool_destroy(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuMemPoolDestroy(slots.handle(1)))
}

fn stream(card: &Card, slots: &Slots) -> Code {
    let non_blocking = 1;
    made!(usize, slots, 2, |out| call!(
        card.driver,
        cuStreamCreate(out, non_blocking)
    ))
}

fn end_stream(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuStreamDestroy_v2(slots.handle(2)))
}

fn pool_and_stream(card: &Card, slots: &Slots) -> Code {
    pool_create(card, slots).max(stream(card, slots))
}

fn pool_allocate(card: &Card, slots: &Slots) -> Code {
    made!(u64, slots, 0, |out| call!(
        card.driver,
        cuMemAllocFromPoolAsync(out, BYTES, slots.handle(1), slots.handle(2))
    ))
}

fn pool_free(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuMemFreeAsync(slots.get(0), slots.handle(2)))
}

fn pooled(card: &Card, slots: &Slots) -> Code {
    let code = pool_and_stream(card, slots).max(pool_allocate(card, slots));
    code.max(call!(card.driver, cuStreamSynchronize(slots.handle(2))))
}

fn end_pool_and_stream(card: &Card, slots: &Slots) -> Code {
    let _ = call!(card.driver, cuStreamSynchronize(slots.handle(2)));
    end_stream(card, slots).max(pool_destroy(card, slots))
}

fn end_pooled(card: &Card, slots: &Slots) -> Code {
    pool_free(card, slots).max(end_pool_and_stream(card, slots))
}

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: the bytes that a pool keeps before it releases memory.
const THRESHOLD: i32 = 4;

fn pool_set(card: &Card, slots: &Slots) -> Code {
    let mut most = u64::MAX;
    call!(
        card.driver,
        cuMemPoolSetAttribute(slots.handle(1), THRESHOLD, (&raw mut most).cast())
    )
}

fn pool_get(card: &Card, slots: &Slots) -> Code {
    let (mut bytes, reserved_now) = (0u64, 5);
    call!(
        card.driver,
        cuMemPoolGetAttribute(slots.handle(1), reserved_now, (&raw mut bytes).cast())
    )
}

fn reserve(card: &Card, slots: &Slots) -> Code {
    made!(u64, slots, 0, |out| call!(
        card.driver,
        cuMemAddressReserve(out, 2 * BYTES, 0, 0, 0)
    ))
}

fn free_addresses(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuMemAddressFree(slots.get(0), 2 * BYTES))
}

fn create(card: &Card, slots: &Slots) -> Code {
    let properties = AllocationProperties::on(card.device);
    made!(u64, slots, 1, |out| call!(
        card.driver,
        cuMemCreate(out, BYTES, &raw const properties, 0)
    ))
}

fn release(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuMemRelease(slots.get(1)))
}

fn reserved(card: &Card, slots: &Slots) -> Code {
    reserve(card, slots).max(create(card, slots))
}

fn map(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuMemMap(slots.get(0), BYTES, 0, slots.get(1), 0))
}

fn mapped(card: &Card, slots: &Slots) -> Code {
    reserved(card, slots).max(map(card, slots))
}

fn access(card: &Card, slots: &Slots) -> Code {
    card.access(slots.get(0), BYTES as u64)
}

fn accessible(card: &Card, slots: &Slots) -> Code {
    mapped(card, slots).max(access(card, slots))
}

fn unmap(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuMemUnmap(slots.get(0), BYTES))
}

fn end_reserved(card: &Card, slots: &Slots) -> Code {
    release(card, slots).max(free_addresses(card, slots))
}

fn end_mapped(card: &Card, slots: &Slots) -> Code {
    unmap(card, slots).max(end_reserved(card, slots))
}

fn event(card: &Card, slots: &Slots) -> Code {
    made!(usize, slots, 3, |out| call!(card.driver, cuEventCreate(out, 0)))
}

fn end_event(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuEventDestroy_v2(slots.handle(3)))
}

fn stream_and_event(card: &Card, slots: &Slots) -> Code {
    stream(card, slots).max(event(card, slots))
}

fn record(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuEventRecord(slots.handle(3), slots.handle(2)))
}

fn recorded(card: &Card, slots: &Slots) -> Code {
    let code = stream_and_event(card, slots).max(record(card, slots));
    code.max(call!(card.driver, cuStreamSynchronize(slots.handle(2))))
}

fn end_stream_and_event(card: &Card, slots: &Slots) -> Code {
    end_event(card, slots).max(end_stream(card, slots))
}

/// Allocates device memory and pinned memory, and creates a stream.
fn all_three(card: &Card, slots: &Slots) -> Code {
    allocate(card, slots)
        .max(host_allocate(card, slots))
        .max(stream(card, slots))
}

fn end_all_three(card: &Card, slots: &Slots) -> Code {
    let _ = call!(card.driver, cuStreamSynchronize(slots.handle(2)));
    end_stream(card, slots)
        .max(host_free(card, slots))
        .max(free(card, slots))
}

fn load(card: &Card, slots: &Slots) -> Code {
    let Ok(text) = CString::new(PTX) else { return 1 };
    let (no_options, no_values) = (std::ptr::null_mut(), std::ptr::null_mut());
    made!(usize, slots, 1, |out| call!(
        card.driver,
        cuModuleLoadDataEx(out, text.as_ptr().cast(), 0, no_options, no_values)
    ))
}

fn unload(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuModuleUnload(slots.handle(1)))
}

fn function(card: &Card, slots: &Slots) -> Code {
    made!(usize, slots, 3, |out| call!(
        card.driver,
        cuModuleGetFunction(out, slots.handle(1), c"millpond_card_spin".as_ptr())
    ))
}

fn loaded(card: &Card, slots: &Slots) -> Code {
    load(card, slots)
        .max(function(card, slots))
        .max(stream(card, slots))
}

fn launch(card: &Card, slots: &Slots) -> Code {
    let mut nanoseconds = 0u64;
    let mut arguments = [(&raw mut nanoseconds).cast()];
    let (places, extra) = (arguments.as_mut_ptr(), std::ptr::null_mut());
    call!(
        card.driver,
        cuLaunchKernel(
            slots.handle(3),
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            slots.handle(2),
            places,
            extra
        )
    )
}

fn end_loaded(card: &Card, slots: &Slots) -> Code {
    let _ = call!(card.driver, cuStreamSynchronize(slots.handle(2)));
    end_stream(card, slots).max(unload(card, slots))
}

/// Captures an empty graph from its own stream.
fn graph(card: &Card, slots: &Slots) -> Code {
    let relaxed = 2;
    let code = stream(card, slots).max(call!(
        card.driver,
        cuStreamBeginCapture_v2(slots.handle(2), relaxed)
    ));
    code.max(made!(usize, slots, 0, |out| call!(
        card.driver,
        cuStreamEndCapture(slots.handle(2), out)
    )))
}

fn instantiate(card: &Card, slots: &Slots) -> Code {
    made!(usize, slots, 1, |out| call!(
        card.driver,
        cuGraphInstantiateWithFlags(out, slots.handle(0), 0)
    ))
}

fn end_executable(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuGraphExecDestroy(slots.handle(1)))
}

fn end_graph(card: &Card, slots: &Slots) -> Code {
    call!(card.driver, cuGraphDestroy(slots.handle(0))).max(end_stream(card, slots))
}

fn executable(card: &Card, slots: &Slots) -> Code {
    graph(card, slots).max(instantiate(card, slots))
}

fn end_all_of_a_graph(card: &Card, slots: &Slots) -> Code {
    let _ = call!(card.driver, cuStreamSynchronize(slots.handle(2)));
    end_executable(card, slots).max(end_graph(card, slots))
}

/// Returns all kinds of calls.
pub(super) fn kinds() -> Vec<Kind> {
    let waits = |kind: Kind| Kind { waits: true, ..kind };
    vec![
        kind("cuMemAlloc", nothing, allocate, free),
        kind("cuMemFree", allocate, free, nothing),
        kind("cuMemHostAlloc", nothing, host_allocate, host_free),
        kind("cuMemFreeHost", host_allocate, host_free, nothing),
        kind("cuMemHostRegister", host_map, register, unregistered),
        kind("cuMemHostUnregister", registered, unregister, host_unmap),
        kind(
            "cuMemHostGetFlags",
            host_allocate,
            |card, slots| {
                let mut flags = 0;
                call!(card.driver, cuMemHostGetFlags(&raw mut flags, slots.handle(1)))
            },
            host_free,
        ),
        kind(
            "cuMemHostGetDevicePointer",
            host_allocate,
            |card, slots| {
                let mut at = 0;
                call!(
                    card.driver,
                    cuMemHostGetDevicePointer_v2(&raw mut at, slots.handle(1), 0)
                )
            },
            host_free,
        ),
        kind(
            "cuPointerGetAttribute",
            allocate,
            |card, slots| {
                let (mut memory, kind_of_memory) = (0u32, 2);
                call!(
                    card.driver,
                    cuPointerGetAttribute((&raw mut memory).cast(), kind_of_memory, slots.get(0))
                )
            },
            free,
        ),
        kind("cuMemAllocManaged", nothing, managed, free),
        kind(
            "cuMemPrefetchAsync",
            |card, slots| managed(card, slots).max(stream(card, slots)),
            |card, slots| {
                call!(
                    card.driver,
                    cuMemPrefetchAsync(slots.get(0), SMALL, card.device, slots.handle(2))
                )
            },
            |card, slots| {
                let _ = call!(card.driver, cuStreamSynchronize(slots.handle(2)));
                free(card, slots).max(end_stream(card, slots))
            },
        ),
        kind(
            "cuMemGetInfo",
            nothing,
            |card, _| {
                let (mut free, mut total) = (0, 0);
                call!(card.driver, cuMemGetInfo_v2(&raw mut free, &raw mut total))
            },
            nothing,
        ),
        kind("cuMemPoolCreate", nothing, pool_create, pool_destroy),
        kind("cuMemPoolDestroy", pool_create, pool_destroy, nothing),
        kind("cuMemPoolSetAttribute", pool_create, pool_set, pool_destroy),
        kind("cuMemPoolGetAttribute", pool_create, pool_get, pool_destroy),
        kind(
            "cuMemPoolTrimTo",
            pool_create,
            |card, slots| call!(card.driver, cuMemPoolTrimTo(slots.handle(1), 0)),
            pool_destroy,
        ),
        kind(
            "cuDeviceGetMemPool",
            nothing,
            |card, slots| {
                made!(usize, slots, 1, |out| call!(
                    card.driver,
                    cuDeviceGetMemPool(out, card.device)
                ))
            },
            nothing,
        ),
        kind(
            "cuMemAllocFromPoolAsync",
            pool_and_stream,
            pool_allocate,
            end_pooled,
        ),
        kind("cuMemFreeAsync", pooled, pool_free, end_pool_and_stream),
        kind(
            "cuMemGetAllocationGranularity",
            nothing,
            |card, _| {
                let (properties, mut bytes) = (AllocationProperties::on(card.device), 0);
                call!(
                    card.driver,
                    cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, 1)
                )
            },
            nothing,
        ),
        kind("cuMemAddressReserve", nothing, reserve, free_addresses),
        kind("cuMemAddressFree", reserve, free_addresses, nothing),
        kind("cuMemCreate", nothing, create, release),
        kind("cuMemRelease", create, release, nothing),
        kind("cuMemMap", reserved, map, end_mapped),
        kind("cuMemSetAccess", mapped, access, end_mapped),
        kind("cuMemUnmap", accessible, unmap, end_reserved),
        kind("cuStreamCreate", nothing, stream, end_stream),
        kind("cuStreamDestroy", stream, end_stream, nothing),
        kind(
            "cuStreamQuery",
            stream,
            |card, slots| call!(card.driver, cuStreamQuery(slots.handle(2))),
            end_stream,
        ),
        kind(
            "cuStreamSynchronize",
            stream,
            |card, slots| call!(card.driver, cuStreamSynchronize(slots.handle(2))),
            end_stream,
        ),
        kind(
            "cuStreamWaitEvent",
            recorded,
            |card, slots| {
                call!(
                    card.driver,
                    cuStreamWaitEvent(slots.handle(2), slots.handle(3), 0)
                )
            },
            end_stream_and_event,
        ),
        kind(
            "cuStreamIsCapturing",
            stream,
            |card, slots| {
                let mut status = 0;
                call!(card.driver, cuStreamIsCapturing(slots.handle(2), &raw mut status))
            },
            end_stream,
        ),
        kind("cuEventCreate", nothing, event, end_event),
        kind("cuEventDestroy", event, end_event, nothing),
        kind("cuEventRecord", stream_and_event, record, end_stream_and_event),
        kind(
            "cuEventQuery",
            recorded,
            |card, slots| call!(card.driver, cuEventQuery(slots.handle(3))),
            end_stream_and_event,
        ),
        kind(
            "cuEventSynchronize",
            recorded,
            |card, slots| call!(card.driver, cuEventSynchronize(slots.handle(3))),
            end_stream_and_event,
        ),
        kind(
            "cuEventElapsedTime",
            recorded,
            |card, slots| {
                let mut milliseconds = 0.0;
                call!(
                    card.driver,
                    cuEventElapsedTime(&raw mut milliseconds, slots.handle(3), slots.handle(3))
                )
            },
            end_stream_and_event,
        ),
        kind(
            "cuMemcpyHtoDAsync",
            all_three,
            |card, slots| {
                let from = std::ptr::with_exposed_provenance(slots.handle(1));
                call!(
                    card.driver,
                    cuMemcpyHtoDAsync_v2(slots.get(0), from, SMALL, slots.handle(2))
                )
            },
            end_all_three,
        ),
        kind(
            "cuMemcpyDtoHAsync",
            all_three,
            |card, slots| {
                let to = std::ptr::with_exposed_provenance_mut(slots.handle(1));
                call!(
                    card.driver,
                    cuMemcpyDtoHAsync_v2(to, slots.get(0), SMALL, slots.handle(2))
                )
            },
            end_all_three,
        ),
        kind(
            "cuMemcpyDtoDAsync",
            all_three,
            |card, slots| {
                let (to, from) = (slots.get(0), slots.get(0) + SMALL as u64);
                call!(
                    card.driver,
                    cuMemcpyDtoDAsync_v2(to, from, SMALL, slots.handle(2))
                )
            },
            end_all_three,
        ),
        kind(
            "cuMemsetD8Async",
            all_three,
            |card, slots| {
                call!(
                    card.driver,
                    cuMemsetD8Async(slots.get(0), 7, SMALL, slots.handle(2))
                )
            },
            end_all_three,
        ),
        kind("cuModuleLoadDataEx", nothing, load, unload),
        kind("cuModuleUnload", load, unload, nothing),
        kind("cuModuleGetFunction", load, function, unload),
        kind(
            "cuFuncGetParamInfo",
            |card, slots| load(card, slots).max(function(card, slots)),
            |card, slots| {
                let (mut offset, mut bytes) = (0, 0);
                call!(
                    card.driver,
                    cuFuncGetParamInfo(slots.handle(3), 0, &raw mut offset, &raw mut bytes)
                )
            },
            unload,
        ),
        kind("cuLaunchKernel", loaded, launch, end_loaded),
        kind("cuGraphInstantiate", graph, instantiate, end_all_of_a_graph),
        kind(
            "cuGraphLaunch",
            executable,
            |card, slots| call!(card.driver, cuGraphLaunch(slots.handle(1), slots.handle(2))),
            end_all_of_a_graph,
        ),
        kind("cuGraphExecDestroy", executable, end_executable, end_graph),
        kind(
            "cuGraphDestroy",
            graph,
            |card, slots| call!(card.driver, cuGraphDestroy(slots.handle(0))),
            end_stream,
        ),
        kind(
            "cuDevicePrimaryCtxRetain",
            nothing,
            |card, slots| {
                made!(usize, slots, 0, |out| call!(
                    card.driver,
                    cuDevicePrimaryCtxRetain(out, card.device)
                ))
            },
            |card, _| call!(card.driver, cuDevicePrimaryCtxRelease_v2(card.device)),
        ),
        kind(
            "cuCtxPushCurrent, cuCtxPopCurrent",
            nothing,
            |card, slots| {
                let code = call!(card.driver, cuCtxPushCurrent_v2(card.context));
                code.max(made!(usize, slots, 0, |out| call!(
                    card.driver,
                    cuCtxPopCurrent_v2(out)
                )))
            },
            nothing,
        ),
        waits(kind(
            "cuCtxSynchronize",
            nothing,
            |card, _| call!(card.driver, cuCtxSynchronize()),
            nothing,
        )),
    ]
}
