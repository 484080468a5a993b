//! Unpacks data that the host has packed (`unpack.cu`). The crate `millpond-codec` describes the format.

use super::{Call, Kernels, Params, check_extent};
use crate::access::Access;
use crate::error::{Answer, Code};

const BLOCK: usize = 8192;
const HEADER: usize = 16;

/// A launch: it unpacks `size` bytes at `packed` to `len` bytes at `to`. If the data is damaged, the word at `damaged` becomes 1.
struct Unpack {
    to: u64,
    len: u64,
    packed: u64,
    size: u64,
    damaged: u64,
}

impl Unpack {
    fn read(params: &Params) -> Answer<Self> {
        Ok(Self {
            to: params.u64(0),
            len: params.u64(1),
            packed: params.u64(2),
            size: params.u64(3),
            damaged: params.u64(4),
        })
    }

    fn accesses(&self) -> Vec<Access> {
        let access = |at, len, write| Access { at, len, write };
        let mut all = vec![
            access(self.to, self.len, true),
            access(self.packed, self.size, false),
        ];
        if self.damaged != 0 {
            all.push(access(self.damaged, 4, true));
        }
        all
    }

    fn run(&self, call: &Call<'_>) -> Answer {
        check_extent(self.len)?;
        check_extent(self.size)?;
        let packed = call.memory.read(self.packed, self.size)?;
        let mut to = vec![0; self.len as usize];
        let is_whole = unpack(&packed, &mut to).is_some();
        if is_whole {
            return call.memory.write(self.to, &to);
        }
        // Without a word for the report, the program would compute with garbage.
        Code::LAUNCH_FAILED.when(self.damaged == 0)?;
        call.memory.write(self.damaged, &1_u32.to_ne_bytes())
    }
}

/// Returns the first bytes, and removes them from `rest`.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    rest.split_off(..len)
}

fn little(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Unpacks data, or returns `None` if it is damaged.
fn unpack(mut packed: &[u8], to: &mut [u8]) -> Option<()> {
    let head = take(&mut packed, HEADER)?;
    let (width, transform) = (usize::from(head[4]), head[5]);
    let is_known = matches!(width, 1 | 2 | 4 | 8) && matches!(transform, 0..4 | 255);
    if head[..4] != *b"MPC1" || head[6..8] != [0; 2] || little(&head[8..]) != to.len() as u64 || !is_known {
        return None;
    }
    if transform == 255 {
        to.copy_from_slice(packed.get(..to.len())?);
        return Some(());
    }
    let (values, tail) = to.split_at_mut(to.len() / width * width);
    let blocks = values.chunks_mut(BLOCK);
    let ends = take(&mut packed, 4 * blocks.len())?;
    let last = take(&mut packed, tail.len().next_multiple_of(4))?;
    tail.copy_from_slice(&last[..tail.len()]);
    let mut begin = 0;
    for (to, end) in blocks.zip(ends.chunks(4)) {
        let end = 4 * little(end) as usize;
        unpack_block(packed.get(begin..end)?, transform, width, to)?;
        begin = end;
    }
    Some(())
}

fn unpack_block(mut from: &[u8], transform: u8, width: usize, to: &mut [u8]) -> Option<()> {
    let head = take(&mut from, 4)?;
    let (kept, kind, values) = (little(&head[..2]) as usize, head[2], to.len() / width);
    if kind == 0 {
        to.copy_from_slice(from.get(..to.len())?);
        return Some(());
    }
    if kind > 2 || kept > values || kind == 1 && kept < values {
        return None;
    }
    let mut sum = match transform {
        3 => little(take(&mut from, 8)?),
        _ => 0,
    };
    let map = match kind {
        2 => Some(take(&mut from, values.div_ceil(8))?),
        _ => None,
    };
    let heads = take(&mut from, 8 * width)?;
    let mut planes = Vec::with_capacity(width);
    for head in heads.chunks(8) {
        let [exceptions, raw] = [&head[4..6], &head[6..]].map(|bytes| little(bytes) as usize);
        let codes = take_codes(&mut from, kept, head[1])?;
        let mut outside = Vec::new();
        if exceptions > 0 {
            let codes = take_codes(&mut from, exceptions, head[3])?;
            let raw = take(&mut from, raw)?;
            outside = decode(codes, exceptions, head[2], head[3], raw)?;
        }
        planes.push(decode(codes, kept, head[0], head[1], &outside)?);
    }
    let mut next = 0;
    for (number, to) in to.chunks_mut(width).enumerate() {
        let mut value = 0;
        if map.is_none_or(|map| map[number / 8] >> (number % 8) & 1 == 1) {
            for plane in planes.iter().rev() {
                value = value << 8 | u64::from(*plane.get(next)?);
            }
            next += 1;
        }
        let signed = value >> 1 ^ (value & 1).wrapping_neg();
        value = match transform {
            0 => value,
            1 => value >> 1 | (value & 1) << (8 * width - 1),
            2 => signed,
            _ => {
                sum = sum.wrapping_add(signed);
                sum
            }
        };
        to.copy_from_slice(&value.to_le_bytes()[..width]);
    }
    (next == kept).then_some(())
}

fn take_codes<'a>(from: &mut &'a [u8], len: usize, width: u8) -> Option<&'a [u8]> {
    if width > 8 {
        return None;
    }
    take(from, (len * usize::from(width)).div_ceil(8))
}

/// Returns the bytes of codes. Each code that marks an exception takes the next byte of `outside`, which must be used up.
fn decode(codes: &[u8], len: usize, base: u8, width: u8, outside: &[u8]) -> Option<Vec<u8>> {
    let top = ((1_u16 << width) - 1) as u8;
    let mut exceptions = outside.iter();
    let byte = |number: usize| -> Option<u8> {
        let bit = number * usize::from(width);
        let two = codes.iter().skip(bit / 8).take(2);
        let two = two.rev().fold(0, |two, byte| two << 8 | u16::from(*byte));
        let mut distance = (two >> (bit % 8)) as u8 & top;
        if !outside.is_empty() && distance == top {
            distance = *exceptions.next()?;
            distance = distance.wrapping_add(if distance < 128 { top } else { 0 });
        }
        Some(distance.wrapping_add(base))
    };
    let bytes = (0..len).map(byte).collect::<Option<_>>()?;
    exceptions.next().is_none().then_some(bytes)
}

pub(super) fn register(kernels: &mut Kernels) {
    kernels.add(
        "millpond_unpack",
        &[8; 5],
        Unpack::read,
        Unpack::accesses,
        |unpack| unpack.len.saturating_add(unpack.size),
        Unpack::run,
    );
}
