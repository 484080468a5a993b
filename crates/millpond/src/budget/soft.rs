//! Soft limits: they refuse nothing, they tell.

use super::Budget;
use super::later::{self, Call};
use super::node::Node;
use super::sync::{AtomicBool, Ordering};
use std::sync::Arc;

/// A soft limit was crossed upwards.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SoftCrossing {
    /// The budget it belongs to.
    pub budget: Budget,
    /// The soft limit.
    pub limit: u64,
    /// Bytes used after the charge that crossed it.
    pub used: u64,
}

type Callback = Box<dyn Fn(&SoftCrossing) + Send + Sync>;

/// Invariant: once disarmed, it is armed again only after the use was at `rearm` or below.
pub(super) struct SoftLimit {
    limit: u64,
    rearm: u64,
    armed: AtomicBool,
    callback: Callback,
}

impl SoftLimit {
    pub(super) fn new(limit: u64, rearm: u64, callback: Callback) -> Self {
        Self {
            limit,
            rearm: rearm.min(limit),
            armed: AtomicBool::new(true),
            callback,
        }
    }

    /// After a charge.
    ///
    /// Whoever changes `armed` reads the use again afterwards, in the one order that charges and refunds are counted
    /// in: either it sees the other's bytes, or the other sees what it changed. So no crossing goes untold for a
    /// refund that was on its way, and none is told twice.
    pub(super) fn rose(&self, node: &Arc<Node>, used: u64) {
        if used > self.limit
            && self.armed.load(Ordering::Relaxed)
            && self.armed.swap(false, Ordering::Relaxed)
        {
            self.tell(node, used);
            self.fell(node, node.recount());
        }
    }

    /// After a refund.
    pub(super) fn fell(&self, node: &Arc<Node>, used: u64) {
        if used <= self.rearm
            && !self.armed.load(Ordering::Relaxed)
            && !self.armed.swap(true, Ordering::Relaxed)
        {
            self.rose(node, node.recount());
        }
    }

    fn tell(&self, node: &Arc<Node>, used: u64) {
        let crossing = SoftCrossing {
            budget: Budget::of(node),
            limit: self.limit,
            used,
        };
        let place = node.soft.iter().position(|soft| std::ptr::eq(soft, self));
        later::call(Call::Soft(
            Arc::clone(node),
            place.unwrap_or(usize::MAX),
            crossing,
        ));
    }

    pub(super) fn call(&self, crossing: &SoftCrossing) {
        (self.callback)(crossing);
    }
}
