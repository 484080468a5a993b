//! The training loop, its memory use, and the proofs.

use crate::data::{Batch, Digits};
use crate::gradients;
use crate::model::{Network, Score};
use millpond::engine::display_size;
use millpond::{DataSet, GlobalPool, Npy, Order, Pool, Pools, Tensor, TensorError, TensorRef, Workspace};
use std::error::Error;

/// Serves all allocations of the program other than its tensors.
#[global_allocator]
static PROGRAM: GlobalPool = GlobalPool::new();

/// The rows of a batch. The last batch of an epoch is short.
const BATCH: usize = 64;

/// The amount of training.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    rows: usize,
    epochs: u64,
    /// The required share of correctly classified test rows at the end.
    accuracy: f64,
}

pub(crate) const FULL: Plan = Plan {
    rows: 20_000,
    epochs: 12,
    accuracy: 0.97,
};

pub(crate) const QUICK: Plan = Plan {
    rows: 3_000,
    epochs: 6,
    accuracy: 0.8,
};

const TEST_ROWS: usize = 1_000;
const RATE: f32 = 0.05;

/// Counts of a pool.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// The number of allocations so far.
    asked: u64,
    /// The bytes in use, followed by their peak.
    held: u64,
    peak: u64,
}

impl Account {
    fn of(pool: &Pool) -> Self {
        let stats = pool.stats();
        Self {
            asked: stats.allocations,
            held: stats.requested.current,
            peak: stats.requested.peak,
        }
    }
}

/// The allocations of steps.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    taken: u64,
    /// Allocations from the tensors' pool.
    of_pool: u64,
    /// Allocations from the program's allocator per step: the minimum and the maximum.
    of_program: Option<(u64, u64)>,
}

impl Steps {
    fn add(&mut self, of_pool: u64, of_program: u64) {
        let (least, most) = self.of_program.unwrap_or((of_program, of_program));
        self.taken += 1;
        self.of_pool += of_pool;
        self.of_program = Some((least.min(of_program), most.max(of_program)));
    }
}

struct Trainer {
    pool: Pool,
    program: &'static Pool,
    network: Network,
    workspace: Workspace,
    first: Steps,
    later: Steps,
}

impl Trainer {
    /// Returns the number of allocations from the pool in all steps so far.
    fn asked(&self) -> u64 {
        self.first.of_pool + self.later.of_pool
    }

    fn step(&mut self, rows: TensorRef<'_>) -> Result<Score, TensorError> {
        let network = &mut self.network;
        self.workspace.scope(|scratch| {
            let score = network.learn(Batch::of(rows)?, scratch)?;
            network.update(RATE)?;
            Ok(score)
        })
    }

    /// Trains on all rows in a different order for each epoch. It allocates only the buffer into which batches are read.
    fn epoch(&mut self, data: &DataSet<f32>, number: u64) -> Result<Score, Box<dyn Error>> {
        let mut all = Score::default();
        let pass = data.pass().rows(BATCH).order(Order::shuffled(number)).ahead(0);
        pass.try_for_each(|chunk| {
            let before = [&self.pool, self.program].map(Account::of);
            all.add(self.step(chunk.view()?)?);
            let after = [&self.pool, self.program].map(Account::of);
            let [of_pool, of_program] = [0, 1].map(|at| after[at].asked - before[at].asked);
            let steps = match self.first.taken {
                0 => &mut self.first,
                _ => &mut self.later,
            };
            steps.add(of_pool, of_program);
            Ok::<_, Box<dyn Error>>(())
        })?;
        Ok(all)
    }

    fn test(&mut self, rows: &Tensor) -> Result<Score, TensorError> {
        let mut all = Score::default();
        for rows in rows.batches(0, BATCH)? {
            let (network, rows) = (&self.network, rows.view()?);
            all.add(
                self.workspace
                    .scope(|scratch| network.score(Batch::of(rows)?, scratch))?,
            );
        }
        Ok(all)
    }
}

fn check(what: &str, holds: bool) -> bool {
    println!("{} {what}", if holds { "yes " } else { "NO  " });
    holds
}

