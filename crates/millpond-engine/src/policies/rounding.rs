//! The rounding of the policies of other projects: whole units of 256 bytes, at least one.
//!
//! Some of the originals return a null address for a request of zero bytes. Here it gets one unit, so that every block
//! has its own address.

use crate::block::Request;
use crate::policy::Refusal;

/// The alignment of the driver and of these allocators.
pub(super) const UNIT: u64 = 256;
/// No device can serve a request above this size.
pub(super) const LIMIT: u64 = 1 << 60;

/// Returns the size of the block for a request, in bytes.
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
