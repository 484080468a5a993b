//! Virtual memory management.

use super::args::{In, Out};
use super::entries;
use super::structures::{AccessDesc, AllocationProp, Location};
use crate::calls::Call;
use crate::error::{Answer, Code};
use crate::memory::{GRANULE, foreign};
use std::os::fd::IntoRawFd;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE: i32 = 1;

/// Returns the device in an allocation's properties. A file is the only supported way to share memory.
fn device(call: &Call, prop: &AllocationProp) -> Answer<u32> {
    Code::INVALID_VALUE.when(prop.kind != 1 || prop.location.kind != 1)?;
    Code::NOT_SUPPORTED.when(prop.handle_types & !FILE != 0)?;
    call.known_device(prop.location.id)
}

entries! {
    cuMemGetAllocationGranularity none 10020 Vmm (bytes: Out<usize>, prop: In<AllocationProp>, option: i32) |call| {
        bytes.check()?;
        device(call, &prop.get()?)?;
        Code::INVALID_VALUE.when(!(0..=1).contains(&option))?;
        bytes.set(GRANULE as usize)
    }
    cuMemAddressReserve none 10020 Vmm (at: Out<u64>, bytes: usize, align: usize, wish: u64, flags: u64) |call| {
        at.make(|| {
            Code::INVALID_VALUE.when(flags != 0)?;
            call.driver.state().memory.reserve(bytes as u64, align as u64, wish, call.origin())
        })
    }
    cuMemAddressFree none 10020 Vmm (at: u64, bytes: usize) |call| {
        call.driver.state().memory.unreserve(at, bytes as u64)
    }
    cuMemCreate none 10020 Vmm (handle: Out<u64>, bytes: usize, prop: In<AllocationProp>, flags: u64) |call| {
        handle.check()?;
        let prop = prop.get()?;
        let device = device(call, &prop)?;
        Code::INVALID_VALUE.when(flags != 0)?;
        let memory = &mut call.driver.state().memory;
        let made = memory.create(device, bytes as u64, prop.handle_types == FILE)?;
        memory.set_rdma(made, prop.flags[1] == 1);
        handle.set(made)
    }
    /// Returns a new file each time, which the caller must close.
    cuMemExportToShareableHandle none 10020 Vmm (file: Out<i32>, handle: u64, kind: i32, flags: u64) |call| {
        file.check()?;
        Code::INVALID_VALUE.when(kind != FILE || flags != 0)?;
        let made = call.driver.state().memory.export_handle(handle)?;
        file.set(made.into_raw_fd())
    }
    /// The file descriptor is passed in the pointer itself, as in the driver. The caller keeps it.
    cuMemImportFromShareableHandle none 10020 Vmm (handle: Out<u64>, file: usize, kind: i32) |call| {
        handle.check()?;
        let number = u32::try_from(file).map_err(|_| Code::INVALID_VALUE)?;
        Code::INVALID_VALUE.when(kind != FILE)?;
        let file = foreign::open_physical(number).ok_or(Code::INVALID_VALUE)?;
        let found = call.driver.state().memory.import_handle(file)?;
        handle.set(found)
    }
    cuMemRelease none 10020 Vmm (handle: u64) |call| { call.driver.state().memory.release(handle) }
    cuMemMap none 10020 Vmm (at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) |call| {
        Code::INVALID_VALUE.when(flags != 0)?;
        Code::NOT_SUPPORTED.when(offset != 0)?;
        call.driver.state().memory.map(at, bytes as u64, handle)
    }
    cuMemUnmap none 10020 Vmm (at: u64, bytes: usize) |call| {
        let mut state = call.driver.state();
        Code::INVALID_VALUE.when(call.options().unmap_single && state.memory.mappings(at, bytes as u64) > 1)?;
        state.memory.mapped(at, bytes as u64)?;
        state.unwaited(at, bytes as u64, call.origin());
        state.memory.unmap(at, bytes as u64)
    }
    cuMemSetAccess none 10020 Vmm (at: u64, bytes: usize, access: In<AccessDesc>, count: usize) |call| {
        Code::INVALID_VALUE.when(count == 0)?;
        for desc in access.all(count)? {
            Code::INVALID_VALUE.when(desc.location.kind != 1)?;
            let device = call.known_device(desc.location.id)?;
            let allowed = match desc.flags {
                0 => false,
                3 => true,
                _ => return Err(Code::INVALID_VALUE),
            };
            call.driver.state().memory.set_access(at, bytes as u64, device, allowed)?;
        }
        Ok(())
    }
    cuMemGetAccess none 10020 Vmm (flags: Out<u64>, location: In<Location>, at: u64) |call| {
        let location = location.get()?;
        Code::INVALID_VALUE.when(location.kind != 1)?;
        let device = call.known_device(location.id)?;
        let piece = call.driver.state().memory.piece(at).ok_or(Code::INVALID_VALUE)?.1;
        flags.set(if piece.access.allows(device) { 3 } else { 0 })
    }
    cuMemRetainAllocationHandle none 11000 Vmm (handle: Out<u64>, at: u64) |call| {
        handle.make(|| call.driver.state().memory.retain(at))
    }
    cuMemGetAllocationPropertiesFromHandle none 10020 Vmm (prop: Out<AllocationProp>, handle: u64) |call| {
        let state = call.driver.state();
        let held = state.memory.handle(handle)?;
        let location = Location { kind: 1, id: held.device as i32 };
        let handle_types = if held.shared.is_some() { FILE } else { 0 };
        let flags = [0, u8::from(held.rdma), 0, 0, 0, 0, 0, 0];
        prop.set(AllocationProp { kind: 1, handle_types, location, flags, ..AllocationProp::default() })
    }
}
