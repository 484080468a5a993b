//! What is gathered for a post-mortem.

use super::figures::{BudgetFigures, SpaceFigures};
use super::heaviest::Heaviest;
use super::holders::Holders;
use super::text::Text;
use super::top::{Holding, Top};
use super::window::Window;
use super::{CHILDREN, PostMortem};
use millpond_engine::{Piece, PieceState};
use std::fmt;

/// Says what is held: a pool, or whoever keeps an account of a scope or tenant.
pub trait Lister: Send + Sync {
    /// Tells the survey what is held: tags, pieces, free bytes. A pool's lister holds the pool weakly, because the
    /// pool holds the budget that holds the lister. Called by whoever was refused, while budgets hold no lock; it must not
    /// allocate from a pool that may just have failed.
    fn list(&self, survey: &mut Survey);
}

/// Gathers a [`PostMortem`] without the heap: about 12 KiB on the stack.
///
/// ```
/// use millpond::engine::{Engine, Request, Settings, Simulated, Stream, policies};
/// use millpond::Survey;
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
    /// The limit of the pool, and the bytes that may still be taken under it.
    limit: Option<(u64, u64)>,
    space: Option<SpaceFigures>,
    children: Top<CHILDREN>,
    holders: Holders,
    without_account: u64,
    elsewhere: u64,
    heaviest: Heaviest,
    window: Window,
}

impl Survey {
    /// Begins, for a request of so many bytes.
    #[must_use]
    pub fn new(requested: u64) -> Self {
        Self {
            requested,
            budget: None,
            limit: None,
            space: None,
            children: Top::default(),
            holders: Holders::default(),
            without_account: 0,
            elsewhere: 0,
            heaviest: Heaviest::new(0),
            window: Window::new(requested),
        }
    }

    /// Names the budget that refused. To be said before pieces are shown: then what has to go is what the request
    /// is over the limit, in blocks that may lie anywhere. Without it, it is whatever makes a hole large enough.
    pub fn refused_by(&mut self, budget: BudgetFigures) {
        self.heaviest = Heaviest::new(budget.over_by);
        self.budget = Some(budget);
    }

    /// Names a budget below the one that refused.
    pub fn child(&mut self, name: &str, bytes: u64) {
        self.children.add(Holding {
            name: Text::new(name),
            bytes,
            blocks: 0,
        });
    }

    /// Names the limit of the pool that was asked, and the bytes that may still be taken under it. The limit counts as the
    /// reason for the refusal if the source has at least that many free bytes.
    pub fn limit(&mut self, limit: u64, remaining: u64) {
        self.limit = Some((limit, remaining)).filter(|_| limit < u64::MAX);
    }

    /// Bytes the source could still give, the largest hole, and bytes held from the source that no block uses. Said
    /// by several pools, they add up, and the largest hole is the largest of all.
    pub fn space(&mut self, free: u64, largest_hole: u64, cached: u64) {
        let space = self.space.get_or_insert_default();
        space.free = space.free.saturating_add(free);
        space.largest_hole = space.largest_hole.max(largest_hole);
        space.cached = space.cached.saturating_add(cached);
    }

    /// Says that so many blocks are held under a tag: block by block or in sums, in any order.
    pub fn holder(&mut self, tag: &str, bytes: u64, blocks: u64) {
        self.holders.add(tag, bytes, blocks);
    }

    /// Says that a pool keeps no account of its blocks, so that nobody can say who holds them.
    pub fn no_account(&mut self) {
        self.without_account += 1;
    }

    /// Says that so many bytes of the device are in use and are no pool's of this process.
    pub fn elsewhere(&mut self, bytes: u64) {
        self.elsewhere = self.elsewhere.saturating_add(bytes);
    }

    /// Shows a piece of a pool's layout, as [`Policy::layout`](millpond_engine::Policy::layout) gives them.
    pub fn piece(&mut self, piece: Piece) {
        if piece.state == PieceState::Live {
            self.heaviest.add(piece.bytes);
        }
        if self.budget.is_none() {
            self.window.add(piece);
        }
    }

    /// The post-mortem.
    #[must_use]
    pub fn finish(&self) -> PostMortem {
        PostMortem {
            requested: self.requested,
            budget: self.budget,
            limit: self
                .limit
                .filter(|(_, remaining)| self.space.is_none_or(|space| *remaining <= space.free))
                .map(|(limit, _)| limit),
            space: self.space,
            children: self.children,
            holders: self.holders.top(),
            without_account: self.without_account,
            elsewhere: self.elsewhere,
            least: match self.budget {
                // Whatever goes, it would not fit.
                Some(budget) if self.requested > budget.limit => None,
                Some(_) => self.heaviest.least(),
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
