//! Budgets: nested limits on bytes, and a queue for requests that wait.
//!
//! ```text
//!   process  64 GiB    reserved      a pool charges the bytes it takes from its source to: device, process
//!     device  24 GiB   reserved
//!       pool  20 GiB   allocated     a pool charges the bytes it allocates to: scope or tenant, pool
//!         tenant a     allocated
//!         tenant b     allocated
//! ```
//!
//! A charge is made to a budget and to all budgets above it that count the same bytes, or to none of them. Reserved and
//! allocated bytes are never added up. No limit is exceeded, not even during a call: room is taken first, from the lowest
//! budget up, and is returned if a higher budget refuses. A charge takes no lock if no request waits.
//!
//! ```text
//!   node      the figures of one budget         room, limit, used, peak, waiting requests
//!   room      the bytes that can be charged     one word with a flag for waiting requests
//!   way       the path of a charge              all budgets or none
//!   line      the queue of waiting requests     served in order by the thread that returns bytes
//!   wait      one waiting request               a future or a blocked thread
//!   soft      limits that only call back        outside every lock
//!   later     deferred callbacks                called after the pool's locks are released
//! ```
//!
//! A pool uses budgets as follows. Before it requests bytes from its source, it charges them with [`Budget::try_charge`] to
//! the [nearest](Budget::nearest) budget of reserved bytes. It returns the charge after it has freed the bytes. A block is
//! charged to its tenant, scope or pool before it is placed. The [`Charge`] is stored in the block's header, or its bytes
//! are [forgotten](Charge::forget) there and [restored](Budget::restore) when the block is freed. If a request may wait, the
//! pool first [joins](Wait::join) the queue, then empties its caches, and only then sleeps. While [`Budget::has_waiters`],
//! freed blocks bypass the caches. The pool's [`Lister`] reports its blocks for refusals.
//!
//! There is no guarantee that a charge succeeds whenever there is room. While a charge that a higher budget is about to
//! refuse holds room in a lower budget, the lower one may refuse another charge that would have fitted. A waiting request is
//! served when that room is returned.

mod builder;
mod charge;
mod error;
mod later;
mod line;
#[cfg(all(test, loom))]
mod models;
mod node;
mod room;
mod soft;
mod sync;
mod wait;
mod way;

pub use builder::BudgetBuilder;
pub use charge::Charge;
pub use error::{BudgetError, Refusal, Report};
pub use soft::SoftCrossing;
pub use wait::Wait;

pub use crate::post_mortem::Measure;
use crate::post_mortem::{Lister, Text};
use node::Node;
use room::{MOST, Turn};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use sync::Ordering;

/// A limit on bytes, the bytes charged to it, and its place in a tree of budgets. This type is a handle: clones refer
/// to the same budget.
///
/// ```
/// use millpond::{Budget, budget::Measure};
/// use std::time::Duration;
///
/// let process = Budget::builder("process").limit(64 << 30).build()?;
/// let device = process.child_builder("cuda:0").limit(24 << 30).build()?;
/// let pool = device.child_builder("pool").measure(Measure::Allocated).limit(20 << 30).build()?;
/// let tenant = pool.child_builder("tenant a").limit(4 << 30).build()?;
///
/// let segment = device.charge(20 << 20)?; // reserved: the device and the process
/// let block = tenant.charge(1 << 20)?;    // allocated: the tenant and the pool
/// assert_eq!((process.used(), pool.used()), (20 << 20, 1 << 20));
///
/// let refused = tenant.charge_timeout(4 << 30, Duration::from_millis(1)).unwrap_err();
/// assert_eq!(refused.refusal().map(|refusal| refusal.over_by()), Some(1 << 20));
/// drop(block);
/// assert_eq!((pool.used(), pool.peak()), (0, 1 << 20));
/// # drop(segment);
/// # Ok::<(), millpond::budget::BudgetError>(())
/// ```
#[derive(Clone)]
pub struct Budget(Arc<Node>);

impl Budget {
    /// Makes a budget without a parent and without a limit. It counts reserved bytes.
    pub fn root(name: impl Into<String>) -> Self {
        Self::builder(name).make()
    }

