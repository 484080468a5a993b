//! Expands words that were stored without their zeros (`expand.cu`).

use super::{Call, Kernels, Params, check_extent};
use crate::access::Access;
use crate::error::Answer;

/// The number of words in a group, and the bytes of the bit map that says which are kept.
const GROUP: u64 = 1024;
const MAP: u64 = GROUP / 8;

/// A launch: it writes groups to `to` from the data at `packed`, which contains `kept` words.
struct Expand {
    to: u64,
    packed: u64,
    groups: u64,
    kept: u64,
}

impl Expand {
    fn read(params: &Params) -> Answer<Self> {
        Ok(Self {
            to: params.u64(0),
            packed: params.u64(1),
            groups: params.u64(2),
            kept: params.u64(3),
        })
    }

    fn written(&self) -> u64 {
        self.groups.saturating_mul(4 * GROUP)
    }

    fn read_bytes(&self) -> u64 {
        let heads = self.groups.saturating_mul(4 + MAP);
        heads.saturating_add(self.kept.saturating_mul(4))
    }

    fn accesses(&self) -> Vec<Access> {
        let access = |at, len, write| Access { at, len, write };
        vec![
            access(self.to, self.written(), true),
            access(self.packed, self.read_bytes(), false),
        ]
    }

    fn run(&self, call: &Call<'_>) -> Answer {
        check_extent(self.written())?;
        check_extent(self.kept)?;
        let to = call.memory.reach(self.to, self.written(), true)?;
        let packed = call.memory.reach(self.packed, self.read_bytes(), false)?;
        let word = |at: u64| u32::from_ne_bytes(packed.get(4 * at));
        let words = self.groups * (1 + GROUP / 32);
        for group in 0..self.groups {
            let mut place = u64::from(word(group));
            for part in 0..GROUP / 32 {
                let bits = word(self.groups + group * (GROUP / 32) + part);
                for bit in 0..32 {
                    let mut value = 0;
                    if bits >> bit & 1 == 1 {
                        if place < self.kept {
                            value = word(words + place);
                        }
                        place += 1;
                    }
                    to.put(4 * (group * GROUP + part * 32 + bit), &value.to_ne_bytes());
                }
            }
        }
        Ok(())
    }
}

pub(super) fn register(kernels: &mut Kernels) {
    kernels.add(
        "millpond_expand",
        &[8; 4],
        Expand::read,
        Expand::accesses,
        |expand| expand.written().saturating_add(expand.read_bytes()),
        Expand::run,
    );
}
