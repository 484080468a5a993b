//! The random programs.

use super::dice::Dice;
use super::live::{Block, Held, Live, Raw};
use super::terms::{Place, Terms};
use millpond::{AllocError, Budget, Buffer, pool::Prewarm};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The maximum number of blocks that a thread holds.
const MOST: usize = 48;

/// One program, which runs against one pool.
pub(crate) struct Case<'a> {
    terms: &'a Terms,
    place: Place,
    live: Live,
    /// Blocks in transit to another thread.
    mail: Mutex<Vec<Held>>,
    allocations: AtomicU64,
    frees: AtomicU64,
    requested: AtomicI64,
    peak: AtomicI64,
}

impl Case<'_> {
    pub(crate) fn run(terms: &Terms, seed: u64) {
        eprintln!("seed {seed}: {terms:?}");
        let case = Case {
            terms,
            place: Place::new(terms, seed),
            live: Live::default(),
            mail: Mutex::default(),
            allocations: AtomicU64::new(0),
            frees: AtomicU64::new(0),
            requested: AtomicI64::new(0),
            peak: AtomicI64::new(0),
        };
        let mut hands: Vec<Vec<Held>> = (0..terms.threads).map(|_| Vec::new()).collect();
        for round in 0..terms.rounds {
            hands = case.round(hands, seed * 1000 + round as u64);
            case.at_rest(&hands);
            if round == 1 {
                case.begin_anew();
            }
        }
        case.end(hands);
    }

    fn round(&self, hands: Vec<Vec<Held>>, seed: u64) -> Vec<Vec<Held>> {
        thread::scope(|scope| {
            let threads: Vec<_> = hands
                .into_iter()
                .enumerate()
                .map(|(number, held)| {
                    let dice = Dice::new(seed * 100 + number as u64);
                    scope.spawn(move || {
                        let mut worker = Worker {
                            case: self,
                            dice,
                            held,
                        };
                        (0..self.terms.steps).for_each(|_| worker.step());
                        worker.held
                    })
                })
                .collect();
            // The threads are joined explicitly, because a scope does not wait for the last actions of a thread.
            threads.into_iter().map(|t| t.join().expect("no panic")).collect()
        })
    }

    /// Compares the pool's statistics with the live blocks.
    fn at_rest(&self, hands: &[Vec<Held>]) {
        let mail = self.mail.lock().expect("no panic");
        let all: Vec<&Held> = hands.iter().flatten().chain(mail.iter()).collect();
        all.iter().for_each(|held| held.check(held.bytes()));
        let sum = |of: &dyn Fn(&Held) -> usize| all.iter().map(|held| of(held) as u64).sum::<u64>();
        let (requested, allocated) = (sum(&|held| held.requested), sum(&|held| held.range().1));
        let stats = self.place.pool.stats();
        assert_eq!(self.live.len(), all.len());
        assert_eq!(
            (stats.requested.current, stats.allocated.current),
            (requested, allocated)
        );
        let counts = [&self.allocations, &self.frees].map(|count| count.load(Ordering::Relaxed));
        assert_eq!([stats.allocations, stats.frees], counts);
        assert!(
            requested <= allocated && allocated + stats.kept <= stats.reserved.current,
            "{stats:?}"
        );
        assert!(
            stats.requested.peak >= requested && stats.hits <= stats.allocations,
            "{stats:?}"
        );
        if self.terms.threads == 1 {
            assert_eq!(stats.requested.peak as i64, self.peak.load(Ordering::Relaxed));
        }
        if let (Some(limit), false) = (self.terms.limit, self.terms.moving_limit) {
            assert!(stats.reserved.peak <= limit, "{stats:?}");
        }
        for (number, tenant) in self.place.tenants.iter().enumerate() {
            let theirs = sum(&|held| {
                if held.tenant == Some(number) {
                    held.range().1
                } else {
                    0
                }
            });
            assert_eq!(tenant.budget().map(Budget::used), Some(theirs), "tenant {number}");
        }
        if let Some(budget) = &self.place.budget {
            assert_eq!(budget.used(), allocated);
            let above = budget.parent().map(|process| process.used());
            assert_eq!(
                above,
                Some(stats.reserved.current),
                "the nearest one of that measure"
            );
        }
        self.place.pool.trim();
        let after = self.place.pool.stats();
        assert_eq!((after.kept, after.requested.current), (0, requested));
        assert!(after.reserved.current <= stats.reserved.current, "{after:?}");
        all.iter().for_each(|held| held.check(held.bytes()));
    }

    fn begin_anew(&self) {
        self.place.pool.clear();
        self.allocations.store(0, Ordering::Relaxed);
        self.frees.store(0, Ordering::Relaxed);
        self.peak
            .store(self.requested.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Frees all blocks, one of them after the pool itself.
    fn end(self, hands: Vec<Vec<Held>>) {
        let mail = std::mem::take(&mut *self.mail.lock().expect("no panic"));
        let mut all: Vec<Held> = hands.into_iter().flatten().chain(mail).collect();
        let last = all.iter().position(|held| matches!(held.block, Block::Buffer(_)));
        let last = last.map(|at| all.swap_remove(at));
        let mut worker = Worker {
            case: &self,
            dice: Dice::new(1),
            held: Vec::new(),
        };
        all.into_iter().for_each(|held| worker.give(held));
        self.place.pool.trim();
        let reserved = self.place.pool.stats().reserved.current;
        let Some(Block::Buffer(buffer)) = last.map(|held| held.block) else {
            assert!(reserved == 0 || !matches!(self.terms.policy, "millpond" | "planned"));
            return;
        };
        let Place {
            pool,
            budget,
            tenants,
            patient,
        } = self.place;
        let theirs = tenants.iter().filter_map(|tenant| tenant.budget().cloned());
        let budgets: Vec<Budget> = theirs.chain(budget).collect();
        let closed = buffer.pool().expect("a pool's");
        drop((pool, tenants, patient));
        drop(buffer);
        let stats = closed.stats();
        assert!(closed.is_closed());
        let left = [stats.requested, stats.allocated, stats.reserved].map(|gauge| gauge.current);
        assert_eq!(left, [0; 3], "{stats:?}");
        for budget in budgets {
            assert_eq!((budget.used(), budget.forgotten()), (0, 0), "{}", budget.name());
            assert_eq!(budget.parent().map_or(0, |above| above.used()), 0);
        }
    }
}

/// One thread of the program.
struct Worker<'a> {
    case: &'a Case<'a>,
    dice: Dice,
    held: Vec<Held>,
}

