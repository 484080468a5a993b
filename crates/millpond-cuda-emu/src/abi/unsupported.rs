//! Functions that exist but are not supported. A client that calls one gets an error instead of a missing symbol.
//!
//! Pools cannot be shared between processes, though blocks (`cuIpcGetMemHandle`) and physical memory
//! (`cuMemExportToShareableHandle`) can. `cuMemPoolCreate` also refuses a pool that requests this.

use super::entries;
use crate::error::Code;

macro_rules! refused {
    ($($name:ident $since:literal $args:tt)*) => {
        entries! { $($name none $since Driver $args |_call| { Err(Code::NOT_SUPPORTED) })* }
    };
}

refused! {
    cuImportExternalMemory 10000 (_memory: usize, _desc: usize)
    cuExternalMemoryGetMappedBuffer 10000 (_at: usize, _memory: usize, _desc: usize)
    cuDestroyExternalMemory 10000 (_memory: usize)
    cuMemPoolExportToShareableHandle 11020 (_out: usize, _pool: usize, _kind: i32, _flags: u64)
    cuMemPoolImportFromShareableHandle 11020 (_pool: usize, _from: usize, _kind: i32, _flags: u64)
    cuLaunchKernelEx 11060 (_config: usize, _function: usize, _params: usize, _extra: usize)
    cuOccupancyMaxPotentialClusterSize 11070 (_size: usize, _function: usize, _config: usize)
    cuOccupancyMaxActiveClusters 11070 (_count: usize, _function: usize, _config: usize)
}
