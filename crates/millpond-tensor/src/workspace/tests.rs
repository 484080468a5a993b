//! Tests named buffers, temporaries, and the requests that workspaces make to their pools.

use super::*;
use crate::Scalar;
use millpond_account::error::AllocError;
use millpond_pool::unpooled::fake;
use proptest::collection::vec;
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn empty() -> (Workspace, Unpooled) {
    let source = fake::unpooled();
    (
        Workspace::unpooled(&source).build().expect("nothing to take"),
        source,
    )
}

#[test]
fn named_buffers_are_zeroed_and_their_type_is_checked() {
    let source = fake::unpooled();
    let mut workspace = Workspace::unpooled(&source)
        .buffer::<f32>("x", 100)
        .buffer::<[u8; 3]>("colours", 7)
        .buffer::<u64>("none", 0)
        .build()
        .expect("room");
    assert_eq!(workspace.get::<f32>("x").expect("there"), [0.0; 100]);
    workspace.get_mut::<[u8; 3]>("colours").expect("there")[6] = [1, 2, 3];
    assert_eq!(workspace.get::<[u8; 3]>("colours").expect("there")[6], [1, 2, 3]);
    assert!(workspace.get::<u64>("none").expect("there").is_empty());
    let error = workspace.get::<u32>("x").expect_err("they are f32");
    assert_eq!(error.to_string(), "the elements of \"x\" are f32, not u32");
    let error = workspace.get_mut::<f32>("y").expect_err("no such");
    assert_eq!(
        error.to_string(),
        "the workspace has no buffer \"y\": it has x, colours, none"
    );
    assert_eq!(workspace.stats().named_bytes, 421);
    workspace.free();
    assert_eq!(source.held_bytes(), 0);
}

#[test]
fn named_tensors_are_zeroed_and_can_be_borrowed_together() {
    let source = fake::unpooled();
    let builder = || Workspace::unpooled(&source).buffer::<f32>("x", 10);
    let mut workspace = builder()
        .tensor("a", [2, 3], DType::I32)
        .tensor("b", [3], DType::I32)
        .build()
        .expect("room");
    assert_eq!(workspace.stats().named_bytes, 76);
    assert_eq!(workspace.named().names().collect::<Vec<_>>(), ["x", "a", "b"]);
    let [b, a] = workspace.named().tensors_mut(["b", "a"]).expect("both");
    b.fill(4).expect("alone");
    b.add_into(1, &mut a.view_mut().and_then(|a| a.select(0, 1)).expect("alone"))
        .expect("as many");
    assert_eq!(
        workspace
            .tensor("a")
            .expect("there")
            .as_slice::<i32>()
            .expect("i32"),
        [0, 0, 0, 5, 5, 5]
    );
    let held = workspace.tensor("b").expect("there").clone();
    assert!(
        workspace.tensor_mut("b").expect("there").fill(1).is_err(),
        "it is held"
    );
    drop(held);
    workspace.tensor_mut("b").expect("there").fill(1).expect("alone");
    assert!(matches!(
        workspace.named().tensors_mut(["a", "b", "a"]),
        Err(WorkspaceError::Twice { name }) if name == "a"
    ));
    let unknown = workspace.tensor("x").expect_err("a buffer");
    assert_eq!(
        unknown.to_string(),
        "the workspace has no tensor \"x\": it has a, b"
    );
    let unknown = workspace.get::<i32>("a").expect_err("a tensor");
    assert_eq!(unknown.to_string(), "the workspace has no buffer \"a\": it has x");
    let bare = builder().build().expect("room");
    let unknown = bare.tensor("a").expect_err("there are none");
    assert_eq!(
        unknown.to_string(),
        "the workspace has no tensor \"a\": it has none"
    );
    drop(bare);
    workspace.scope(|scratch| {
        let mut square = scratch.tensor::<u64>([4, 4]).expect("room");
        square.fill(3).expect("a number");
        assert_eq!(square.as_ref().sum().expect("numbers").to_u64(), Some(48));
        assert!(scratch.tensor::<u8>([usize::MAX, 2]).is_err());
        assert!(scratch.tensor::<u8>([0, 2]).expect("nothing").is_empty());
    });
    workspace.scope(|scratch| {
        // Fills the memory, because temporary tensors of every type must contain valid elements whatever it contained before.
        scratch.alloc::<u8>(4096).expect("room").fill(0xff);
    });
    for dtype in DType::all() {
        workspace.scope(|scratch| {
            let mut tensor = scratch.tensor_of([3, 5], dtype).expect("room");
            assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[3, 5][..]));
            if dtype == DType::Bool {
                assert_eq!(tensor.as_ref().to_bools().expect("bools"), [false; 15]);
            }
            tensor
                .set(&[2, 4], Scalar::Bool(true))
                .or_else(|_| tensor.set(&[2, 4], 1))
                .ok();
            // Computing in half precision requires the feature `half`.
            if !matches!(dtype, DType::F16 | DType::BF16) || cfg!(feature = "half") {
                let last = tensor.as_ref().get(&[2, 4]).expect("inside");
                assert!(
                    last == Scalar::Bool(true) || last.to_complex() == [1.0, 0.0],
                    "{dtype}"
                );
            }
            assert!(scratch.tensor_of([0, 2], dtype).expect("nothing").is_empty());
            assert!(scratch.tensor_of([usize::MAX, 2], dtype).is_err());
        });
    }
    workspace.free();
    let twice = builder().tensor("x", [1], DType::U8).build();
    assert!(matches!(twice, Err(WorkspaceError::Twice { .. })));
    let many = builder().tensor("y", [1; 9], DType::U8).build();
    assert!(matches!(many, Err(WorkspaceError::Tensor(_))));
    assert_eq!(source.held_bytes(), 0);
}

