//! Compares random programs with plain lists of charges.

use super::executor::Task;
use millpond::{
    Budget,
    budget::{Charge, Wait},
};
use proptest::prelude::*;

/// The parent of each budget.
const ABOVE: [Option<usize>; 5] = [None, Some(0), Some(0), Some(1), Some(1)];
const NODES: usize = ABOVE.len();

fn way(from: usize) -> Vec<usize> {
    std::iter::successors(Some(from), |node| ABOVE[*node]).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waits(usize),
    Granted,
    TooLarge,
}

#[derive(Debug)]
struct Waiter {
    from: usize,
    bytes: u64,
    state: State,
}

#[derive(Debug, Default)]
struct Oracle {
    limits: [u64; NODES],
    peaks: [u64; NODES],
    refusals: [u64; NODES],
    charges: Vec<(usize, u64)>,
    waiters: Vec<Waiter>,
}

impl Oracle {
    fn used(&self, node: usize) -> u64 {
        let here = self.charges.iter().filter(|(from, _)| way(*from).contains(&node));
        here.map(|(_, bytes)| bytes).sum()
    }

    fn holds(&self, node: usize, bytes: u64) -> bool {
        let granted = self.waiters.iter().filter(|w| w.state == State::Granted);
        let granted: u64 = granted
            .filter(|w| way(w.from).contains(&node))
            .map(|w| w.bytes)
            .sum();
        self.used(node) + granted + bytes <= self.limits[node]
    }

    fn waited(&self, node: usize) -> bool {
        self.waiters.iter().any(|w| w.state == State::Waits(node))
    }

    /// Returns the budget that refuses. Parents come first, as documented for requests that a higher budget refuses.
    fn refuser(&self, from: usize, bytes: u64, passes_waiters: bool) -> Option<usize> {
        let mut order = way(from);
        order.rotate_left(1);
        order
            .into_iter()
            .find(|node| bytes > 0 && (!self.holds(*node, bytes) || !passes_waiters && self.waited(*node)))
    }

    fn place(&self, from: usize, bytes: u64, behind: &[usize]) -> State {
        if let Some(node) = way(from).into_iter().find(|node| behind.contains(node)) {
            return State::Waits(node);
        }
        match self.refuser(from, bytes, true) {
            None => State::Granted,
            Some(node) if bytes > self.limits[node] => State::TooLarge,
            Some(node) => State::Waits(node),
        }
    }

    fn charged(&mut self, from: usize, bytes: u64) {
        self.charges.push((from, bytes));
        for node in way(from) {
            self.peaks[node] = self.peaks[node].max(self.used(node));
        }
    }

    /// Serves waiting requests after bytes were returned along the path.
    fn returned(&mut self, way: &[usize]) {
        if way.iter().any(|node| self.waited(*node)) {
            self.serve();
        }
    }

    fn serve(&mut self) {
        let mut behind = Vec::new();
        for at in 0..self.waiters.len() {
            if matches!(self.waiters[at].state, State::Waits(_)) {
                let state = self.place(self.waiters[at].from, self.waiters[at].bytes, &behind);
                self.waiters[at].state = state;
                match state {
                    State::Waits(0) => return,
                    State::Waits(node) => behind.push(node),
                    _ => {}
                }
            }
        }
    }
}

struct Real {
    budgets: Vec<Budget>,
    charges: Vec<Charge>,
    waits: Vec<Task<Wait>>,
}

impl Real {
    fn new(limits: [u64; NODES]) -> Self {
        let mut budgets: Vec<Budget> = Vec::new();
        for node in 0..NODES {
            let builder = match ABOVE[node] {
                None => Budget::builder("0"),
                Some(above) => budgets[above].child_builder(node.to_string()),
            };
            budgets.push(builder.limit(limits[node]).build().expect("few levels"));
        }
        Self {
            budgets,
            charges: Vec::new(),
            waits: Vec::new(),
        }
    }
}

fn agree(oracle: &Oracle, real: &Real) {
    for (node, budget) in real.budgets.iter().enumerate() {
        assert_eq!(budget.used(), oracle.used(node), "used of {node}");
        assert_eq!(budget.peak(), oracle.peaks[node], "peak of {node}");
        assert_eq!(budget.refusals(), oracle.refusals[node], "refusals of {node}");
        assert_eq!(
            budget.waiting() > 0,
            oracle.waited(node),
            "someone waits at {node}"
        );
    }
    for (waiter, task) in oracle.waiters.iter().zip(&real.waits) {
        let told = !matches!(waiter.state, State::Waits(_));
        assert_eq!(task.wakeups.count(), usize::from(told), "told: {waiter:?}");
    }
    let waits = oracle.waiters.iter().any(|w| matches!(w.state, State::Waits(_)));
    assert_eq!(real.budgets[0].has_waiters(), waits);
}

