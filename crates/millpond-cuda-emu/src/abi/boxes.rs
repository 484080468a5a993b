//! Copies of rows and of planes of rows.

use super::copy::{Return, host, known, transfer, unified};
use super::structures::{Memcpy2d, Memcpy3d};
use crate::calls::Call;
use crate::error::{Answer, Code};
use crate::work::action::{Rows, Side};

/// The kinds of memory: `CUmemorytype`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

/// One end of a copy.
struct End {
    kind: u32,
    host: usize,
    device: u64,
    origin: [usize; 3],
    pitch: usize,
    height: usize,
}

/// The bytes from the start of one row to the next, and from the start of one plane to the next.
type Steps = (u64, u64);

fn checked(value: Option<u64>) -> Answer<u64> {
    value.ok_or(Code::INVALID_VALUE)
}

impl End {
    /// Returns the steps of a copy with this many bytes in a row, rows in a plane, and planes.
    fn steps(&self, [width, height, depth]: [usize; 3]) -> Answer<Steps> {
        let [x, y, _] = self.origin;
        let needed = x.checked_add(width).ok_or(Code::INVALID_VALUE)?;
        let pitch = if self.pitch == 0 { needed } else { self.pitch };
        Code::INVALID_VALUE.when(pitch < needed)?;
        let rows = y.checked_add(height).ok_or(Code::INVALID_VALUE)?;
        let high = if self.height == 0 { rows } else { self.height };
        Code::INVALID_VALUE.when(high < rows && depth > 1)?;
        Ok((pitch as u64, checked((pitch as u64).checked_mul(high as u64))?))
    }

    /// Returns the memory of this end, which has `len` bytes from its first to its last.
    fn side(&self, call: &Call, (pitch, plane): Steps, len: u64) -> Answer<Side> {
        let [x, y, z] = self.origin.map(|offset| offset as u64);
        let start = if self.kind == HOST {
            self.host as u64
        } else {
            self.device
        };
        Code::NOT_SUPPORTED.when(self.kind == ARRAY)?;
        Code::INVALID_VALUE.when(start == 0)?;
        let row = checked(y.checked_mul(pitch).and_then(|offset| offset.checked_add(x)))?;
        let offset = checked(z.checked_mul(plane).and_then(|offset| offset.checked_add(row)))?;
        let at = checked(start.checked_add(offset))?;
        match self.kind {
            HOST => host(call, at as usize, len),
            DEVICE => known(call, at, len),
            UNIFIED => unified(call, at, len),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

/// Returns the two ends of a copy and its rows. Returns `None` if it copies nothing.
pub(super) fn ends(call: &Call, c: &Memcpy3d) -> Answer<Option<(Side, Side, Rows)>> {
    let to = End {
        kind: c.dst_type,
        host: c.dst_host,
        device: c.dst_device,
        origin: [c.dst_x, c.dst_y, c.dst_z],
        pitch: c.dst_pitch,
        height: c.dst_height,
    };
    let from = End {
        kind: c.src_type,
        host: c.src_host,
        device: c.src_device,
        origin: [c.src_x, c.src_y, c.src_z],
        pitch: c.src_pitch,
        height: c.src_height,
    };
    let size = [c.width, c.height, c.depth];
    if size.contains(&0) {
        return Ok(None);
    }
    Code::INVALID_VALUE.when(c.src_lod != 0 || c.dst_lod != 0)?;
    let (to_steps, from_steps) = (to.steps(size)?, from.steps(size)?);
    let rows = Rows {
        width: c.width as u64,
        count: c.height as u64,
        planes: c.depth as u64,
        to_pitch: to_steps.0,
        from_pitch: from_steps.0,
        to_plane: to_steps.1,
        from_plane: from_steps.1,
    };
    let to = to.side(call, to_steps, rows.extent_written()?)?;
    let from = from.side(call, from_steps, rows.extent_read()?)?;
    Ok(Some((to, from, rows)))
}

pub(super) fn copy(call: &Call, c: &Memcpy3d, stream: u64, when: Return) -> Answer {
    let stream = call.stream(stream)?;
    let Some((to, from, rows)) = ends(call, c)? else {
        return Ok(());
    };
    // Copies inside devices do not wait.
    let inside = c.src_type == DEVICE && c.dst_type == DEVICE;
    transfer(
        call,
        stream,
        to,
        from,
        rows,
        if inside { Return::Queued } else { when },
    )
}

/// Queues a copy between contexts, which are in the places that other copies do not use.
pub(super) fn peer(call: &Call, c: &Memcpy3d, stream: u64, when: Return) -> Answer {
    for (kind, context) in [(c.src_type, c.reserved0), (c.dst_type, c.reserved1)] {
        if kind == DEVICE {
            call.driver.state().context(context as u64)?;
        }
    }
    copy(call, c, stream, when)
}

impl From<Memcpy2d> for Memcpy3d {
    fn from(c: Memcpy2d) -> Self {
        Self {
            src_x: c.src_x,
            src_y: c.src_y,
            src_type: c.src_type,
            src_host: c.src_host,
            src_device: c.src_device,
            src_array: c.src_array,
            src_pitch: c.src_pitch,
            dst_x: c.dst_x,
            dst_y: c.dst_y,
            dst_type: c.dst_type,
            dst_host: c.dst_host,
            dst_device: c.dst_device,
            dst_array: c.dst_array,
            dst_pitch: c.dst_pitch,
            width: c.width,
            height: c.height,
            depth: 1,
            ..Self::default()
        }
    }
}
