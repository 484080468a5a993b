//! Budgets: limits on bytes that nest, and a line for requests that wait.
//!
//! ```text
//!   process  64 GiB    reserved      a pool charges what it takes from its source: device, process
//!     device  24 GiB   reserved
//!       pool  20 GiB   allocated     a pool charges what it hands out: scope or tenant, pool
//!         tenant a     allocated
//!         tenant b     allocated
//! ```
//!
//! A charge is made to a budget and to all above it that count the same bytes, or to none; reserved and allocated
//! bytes are never added up. No limit is passed, not even for the time of a call: room is taken first, bottom up,
//! and given back where one further up refuses. Without waiters a charge takes no lock.
//!
//! ```text
//!   node      one budget's figures              room, limit, used, peak, who waits
//!   room      what may still be charged         one word with a flag: someone waits
//!   way       a charge's way upwards            all or nothing
//!   line      requests that wait                served in order by whoever gives bytes back
//!   wait      one of them                       as a future, or with a thread
//!   soft      limits that tell                  outside every lock
//!   later     whom a pool's own calls concern   called when the pool's locks are let go
//! ```
//!
//! How a pool uses them: what it takes from its source it charges to [`Budget::nearest`] of reserved bytes with
//! [`Budget::try_charge`], before it asks, and gives the charge back after the memory. A block is charged to its
//! tenant, scope or pool before it is placed; the [`Charge`] lies in the block's header, or its bytes are
//! [forgotten](Charge::forget) there and [restored](Budget::restore) when it is freed. Where a request is to wait, the
//! pool [joins](Wait::join) the line, then empties the caches, and only then sleeps; while [`Budget::has_waiters`],
//! frees go past the caches. Its [`Lister`] tells refusals what it holds.
//!
//! What is not promised: while a charge that a higher budget is about to refuse holds room in a lower one, another
//! may be refused there that would have fitted. One that waits is served when that room comes back.

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

/// A limit on bytes, the bytes charged to it, and its place in a tree of budgets. A handle: copies are one budget.
///
/// ```
/// use millpond::{Budget, Measure};
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
/// # Ok::<(), millpond::BudgetError>(())
/// ```
#[derive(Clone)]
pub struct Budget(Arc<Node>);

impl Budget {
    /// A budget above all others: of reserved bytes, without a limit.
    pub fn root(name: impl Into<String>) -> Self {
        Self::builder(name).make()
    }

    /// Makes a budget above all others.
    pub fn builder(name: impl Into<String>) -> BudgetBuilder {
        BudgetBuilder::new(name.into(), None)
    }

    /// A budget below this one: of the same bytes, without a limit of its own.
    ///
    /// # Errors
    /// [`BudgetError::TooDeep`] below 32 others.
    pub fn child(&self, name: impl Into<String>) -> Result<Self, BudgetError> {
        self.child_builder(name).build()
    }

    /// Makes a budget below this one.
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

    /// Charges bytes to this budget and all above it of its measure, or to none.
    ///
    /// Zero bytes always fit. Where others wait for room, their turn comes first: then this is refused, though it
    /// might fit.
    ///
    /// # Errors
    /// [`BudgetError::TooLarge`] or [`BudgetError::Exceeded`], which say which budget refused and who holds what:
    /// a walk through the listers. [`try_charge`](Self::try_charge) answers without it.
    pub fn charge(&self, bytes: u64) -> Result<Charge, BudgetError> {
        self.try_charge(bytes).map_err(|refusal| refusal.into_error(None))
    }

    /// As [`charge`](Self::charge), for callers that will try something else first: refused without allocating.
    ///
    /// # Errors
    /// With the figures of the budget that refused.
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

    /// As [`charge`](Self::charge), and waits with this thread where it is refused now, at most so long; first come,
    /// first served. See [`Wait::block_for`].
    ///
    /// # Errors
    /// [`BudgetError::TooLarge`] at once, or when a limit is lowered below the request; [`BudgetError::TimedOut`].
    pub fn charge_timeout(&self, bytes: u64, limit: Duration) -> Result<Charge, BudgetError> {
        Wait::new(&self.0, bytes).block_for(limit)
    }

