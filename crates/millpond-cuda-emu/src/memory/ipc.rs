//! Blocks that another process opens: `cuIpcGetMemHandle` and related calls.
//!
//! A device's bytes are a file, so another process only needs the position of a block in this file. A separate small file
//! contains the position and exists as long as the block does. The process that opens it maps the pieces at its own addresses.
//! The pieces are whole granules and include neighbouring data, as on a device.
//!
//! ```text
//!  here     handle -> description: store, pieces -> store of the device
//!  there    its address space -> page table -> the same store, adopted once for all its blocks
//! ```
#![forbid(unsafe_code)]

use super::foreign::{self, Handle, Raw};
use super::os::Store;
use super::pages::{Bytes, Devices};
use super::{Block, GRANULE, Kind, Memory};
use crate::access::Origin;
use crate::error::{Answer, Code};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A store that several processes use.
#[derive(Debug)]
struct Shared {
    store: Store,
    identity: (u64, u64),
    users: u64,
}

/// The shared stores by number, and the blocks of this process that others may open.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    stores: HashMap<u64, Shared>,
    /// Exported blocks by address.
    exports: HashMap<u64, Export>,
    /// Stores without users that work may still access.
    retired: Vec<Store>,
    holders: u64,
}

/// The description of an exported block, which exists as long as the block does.
#[derive(Debug)]
struct Export {
    handle: Handle,
    _told: OwnedFd,
}

/// A block of another process, opened here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    nonce: u128,
    /// The number of times it was opened minus the number of times it was closed.
    pub(crate) times: u32,
    /// The bytes in the first granule before the block.
    lead: u64,
    store: u64,
}

/// The description that a process gives of its block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    nonce: u128,
    device: u32,
    len: u64,
    lead: u64,
    /// The number of the store's file in that process.
    store: u32,
    pieces: Vec<(u64, u64)>,
}

/// The most bytes of a description. No block has more pieces than fit.
const MOST: u64 = 64 << 20;

impl Told {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.nonce.to_le_bytes().to_vec();
        let words = [u64::from(self.device), self.len, self.lead, u64::from(self.store)];
        let pieces = self.pieces.iter().flat_map(|(offset, len)| [*offset, *len]);
        bytes.extend(words.into_iter().chain(pieces).flat_map(u64::to_le_bytes));
        bytes
    }

    /// Parses a description. Accepts only whole granules, and no granules outside of the block.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (nonce, rest) = bytes.split_first_chunk()?;
        let (words, []) = rest.as_chunks::<8>() else {
            return None;
        };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (&[device, len, lead, store], pieces) = words.split_first_chunk()?;
        let (pieces, []) = pieces.as_chunks::<2>() else {
            return None;
        };
        let told = Self {
            nonce: u128::from_le_bytes(*nonce),
            device: device.try_into().ok()?,
            len,
            lead,
            store: store.try_into().ok()?,
            pieces: pieces.iter().map(|[offset, len]| (*offset, *len)).collect(),
        };
        let granules =
            |piece: &(u64, u64)| piece.0.is_multiple_of(GRANULE) && piece.1.is_multiple_of(GRANULE);
        let whole = told.pieces.iter().all(granules) && lead < GRANULE && len > 0;
        (whole && lead.checked_add(len)?.checked_next_multiple_of(GRANULE) == told.room()).then_some(told)
    }

    /// Returns the total length of all pieces.
    fn room(&self) -> Option<u64> {
        let add = |sum: u64, piece: &(u64, u64)| sum.checked_add(piece.1).filter(|_| piece.1 > 0);
        self.pieces.iter().try_fold(0, add)
    }

    /// Reads the description of a block from its process, while the block exists.
    fn read(handle: &Handle) -> Option<Self> {
        let file = File::from(handle.open(foreign::BLOCK)?);
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes).ok()?;
        Self::from_bytes(&bytes).filter(|told| told.nonce == handle.nonce)
    }
}

