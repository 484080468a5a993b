//! A substitute for a pool: an engine over a source, under budgets.
//!
//! The source's memory is charged to the device's budget before it is allocated, and the blocks to the pool's or a
//! tenant's.

use millpond::engine::{
    Block, Engine, Event, Piece, Range, Request, Segment, Settings, Simulated, Source, SourceError, Stream,
    policies,
};
use millpond::{
    Budget, PostMortem,
    budget::{Charge, Measure},
    post_mortem::{Lister, Method, Survey},
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A plain source whose bytes are charged to a budget before they are allocated.
struct Budgeted<S> {
    inner: S,
    budget: Budget,
}

impl<S: Source> Budgeted<S> {
    fn charge(&self, bytes: u64) -> Result<Charge, SourceError> {
        let charged = self.budget.try_charge(bytes);
        charged.map_err(|refusal| SourceError::OutOfMemory {
            requested: bytes,
            free: refusal.limit.saturating_sub(refusal.used),
            capacity: refusal.limit,
        })
    }

    fn refund(&self, bytes: u64) {
        drop(self.budget.restore(bytes));
    }
}

impl<S: Source> Source for Budgeted<S> {
    fn page_bytes(&self) -> u64 {
        self.inner.page_bytes()
    }
    fn is_paged(&self) -> bool {
        false
    }
    fn capacity(&self) -> Option<u64> {
        self.inner.capacity()
    }
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
    fn take(&mut self, bytes: u64) -> Result<Segment, SourceError> {
        let charge = self.charge(bytes)?;
        let segment = self.inner.take(bytes)?;
        charge.forget();
        Ok(segment)
    }
    fn give(&mut self, segment: Segment) {
        let bytes = segment.bytes();
        self.inner.give(segment);
        self.refund(bytes);
    }
    fn reserve(&mut self, _: u64) -> Result<Range, SourceError> {
        Err(SourceError::Unsupported { operation: "reserve" })
    }
    fn commit(&mut self, _: &Range, _: u64, _: u64, _: u64) -> Result<(), SourceError> {
        Err(SourceError::Unsupported { operation: "commit" })
    }
    fn decommit(&mut self, _: &Range, _: u64, _: u64) -> u64 {
        0
    }
    fn move_pages(&mut self, _: (&Range, u64), _: (&Range, u64), _: u64) -> Result<u64, SourceError> {
        Err(SourceError::Unsupported { operation: "move" })
    }
    fn release(&mut self, _: Range) {}
    fn record_event(&mut self, stream: u32) -> Event {
        self.inner.record_event(stream)
    }
    fn is_complete(&self, event: Event) -> bool {
        self.inner.is_complete(event)
    }
    fn wait_event(&mut self, stream: u32, event: Event) {
        self.inner.wait_event(stream, event);
    }
    fn synchronize(&mut self) {
        self.inner.synchronize();
    }
}

/// The data of a lister, which is stored apart from the engine because the engine stays on its thread.
#[derive(Default)]
struct Account {
    tags: BTreeMap<&'static str, (u64, u64)>,
    space: (u64, u64, u64),
    pieces: Vec<Piece>,
}

#[derive(Default)]
struct Shared(Mutex<Account>);

impl Lister for Shared {
    fn list(&self, survey: &mut Survey) {
        let account = self.0.lock().expect("not poisoned");
        let (free, largest_hole, cached) = account.space;
        survey.space(free, largest_hole, cached);
        for (tag, (bytes, blocks)) in account.tags.iter().filter(|(_, held)| held.1 > 0) {
            survey.holder(tag, *bytes, *blocks);
        }
        account.pieces.iter().for_each(|piece| survey.piece(*piece));
    }
}

struct Pool<S: Source> {
    engine: Engine<Budgeted<S>>,
    budget: Budget,
    account: Arc<Shared>,
}

/// A block and its charge.
struct Held {
    block: Block,
    charge: Charge,
    tag: &'static str,
}

impl<S: Source> Pool<S> {
    fn new(source: S, budget: &Budget) -> Self {
        let device = budget.nearest(Measure::Reserved).expect("a device above it");
        let source = Budgeted {
            inner: source,
            budget: device,
        };
        let policy = policies::build("torch-native", &Settings::default()).expect("known");
        let account = Arc::<Shared>::default();
        budget.set_lister(Some(Arc::clone(&account) as Arc<dyn Lister>));
        Self {
            engine: Engine::new(policy, source),
            budget: budget.clone(),
            account,
        }
    }

    fn update(&mut self, tag: Option<(&'static str, i64)>) {
        let mut account = self.account.0.lock().expect("not poisoned");
        if let Some((tag, bytes)) = tag {
            let held = account.tags.entry(tag).or_default();
            *held = (
                held.0.wrapping_add_signed(bytes),
                held.1.wrapping_add_signed(bytes.signum()),
            );
        }
        let free = self.engine.source().free_bytes().unwrap_or(u64::MAX);
        account.space = (free, self.engine.largest_hole(), self.engine.stats().cached());
        account.pieces.clear();
        self.engine
            .policy()
            .layout(&mut |piece| account.pieces.push(piece));
    }

    /// Allocates a block for a charge.
    fn place(&mut self, charge: Charge, tag: &'static str) -> Result<Held, Box<PostMortem>> {
        match self
            .engine
            .allocate(Request::new(charge.bytes(), Stream::DEFAULT))
        {
            Ok(block) => {
                self.update(Some((tag, block.bytes() as i64)));
                Ok(Held { block, charge, tag })
            }
            Err(_) => {
                self.update(None);
                let mut survey = Survey::new(charge.bytes());
                self.account.list(&mut survey);
                Err(Box::new(survey.finish()))
            }
        }
    }

    fn free(&mut self, held: Held) {
        let bytes = held.block.bytes() as i64;
        self.engine.free(held.block, &[]);
        if self.budget.has_waiters() {
            self.engine.release_cached();
        }
        self.update(Some((held.tag, -bytes)));
        // The charge is dropped last, so that a woken request finds the memory free.
        drop(held.charge);
    }
}

struct Tree {
    device: Budget,
    pool: Budget,
    one: Budget,
    two: Budget,
}

fn tree(device: u64, pool: u64, tenant: u64) -> Tree {
    let process = Budget::root("process");
    let device = process
        .child_builder("cuda:0")
        .limit(device)
        .build()
        .expect("a device");
    let pool = device
        .child_builder("pool")
        .measure(Measure::Allocated)
        .limit(pool);
    let pool = pool.build().expect("a pool");
    let tenant = |name: &str| pool.child_builder(name).limit(tenant).build().expect("a tenant");
    Tree {
        one: tenant("one"),
        two: tenant("two"),
        device,
        pool,
    }
}

/// Runs the same test over any source.
fn serve<S: Source>(source: S) {
    let tree = tree(100 * MIB, 65 * MIB, 40 * MIB);
    let mut pool = Pool::new(source, &tree.pool);
    let hold = |pool: &mut Pool<S>, from: &Budget, mib: u64, tag| {
        let charge = from.charge(mib * MIB).expect("within the budget");
        pool.place(charge, tag).expect("there is a place")
    };
    let one = hold(&mut pool, &tree.one, 30, "weights");
    let two = hold(&mut pool, &tree.two, 28, "cache");
    assert_eq!(tree.pool.used(), 58 * MIB);
    assert_eq!(tree.device.used(), pool.engine.stats().reserved.current);
    assert!(tree.device.used() >= tree.pool.used());

    // The tenant has room, and the pool does not. The pool's lister shows the holders of its memory.
    let refused = tree.two.charge(10 * MIB).expect_err("seven are left");
    assert!(refused.is_out_of_memory());
    let why = refused
        .report()
        .and_then(|report| report.post_mortem())
        .expect("a limit refused");
    assert_eq!(
        why.budget.expect("a budget refused").path.as_str(),
        "process/cuda:0/pool"
    );
    let below: Vec<_> = why
        .children
        .named()
        .iter()
        .map(|child| (child.name.as_str(), child.bytes))
        .collect();
    assert_eq!(below, [("one", 30 * MIB), ("two", 28 * MIB)]);
    let tags: Vec<_> = why
        .holders
        .named()
        .iter()
        .map(|held| (held.name.as_str(), held.blocks))
        .collect();
    assert_eq!(tags, [("weights", 1), ("cache", 1)]);
    let least = why.least.expect("something has to go");
    assert_eq!(
        (least.need, least.bytes, least.method),
        (3 * MIB, 28 * MIB, Method::OneBlock)
    );

    // The request waits. Freed memory then bypasses the caches and returns to the source.
    let mut wait = tree.two.charge_async(10 * MIB);
    assert!(wait.join().expect("it may wait").is_none() && tree.pool.has_waiters());
    pool.free(one);
    assert_eq!((pool.engine.stats().cached(), tree.device.used()), (0, 28 * MIB));
    let charge = wait
        .block_for(Duration::ZERO)
        .expect("served when the block was freed");
    let three = pool.place(charge, "activations").expect("there is a place");

    // The block is within all budgets of blocks, but the device's budget refuses, and the pool reports its memory.
    tree.device.set_limit(Some(tree.device.used()));
    let charge = tree.one.charge(20 * MIB).expect("within the budget");
    let why = pool.place(charge, "more").err().expect("the device is full");
    assert!(tree.device.refusals() > 0);
    assert_eq!((why.requested, why.budget), (20 * MIB, None));
    assert_eq!(why.holders.named().len(), 2);
    assert_eq!(
        why.space.expect("the pool told").largest_hole,
        pool.engine.largest_hole()
    );
    tree.device.set_limit(None);
    for held in [two, three] {
        pool.free(held);
    }
    pool.engine.release_cached();
    assert_eq!(
        (tree.device.used(), tree.pool.used(), tree.pool.peak()),
        (0, 0, 58 * MIB)
    );
}

#[test]
fn a_pool_over_host_memory() {
    #[cfg(target_os = "linux")]
    serve(millpond::Host::builder().build().expect("ordinary pages"));
}

#[test]
fn a_pool_over_a_simulated_device() {
    serve(Simulated::new().with_paging(false).with_capacity(Some(1 << 30)));
}
