//! Plain memory, and queries about addresses.

use super::args::{In, Out};
use super::entries;
use crate::calls::Call;
use crate::error::{Answer, Code};
use crate::memory::Kind;

/// Allocates plain memory. The call may synchronise, so captures can forbid it.
fn allocate(call: &Call, bytes: usize) -> Answer<u64> {
    let device = call.device()?;
    Code::INVALID_VALUE.when(bytes == 0)?;
    let mut state = call.driver.state();
    state.refuse_unsafe(call.thread)?;
    state.memory.allocate(device, bytes as u64, call.origin())
}

/// The value of one `CUpointer_attribute`, which has 64 or 32 bits.
enum Attribute {
    Word(u64),
    Number(i32),
}

impl Attribute {
    fn flag(value: bool) -> Self {
        Self::Number(i32::from(value))
    }

    fn write(self, data: Out<u8>) -> Answer {
        match self {
            Self::Word(value) => data.cast().set(value),
            Self::Number(value) => data.cast().set(value),
        }
    }
}

fn attribute(call: &Call, number: i32, at: u64) -> Answer<Attribute> {
    let state = call.driver.state();
    let (base, block) = state.memory.block(at).ok_or(Code::INVALID_VALUE)?;
    let piece = state.memory.piece(at);
    let reserved = matches!(block.kind, Kind::Reserved);
    let managed = matches!(block.kind, Kind::Managed(_));
    let host = !managed && state.memory.is_pinned(at, 1);
    let device = if reserved {
        piece.map_or(0, |(_, piece)| piece.bytes.device)
    } else {
        block.device
    };
    // Addresses that are only reserved are known, but have no memory.
    Code::INVALID_VALUE.when(reserved && piece.is_none() && !matches!(number, 11..=13))?;
    Ok(match number {
        1 if reserved => return Err(Code::INVALID_VALUE),
        1 => Attribute::Word(block.context),
        2 => Attribute::Number(if host { 1 } else { 2 }),
        3 => Attribute::Word(at),
        4 if host || managed => Attribute::Word(at),
        4 => return Err(Code::INVALID_VALUE),
        6 => Attribute::flag(block.sync_memops),
        7 => Attribute::Word(block.id),
        8 => Attribute::flag(managed),
        9 => Attribute::Number(device as i32),
        10 => Attribute::flag(matches!(block.kind, Kind::Plain)),
        11 => Attribute::Word(base),
        12 => Attribute::Word(block.len),
        13 => Attribute::flag(!reserved || piece.is_some()),
        14 => Attribute::Word(0),
        15 => Attribute::flag(false),
        16 => Attribute::Number(if piece.is_some_and(|(_, piece)| !piece.access.any()) {
            0
        } else {
            3
        }),
        17 => Attribute::Word(block.pool().unwrap_or(0)),
        18 => Attribute::Word(piece.map_or(block.len, |(_, piece)| piece.len)),
        19 => Attribute::Word(piece.map_or(base, |(start, _)| start)),
        20 => Attribute::Word(piece.map_or(block.id, |(_, piece)| piece.handle.max(block.id))),
        _ => return Err(Code::INVALID_VALUE),
    })
}

entries! {
    cuMemGetInfo_v2 none 3020 Driver (free: Out<usize>, total: Out<usize>) |call| {
        let device = call.device()?;
        let info = call.driver.state().memory.info(device)?;
        free.set(info.0 as usize)?;
        total.set(info.1 as usize)
    }
    cuMemAlloc_v2 none 3020 Driver (at: Out<u64>, bytes: usize) |call| {
        at.make(|| allocate(call, bytes))
    }
    cuMemAllocPitch_v2 none 3020 Driver (at: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) |call| {
        at.check()?;
        Code::INVALID_VALUE.when(!matches!(element, 4 | 8 | 16))?;
        let row = width.checked_next_multiple_of(512).ok_or(Code::INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(Code::INVALID_VALUE)?;
        pitch.set(row)?;
        at.set(allocate(call, bytes)?)
    }
    cuMemFree_v2 none 3020 Driver (at: u64) |call| {
        call.context()?;
        if at == 0 {
            return Ok(());
        }
        let mut state = call.driver.state();
        state.refuse_unsafe(call.thread)?;
        if state.memory.is_graphs(at) {
            return Ok(());
        }
        let context = state.memory.block_at(at)?.context;
        state.unwaited_block(at, call.origin());
        // A driver may wait for the device before it frees memory, and this one does. It frees memory of a pool without a wait.
        let open = if state.memory.is_pooled(at) { Vec::new() } else { state.queue.open(context) };
        let mut state = call.driver.wait(state, &open);
        let block = state.memory.free(at)?;
        state.strict.freed(at, block.len, block.origin, call.origin());
        state.trim_pools();
        Ok(())
    }
    cuMemGetAddressRange_v2 none 3020 Driver (base: Out<u64>, size: Out<usize>, at: u64) |call| {
        call.context()?;
        let state = call.driver.state();
        let (start, block) = state.memory.block(at).ok_or(Code::NOT_FOUND)?;
        base.offer(start);
        size.offer(block.len as usize);
        Ok(())
    }
    cuPointerGetAttribute none 4000 Driver (data: Out<u8>, number: i32, at: u64) |call| {
        data.check()?;
        attribute(call, number, at)?.write(data)
    }
    /// Returns zero for attributes of an unknown address, and -2 for its device.
    cuPointerGetAttributes none 7000 Driver (count: u32, numbers: In<i32>, data: In<Out<u8>>, at: u64) |call| {
        Code::INVALID_VALUE.when(count == 0)?;
        let numbers = numbers.all(count as usize)?;
        let places = data.all(count as usize)?;
        for (number, place) in numbers.into_iter().zip(places) {
            match attribute(call, number, at) {
                Ok(answer) => answer.write(place)?,
                Err(_) if matches!(number, 1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20) => place.cast().set(0u64)?,
                Err(_) if number == 9 => place.cast().set(-2i32)?,
                Err(_) if (1..=20).contains(&number) => place.cast().set(0i32)?,
                Err(code) => return Err(code),
            }
        }
        Ok(())
    }
    cuPointerSetAttribute none 6000 Driver (value: In<i32>, number: i32, at: u64) |call| {
        let value = value.get()? != 0;
        let mut state = call.driver.state();
        let (_, block) = state.memory.block_mut(at).ok_or(Code::INVALID_VALUE)?;
        Code::INVALID_VALUE.when(number != 6)?;
        block.sync_memops = value;
        Ok(())
    }
}