impl Memory {
    /// Returns a handle of the block that contains an address. The handle is the same each time.
    pub(crate) fn export(&mut self, at: u64) -> Answer<Raw> {
        let (base, block) = self.block(at).ok_or(Code::INVALID_VALUE)?;
        Code::INVALID_VALUE.when(!matches!(block.kind, Kind::Plain))?;
        if let Some(export) = self.sharing.exports.get(&base) {
            return Ok(export.handle.to_raw());
        }
        let (len, device) = (block.len, block.device);
        let lead = base % GRANULE;
        let cover = (lead + len).next_multiple_of(GRANULE);
        let pieces = self.pages.translate(base - lead, cover).ok_or(Code::MAP_FAILED)?;
        let told = Told {
            nonce: foreign::nonce()?,
            device,
            len,
            lead,
            store: self.card(device)?.store.file().as_raw_fd().cast_unsigned(),
            pieces: pieces.into_iter().map(|(_, offset, len)| (offset, len)).collect(),
        };
        let file = foreign::written(foreign::BLOCK, &told.to_bytes())?;
        let handle = Handle::new(file.as_fd(), told.nonce);
        let export = Export { handle, _told: file };
        self.sharing.exports.insert(base, export);
        Ok(handle.to_raw())
    }

    /// Removes the export of a freed block. Other processes can no longer open it.
    pub(super) fn unexport(&mut self, base: u64) {
        self.sharing.exports.remove(&base);
    }

    /// Opens a block of another process and returns its address here.
    pub(crate) fn open_block(&mut self, raw: &Raw, origin: Origin) -> Answer<u64> {
        let handle = Handle::from_raw(raw).ok_or(Code::INVALID_HANDLE)?;
        Code::INVALID_CONTEXT.when(handle.is_own())?;
        // The other process is asked first, so that a block that it has freed is not opened again.
        let told = Told::read(&handle).ok_or(Code::MAP_FAILED)?;
        if let Some(at) = self.open_again(told.nonce, origin)? {
            return Ok(at);
        }
        self.card(told.device)?;
        let file = foreign::open(handle.pid, told.store, foreign::DEVICE).ok_or(Code::MAP_FAILED)?;
        let store = self.share(file)?;
        let opened = Opened {
            nonce: told.nonce,
            times: 1,
            lead: told.lead,
            store,
        };
        let shown = self.show_opened(&told, store);
        let at = shown.inspect_err(|_| self.unshare(store))?;
        self.enter(at, told.len, Kind::Opened(opened), told.device, origin);
        Ok(at)
    }

    /// Opens a block once more if it is already open, and returns its address. Only one context of a process may have it open.
    fn open_again(&mut self, nonce: u128, origin: Origin) -> Answer<Option<u64>> {
        for (at, block) in &mut self.blocks {
            if let Kind::Opened(opened) = &mut block.kind
                && opened.nonce == nonce
            {
                Code::INVALID_CONTEXT.when(block.context != origin.context)?;
                opened.times = opened.times.checked_add(1).ok_or(Code::INVALID_VALUE)?;
                return Ok(Some(*at));
            }
        }
        Ok(None)
    }

    fn show_opened(&mut self, told: &Told, store: u64) -> Answer<u64> {
        let room = told.room().ok_or(Code::MAP_FAILED)?;
        let bytes = Bytes {
            device: told.device,
            shared: Some(store),
        };
        let len = self.store(bytes)?.len();
        let inside = |piece: &(u64, u64)| piece.0.checked_add(piece.1).is_some_and(|end| end <= len);
        Code::MAP_FAILED.when(!told.pieces.iter().all(inside))?;
        let base = self.space.take(room, GRANULE).ok_or(Code::MAP_FAILED)?;
        if let Err(code) = self.show(base, bytes, &told.pieces, 0, Devices::ALL) {
            self.space.give(base, room);
            return Err(code);
        }
        Ok(base + told.lead)
    }

