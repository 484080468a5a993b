//! Takes room in all budgets on a path, or in none.

use super::node::Node;
use super::room::{Seen, Turn};
use std::sync::Arc;

/// The budget that refused, and the value that it saw.
pub(super) struct Refused {
    pub(super) node: Arc<Node>,
    pub(super) seen: Seen,
    /// True if a request waits for room that was taken for this charge and returned.
    pub(super) waited: bool,
}

/// Takes room in a budget and in all budgets above it, or in none.
///
/// The budgets above are checked before anything is taken. A request that one of them refuses therefore seldom blocks
/// others from the room below.
pub(super) fn take(from: &Arc<Node>, bytes: u64, turn: Turn) -> Result<(), Refused> {
    let refused = |node: &Arc<Node>, seen, waited| Refused {
        node: Arc::clone(node),
        seen,
        waited,
    };
    if bytes == 0 {
        return Ok(());
    }
    for node in from.way().skip(1) {
        node.room
            .admits(bytes, turn)
            .map_err(|seen| refused(node, seen, false))?;
    }
    for node in from.way() {
        if let Err(seen) = node.room.take(bytes, turn) {
            let mut waited = false;
            for below in from.way().take_while(|below| !Arc::ptr_eq(below, node)) {
                waited |= below.room.give(bytes);
            }
            return Err(refused(node, seen, waited));
        }
    }
    Ok(())
}

/// Counts the taken bytes and reports soft limits that are crossed.
pub(super) fn count(from: &Arc<Node>, bytes: u64) {
    for node in from.way() {
        let used = node.count(bytes);
        for soft in &node.soft {
            soft.rose(node, used);
        }
    }
}

/// Discounts counted bytes, returns their room, and serves requests that wait for it.
pub(super) fn refund(from: &Arc<Node>, bytes: u64) {
    for node in from.way() {
        let used = node.discount(bytes);
        for soft in &node.soft {
            soft.fell(node, used);
        }
    }
    give(from, bytes);
}

/// Returns room that was taken and not counted, and serves requests that wait for it.
pub(super) fn give(from: &Arc<Node>, bytes: u64) {
    if bytes == 0 {
        return;
    }
    let mut waited = false;
    for node in from.way() {
        waited |= node.room.give(bytes);
    }
    if waited {
        from.line.serve();
    }
}
