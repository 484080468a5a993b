//! Virtual memory management: addresses and memory are allocated separately and connected by mappings.
#![forbid(unsafe_code)]

use super::foreign;
use super::os::Store;
use super::pages::{Bytes, Devices, Mapped, Place};
use super::{GRANULE, Kind, Memory};
use crate::access::{Access, Origin};
use crate::error::{Answer, Code};
use std::os::fd::OwnedFd;

/// The unit in which clients reserve addresses: a host page. Physical memory is allocated in granules.
const HOST_PAGE: u64 = 4096;

/// Physical memory. It lives as long as a handle or a mapping of it exists. Shareable memory also lives as long as another
/// process or a file refers to it.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) device: u32,
    pub(crate) len: u64,
    /// The granules of the device that it uses. Memory of another process uses none of this one's.
    pieces: Vec<(u64, u64)>,
    /// The store of shareable memory, all of which belongs to this memory.
    pub(crate) shared: Option<u64>,
    /// The number of handles: created and retained minus released.
    handles: u32,
    maps: u32,
    /// Whether the memory was created for GPUDirect RDMA.
    pub(crate) rdma: bool,
}

impl Memory {
    /// Reserves addresses, at the requested position if that is free.
    pub(crate) fn reserve(&mut self, len: u64, align: u64, wish: u64, origin: Origin) -> Answer<u64> {
        Code::INVALID_VALUE
            .when(len == 0 || !len.is_multiple_of(HOST_PAGE) || (align != 0 && !align.is_power_of_two()))?;
        let align = align.max(GRANULE);
        let taken = len.checked_next_multiple_of(GRANULE).ok_or(Code::OUT_OF_MEMORY)?;
        let wished = wish != 0 && wish.is_multiple_of(align) && self.space.take_at(wish, taken);
        let at = match wished {
            true => wish,
            false => self.space.take(taken, align).ok_or(Code::OUT_OF_MEMORY)?,
        };
        self.enter(at, len, Kind::Reserved, 0, origin);
        Ok(at)
    }

    pub(crate) fn unreserve(&mut self, at: u64, len: u64) -> Answer {
        let block = self.block_at(at)?;
        Code::INVALID_VALUE
            .when(!matches!(block.kind, Kind::Reserved) || block.len != len || self.pages.any(at, len))?;
        self.blocks.remove(&at);
        self.space.give(at, len.next_multiple_of(GRANULE));
        Ok(())
    }

    /// Creates physical memory. Shareable memory has its own file, but still uses granules of the device.
    pub(crate) fn create(&mut self, device: u32, len: u64, shareable: bool) -> Answer<u64> {
        Code::INVALID_VALUE.when(len == 0 || !len.is_multiple_of(GRANULE))?;
        let pieces = self.take_granules(device, len)?;
        if !shareable {
            return Ok(self.enter_handle(device, len, pieces, None));
        }
        let name = format!("{}{device}", foreign::PHYSICAL);
        let store = Store::new(&name, len).map_err(|_| Code::OUT_OF_MEMORY);
        match store.and_then(|store| self.keep(store)) {
            Ok(number) => Ok(self.enter_handle(device, len, pieces, Some(number))),
            Err(code) => {
                self.give_granules(device, &pieces);
                Err(code)
            }
        }
    }

    /// Returns one more file descriptor for shareable memory.
    pub(crate) fn export_handle(&self, handle: u64) -> Answer<OwnedFd> {
        let held = self.handle(handle)?;
        let (device, shared) = (held.device, held.shared);
        Code::INVALID_VALUE.when(shared.is_none())?;
        let file = self.store(Bytes { device, shared })?.file();
        file.try_clone_to_owned().map_err(|_| Code::OPERATING_SYSTEM)
    }

    /// Returns a handle of the memory in a file. Memory that is already known here keeps its handle, which is retained once
    /// more.
    pub(crate) fn import_handle(&mut self, file: OwnedFd) -> Answer<u64> {
        let name = foreign::name_of(&file).ok_or(Code::INVALID_VALUE)?;
        let device = name.strip_prefix(foreign::PHYSICAL);
        let device: u32 = device
            .and_then(|text| text.parse().ok())
            .ok_or(Code::INVALID_VALUE)?;
        self.card(device)?;
        let number = self.share(file)?;
        let known = self.handles.iter().find(|held| held.1.shared == Some(number));
        if let Some((&handle, _)) = known {
            self.unshare(number);
            if let Some(held) = self.handles.get_mut(&handle) {
                held.handles += 1;
            }
            return Ok(handle);
        }
        let shared = Some(number);
        let len = self.store(Bytes { device, shared })?.len();
        if len == 0 || !len.is_multiple_of(GRANULE) {
            self.unshare(number);
            return Err(Code::INVALID_VALUE);
        }
        Ok(self.enter_handle(device, len, Vec::new(), shared))
    }

    fn enter_handle(&mut self, device: u32, len: u64, pieces: Vec<(u64, u64)>, shared: Option<u64>) -> u64 {
        let handle = self.new_id();
        self.handles.insert(
            handle,
            Handle {
                device,
                len,
                pieces,
                shared,
                handles: 1,
                maps: 0,
                rdma: false,
            },
        );
        handle
    }