    /// Returns how often the block that begins at this address is open.
    pub(crate) fn opened(&self, at: u64) -> Answer<u32> {
        match self.block_at(at).map(|block| &block.kind) {
            Ok(Kind::Opened(opened)) => Ok(opened.times),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Closes a block once. Returns the block if it is now closed. Work that uses it must be complete by then.
    pub(crate) fn close_block(&mut self, at: u64) -> Answer<Option<Block>> {
        let block = self.blocks.get_mut(&at).ok_or(Code::INVALID_VALUE)?;
        let Kind::Opened(opened) = &mut block.kind else {
            return Err(Code::INVALID_VALUE);
        };
        opened.times -= 1;
        let closed = opened.times == 0;
        Ok(closed.then(|| self.forget_block(at)).flatten())
    }

    /// Closes a block completely, however often it is open.
    pub(super) fn forget_block(&mut self, at: u64) -> Option<Block> {
        let block = self.blocks.get(&at)?.clone();
        let Kind::Opened(opened) = block.kind else {
            return None;
        };
        let room = (opened.lead + block.len).next_multiple_of(GRANULE);
        self.blocks.remove(&at);
        self.hide(at - opened.lead, room);
        self.space.give(at - opened.lead, room);
        self.unshare(opened.store);
        Some(block)
    }
}

impl Memory {
    /// Returns the store that contains these bytes.
    pub(super) fn store(&self, bytes: Bytes) -> Answer<&Store> {
        match bytes.shared {
            None => Ok(&self.card(bytes.device)?.store),
            Some(number) => {
                let found = self.sharing.stores.get(&number);
                found.map(|shared| &shared.store).ok_or(Code::UNKNOWN)
            }
        }
    }

    /// Returns the number of the store for this file, and adds a user.
    pub(super) fn share(&mut self, file: OwnedFd) -> Answer<u64> {
        let identity = foreign::identity(file.as_fd())?;
        let mut stores = self.sharing.stores.iter_mut();
        if let Some((number, shared)) = stores.find(|known| known.1.identity == identity) {
            shared.users += 1;
            return Ok(*number);
        }
        let store = Store::adopt(file).map_err(|_| Code::MAP_FAILED)?;
        self.keep(store)
    }

    /// Stores a shared store with its first user.
    pub(super) fn keep(&mut self, store: Store) -> Answer<u64> {
        let identity = foreign::identity(store.file())?;
        let number = self.new_id();
        self.sharing.stores.insert(
            number,
            Shared {
                store,
                identity,
                users: 1,
            },
        );
        Ok(number)
    }

    /// Removes a user of a store. A store without users is unmapped as soon as no work is running.
    pub(super) fn unshare(&mut self, number: u64) {
        let Some(shared) = self.sharing.stores.get_mut(&number) else {
            return;
        };
        shared.users -= 1;
        if shared.users == 0
            && let Some(shared) = self.sharing.stores.remove(&number)
            && self.sharing.holders > 0
        {
            self.sharing.retired.push(shared.store);
        }
    }

    /// Keeps all stores mapped, because work may access any of them without the lock.
    pub(crate) fn hold(&mut self) {
        self.sharing.holders += 1;
    }

    /// Ends one [`hold`](Self::hold), after its caller has dropped all spans.
    pub(crate) fn unhold(&mut self) {
        self.sharing.holders = self.sharing.holders.saturating_sub(1);
        if self.sharing.holders == 0 {
            self.sharing.retired.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn told() -> Told {
        Told {
            nonce: 7,
            device: 0,
            len: GRANULE,
            lead: 512,
            store: 3,
            pieces: vec![(4 * GRANULE, GRANULE), (0, GRANULE)],
        }
    }

    #[test]
    fn descriptions_are_parsed_and_invalid_ones_are_refused() {
        let good = told();
        assert_eq!(Told::from_bytes(&good.to_bytes()), Some(good.clone()));
        let cut = &good.to_bytes()[..good.to_bytes().len() - 8];
        assert_eq!(Told::from_bytes(cut), None);
        let bad: [fn(&mut Told); 6] = [
            |told| told.len = 2 * GRANULE,
            |told| told.len = u64::MAX,
            |told| told.len = 512,
            |told| told.lead = GRANULE,
            |told| told.pieces[0].0 += 1,
            |told| told.pieces[1].1 = u64::MAX / GRANULE * GRANULE,
        ];
        for spoil in bad {
            let mut other = good.clone();
            spoil(&mut other);
            assert_eq!(Told::from_bytes(&other.to_bytes()), None, "{other:?}");
        }
    }

    /// A store is unmapped only when the last work is complete, and it can be found until then.
    #[test]
    fn stores_stay_mapped_while_work_is_running() {
        let mut memory = Memory::new(&Options::default()).unwrap();
        let store = Store::new(foreign::DEVICE, GRANULE).unwrap();
        let again = store.file().try_clone_to_owned().unwrap();
        let number = memory.keep(store).unwrap();
        assert_eq!(memory.share(again), Ok(number));
        memory.hold();
        memory.unshare(number);
        assert_eq!(memory.sharing.stores.len(), 1);
        memory.unshare(number);
        assert_eq!(
            (memory.sharing.stores.len(), memory.sharing.retired.len()),
            (0, 1)
        );
        memory.unhold();
        assert_eq!(memory.sharing.retired.len(), 0);
    }
}
