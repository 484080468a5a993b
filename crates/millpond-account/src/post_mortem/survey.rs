//! Collects the data of a post-mortem.

use super::figures::{BudgetFigures, SpaceFigures};
use super::heaviest::Heaviest;
use super::holders::Holders;
use super::text::Text;
use super::top::{Holding, Top};
use super::window::Window;
use super::{CHILDREN, PostMortem};
use millpond_engine::{Piece, PieceState};
use std::fmt;

/// Reports the holders of memory. A pool implements it, or the owner of an account of a scope or tenant.
pub trait Lister: Send + Sync {
    /// Reports tags, pieces and free bytes to the survey. A pool's lister holds the pool weakly, because the pool holds
    /// the budget that holds the lister. The thread whose request was refused calls it, while no lock of a budget is
    /// held. It must not allocate from a pool that may just have failed.
    fn list(&self, survey: &mut Survey);
}

/// Collects a [`PostMortem`] without heap allocation, in about 12 KiB on the stack.
///
/// ```
/// use millpond::engine::{Engine, Request, Settings, Simulated, Stream, policies};
/// use millpond::post_mortem::Survey;
///
/// let card = Simulated::new().with_capacity(Some(64 << 20));
/// let mut engine = Engine::new(policies::build("millpond", &Settings::default())?, card);
/// let held = engine.allocate(Request::new(48 << 20, Stream::DEFAULT))?;
///
/// let mut survey = Survey::new(32 << 20);
/// survey.holder("weights", held.bytes(), 1);
/// survey.space(16 << 20, engine.largest_hole(), engine.stats().cached());
/// engine.policy().layout(&mut |piece| survey.piece(piece));
/// let why = survey.finish();
/// assert_eq!(why.holders.named()[0].name.as_str(), "weights");
/// println!("{why}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Survey {
    requested: u64,
    budget: Option<BudgetFigures>,
    /// The limit of the pool, and the bytes that are taken under it.
    limit: Option<(u64, u64)>,
    tables_are_full: bool,
    space: Option<SpaceFigures>,
    children: Top<CHILDREN>,
    holders: Holders,
    without_account: u64,
    elsewhere: u64,
    heaviest: Heaviest,
    window: Window,
}

impl Survey {
    /// Starts a survey for a request of the given bytes.
    #[must_use]
    pub fn new(requested: u64) -> Self {
        Self {
            requested,
            budget: None,
            limit: None,
            tables_are_full: false,
            space: None,
            children: Top::default(),
            holders: Holders::default(),
            without_account: 0,
            elsewhere: 0,
            heaviest: Heaviest::new(0),
            window: Window::new(requested),
        }
    }

    /// Sets the refusing budget. This must be called before pieces are reported. The memory to free is then the bytes
    /// over the limit, in blocks at any addresses. Without a budget, it is the memory of the blocks in a range that is
    /// large enough.
    pub fn refused_by(&mut self, budget: BudgetFigures) {
        self.heaviest = Heaviest::new(budget.over_by);
        self.budget = Some(budget);
    }

    /// Adds a child of the refusing budget.
    pub fn child(&mut self, name: &str, bytes: u64) {
        self.children.add(Holding {
            name: Text::new(name),
            bytes,
            blocks: 0,
        });
    }

    /// Sets the limit of the requested pool, and the bytes that are taken under it, which can be more. The limit counts as the reason for
    /// the refusal if the source has at least as many free bytes as the limit leaves.
    pub fn limit(&mut self, limit: u64, used: u64) {
        self.limit = Some((limit, used)).filter(|_| limit < u64::MAX);
    }

    /// Notes that the reason for the refusal is that there is no memory for the pool's own tables. The limit of the pool then does
    /// not count as the reason.
    pub fn tables_are_full(&mut self) {
        self.tables_are_full = true;
    }

    /// Adds the bytes that the source can still provide, the largest hole, and the bytes taken from the source that no
    /// block uses. If several pools report, the bytes are added, and the maximum of the holes is used.
    pub fn space(&mut self, free: u64, largest_hole: u64, cached: u64) {
        let space = self.space.get_or_insert_default();
        space.free = space.free.saturating_add(free);
        space.largest_hole = space.largest_hole.max(largest_hole);
        space.cached = space.cached.saturating_add(cached);
    }

    /// Adds blocks that are held under a tag. Calls may report blocks or sums, in any order.
    pub fn holder(&mut self, tag: &str, bytes: u64, blocks: u64) {
        self.holders.add(tag, bytes, blocks);
    }

    /// Counts a pool that keeps no account of its blocks, so that their holders are unknown.
    pub fn no_account(&mut self) {
        self.without_account += 1;
    }

    /// Adds used bytes of a device that belong to no pool of this process.
    pub fn elsewhere(&mut self, bytes: u64) {
        self.elsewhere = self.elsewhere.saturating_add(bytes);
    }

    /// Adds a piece of a pool's layout, as returned by [`Policy::layout`](millpond_engine::Policy::layout).
    pub fn piece(&mut self, piece: Piece) {
        if piece.state == PieceState::Live {
            self.heaviest.add(piece.bytes);
        }
        if self.budget.is_none() {
            self.window.add(piece);
        }
    }

    /// Adds a live block whose place in the layout of its pool is not known.
    #[doc(hidden)]
    pub fn block(&mut self, bytes: u64) {
        self.heaviest.add(bytes);
    }

    /// Returns the post-mortem.
    #[must_use]
    pub fn finish(&self) -> PostMortem {
        PostMortem {
            requested: self.requested,
            budget: self.budget,
            limit: self
                .limit
                .filter(|_| !self.tables_are_full)
                .filter(|(limit, used)| {
                    self.space
                        .is_none_or(|space| limit.saturating_sub(*used) <= space.free)
                })
                .map(|(limit, _)| limit),
            tables_are_full: self.tables_are_full,
            space: self.space,
            children: self.children,
            holders: self.holders.top(),
            without_account: self.without_account,
            elsewhere: self.elsewhere,
            least: match self.budget {
                // The request would not fit even if all memory were freed.
                Some(budget) if self.requested > budget.limit => None,
                Some(_) => self.heaviest.least(),
                // A request above the limit never fits. A pool above its limit takes no memory until enough blocks at any address are
                // freed.
                None if self
                    .limit
                    .is_some_and(|(limit, used)| self.requested > limit || used > limit) =>
                {
                    None
                }
                None => self.window.least(),
            },
        }
    }
}

impl fmt::Debug for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.finish().fmt(f)
    }
}