    /// Returns a builder for a budget without a parent.
    pub fn builder(name: impl Into<String>) -> BudgetBuilder {
        BudgetBuilder::new(name.into(), None)
    }

    /// Makes a child of this budget. It counts the same bytes and has no limit of its own.
    ///
    /// # Errors
    /// Returns [`BudgetError::TooDeep`] if the child would have more than 32 budgets above it.
    pub fn child(&self, name: impl Into<String>) -> Result<Self, BudgetError> {
        self.child_builder(name).build()
    }

    /// Returns a builder for a child of this budget.
    pub fn child_builder(&self, name: impl Into<String>) -> BudgetBuilder {
        BudgetBuilder::new(name.into(), Some(self.clone()))
    }

    fn of(node: &Arc<Node>) -> Self {
        Self(Arc::clone(node))
    }

    fn node(&self) -> &Arc<Node> {
        &self.0
    }

    fn into_node(self) -> Arc<Node> {
        self.0
    }

    /// Charges bytes to this budget and to all budgets above it with the same measure, or to none of them.
    ///
    /// A charge of zero bytes always succeeds. If other requests wait for room, they are served first, and this call
    /// fails even if the bytes would fit.
    ///
    /// # Errors
    /// Returns [`BudgetError::TooLarge`] or [`BudgetError::Exceeded`]. They contain the budget that refused and a
    /// report of the holders of its bytes, which requires a walk through the listers. [`try_charge`](Self::try_charge)
    /// fails without that walk.
    pub fn charge(&self, bytes: u64) -> Result<Charge, BudgetError> {
        self.try_charge(bytes).map_err(|refusal| refusal.into_error(None))
    }

    /// Charges bytes like [`charge`](Self::charge), but does not allocate if the charge is refused. It is meant for
    /// callers that have a fallback.
    ///
    /// # Errors
    /// Returns the figures of the budget that refused.
    pub fn try_charge(&self, bytes: u64) -> Result<Charge, Refusal> {
        match way::take(&self.0, bytes, Turn::New) {
            Ok(()) => Ok(Charge::of(&self.0, bytes)),
            Err(refused) => {
                if refused.waited {
                    self.0.line.serve();
                }
                Err(Refusal::counted(&refused.node, bytes, refused.seen))
            }
        }
    }

    /// Charges bytes like [`charge`](Self::charge). If the charge is refused now, blocks the thread for at most
    /// `limit`. Requests are served in the order of their arrival. See [`Wait::block_for`].
    ///
    /// # Errors
    /// Returns [`BudgetError::TooLarge`] immediately if the request exceeds a limit, or when a limit is lowered below
    /// the request. Returns [`BudgetError::TimedOut`] if the time limit has passed.
    pub fn charge_timeout(&self, bytes: u64, limit: Duration) -> Result<Charge, BudgetError> {
        Wait::new(&self.0, bytes).block_for(limit)
    }

    /// Charges bytes like [`charge`](Self::charge). The returned future waits if the charge is refused now. It works
    /// with any runtime.
    pub fn charge_async(&self, bytes: u64) -> Wait {
        Wait::new(&self.0, bytes)
    }

    /// Makes a charge from bytes that were [forgotten](Charge::forget).
    ///
    /// # Errors
    /// Returns [`BudgetError::NotForgotten`] if fewer bytes are forgotten.
    pub fn restore(&self, bytes: u64) -> Result<Charge, BudgetError> {
        self.0
            .remember(bytes)
            .map(|()| Charge::counted(&self.0, bytes))
            .map_err(|forgotten| BudgetError::NotForgotten {
                budget: self.clone(),
                asked: bytes,
                forgotten,
            })
    }

    /// Returns this budget if it has the given measure. Callers that received a budget use this so that they do not mix
    /// measures.
    ///
    /// # Errors
    /// Returns [`BudgetError::OtherMeasure`] if the budget has another measure.
    pub fn measured(&self, measure: Measure) -> Result<&Self, BudgetError> {
        if self.measure() == measure {
            return Ok(self);
        }
        Err(BudgetError::OtherMeasure {
            budget: self.clone(),
            measure,
        })
    }