pub(crate) fn run(plan: Plan) -> Result<bool, Box<dyn Error>> {
    let program = PROGRAM.pool().ok_or("cannot create the program's pool")?;
    // The set applies to this thread, so tensors that are made on the way are counted too.
    let set = Pools::new();
    let _scope = set.enter();
    let pool = set.host()?;
    let digits = Digits::write(plan.rows, TEST_ROWS)?;
    let data = Npy::open(&digits.to_learn)?.rows::<f32>()?;
    let test = Npy::open(&digits.to_test)?.tensor_in(&pool)?;
    println!("{data:?}; {} rows for tests", test.size(0)?);

    let mut network = Network::new(&pool)?;
    let (difference, agree) = Workspace::builder(&pool).build()?.scope(|scratch| {
        let batch = test.slice(0, ..BATCH)?;
        gradients::check(&mut network, Batch::of(batch.view()?)?, scratch)
    })?;
    println!("gradients and finite differences differ by at most {difference:.1e} of the gradient\n");

    let mut trainer = Trainer {
        workspace: Workspace::builder(&pool).build()?,
        pool: pool.clone(),
        program,
        network,
        first: Steps::default(),
        later: Steps::default(),
    };
    let mut beside = Vec::new();
    beside.try_reserve(plan.epochs as usize)?;
    println!("epoch   loss  accuracy  blocks of the steps  of the pass       held       peak   reserved");
    let (mut scores, mut bytes) = (Vec::new(), Vec::new());
    scores.try_reserve(plan.epochs as usize)?;
    bytes.try_reserve(plan.epochs as usize)?;
    for epoch in 1..=plan.epochs {
        let (before, steps) = (Account::of(&pool), trainer.asked());
        let learnt = trainer.epoch(&data, epoch)?;
        let tested = trainer.test(&test)?;
        let (after, steps) = (Account::of(&pool), trainer.asked() - steps);
        let (others, reserved) = (after.asked - before.asked - steps, pool.stats().reserved.peak);
        println!(
            "{epoch:5}  {:.3}  {:6.1} %  {steps:19}  {:11}  {:>9}  {:>9}  {:>9}",
            learnt.mean_loss(),
            100.0 * tested.accuracy(),
            others,
            display_size(after.held),
            display_size(after.peak),
            display_size(reserved),
        );
        scores.push((learnt.mean_loss(), tested.accuracy()));
        bytes.push([after.held, after.peak, reserved, Account::of(program).held]);
        beside.push(others);
    }
    drop(digits);

    let (first, later) = (trainer.first, trainer.later);
    let (least, most) = later.of_program.unwrap_or_default();
    println!(
        "\nblocks allocated from the pool: {} by the first step, {} by the {} others; from the program's allocator: \
         {most} by each of the others; a step has {} products of matrices\n",
        first.of_pool,
        later.of_pool,
        later.taken,
        Network::PRODUCTS
    );
    let ends = scores.first().zip(scores.last());
    let (fell, accuracy) = ends.map_or((0.0, 0.0), |(first, last)| (first.0 / last.0, last.1));
    drop((trainer, test));
    let left = pool.stats();
    let proofs = [
        check("the gradients match the loss", agree),
        check("the loss fell to less than a fifth", fell > 5.0),
        check("the test digits are recognised", accuracy > plan.accuracy),
        check(
            "the first step allocated from the pool, and was counted",
            first.of_pool > 0,
        ),
        check(
            "no other step allocated from the pool",
            later.of_pool == 0 && later.taken == plan.epochs * plan.rows.div_ceil(BATCH) as u64 - 1,
        ),
        check(
            "each epoch allocated only the few buffers that it reads into, as many as the first",
            beside
                .iter()
                .all(|asked| *asked == beside[0] && (1..=3).contains(asked)),
        ),
        check(
            "the pool and the program hold as many bytes as after the first epoch, and no peak rose",
            bytes.windows(2).all(|two| two[0] == two[1]),
        ),
        check(
            "the program's allocator was used only for products of matrices",
            least == most && most <= Network::PRODUCTS,
        ),
        check(
            "all memory of the pool was freed",
            left.requested.current == 0 && left.frees == left.allocations,
        ),
    ];
    Ok(proofs.into_iter().all(|holds| holds))
}
