//! Stores the stacks of a recording. Stacks that follow each other share their outer frames.
//!
//! The stacks of an interpreter are deep, and mostly differ in their inner frames. A file stores such stacks in few bytes.
//! With shared frames, their memory is in proportion to the file.

use crate::hash::Map;

/// The caller of an outermost frame. Also the innermost node of a stack without frames.
const NONE: u32 = u32::MAX;

/// The stacks of a recording by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Stacks {
    /// Invariant: the caller of a node is [`NONE`] or has a smaller index.
    nodes: Vec<Node>,
    /// The node of each stack's innermost frame, by the stack's number.
    innermost: Map<u32, u32>,
    /// The nodes of the stack that was added last, the outermost first.
    last: Vec<u32>,
}

/// An address on a stack, and the node of the frame that called it.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Node {
    address: u64,
    caller: u32,
}

impl Stacks {
    /// Bytes of each node.
    pub(super) const NODE: usize = size_of::<Node>();

    /// Returns how many nodes [`insert`](Self::insert) would add for these addresses.
    pub(super) fn new_nodes(&self, addresses: &[u64]) -> usize {
        addresses.len() - self.shared(addresses)
    }

    /// Adds a stack of addresses, innermost first. Replaces an earlier stack of the same number.
    pub(super) fn insert(&mut self, number: u32, addresses: &[u64]) {
        self.last.truncate(self.shared(addresses));
        let mut caller = self.last.last().copied().unwrap_or(NONE);
        for &address in addresses.iter().rev().skip(self.last.len()) {
            let node = self.nodes.len() as u32;
            self.nodes.push(Node { address, caller });
            self.last.push(node);
            caller = node;
        }
        self.innermost.insert(number, caller);
    }

    /// Returns the addresses of a stack, innermost first, or no addresses if the stack is unknown.
    pub(super) fn addresses(&self, number: u32) -> impl Iterator<Item = u64> {
        let mut at = self.innermost.get(&number).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.caller;
            Some(node.address)
        })
    }

    /// Returns how many stacks there are.
    pub(super) fn count(&self) -> usize {
        self.innermost.len()
    }

    /// Returns the numbers of all stacks, in no particular order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.innermost.keys().copied()
    }

    /// Returns how many outer frames these addresses share with the stack that was added last.
    fn shared(&self, addresses: &[u64]) -> usize {
        let last = self.last.iter().map(|node| self.nodes[*node as usize].address);
        let pairs = addresses.iter().rev().zip(last);
        pairs.take_while(|(address, last)| **address == *last).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn stacks_that_follow_each_other_share_their_outer_frames() {
        let mut stacks = Stacks::default();
        stacks.insert(1, &[1, 2, 3, 4]);
        assert_eq!(stacks.new_nodes(&[7, 3, 4]), 1);
        stacks.insert(2, &[7, 3, 4]);
        assert_eq!(stacks.nodes.len(), 5);
    }

    proptest! {
        #[test]
        fn every_stack_is_read_as_it_was_added(
            all in proptest::collection::vec((0u32..20, proptest::collection::vec(0u64..4, 0..8)), 0..60)
        ) {
            let mut stacks = Stacks::default();
            let mut expected = BTreeMap::new();
            for (number, addresses) in all {
                let before = stacks.nodes.len();
                let added = stacks.new_nodes(&addresses);
                stacks.insert(number, &addresses);
                prop_assert_eq!(stacks.nodes.len(), before + added);
                expected.insert(number, addresses);
            }
            for number in 0..21 {
                let addresses: Vec<u64> = stacks.addresses(number).collect();
                prop_assert_eq!(addresses, expected.get(&number).cloned().unwrap_or_default());
            }
        }
    }
}