    /// Returns this budget or the nearest budget above it with the given measure. A pool that charges its blocks to
    /// this budget charges its reserved bytes to the returned one.
    #[must_use]
    pub fn nearest(&self, measure: Measure) -> Option<Self> {
        std::iter::successors(Some(&self.0), |node| node.parent.as_ref())
            .find(|node| node.measure == measure)
            .map(Self::of)
    }

    /// Changes the limit. `None` removes it. If the new limit is below the charged bytes, the budget refuses charges
    /// until enough bytes are returned. The limit takes effect with this call, and waiting requests that are larger
    /// than it fail.
    pub fn set_limit(&self, bytes: Option<u64>) {
        self.0
            .line
            .set_limit(&self.0, bytes.map_or(MOST, |bytes| bytes.min(MOST)));
    }

    /// Returns the limit, or `None` if there is none. A limit of 4 EiB or more counts as none.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        Some(self.0.limit()).filter(|limit| *limit < MOST)
    }

    /// Returns the charged bytes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used()
    }

    /// Returns the most bytes that were charged at one time. The value is exact with any number of threads. It excludes
    /// charges that a higher budget refused and charges that were granted to a request but not taken.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.0.peak()
    }

    /// Returns the bytes that can still be charged to this budget. Budgets above it may allow fewer.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        u64::try_from(self.0.room.see().room()).unwrap_or(0)
    }

    /// Returns the number of requests that this budget refused, including requests that were made to budgets below it.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.0.refusals()
    }

    /// Returns the bytes of charges made to this budget that were forgotten and not restored.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.0.forgotten()
    }

    /// Returns true if a request waits anywhere in the tree. Frees then bypass the caches. This is one relaxed load.
    ///
    /// A thread that frees a block may see the change late. A waiting thread therefore joins the line first
    /// ([`Wait::join`]) and then empties the caches of other threads. Those threads see the change before their next
    /// frees.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.0.pressure.load(Ordering::Relaxed) > 0
    }

    /// Returns the number of requests that wait at this budget itself.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting()
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the measure: the kind of bytes that this budget counts.
    #[must_use]
    pub fn measure(&self) -> Measure {
        self.0.measure
    }

    /// Returns the parent, if there is one.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.parent.as_ref().map(Self::of)
    }

    /// Returns the children of this budget, without their descendants.
    #[must_use]
    pub fn children(&self) -> Vec<Self> {
        let mut children = Vec::new();
        self.0.each_child(|child| children.push(Self::of(child)));
        children
    }

    /// Returns the names from the root to this budget, joined by `/`. This does not allocate. A very long path is
    /// truncated.
    #[must_use]
    pub fn path(&self) -> Text<96> {
        fn write(node: &Node, path: &mut Text<96>) {
            if let Some(parent) = &node.parent {
                write(parent, path);
                path.push_str("/");
            }
            path.push_str(&node.name);
        }
        let mut path = Text::default();
        write(&self.0, &mut path);
        path
    }

    /// Registers a lister, which reports the holders of the bytes under this budget. It replaces the earlier one.
    /// `None` removes it.
    pub fn set_lister(&self, lister: Option<Arc<dyn Lister>>) {
        self.0.set_lister(lister);
    }

    /// Returns true if charges to both budgets reach a common budget.
    #[must_use]
    pub fn shares_with(&self, other: &Self) -> bool {
        self.0
            .way()
            .any(|node| other.0.way().any(|their| Arc::ptr_eq(node, their)))
    }

    /// Returns true if a charge to this budget also reaches the `other` budget.
    #[must_use]
    pub fn reaches(&self, other: &Self) -> bool {
        self.0.way().any(|node| Arc::ptr_eq(node, &other.0))
    }

    /// Returns true if both handles refer to the same budget.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("path", &format_args!("{}", self.path()))
            .field("measure", &self.measure())
            .field("limit", &self.limit())
            .field("used", &self.used())
            .finish()
    }
}
