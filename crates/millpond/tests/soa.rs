//! Structures of arrays: random programs compared with a vector of structures, threads, and failed allocations at each
//! field.
#![cfg(target_os = "linux")]

use millpond::{AllocError, Budget, Pool, Soa, budget::Measure, soa::SoaIndexError};
use proptest::prelude::*;
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Soa)]
#[soa(align = 4096)]
#[repr(C)]
struct Particle {
    /// The position of the particle.
    #[soa(slice = positions)]
    position: [f32; 3],
    flag: u8,
    id: u64,
    #[soa(slice = kinds)]
    r#type: u16,
}

fn particle(seed: u64) -> Particle {
    Particle {
        position: [seed as f32, 1.0, -2.0],
        flag: seed as u8,
        id: seed,
        r#type: (seed >> 8) as u16,
    }
}

/// Returns a pool that stays open, because growing arrays allocate from their pool.
fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| Pool::host().expect("addresses"))
}

fn arrays(particles: &[Particle]) -> ParticleVec {
    ParticleVec::try_from_slice_in(particles, pool()).expect("room")
}

/// Checks that all read functions return the same.
fn check(arrays: &ParticleVec, model: &[Particle]) {
    assert_eq!(arrays.len(), model.len());
    assert_eq!(arrays.is_empty(), model.is_empty());
    assert!(arrays.capacity() >= model.len());
    assert_eq!(arrays.to_vec(), model);
    let lengths = [
        arrays.positions().len(),
        arrays.flag().len(),
        arrays.id().len(),
        arrays.kinds().len(),
    ];
    assert_eq!(lengths, [model.len(); 4]);
    assert!(arrays.iter().map(|one| one.get()).eq(model.iter().copied()));
    assert!(
        arrays
            .iter()
            .rev()
            .map(|one| *one.id)
            .eq(model.iter().rev().map(|one| one.id))
    );
    assert_eq!(arrays.iter().len(), model.len());
    assert_eq!(arrays.get(model.len()), None);
    assert!(arrays.get_ref(model.len()).is_none());
    for address in [
        arrays.positions().as_ptr().addr(),
        arrays.flag().as_ptr().addr(),
        arrays.kinds().as_ptr().addr(),
    ] {
        assert!(model.is_empty() || address.is_multiple_of(4096), "{address:#x}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    Extend(Vec<u64>),
    ExtendSlice(Vec<u64>),
    Set(usize, u64),
    Field(usize, u8),
    Pop,
    SwapRemove(usize),
    Truncate(usize),
    Clear,
    Reserve(usize),
    Split(usize, u64),
    Chunks(usize),
    Nth(usize, u16),
    Clone,
    Again,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || 0..150usize;
    let values = || prop::collection::vec(any::<u64>(), 0..100);
    let step = prop_oneof![
        6 => any::<u64>().prop_map(Step::Push),
        2 => values().prop_map(Step::Extend),
        2 => values().prop_map(Step::ExtendSlice),
        3 => (place(), any::<u64>()).prop_map(|(place, value)| Step::Set(place, value)),
        2 => (place(), any::<u8>()).prop_map(|(place, value)| Step::Field(place, value)),
        2 => Just(Step::Pop),
        3 => place().prop_map(Step::SwapRemove),
        1 => place().prop_map(Step::Truncate),
        1 => Just(Step::Clear),
        1 => (0..5000usize).prop_map(Step::Reserve),
        2 => (place(), any::<u64>()).prop_map(|(place, value)| Step::Split(place, value)),
        2 => (0..40usize).prop_map(Step::Chunks),
        1 => (place(), any::<u16>()).prop_map(|(place, value)| Step::Nth(place, value)),
        1 => Just(Step::Clone),
        1 => Just(Step::Again),
    ];
    prop::collection::vec(step, 1..60)
}

fn apply(arrays: &mut ParticleVec, model: &mut Vec<Particle>, step: &Step) {
    let len = model.len();
    match step {
        Step::Push(value) => {
            arrays.try_push(particle(*value)).expect("room");
            model.push(particle(*value));
        }
        Step::Extend(values) => {
            arrays
                .try_extend(values.iter().map(|value| particle(*value)))
                .expect("room");
            model.extend(values.iter().map(|value| particle(*value)));
        }
        Step::ExtendSlice(values) => {
            let values: Vec<Particle> = values.iter().map(|value| particle(*value)).collect();
            arrays.try_extend_from_slice(&values).expect("room");
            model.extend(values);
        }
        Step::Set(at, value) => {
            let outcome = arrays.set(*at, particle(*value));
            let expected = model.get_mut(*at).map(|place| *place = particle(*value));
            assert_eq!(outcome, expected.ok_or(SoaIndexError { index: *at, len }));
        }
        Step::Field(at, value) => {
            let found = arrays.get_mut(*at).map(|one| *one.flag = *value);
            assert_eq!(found, model.get_mut(*at).map(|one| one.flag = *value));
        }
        Step::Pop => assert_eq!(arrays.pop(), model.pop()),
        Step::SwapRemove(at) => {
            let expected = (*at < len).then(|| model.swap_remove(*at));
            assert_eq!(arrays.swap_remove(*at), expected);
        }
        Step::Truncate(to) => {
            arrays.truncate(*to);
            model.truncate(*to);
        }
        Step::Clear => {
            arrays.clear();
            model.clear();
        }
        Step::Reserve(more) => {
            arrays.try_reserve(*more).expect("room");
            assert!(arrays.capacity() >= len + more);
        }
        Step::Split(at, value) => {
            let (before, after) = arrays.split_at(*at);
            assert_eq!((before.to_vec(), after.to_vec()), {
                let (before, after) = model.split_at((*at).min(len));
                (before.to_vec(), after.to_vec())
            });
            let (mut before, mut after) = arrays.split_at_mut(*at);
            // This writes both arrays, by element and by field.
            if let Some(mut first) = after.get_mut(0) {
                first.set(particle(*value));
            }
            before.id.iter_mut().for_each(|id| *id ^= value);
            let last = before.len().saturating_sub(1);
            assert_eq!(before.set(last, particle(7)).is_ok(), !before.is_empty());
            let (before, after) = model.split_at_mut((*at).min(len));
            if let Some(first) = after.first_mut() {
                *first = particle(*value);
            }
            before.iter_mut().for_each(|one| one.id ^= value);
            if let Some(last) = before.last_mut() {
                *last = particle(7);
            }
        }
        Step::Chunks(of) => {
            let parts = arrays.chunks(*of);
            assert_eq!(parts.len(), len.div_ceil((*of).max(1)));
            assert!(
                parts
                    .map(|part| part.to_vec())
                    .eq(model.chunks((*of).max(1)).map(<[_]>::to_vec))
            );
            for (number, mut part) in arrays.chunks_mut(*of).enumerate() {
                part.reborrow().flag.fill(number as u8);
                part.iter_mut().for_each(|one| one.position[1] += 1.0);
            }
            for (number, part) in model.chunks_mut((*of).max(1)).enumerate() {
                for one in part {
                    one.flag = number as u8;
                    one.position[1] += 1.0;
                }
            }
        }
        Step::Nth(at, value) => {
            let found = arrays.iter_mut().nth(*at).map(|one| *one.r#type = *value);
            assert_eq!(found, model.get_mut(*at).map(|one| one.r#type = *value));
            for one in &mut *arrays {
                *one.flag |= 1;
            }
            model.iter_mut().for_each(|one| one.flag |= 1);
            assert!(
                arrays
                    .iter_mut()
                    .rev()
                    .map(|one| one.get())
                    .eq(model.iter().rev().copied())
            );
        }
        Step::Clone => *arrays = arrays.try_clone().expect("room"),
        Step::Again => *arrays = ParticleVec::try_from(Vec::from(&*arrays)).expect("room"),
    }
}

proptest! {
    #[test]
    fn a_structure_of_arrays_is_a_vector_of_structures(steps in steps()) {
        let (mut arrays, mut model) = (arrays(&[]), Vec::new());
        for step in &steps {
            apply(&mut arrays, &mut model, step);
            check(&arrays, &model);
        }
    }
}

#[test]
fn threads_use_disjoint_elements() {
    let model: Vec<Particle> = (0..10_007).map(particle).collect();
    let mut arrays = arrays(&model);
    let (left, right) = arrays.split_at_mut(5000);
    std::thread::scope(|threads| {
        for half in [left, right] {
            for part in half.chunks(777) {
                threads.spawn(move || {
                    for (id, position) in part.id.iter_mut().zip(part.position) {
                        *id += 1;
                        position[2] = *id as f32;
                    }
                });
            }
        }
    });
    for (one, before) in arrays.iter().zip(&model) {
        assert_eq!(
            (*one.id, one.position[2]),
            (before.id + 1, (before.id + 1) as f32)
        );
    }
    // The whole structure can also move to another thread, and back.
    let there = std::thread::spawn(move || {
        let mut arrays = arrays;
        arrays.truncate(1);
        arrays
    });
    assert_eq!(there.join().expect("no panic").len(), 1);
}

#[test]
fn slices_that_were_made_shorter_are_as_long_as_the_shortest() {
    let mut arrays = arrays(&[particle(1), particle(2), particle(3)]);
    let mut slices = arrays.slices_mut();
    slices.id = &mut slices.id[..2];
    assert_eq!(
        (slices.len(), slices.iter().len(), slices.iter_mut().count()),
        (2, 2, 2)
    );
    assert_eq!(
        slices.set(2, particle(9)),
        Err(SoaIndexError { index: 2, len: 2 })
    );
    let (before, after) = slices.split_at(3);
    assert_eq!((before.len(), after.len()), (2, 0));
    assert_eq!(before.chunks(1).len(), 2);
    assert_eq!(arrays.to_vec(), [particle(1), particle(2), particle(3)]);
}

/// The fields are sorted by size, so for each field there is a limit at which it is the first that cannot grow.
#[derive(Clone, Copy, Debug, PartialEq, Soa)]
struct Wider {
    one: u32,
    two: u64,
    three: [u64; 2],
    four: [u64; 4],
}

fn wider(seed: u64) -> Wider {
    Wider {
        one: seed as u32,
        two: seed,
        three: [seed; 2],
        four: [seed; 4],
    }
}

/// Sets a limit that suffices for some fields and not for the next, and checks that no field has changed.
#[test]
fn memory_that_runs_out_at_any_field_leaves_every_element_as_it_was() {
    // The number of refusals of the first field, and of later fields.
    let mut refused = [0; 2];
    for way in 0..3 {
        for at in 0.. {
            let budget = Budget::builder("arrays")
                .measure(Measure::Allocated)
                .build()
                .expect("a budget");
            let pool = Pool::builder().budget(&budget).host().expect("addresses");
            let mut arrays = WiderVec::in_pool(&pool).expect("nothing is asked for");
            let before: Vec<Wider> = (0..4096).map(wider).collect();
            arrays.try_extend_from_slice(&before).expect("room");
            assert_eq!(arrays.capacity(), before.len(), "no field has room for one more");
            let used = budget.used();
            budget.set_limit(Some(used + at * 4096));
            let outcome = match way {
                0 => arrays.try_push(wider(4096)),
                1 => arrays.try_extend((4096..4100).map(wider)),
                _ => arrays.try_extend_from_slice(&[4096, 4097].map(wider)),
            };
            let lengths = [
                arrays.one().len(),
                arrays.two().len(),
                arrays.three().len(),
                arrays.four().len(),
            ];
            assert_eq!(lengths, [arrays.len(); 4]);
            assert_eq!(arrays.to_vec()[..4096], before);
            let Err(error) = outcome else {
                assert!(arrays.len() > 4096);
                break;
            };
            assert!(matches!(error, AllocError::Budget(_)), "{error:?}");
            assert_eq!(arrays.len(), 4096);
            refused[usize::from(budget.used() > used)] += 1;
            budget.set_limit(None);
            arrays.try_push(wider(6)).expect("room");
            assert_eq!((arrays.len(), arrays.get(4096)), (4097, Some(wider(6))));
            drop((arrays, pool));
            assert_eq!(budget.used(), 0);
        }
    }
    assert!(refused.iter().all(|times| *times > 2), "{refused:?}");
}

#[derive(Clone, Copy, Soa)]
#[soa(name = Tight, no_padding)]
struct Loose {
    small: u8,
    rest: [u8; 3],
    wide: u32,
}

mod renamed {
    pub(crate) mod inner {
        pub(crate) use millpond as pond;
    }
}

#[derive(Soa)]
#[soa(crate = crate::renamed::inner::pond)]
struct Single {
    /// A single field whose name is that of a method that only slices have.
    reborrow: f64,
}

#[test]
fn attributes_have_their_documented_effects() {
    let mut tight = Tight::new().expect("room");
    tight
        .try_push(Loose {
            small: 1,
            rest: [0; 3],
            wide: 2,
        })
        .expect("room");
    assert_eq!(
        (tight.small(), tight.rest(), tight.wide()),
        (&[1][..], &[[0; 3]][..], &[2][..])
    );
    assert_eq!(Loose::LAYOUT.padding(), 0);
    let single = SingleVec::try_from_slice(&[Single { reborrow: 2.0 }]).expect("room");
    assert_eq!(single.iter().map(|one| *one.reborrow).sum::<f64>(), 2.0);
    assert_eq!(single.get(0).map(|one| one.reborrow), Some(2.0));
    assert!(format!("{single:?}").starts_with("SingleVec { len: 1, capacity: "));
}

#[test]
fn the_layout_is_the_compilers() {
    let layout = Particle::layout_report();
    assert_eq!(
        (layout.bytes, layout.align),
        (size_of::<Particle>(), align_of::<Particle>())
    );
    let found: Vec<_> = layout
        .fields
        .iter()
        .map(|f| (f.name, f.offset, f.bytes, f.align, f.padding))
        .collect();
    assert_eq!(
        found,
        [
            ("position", 0, 12, 4, 0),
            ("flag", 12, 1, 1, 3),
            ("id", 16, 8, 8, 0),
            ("type", 24, 2, 2, 6)
        ]
    );
    assert_eq!((layout.soa_bytes(), layout.padding()), (23, 9));
    assert!(
        layout
            .to_string()
            .contains("26       6          lost after type\n"),
        "{layout}"
    );
}