    pub(crate) fn set_rdma(&mut self, handle: u64, rdma: bool) {
        if let Some(held) = self.handles.get_mut(&handle) {
            held.rdma = rdma;
        }
    }

    /// Returns the memory of a handle that is not released.
    pub(crate) fn handle(&self, handle: u64) -> Answer<&Handle> {
        self.handles
            .get(&handle)
            .filter(|held| held.handles > 0)
            .ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn release(&mut self, handle: u64) -> Answer {
        self.handle(handle)?;
        self.let_go(handle, 1, 0);
        Ok(())
    }

    /// Returns one more handle to the memory that is mapped at an address.
    pub(crate) fn retain(&mut self, at: u64) -> Answer<u64> {
        let handle = self.pages.piece(at).map_or(0, |(_, piece)| piece.handle);
        let held = self.handles.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
        held.handles += 1;
        Ok(handle)
    }

    pub(crate) fn map(&mut self, at: u64, len: u64, handle: u64) -> Answer {
        let held = self.handle(handle)?;
        let bytes = Bytes {
            device: held.device,
            shared: held.shared,
        };
        let pieces = match held.shared {
            Some(_) => vec![(0, held.len)],
            None => held.pieces.clone(),
        };
        let aligned =
            len != 0 && len.is_multiple_of(GRANULE) && at.is_multiple_of(GRANULE) && len <= held.len;
        Code::INVALID_VALUE.when(!aligned || !self.reserved(at, len) || self.pages.any(at, len))?;
        let mut left = len;
        let cut = pieces.into_iter().map_while(|(offset, size)| {
            let part = size.min(left);
            left -= part;
            (part > 0).then_some((offset, part))
        });
        let pieces: Vec<_> = cut.collect();
        self.show(at, bytes, &pieces, handle, Devices::NONE)?;
        if let Some(held) = self.handles.get_mut(&handle) {
            held.maps += 1;
        }
        Ok(())
    }

    /// Returns whether a range lies in one reservation.
    fn reserved(&self, at: u64, len: u64) -> bool {
        let kind = self.block_around(at, len).map(|block| &block.kind);
        matches!(kind, Some(Kind::Reserved))
    }

    pub(crate) fn set_access(&mut self, at: u64, len: u64, device: u32, access: bool) -> Answer {
        self.card(device)?;
        Code::INVALID_VALUE.when(len == 0 || !self.reserved(at, len))?;
        let pieces = self.pages.exactly(at, len).ok_or(Code::INVALID_VALUE)?;
        for (start, piece) in pieces {
            let devices = self.pages.set_access(start, device, access);
            if self.open && devices.any() != piece.access.any() {
                let opened = self.arena.open(start, piece.len, devices.any());
                opened.map_err(|_| Code::OUT_OF_MEMORY)?;
            }
        }
        Ok(())
    }

    /// Returns the number of mappings that together are exactly this range, or 0 if there are no such mappings.
    pub(crate) fn mappings(&self, at: u64, len: u64) -> usize {
        let pieces = self.pages.exactly(at, len).unwrap_or_default();
        pieces.iter().filter(|(_, piece)| piece.first).count()
    }

    /// Returns the pieces that are mapped in a range. It is an error if the range cannot be unmapped as a whole.
    pub(crate) fn mapped(&self, at: u64, len: u64) -> Answer<Vec<(u64, Mapped)>> {
        Code::INVALID_VALUE.when(len == 0 || !self.reserved(at, len))?;
        self.pages.exactly(at, len).ok_or(Code::INVALID_VALUE)
    }

    /// Returns each part of a range with the physical memory behind it. The memory is known only for ranges that the client maps itself,
    /// where one page can be at several addresses.
    pub(crate) fn places(&self, access: Access) -> Vec<(Access, Option<Place>)> {
        let parts = match self.block(access.at).map(|(_, block)| &block.kind) {
            Some(Kind::Reserved) => self.pages.translate(access.at, access.len),
            _ => None,
        };
        let Some(parts) = parts else {
            return vec![(access, None)];
        };
        let mut at = access.at;
        let place = |(bytes, offset, len): (Bytes, u64, u64)| {
            let part = Access { at, len, ..access };
            at += len;
            (part, Some(Place { bytes, offset }))
        };
        parts.into_iter().map(place).collect()
    }

    pub(crate) fn unmap(&mut self, at: u64, len: u64) -> Answer {
        let pieces = self.mapped(at, len)?;
        self.hide(at, len);
        for (_, piece) in pieces {
            if piece.first {
                self.let_go(piece.handle, 0, 1);
            }
        }
        Ok(())
    }

    fn let_go(&mut self, handle: u64, handles: u32, maps: u32) {
        let Some(held) = self.handles.get_mut(&handle) else {
            return;
        };
        held.handles -= handles;
        held.maps -= maps;
        if held.handles == 0
            && held.maps == 0
            && let Some(held) = self.handles.remove(&handle)
        {
            self.give_granules(held.device, &held.pieces);
            if let Some(number) = held.shared {
                self.unshare(number);
            }
        }
    }
}
