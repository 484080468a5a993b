//! Soft limits, which call back and refuse nothing.

use super::Budget;
use super::later::{self, Call};
use super::node::Node;
use super::sync::{AtomicBool, Ordering};
use std::sync::Arc;

/// An upward crossing of a soft limit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SoftCrossing {
    /// The budget with the soft limit.
    pub budget: Budget,
    /// The soft limit.
    pub limit: u64,
    /// The bytes used after the charge that crossed the limit.
    pub used: u64,
}

type Callback = Box<dyn Fn(&SoftCrossing) + Send + Sync>;

/// Invariant: a disarmed limit is armed again only after the used bytes were at `rearm` or below.
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

    /// Checks the limit after a charge.
    ///
    /// A thread that changes `armed` reads the used bytes again afterwards, in the single order in which charges and
    /// refunds are counted. Either it sees the other thread's bytes, or the other thread sees its change. So no
    /// crossing is missed because of a concurrent refund, and none is reported twice.
    pub(super) fn rose(&self, node: &Arc<Node>, used: u64) {
        if used > self.limit
            && self.armed.load(Ordering::Relaxed)
            && self.armed.swap(false, Ordering::Relaxed)
        {
            self.tell(node, used);
            self.fell(node, node.recount());
        }
    }

    /// Checks whether the limit can be armed again after a refund.
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
