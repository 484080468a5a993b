//! The pool or source of the results of operations.

use super::*;
use millpond_account::budget::{Budget, Measure};
use millpond_account::error::AllocError;
use millpond_pool::pool::Pool;
use millpond_pool::unpooled::Unpooled;

type Operation = fn(&Tensor, &Tensor) -> Result<Tensor, TensorError>;

/// All operations that make a new tensor from two tensors with four rows and columns.
const OPERATIONS: [(&str, Operation); 26] = [
    ("add", |a, b| a.add(b)),
    ("add to a part", |a, b| a.slice(1, ..2)?.add(&b.slice(1, ..2)?)),
    ("add a row", |a, b| a.add(&b.select(0, 1)?)),
    ("add to a row", |a, b| a.select(0, 1)?.add(b)),
    ("add a number", |a, _| a.add(1.0)),
    ("add to a view", |a, b| a.view()?.add(b)),
    ("add a view", |a, b| a.add(b.view()?)),
    ("sub", |a, b| a.sub(b)),
    ("mul", |a, b| a.mul(b)),
    ("div", |a, b| a.div(b)),
    ("rsub", |a, _| a.rsub(1.0)),
    ("rdiv", |a, _| a.rdiv(1.0)),
    ("add_scaled", |a, b| a.add_scaled(2.0, b)),
    ("matmul", |a, b| a.matmul(b)),
    ("matmul of a view", |a, b| a.view()?.transpose(0, 1)?.matmul(b)),
    ("sum_dim", |a, _| a.sum_dim(0)),
    ("map", |a, _| a.map(|x: f32| x + 1.0)),
    ("map of columns", |a, _| a.transpose(0, 1)?.map(|x: f32| x + 1.0)),
    ("cast", |a, _| a.cast(DType::F64).map(SharedOrCopied::into_tensor)),
    ("cast of a view", |a, _| a.view()?.cast(DType::F64)),
    ("cast to the same", |a, _| a.view()?.cast(DType::F32)),
    ("deep_copy", |a, _| a.deep_copy()),
    ("to_tensor", |a, _| a.view()?.select(1, 2)?.to_tensor()),
    ("to_contiguous", |a, _| {
        a.transpose(0, 1)?
            .to_contiguous()
            .map(SharedOrCopied::into_tensor)
    }),
    ("reshaped", |a, _| {
        a.transpose(0, 1)?.reshaped([16]).map(SharedOrCopied::into_tensor)
    }),
    ("of a view to write", |a, b| {
        let mut copy = a.deep_copy()?;
        let (_, part) = copy.view_mut()?.split_at(0, 2)?;
        part.as_ref().add(&b.slice(0, 2..)?)
    }),
];

fn pool(name: &str) -> Pool {
    Pool::builder().name(name).host().expect("a pool")
}

fn table(from: &impl millpond_pool::block::Origin) -> Tensor {
    Tensor::full_in(from, [4, 4], 2.0f32).expect("room")
}

#[test]
#[cfg_attr(miri, ignore)]
fn results_come_from_the_pool_of_the_first_operand() {
    let (one, other) = (pool("one"), pool("other"));
    let (a, b) = (table(&one), table(&other));
    for (name, operation) in OPERATIONS {
        let made = operation(&a, &b).expect(name);
        assert!(made.pool().is_some_and(|of| of == one), "{name}");
        assert!(!made.shares_storage_with(&a), "{name}");
    }
    assert_eq!(other.stats().allocations, 1);
    // This also holds for an operand that has no elements and so no block.
    let none = Tensor::zeros_in(&one, [0, 4], DType::F32).expect("room");
    let sums = none.sum_dim(0).expect("room");
    assert!(sums.pool().is_some_and(|of| of == one));
}