impl Worker<'_> {
    fn step(&mut self) {
        let pool = &self.case.place.pool;
        match self.dice.below(1000) {
            0..250 => self.take_raw(),
            250..450 => self.take_buffer(),
            450..520 => self.grow(),
            520..800 => {
                if let Some(held) = self.pick() {
                    self.give(held);
                }
            }
            800..880 => {
                if let Some(held) = self.pick() {
                    self.case.mail.lock().expect("no panic").push(held);
                }
            }
            880..960 => {
                let mail = self.case.mail.lock().expect("no panic").pop();
                if let Some(held) = mail {
                    self.give(held);
                }
            }
            960..970 => pool.trim(),
            970..975 => {
                _ = pool.compact();
            }
            975..980 => pool.collect_garbage(),
            980..985 => {
                let outcome = pool.reserve(self.dice.below(8 << 20));
                self.may_fail(outcome);
            }
            985..987 => {
                let bytes = self.dice.bytes().min(1 << 20);
                let outcome = pool.prewarm(&Prewarm::of([(bytes, 3)]));
                self.may_fail(outcome);
            }
            987..995 => {
                let stats = pool.stats();
                assert!(stats.kept <= stats.reserved.peak, "{stats:?}");
            }
            _ => self.change_limit(),
        }
    }

    fn change_limit(&mut self) {
        if self.case.terms.moving_limit {
            let limit = match self.dice.below(3) {
                0 => u64::MAX,
                _ => self.dice.below(48 << 20),
            };
            self.case.place.pool.set_limit(limit);
        }
    }

    fn pick(&mut self) -> Option<Held> {
        let count = self.held.len() as u64;
        (count > 0).then(|| self.held.swap_remove(self.dice.below(count) as usize))
    }

    /// Checks that a refusal happens only if memory is scarce.
    fn may_fail<T>(&self, outcome: Result<T, AllocError>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(self.case.terms.is_scarce(), "{error}");
                // Policies that follow other allocators' rules support smaller alignments than this crate's.
                let ours = self.case.terms.policy == "millpond";
                assert!(
                    !(ours && matches!(error, AllocError::Alignment { .. })),
                    "{error}"
                );
                None
            }
        }
    }

    fn count(&self, allocations: u64, frees: u64, requested: i64) {
        self.case.allocations.fetch_add(allocations, Ordering::Relaxed);
        self.case.frees.fetch_add(frees, Ordering::Relaxed);
        let now = self.case.requested.fetch_add(requested, Ordering::Relaxed) + requested;
        self.case.peak.fetch_max(now, Ordering::Relaxed);
    }

    /// Checks that a new block overlaps no other, then writes it and keeps it.
    fn hold(&mut self, mut held: Held, align: usize) {
        let (start, bytes) = held.range();
        assert!(
            start.is_multiple_of(align.max(64)) && bytes >= held.requested,
            "{held:?}"
        );
        self.case.live.add(start, bytes);
        self.count(1, 0, held.requested as i64);
        held.fill();
        self.held.push(held);
        if self.held.len() > MOST
            && let Some(held) = self.pick()
        {
            self.give(held);
        }
    }

    fn take_raw(&mut self) {
        let requested = self.dice.bytes();
        let align = 1
            << if self.dice.below(4) == 0 {
                self.dice.below(18)
            } else {
                0
            };
        let stamp = self.dice.next();
        let outcome = self.case.place.pool.alloc_raw(requested, align);
        let Some(raw) = self.may_fail(outcome) else { return };
        let held = Held {
            block: Block::Raw(Raw(raw)),
            stamp,
            requested,
            tenant: None,
        };
        if self.case.terms.cleared {
            held.assert_zero(0, held.bytes());
        }
        self.hold(held, align);
    }

    fn take_buffer(&mut self) {
        let place = &self.case.place;
        let requested = self.dice.bytes();
        let stamp = self.dice.next();
        let tenants = place.tenants.len() as u64;
        let tenant = (tenants > 0 && self.dice.below(2) == 0).then(|| self.dice.below(tenants) as usize);
        let patient = self.case.terms.waiting && self.dice.below(3) == 0;
        let outcome = match tenant {
            Some(tenant) if patient => place.tenants[tenant]
                .wait(Duration::from_millis(3))
                .alloc_zeroed(requested),
            Some(tenant) => place.tenants[tenant].alloc_zeroed(requested),
            None if patient => place.patient.alloc_zeroed(requested),
            None => place.pool.alloc_zeroed(requested),
        };
        let Some(buffer): Option<Buffer<u8>> = self.may_fail(outcome) else {
            return;
        };
        let held = Held {
            block: Block::Buffer(buffer),
            stamp,
            requested,
            tenant,
        };
        held.assert_zero(0, requested);
        self.hold(held, 64);
    }

    /// Grows a buffer, and checks that its contents stay and that the new part is zero.
    fn grow(&mut self) {
        let Some(mut held) = self.pick() else { return };
        let (start, bytes) = held.range();
        let before = held.bytes();
        let len = before + self.dice.bytes().min(1 << 20);
        if let Block::Buffer(buffer) = &mut held.block {
            self.case.live.remove(start, bytes);
            let outcome = buffer.try_grow_zeroed(len);
            let grown = self.may_fail(outcome).is_some();
            let (now_at, now) = held.range();
            held.check(before);
            if grown {
                held.assert_zero(before, len);
            } else {
                assert_eq!(
                    (now_at, now, held.bytes()),
                    (start, bytes, before),
                    "it is as it was"
                );
            }
            if now_at != start {
                // Both blocks were held for a moment.
                self.count(1, 0, len as i64);
                self.count(0, 1, -(held.requested as i64));
                held.requested = len;
            }
            self.case.live.add(now_at, now);
            held.fill();
        }
        self.held.push(held);
    }

    fn give(&mut self, held: Held) {
        held.check(held.bytes());
        let (start, bytes) = held.range();
        self.case.live.remove(start, bytes);
        self.count(0, 1, -(held.requested as i64));
        match held.block {
            // SAFETY: nothing uses the block any more.
            Block::Raw(raw) => unsafe { self.case.place.pool.free_raw(raw.pointer()) }.expect("ours"),
            Block::Buffer(buffer) => drop(buffer),
        }
    }
}