#[test]
fn a_name_is_unique_and_cannot_be_borrowed_twice() {
    let source = fake::unpooled();
    let twice = Workspace::unpooled(&source)
        .buffer::<u8>("x", 1)
        .buffer::<u8>("x", 1)
        .build();
    assert!(matches!(twice, Err(WorkspaceError::Twice { .. })));
    let mut workspace = Workspace::unpooled(&source)
        .buffer::<u8>("a", 2)
        .buffer::<u16>("b", 2)
        .buffer::<u8>("c", 2)
        .build()
        .expect("room");
    let named = workspace.named();
    let [c, a] = named.get_disjoint_mut::<u8, 2>(["c", "a"]).expect("both");
    c.fill(3);
    a.fill(1);
    assert_eq!(
        (named.get::<u8>("a").ok(), named.get::<u8>("c").ok()),
        (Some(&[1; 2][..]), Some(&[3; 2][..]))
    );
    assert!(matches!(
        named.get_disjoint_mut::<u8, 2>(["a", "a"]),
        Err(WorkspaceError::Twice { .. })
    ));
    assert!(matches!(
        named.get_disjoint_mut::<u8, 2>(["a", "b"]),
        Err(WorkspaceError::Type { .. })
    ));
    let too_large = Workspace::unpooled(&source)
        .buffer::<u64>("x", usize::MAX)
        .build();
    assert!(matches!(
        too_large,
        Err(WorkspaceError::Alloc(AllocError::TooLarge { .. }))
    ));
}

#[test]
fn the_second_pass_allocates_nothing() {
    let (mut workspace, source) = empty();
    let mut pass = |most: usize| {
        workspace.scope(|scratch| {
            for len in (1..most).step_by(500) {
                scratch.alloc::<u64>(len).expect("room").fill(1);
                scratch.scope(|inner| inner.alloc::<u8>(len * 3).expect("room").fill(2));
            }
        });
        workspace.stats()
    };
    let first = pass(if cfg!(miri) { 2600 } else { 6000 });
    assert!(first.growths > 1 && first.scratch_peak <= first.scratch_bytes);
    let held = source.held_bytes();
    for _ in 0..5 {
        let later = pass(if cfg!(miri) { 2600 } else { 6000 });
        assert_eq!(
            (later.growths, later.scratch_bytes, later.scratch_peak),
            (first.growths, first.scratch_bytes, first.scratch_peak)
        );
    }
    assert_eq!(pass(1300).growths, first.growths);
    assert_eq!(source.held_bytes(), held);
    workspace.trim();
    assert_eq!((source.held_bytes(), workspace.stats().scratch_bytes), (0, 0));
    assert_eq!(
        workspace.scope(|scratch| scratch.alloc_from(&[1, 2]).expect("room").len()),
        2
    );
}

#[test]
fn memory_allocated_in_advance_serves_the_first_pass() {
    let source = fake::unpooled();
    let mut workspace = Workspace::unpooled(&source)
        .scratch_bytes(500_000)
        .build()
        .expect("room");
    workspace.scope(|scratch| scratch.alloc::<u8>(500_000).expect("room")[499_999] = 1);
    assert_eq!((workspace.stats().growths, workspace.stats().scopes), (1, 1));
}