#[test]
#[cfg_attr(miri, ignore)]
fn results_come_from_the_pool_of_the_second_operand_if_the_first_has_none() {
    let pool = pool("the second");
    let b = table(&pool);
    let numbers = [1.0f32; 16];
    let slice = TensorRef::from_slice(&numbers, [4, 4]).expect("as many");
    let foreign = Tensor::from_vec(numbers.to_vec(), [4, 4]).expect("as many");
    for made in [
        slice.add(&b),
        slice.matmul(&b),
        foreign.add(&b),
        foreign.matmul(&b),
    ] {
        let made = made.expect("room");
        assert!(made.pool().is_some_and(|of| of == pool));
    }
    // Neither operand has a pool, so the result comes from the set of pools.
    let made = foreign.add(slice).expect("room");
    assert!(made.pool().is_some_and(|of| of != pool));
    assert!(
        foreign
            .deep_copy()
            .expect("room")
            .pool()
            .is_some_and(|of| of != pool)
    );
}

#[test]
#[cfg_attr(miri, ignore)]
fn results_are_charged_to_the_tenant_of_their_operand() {
    let budget = Budget::builder("a tenant").measure(Measure::Allocated);
    let budget = budget.limit(1 << 20).build().expect("a budget");
    let pool = pool("shared");
    let tenant = pool.tenant(&budget).expect("its measure");
    let a = table(&tenant);
    for (name, operation) in OPERATIONS {
        let before = budget.used();
        let made = operation(&a, &a).expect(name);
        assert!(budget.used() > before, "{name}");
        drop(made);
        assert_eq!(budget.used(), before, "{name}");
    }
    let wide = Tensor::full_in(&tenant, [1, 1000], 1.0f32).expect("room");
    let refused = wide.transpose(0, 1).expect("two dimensions").matmul(&wide);
    let refused = refused.expect_err("4,000,000 bytes").to_string();
    assert!(refused.contains("budget 'a tenant' allows 1.00 MiB"), "{refused}");
}

#[test]
fn results_come_from_the_source_of_an_operand_without_a_pool() {
    let source: Unpooled = fake::unpooled();
    let a = table(&source);
    for (name, operation) in OPERATIONS {
        let before = source.held_bytes();
        let made = operation(&a, &a).expect(name);
        assert!(made.pool().is_none() && source.held_bytes() > before, "{name}");
        drop(made);
        assert_eq!(source.held_bytes(), before, "{name}");
    }
}

#[test]
#[cfg_attr(miri, ignore)]
fn the_limit_of_a_pool_applies_to_results_and_the_error_names_it() {
    let pool = Pool::builder().limit(4 << 20).host().expect("a pool");
    let a = Tensor::full_in(&pool, [512, 512], 1.0f32).expect("1 MiB");
    let mut held = Vec::new();
    let error = loop {
        match a.matmul(&a) {
            Ok(product) => held.push(product),
            Err(error) => break error,
        }
        assert!(held.len() < 8, "more than the limit");
    };
    assert!(!held.is_empty());
    let limit = match &error {
        TensorError::Alloc(error @ AllocError::OutOfMemory(_)) => {
            error.post_mortem().and_then(|why| why.limit)
        }
        _ => None,
    };
    assert_eq!(limit, Some(4 << 20));
    let first = "out of memory: 1.00 MiB requested, and the pool's limit is 4.00 MiB\n";
    assert!(error.to_string().starts_with(first), "{error}");
    // A refusal that is not due to the limit does not name the limit.
    let pool = Pool::builder().limit(1 << 40);
    let host = millpond_pool::host::Host::builder()
        .capacity(Some(4 << 20))
        .build();
    let pool = pool.over(Box::new(host.expect("a source"))).expect("a pool");
    let held: Vec<_> = std::iter::repeat_with(|| pool.alloc_zeroed::<u8>(1 << 20))
        .take(8)
        .collect();
    let refused = held.into_iter().find_map(Result::err).expect("8 MiB");
    assert!(
        refused.post_mortem().is_some_and(|why| why.limit.is_none()),
        "{refused}"
    );
}