fn step(oracle: &mut Oracle, real: &mut Real, (kind, pick, bytes): (u8, usize, u64)) {
    let node = pick % NODES;
    match kind {
        0..=2 => match (
            real.budgets[node].try_charge(bytes),
            oracle.refuser(node, bytes, false),
        ) {
            (Ok(charge), None) => {
                real.charges.push(charge);
                oracle.charged(node, bytes);
            }
            (Err(refusal), Some(refuser)) => {
                assert!(refusal.budget.is_same(&real.budgets[refuser]), "{refusal}");
                oracle.refusals[refuser] += 1;
            }
            (answer, expected) => panic!("{answer:?}, expected a refusal of {expected:?}"),
        },
        3..=5 if !real.charges.is_empty() => {
            let at = pick % real.charges.len();
            drop(real.charges.swap_remove(at));
            let (from, bytes) = oracle.charges.swap_remove(at);
            if bytes > 0 {
                oracle.returned(&way(from));
            }
        }
        6 | 7 => {
            let mut task = Task::new(real.budgets[node].charge_async(bytes));
            let answer = task.poll();
            let at_once = oracle.refuser(node, bytes, false).is_none();
            let behind: Vec<_> = (0..NODES).filter(|node| oracle.waited(*node)).collect();
            let state = if at_once {
                State::Granted
            } else {
                oracle.place(node, bytes, &behind)
            };
            match (answer, state) {
                (Some(Ok(charge)), State::Granted) => {
                    real.charges.push(charge);
                    oracle.charged(node, bytes);
                }
                (Some(Err(error)), State::TooLarge) => {
                    let refuser = error.refusal().expect("a limit").budget.clone();
                    let refuser = real.budgets.iter().position(|b| b.is_same(&refuser));
                    oracle.refusals[refuser.expect("one of ours")] += 1;
                }
                (None, State::Waits(_)) => {
                    real.waits.push(task);
                    oracle.waiters.push(Waiter {
                        from: node,
                        bytes,
                        state,
                    });
                }
                (answer, state) => panic!("{answer:?}, expected {state:?}"),
            }
        }
        8 if !real.waits.is_empty() => {
            let at = pick % real.waits.len();
            drop(real.waits.remove(at));
            let waiter = oracle.waiters.remove(at);
            match waiter.state {
                State::Granted => oracle.returned(&way(waiter.from)),
                State::Waits(_) => oracle.serve(),
                State::TooLarge => {}
            }
        }
        9 | 10 if !real.waits.is_empty() => {
            let at = pick % real.waits.len();
            match (real.waits[at].poll(), oracle.waiters[at].state) {
                (None, State::Waits(_)) => return,
                (Some(Ok(charge)), State::Granted) => {
                    let waiter = oracle.waiters.remove(at);
                    real.charges.push(charge);
                    oracle.charged(waiter.from, waiter.bytes);
                }
                (Some(Err(error)), State::TooLarge) => {
                    let refuser = error.refusal().expect("a limit").budget.clone();
                    let refuser = real.budgets.iter().position(|b| b.is_same(&refuser));
                    oracle.refusals[refuser.expect("one of ours")] += 1;
                    oracle.waiters.remove(at);
                }
                (answer, state) => panic!("{answer:?}, expected {state:?}"),
            }
            real.waits.remove(at);
        }
        11 => {
            real.budgets[node].set_limit(Some(bytes * 3));
            oracle.limits[node] = bytes * 3;
            oracle.returned(&[node]);
        }
        12 if !real.charges.is_empty() => {
            let at = pick % real.charges.len();
            let (from, whole) = oracle.charges[at];
            let Some(part) = real.charges[at].split(bytes) else {
                assert!(bytes > whole);
                return;
            };
            oracle.charges[at].1 -= bytes;
            // A charge that is forgotten and restored is unchanged.
            let forgotten = part.forget();
            real.charges
                .push(real.budgets[from].restore(forgotten).expect("just forgotten"));
            oracle.charges.push((from, bytes));
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn programs_agree_with_the_account(
        limits in prop::array::uniform5(5u64..60),
        program in prop::collection::vec((0u8..13, 0usize..60, 0u64..25), 1..120),
    ) {
        let mut real = Real::new(limits);
        let mut oracle = Oracle { limits, ..Oracle::default() };
        for operation in program {
            step(&mut oracle, &mut real, operation);
            agree(&oracle, &real);
        }
        real.waits.clear();
        real.charges.clear();
        for (node, budget) in real.budgets.iter().enumerate() {
            prop_assert_eq!((budget.used(), budget.waiting(), budget.remaining()), (0, 0, oracle.limits[node]));
        }
    }
}
