//! Room along the whole way: all or nothing.

use super::node::Node;
use super::room::{Seen, Turn};
use std::sync::Arc;

/// Who refused, and what it saw.
pub(super) struct Refused {
    pub(super) node: Arc<Node>,
    pub(super) seen: Seen,
    /// Room was given back on the way down that someone waits for.
    pub(super) waited: bool,
}

/// Takes room from a budget and all above it, or from none.
///
/// Those above are looked at before anything is taken, so that a request which one of them refuses seldom keeps
/// others from the room below while it finds out.
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

/// Counts what was taken; soft limits that are crossed are told.
pub(super) fn count(from: &Arc<Node>, bytes: u64) {
    for node in from.way() {
        let used = node.count(bytes);
        for soft in &node.soft {
            soft.rose(node, used);
        }
    }
}

/// Discounts what was counted, gives its room back, and lets in who waits for it.
pub(super) fn refund(from: &Arc<Node>, bytes: u64) {
    for node in from.way() {
        let used = node.discount(bytes);
        for soft in &node.soft {
            soft.fell(node, used);
        }
    }
    give(from, bytes);
}

/// Gives room back that was taken and not counted, and lets in who waits for it.
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