    /// As [`charge`](Self::charge), and waits where it is refused now, as a future of any runtime.
    pub fn charge_async(&self, bytes: u64) -> Wait {
        Wait::new(&self.0, bytes)
    }

    /// Makes a charge again of bytes that were [forgotten](Charge::forget).
    ///
    /// # Errors
    /// [`BudgetError::NotForgotten`] if fewer are forgotten.
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

    /// This budget, if it counts such bytes: for callers that were given a budget and must not mix.
    ///
    /// # Errors
    /// [`BudgetError::OtherMeasure`] if it counts others.
    pub fn measured(&self, measure: Measure) -> Result<&Self, BudgetError> {
        if self.measure() == measure {
            return Ok(self);
        }
        Err(BudgetError::OtherMeasure {
            budget: self.clone(),
            measure,
        })
    }

    /// This budget or the nearest above it that counts such bytes: where a pool whose blocks are charged here
    /// charges what it reserves.
    #[must_use]
    pub fn nearest(&self, measure: Measure) -> Option<Self> {
        std::iter::successors(Some(&self.0), |node| node.parent.as_ref())
            .find(|node| node.measure == measure)
            .map(Self::of)
    }

    /// Changes the limit, `None` for none. Below what is charged, nothing more is let in until enough has gone
    /// back. It holds from this call on, and a request that waits and is larger than it fails.
    pub fn set_limit(&self, bytes: Option<u64>) {
        self.0
            .line
            .set_limit(&self.0, bytes.map_or(MOST, |bytes| bytes.min(MOST)));
    }

    /// The limit, if there is one. From 4 EiB on there is none.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        Some(self.0.limit()).filter(|limit| *limit < MOST)
    }

    /// Bytes charged.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used()
    }

    /// The most bytes that were charged at one time. Exact, with any number of threads: charges that were refused
    /// further up, or granted to someone who did not take them, are not in it.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.0.peak()
    }

    /// Bytes that may still be charged here; budgets above may leave fewer.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        u64::try_from(self.0.room.see().room()).unwrap_or(0)
    }

    /// Requests that this budget refused: its own, and those charged below it.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.0.refusals()
    }

    /// Bytes of charges made here that were forgotten and not restored.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.0.forgotten()
    }

    /// Whether a request waits anywhere in the tree: then frees go past the caches. One relaxed load.
    ///
    /// A thread that frees may see this late. Whoever waits joins the line first ([`Wait::join`]) and then empties
    /// the caches of other threads: what they free after that, they free after having seen it.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.0.pressure.load(Ordering::Relaxed) > 0
    }

    /// Requests that wait at this very budget.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Which bytes it counts.
    #[must_use]
    pub fn measure(&self) -> Measure {
        self.0.measure
    }

    /// The budget above it.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.parent.as_ref().map(Self::of)
    }

    /// The budgets below it, one level.
    #[must_use]
    pub fn children(&self) -> Vec<Self> {
        let mut children = Vec::new();
        self.0.each_child(|child| children.push(Self::of(child)));
        children
    }

    /// The names from the root to here, joined by `/`, made without allocating; cut where it is very long.
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

    /// Registers who can say what is held under this budget, in place of whoever did; `None` for nobody.
    pub fn set_lister(&self, lister: Option<Arc<dyn Lister>>) {
        self.0.set_lister(lister);
    }

    /// Whether bytes charged to the one and to the other reach a common budget.
    #[must_use]
    pub fn shares_with(&self, other: &Self) -> bool {
        self.0
            .way()
            .any(|node| other.0.way().any(|their| Arc::ptr_eq(node, their)))
    }

    /// Whether a charge made here reaches that budget too.
    #[must_use]
    pub fn reaches(&self, other: &Self) -> bool {
        self.0.way().any(|node| Arc::ptr_eq(node, &other.0))
    }

    /// Whether both are handles of one budget.
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