#[test]
fn a_scope_that_panics_ends_its_temporaries() {
    let (mut workspace, _) = empty();
    for _ in 0..100 {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            workspace.scope(|scratch| {
                scratch.alloc::<u8>(30_000).expect("room");
                scratch.scope(|inner| {
                    inner.alloc::<u8>(30_000).expect("room");
                    panic!("on purpose");
                });
            });
        }));
        assert!(panicked.is_err());
    }
    assert_eq!(workspace.stats().growths, 1);
}

#[test]
fn a_failed_allocation_leaves_the_scope_usable() {
    let (mut workspace, _) = empty();
    workspace.scope(|scratch| {
        let kept = scratch.alloc_from(&[5u8; 100]).expect("room");
        let too_many = fake::MOST as usize + 1;
        assert!(matches!(
            scratch.alloc::<u8>(too_many),
            Err(AllocError::Source(_))
        ));
        assert!(matches!(
            scratch.alloc::<u64>(usize::MAX),
            Err(AllocError::TooLarge { .. })
        ));
        assert!(scratch.alloc::<u64>(0).expect("nothing").is_empty());
        let next = scratch.alloc::<u8>(1).expect("room");
        assert_eq!(
            next.as_ptr().addr() - kept.as_ptr().addr(),
            128,
            "nothing is left over"
        );
        assert_eq!(kept, [5; 100]);
    });
    assert_eq!(workspace.stats().growths, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    Wide,
    Inside(Vec<Step>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let most: usize = if cfg!(miri) { 2000 } else { 40_000 };
    let step = prop_oneof![8 => (0..most).prop_map(Step::Take), 1 => Just(Step::Wide)];
    step.prop_recursive(
        4,
        60,
        8,
        |inner| prop_oneof![2 => inner.clone(), 1 => vec(inner, 0..8).prop_map(Step::Inside)],
    )
    .prop_flat_map(|step| vec(Just(step), 1..4))
}

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(512))]
struct Wide([u64; 64]);
// SAFETY: the structure consists of words, and its size equals its alignment, so it has no padding.
unsafe impl bytemuck::Zeroable for Wide {}
// SAFETY: as above.
unsafe impl Pod for Wide {}

/// Checks that every temporary keeps its contents until its scope ends, even if inner scopes run.
fn run(scratch: &mut Scratch<'_>, steps: &[Step], seed: &mut u64) {
    let mut held = Vec::new();
    let mut wide = Vec::new();
    for step in steps {
        *seed += 1;
        match step {
            Step::Take(len) => {
                let words = scratch.alloc::<u64>(len / 8).expect("room");
                assert!(words.as_ptr().addr().is_multiple_of(64) || words.is_empty());
                words.fill(*seed);
                held.push((words, *seed));
            }
            Step::Wide => {
                let one = scratch.alloc_zeroed::<Wide>(1).expect("room");
                assert!(one[0] == Wide([0; 64]) && one.as_ptr().addr().is_multiple_of(512));
                one[0] = Wide([*seed; 64]);
                wide.push((one, *seed));
            }
            Step::Inside(steps) => scratch.scope(|inner| run(inner, steps, seed)),
        }
    }
    assert!(
        held.iter()
            .all(|(words, seed)| words.iter().all(|word| word == seed))
    );
    assert!(wide.iter().all(|(one, seed)| one[0] == Wide([*seed; 64])));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 6 } else { 300 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn temporaries_do_not_overlap_while_they_exist(steps in steps()) {
        let (mut workspace, source) = empty();
        let mut seed = 0;
        workspace.scope(|scratch| run(scratch, &steps, &mut seed));
        let first = workspace.stats();
        workspace.scope(|scratch| run(scratch, &steps, &mut seed));
        prop_assert_eq!(workspace.stats().growths, first.growths);
        drop(workspace);
        prop_assert_eq!(source.held_bytes(), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore)]
fn a_workspace_keeps_its_pool_open() {
    let pool = Pool::host().expect("a pool");
    let heap = pool.heap();
    let mut workspace = Workspace::builder(&pool)
        .buffer::<f32>("x", 1000)
        .build()
        .expect("room");
    drop(pool);
    assert!(!heap.is_closed());
    workspace.scope(|scratch| scratch.alloc::<f32>(100_000).expect("room").fill(1.0));
    std::thread::spawn(move || drop(workspace))
        .join()
        .expect("no panic");
    assert!(heap.is_closed());
    assert_eq!(heap.stats().reserved.current, 0);
}
