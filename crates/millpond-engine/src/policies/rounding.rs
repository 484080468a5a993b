//! How the policies of other projects read a request: whole units of 256 bytes, at least one.
//!
//! Some of the originals answer a request for nothing with a null address. Here it gets a unit, so that
//! every block in a caller's hand has an address of its own.

use crate::block::Request;
use crate::policy::Refusal;

/// What the driver aligns to, and these allocators with it.
pub(super) const UNIT: u64 = 256;
/// No request above this can be served by any device.
pub(super) const LIMIT: u64 = 1 << 60;

/// Bytes of the block for a request.
#[inline]
pub(super) fn whole_units(request: &Request) -> Result<u64, Refusal> {
    if request.bytes > LIMIT {
        return Err(Refusal::TooLarge { limit: LIMIT });
    }
    if request.align > UNIT {
        return Err(Refusal::Alignment { most: UNIT });
    }
    Ok(request.bytes.max(1).next_multiple_of(UNIT))
}
