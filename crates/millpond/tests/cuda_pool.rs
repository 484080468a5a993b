//! Features of a device's pool that it shares with a host's pool: budgets, tenants, observers, a ledger, and
//! post-mortems.

#![cfg(target_os = "linux")]

mod support;

#[path = "cuda_pool/churn.rs"]
mod churn;
#[path = "cuda_pool/compaction.rs"]
mod compaction;
#[path = "cuda_pool/monitored.rs"]
mod monitored;
#[path = "cuda_pool/pressure.rs"]
mod pressure;
#[path = "cuda_pool/raw.rs"]
mod raw;
#[path = "cuda_pool/rentals.rs"]
mod rentals;
#[path = "cuda_pool/sets.rs"]
mod sets;
#[cfg(feature = "record")]
#[path = "cuda_pool/snapshots.rs"]
mod snapshots;
#[path = "cuda_pool/upkeep.rs"]
mod upkeep;
#[path = "cuda_pool/workspaces.rs"]
mod workspaces;

use millpond::cuda::{
    CudaDevice, CudaMemory, CudaStream, DevicePool, DevicePoolBuilder, DevicePoolError, UnpooledDevice,
};
use millpond::engine::{Settings, policies};
use millpond::{Budget, Device, Event, Tag, Tracking, budget::Measure, event::EventKind, pool::Prewarm};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::emulator;

const MIB: u64 = 1 << 20;

/// Returns a device and a stream of it, or prints a message and returns `None` if there is no driver.
fn device() -> Option<(CudaDevice, CudaStream)> {
    emulator::load().then(|| {
        let device = CudaDevice::get(0).expect("a device");
        let stream = CudaStream::new(&device).expect("a stream");
        (device, stream)
    })
}

/// Returns true in a process of the test's own, where other pools of the device cannot interfere. Otherwise this starts
/// that process, which must pass.
fn is_alone(test: &str) -> bool {
    if !emulator::is_child(test) {
        let (passed, text) = emulator::child_with(test, &[]);
        assert!(passed, "{text}");
    }
    emulator::is_child(test)
}

fn builder() -> DevicePoolBuilder {
    DevicePool::builder().settings("")
}

#[test]
fn reserved_and_allocated_memory_is_charged() {
    let Some((device, stream)) = device() else { return };
    let process = Budget::builder("process")
        .limit(64 * MIB)
        .build()
        .expect("a budget");
    let blocks = process
        .child_builder("blocks")
        .measure(Measure::Allocated)
        .limit(10 * MIB)
        .build()
        .expect("a budget");
    let pool = builder()
        .name("card")
        .budget(&blocks)
        .build(&device)
        .expect("a pool");
    // The size is not a multiple of the unit. The charge is the whole block.
    let held = pool.alloc::<u8>((8 << 20) - 77, &stream).expect("fits");
    let stats = pool.stats();
    assert!(stats.allocated.current > stats.requested.current);
    assert_eq!(blocks.used(), stats.allocated.current);
    assert_eq!(process.used(), stats.reserved.current);

    let error = pool.alloc::<u8>(3 << 20, &stream).expect_err("over the budget");
    let said = error.to_string();
    assert!(said.contains("over budget") && said.contains("blocks"), "{said}");
    assert_eq!(
        (blocks.used(), pool.stats().refusals),
        (stats.allocated.current, 1)
    );

    drop(held);
    assert_eq!(pool.stats().allocated.current, 0);
    assert_eq!(blocks.used(), 0);
    pool.trim();
    assert_eq!((process.used(), pool.stats().reserved.current), (0, 0));
    assert!(pool.alloc::<u8>(9 << 20, &stream).is_ok());
    drop(pool);
    assert_eq!(process.used(), 0, "with the pool everything goes back");
}

#[test]
fn a_budget_of_reserved_bytes_refuses_and_names_the_holders() {
    let Some((device, stream)) = device() else { return };
    let card = Budget::builder("card").limit(32 * MIB).build().expect("a budget");
    let make = |name| {
        builder()
            .name(name)
            .budget(&card)
            .track(Some(Tracking::All))
            .build(&device)
            .expect("a pool")
    };
    let (first, second) = (make("first"), make("second"));
    let weights = {
        let _scope = millpond::tag("weights");
        first.alloc::<f32>(5 << 20, &stream).expect("fits")
    };
    // Memory that the first pool keeps without using it is freed.
    drop(first.alloc::<f32>(2 << 20, &stream).expect("fits"));
    let third = second
        .alloc::<f32>(3 << 20, &stream)
        .expect("the other pool's rest goes");
    let error = second.alloc::<f32>(2 << 20, &stream).expect_err("no room");
    let said = error.to_string();
    assert!(
        said.contains("over budget 'card'") || said.contains("card/second"),
        "{said}"
    );
    assert!(said.contains("first") && said.contains("weights"), "{said}");
    assert!(card.used() <= 32 * MIB);
    drop((weights, third));
    assert!(second.alloc::<f32>(6 << 20, &stream).is_ok());
}

#[test]
fn the_refusal_of_a_tenant_names_the_holders_of_its_blocks_only() {
    let Some((device, stream)) = device() else { return };
    let pool = builder()
        .track(Some(Tracking::All))
        .build(&device)
        .expect("a pool");
    let budget = Budget::builder("tenant")
        .measure(Measure::Allocated)
        .limit(4 * MIB);
    let budget = budget.build().expect("a budget");
    let tenant = pool.tenant(&budget).expect("it counts blocks");
    let _scope = millpond::tag("activations");
    let held = tenant.alloc::<u8>(3 << 20, &stream).expect("fits");
    let _others = pool.alloc::<u8>(8 << 20, &stream).expect("fits");
    let error = tenant.alloc::<u8>(2 << 20, &stream).expect_err("over the budget");
    let said = error.to_string();
    let lines: Vec<_> = said.lines().map(str::trim).collect();
    assert_eq!(
        lines,
        [
            "out of memory: 2.00 MiB requested, 1.00 MiB over budget 'tenant' (3.00 MiB of 4.00 MiB allocated)",
            "3.00 MiB in 1 block held by activations",
            "to free: at least 1.00 MiB; the smallest sufficient block has 3.00 MiB",
        ]
    );
    drop(held);
    assert_eq!(budget.used(), 0);
    assert!(tenant.alloc::<u8>(2 << 20, &stream).is_ok());
}

#[test]
fn tenants_have_budgets_of_their_own_and_may_wait() {
    let Some((device, stream)) = device() else { return };
    let pool = builder().limit(16 * MIB).build(&device).expect("a pool");
    let budget = Budget::builder("tenant")
        .measure(Measure::Allocated)
        .limit(4 * MIB)
        .build();
    let budget = budget.expect("a budget");
    let tenant = pool.tenant(&budget).expect("it counts blocks");
    let held = tenant.alloc_from(&vec![3u32; 1 << 19], &stream).expect("fits");
    assert_eq!(budget.used(), 2 * MIB);
    assert!(tenant.alloc::<u8>(3 << 20, &stream).is_err());
    assert!(pool.tenant(&Budget::root("reserved")).is_err());

    // Another thread frees in time, to the budget and to the pool.
    let patient = tenant.wait(Duration::from_secs(60));
    let giver = std::thread::spawn(move || drop(held));
    assert_eq!(
        patient
            .alloc_zeroed::<u8>(4 << 20, &stream)
            .expect("in time")
            .len(),
        4 << 20
    );
    giver.join().expect("it gave");

    let held = pool.alloc::<u8>(14 << 20, &stream).expect("fits");
    assert!(pool.alloc::<u8>(14 << 20, &stream).is_err());
    assert!(
        pool.waiting(Duration::from_millis(20))
            .alloc::<u8>(14 << 20, &stream)
            .is_err()
    );
    let giver = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        drop(held);
    });
    let waited = pool
        .waiting(Duration::from_secs(60))
        .alloc::<u8>(14 << 20, &stream);
    assert_eq!(waited.expect("in time").len(), 14 << 20);
    giver.join().expect("it gave");
}

#[test]
fn observers_receive_all_events() {
    if !is_alone("observers_receive_all_events") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let pool = builder()
        .name("seen")
        .limit(8 * MIB)
        .track(None)
        .build(&device)
        .expect("a pool");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let id = pool.subscribe(move |event: &Event<'_>| {
        let what = (
            event.kind,
            event.requested,
            event.bytes,
            event.tag.name().to_string(),
        );
        told.lock()
            .expect("whole")
            .push((what, event.pool.name.to_string(), event.pool.device));
    });
    {
        let _scope = millpond::tag("activations");
        drop(pool.alloc::<f32>(1000, &stream).expect("fits"));
    }
    assert!(pool.alloc::<u8>(9 << 20, &stream).is_err());
    pool.trim();
    let reserved = pool.stats().reserved.peak as usize;
    pool.unsubscribe(id);
    drop(pool.alloc::<f32>(7, &stream).expect("nobody is told"));
    let seen = std::mem::take(&mut *seen.lock().expect("whole"));
    assert!(
        seen.iter()
            .all(|(_, name, on)| name == "seen" && *on == Device::Cuda(device.number()))
    );
    let kinds: Vec<_> = seen.iter().map(|((kind, ..), ..)| *kind).collect();
    use EventKind::{Allocated, Freed, Refilled, Refused, Trimmed};
    assert_eq!(kinds, [Allocated, Refilled, Freed, Refused, Trimmed]);
    let ((_, requested, bytes, tag), ..) = &seen[0];
    assert_eq!((*requested, tag.as_str()), (4000, "activations"));
    assert!(*bytes >= 4000);
    assert_eq!((seen[1].0.2, seen[3].0.1), (reserved, 9 << 20));
}

#[test]
fn the_ledger_shows_the_holders_of_memory() {
    let Some((device, stream)) = device() else { return };
    let pool = builder()
        .track(Some(Tracking::All))
        .limit(16 * MIB)
        .build(&device)
        .expect("a pool");
    let held = {
        let _scope = millpond::tag("weights");
        [1000, 50].map(|len| pool.alloc::<f32>(len, &stream).expect("fits"))
    };
    let largest = pool.largest(1).expect("an account");
    assert_eq!(
        (largest[0].requested, largest[0].address as u64),
        (4000, held[0].address())
    );
    assert_eq!(pool.larger_than(1000).expect("an account").len(), 1);
    let account = pool.ledger().expect("an account");
    assert_eq!(
        (account.by_tag()[0].tag, account.blocks()),
        (Tag::new("weights"), 2)
    );
    let large = pool.alloc::<u8>(13 << 20, &stream).expect("fits");
    let error = pool.alloc::<u8>(4 << 20, &stream).expect_err("no room");
    let said = error.post_mortem().expect("it says why").to_string();
    assert!(
        said.contains("weights") && !said.contains("keeps no account"),
        "{said}"
    );
    drop((held, large));
    assert!(pool.leak_report().expect("an account").is_empty());
    pool.track(None);
    assert!(pool.ledger().is_none() && pool.largest(1).is_none());
    let all = pool.alloc::<u8>(13 << 20, &stream).expect("fits");
    let error = pool.alloc::<u8>(4 << 20, &stream).expect_err("no room");
    assert!(error.to_string().contains("keeps no account"), "{error}");
    drop(all);
}

#[test]
fn memory_of_other_users_of_the_device_is_reported() {
    if !is_alone("memory_of_other_users_of_the_device_is_reported") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let pool = builder().build(&device).expect("a pool");
    let before = pool.used_elsewhere();
    // This allocation bypasses this crate's pools, as another library's would.
    let address = emulator::allocate(512 << 20);
    let elsewhere = pool.used_elsewhere();
    assert!(
        emulator::is_about(elsewhere, before + (512 << 20)),
        "{elsewhere}, {before} before"
    );
    let too_much = usize::try_from(pool.limit() * 99 / 100).expect("it fits");
    let most = pool.alloc::<u8>(too_much, &stream);
    let error = pool.alloc::<u8>(too_much, &stream).expect_err("no room");
    let said = error.post_mortem().expect("it says why").to_string();
    assert!(said.contains("of the device used by others"), "{said}");
    emulator::free(address);
    drop(most);
    let elsewhere = pool.used_elsewhere();
    assert!(
        emulator::is_about(elsewhere, before),
        "{elsewhere}, {before} before"
    );
}

#[test]
fn memory_can_be_reserved_in_advance() {
    if !is_alone("memory_can_be_reserved_in_advance") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let pool = builder()
        .prewarm(Prewarm::of([(4 << 20, 3), (1000, 10)]))
        .capacity(24 * MIB)
        .build(&device)
        .expect("a pool");
    let stats = pool.stats();
    assert!(stats.reserved.current >= 24 * MIB);
    assert_eq!(
        (stats.allocations, stats.requested.peak, stats.hit_rate()),
        (0, 0, 0.0)
    );
    let held = [0; 3].map(|_| pool.alloc::<u8>(4 << 20, &stream).expect("fits"));
    assert_eq!((pool.stats().hits, pool.stats().allocations), (3, 3));
    pool.reserve(40 * MIB).expect("there is as much");
    assert!(pool.stats().reserved.current >= 40 * MIB);
    drop(held);
    let stats = pool.stats();
    assert_eq!(stats.requested.peak, 12 * MIB);
    pool.reset_peak();
    assert_eq!(pool.stats().requested.peak, 0);
    pool.collect_garbage();
    pool.clear();
    let stats = pool.stats();
    assert_eq!(
        (stats.reserved.current, stats.reserved.peak, stats.allocations),
        (0, 0, 0)
    );
    pool.set_limit(8 * MIB);
    assert!(pool.reserve(9 * MIB).is_err());
    assert!(pool.stats().reserved.current <= 8 * MIB);
}

#[test]
fn six_sizes_can_be_prewarmed() {
    if !is_alone("six_sizes_can_be_prewarmed") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let six = Prewarm::six_sizes(24 << 20);
    let pool = builder().prewarm(six).build(&device).expect("a pool");
    let before = pool.stats();
    let held: Vec<_> = (0..6)
        .flat_map(|step| std::iter::repeat_n(1024 << (2 * step), (4 << 20) >> (10 + 2 * step)))
        .map(|bytes| pool.alloc::<u8>(bytes, &stream).expect("fits"))
        .collect();
    let after = pool.stats();
    assert_eq!((after.hits, after.hit_rate()), (held.len() as u64, 1.0));
    assert_eq!(after.reserved, before.reserved);
}

#[test]
fn an_empty_pool_has_ratios_of_zero_and_a_limit_of_most_of_the_device() {
    let Some((device, _)) = device() else { return };
    let pool = builder().build(&device).expect("a pool");
    let stats = pool.stats();
    let ratios = (stats.hit_rate(), stats.utilisation(), stats.fragmentation_ratio());
    assert_eq!((ratios, stats.overhead()), ((0.0, 0.0, 0.0), None));
    let total = device.memory().expect("it says").total;
    assert_eq!(pool.limit(), (total as f64 * 0.8) as u64);
    pool.configure("limit:2GB").expect("it has it");
    assert_eq!(pool.limit(), 2_000_000_000);
    let half = builder().memory_fraction(0.5).build(&device).expect("a pool");
    assert_eq!(half.limit(), total / 2);
}

#[test]
fn the_policy_of_powers_of_two_is_selected_by_name() {
    let Some((device, stream)) = device() else { return };
    let pool = builder().policy("pow2").build(&device).expect("a pool");
    for (asked, given) in [(3 << 20, 4 << 20), ((4 << 20) + 1, 8 << 20), (1 << 20, 1 << 20)] {
        let held = pool.alloc::<u8>(asked, &stream).expect("fits");
        let stats = pool.stats();
        assert_eq!(
            (stats.requested.current, stats.allocated.current),
            (asked as u64, given)
        );
        drop(held);
    }
    let again = pool.alloc::<u8>((2 << 20) + 5, &stream).expect("fits");
    assert_eq!(pool.stats().hits, 1, "of the same class: {again:?}");
}

#[test]
fn blocks_that_wait_for_a_stream_are_active_and_not_allocated() {
    if !is_alone("blocks_that_wait_for_a_stream_are_active_and_not_allocated") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let pool = builder().build(&device).expect("a pool");
    let other = CudaStream::new(&device).expect("a stream");
    let mut buffer = pool.alloc::<u8>(3 << 20, &stream).expect("fits");
    buffer.record_use(&other).expect("of the device");
    drop(buffer);
    let stats = pool.stats();
    assert_eq!(stats.allocated.current, 0);
    assert_eq!(stats.active(), stats.waiting);
    other.synchronize().expect("it ends");
    pool.collect_garbage();
    assert_eq!(pool.stats().waiting, 0);
}

#[test]
fn an_unpooled_device_keeps_no_freed_memory() {
    if !is_alone("an_unpooled_device_keeps_no_freed_memory") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let plain = UnpooledDevice::new(&device).expect("a device");
    let [first, second] = [plain.clone(), plain.clone()].map(|plain| {
        let filled: Vec<u16> = (0..5000).collect();
        let buffer = plain.alloc_from(&filled, &stream).expect("fits");
        assert!(buffer.pool().is_none() && buffer.to_vec().expect("a copy") == filled);
        buffer
    });
    assert!(plain.held_bytes() >= 20_000);
    let frees = || emulator::calls(Some(c"cuMemFree_v2"));
    let before = frees();
    first.free();
    assert_eq!(frees(), before + 1, "at once");
    assert!(plain.held_bytes() >= 10_000);
    second.free();
    assert_eq!(plain.held_bytes(), 0);
    assert_eq!(plain.alloc::<u8>(0, &stream).expect("nothing").address(), 0);
}

#[test]
fn tenants_do_not_see_contents_of_other_tenants() {
    let Some((device, stream)) = device() else { return };
    let pool = builder().zero_on_reuse(true).build(&device).expect("a pool");
    let secret = pool.alloc_from(&[7u8; 4096], &stream).expect("fits");
    let address = secret.address();
    drop(secret);
    let next = pool.alloc::<u8>(4096, &stream).expect("fits");
    assert_eq!(next.address(), address);
    assert!(next.to_vec().expect("a copy").iter().all(|byte| *byte == 0));
    pool.set_zero_on_reuse(false);
    let secret = pool.alloc_from(&[7u8; 4096], &stream).expect("fits");
    let address = secret.address();
    drop(secret);
    let next = pool.alloc::<u8>(4096, &stream).expect("fits");
    assert_eq!((next.address(), next.to_vec().expect("a copy")[0]), (address, 7));
}

#[test]
fn settings_without_effect_are_refused() {
    let Some((device, _)) = device() else { return };
    let refused = |builder: DevicePoolBuilder, says: &str| {
        let error = builder.build(&device).expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(
        DevicePool::builder().settings("huge-pages:2MiB"),
        "only pools of host memory",
    );
    refused(
        DevicePool::builder().settings("guard:on"),
        "only pools of host memory",
    );
    refused(
        DevicePool::builder().settings("high-water:1GB").policy("bfc"),
        "high-water",
    );
    refused(DevicePool::builder().settings("no-such-key:1"), "no-such-key");
    refused(builder().policy("nothing"), "choose one of");
    refused(builder().capacity(1 << 60), "from the start");
    refused(builder().memory_fraction(1.5), "at most 1");
    let error = builder()
        .memory_fraction(f64::NAN)
        .build(&device)
        .expect_err("refused");
    assert!(matches!(error, DevicePoolError::Fraction(_)));
    let pool = DevicePool::builder()
        .settings("limit:64MiB,capacity:8MiB,track:off,zero-on-reuse:on")
        .memory(CudaMemory::Plain)
        .build(&device)
        .expect("a pool");
    assert_eq!((pool.limit(), pool.ledger().is_none()), (64 * MIB, true));
    assert!(pool.stats().reserved.current >= 8 * MIB);
    assert!(pool.name().contains("cuda:0"));
}

/// A pool uses the settings of the environment that apply to it, and ignores those for the host only.
#[test]
fn settings_in_the_environment_apply_to_all_pools() {
    const TEST: &str = "settings_in_the_environment_apply_to_all_pools";
    if !emulator::is_child(TEST) {
        let (passed, text) = emulator::child_with(
            TEST,
            &[("MILLPOND_CONF", "limit:48MiB,huge-pages:system,track:off")],
        );
        assert!(passed, "{text}");
        return;
    }
    let Some((device, _)) = device() else { return };
    let pool = DevicePool::new(&device).expect("a pool");
    assert_eq!((pool.limit(), pool.ledger().is_none()), (48 * MIB, true));
    assert_eq!(
        builder().build(&device).expect("a pool").limit(),
        builder().limit(u64::MAX).build(&device).expect("a pool").limit()
    );
}

/// An observer of a budget may call the pool that exceeds the limit.
#[test]
fn a_callback_of_a_soft_limit_may_call_the_pool() {
    let Some((device, stream)) = device() else { return };
    let seen = Arc::new(Mutex::new((None::<DevicePool>, 0)));
    let told = Arc::clone(&seen);
    let card = Budget::builder("card")
        .limit(256 * MIB)
        .soft_limit(8 * MIB, move |_| {
            let pool = told.lock().expect("whole").0.clone();
            let reserved = pool.map_or(0, |pool| {
                pool.trim();
                pool.stats().reserved.current
            });
            told.lock().expect("whole").1 = reserved;
        })
        .build()
        .expect("a budget");
    let pool = builder().budget(&card).build(&device).expect("a pool");
    seen.lock().expect("whole").0 = Some(pool.clone());
    let held = pool.alloc::<u8>(32 << 20, &stream).expect("fits");
    assert!(seen.lock().expect("whole").1 >= 32 * MIB);
    drop(held);
    seen.lock().expect("whole").0 = None;
}

/// A waiting request gets memory that another pool of the device keeps, once it is free.
#[test]
fn a_waiting_request_gets_memory_that_another_pool_frees() {
    let Some((device, stream)) = device() else { return };
    let both = Budget::builder("both").limit(64 * MIB).build().expect("a budget");
    let [one, other] =
        ["one", "other"].map(|name| builder().name(name).budget(&both).build(&device).expect("a pool"));
    let held = other.alloc::<u8>(60 << 20, &stream).expect("fits");
    let asker = std::thread::spawn(move || {
        let blocks = Budget::builder("patient").measure(Measure::Allocated).build();
        let tenant = one.tenant(&blocks.expect("a budget")).expect("it counts blocks");
        let patient = tenant.wait(Duration::from_secs(60));
        patient.alloc::<u8>(40 << 20, &stream).map(|buffer| buffer.len())
    });
    std::thread::sleep(Duration::from_millis(20));
    drop(held);
    assert_eq!(asker.join().expect("it ends").expect("there is room"), 40 << 20);
}

/// Returns the positions of a program's blocks relative to the first, and counts of the pool. The program often allocates
/// a size that it has just freed. With `told_at_once`, the engine learns of every free before the next request.
fn places(
    device: &CudaDevice,
    stream: &CudaStream,
    policy: &str,
    told_at_once: bool,
) -> (Vec<i64>, [u64; 4]) {
    let pool = builder().policy(policy).build(device).expect("a pool");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut dice = |sides: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % sides
    };
    let (mut live, mut places, mut first) = (Vec::new(), Vec::new(), None);
    let mut size = 1_usize;
    for _ in 0..3000 {
        let free = !live.is_empty() && dice(16) >= 16 - (live.len() as u64).min(9);
        if free {
            // The program frees the last block, like a temporary, or any block.
            let at = if dice(3) > 0 {
                live.len() - 1
            } else {
                dice(live.len() as u64) as usize
            };
            drop(live.swap_remove(at));
            if told_at_once {
                let _ = pool.stats();
            }
        }
        if !free || dice(4) > 0 {
            if !free || dice(4) == 0 {
                size = 1 + dice(3 << 20) as usize;
            }
            let block = pool.alloc::<u8>(size, stream).expect("room");
            let base = *first.get_or_insert(block.address());
            places.push(block.address().wrapping_sub(base) as i64);
            live.push(block);
        }
    }
    let stats = pool.stats();
    let counts = [stats.allocations, stats.frees, stats.hits, stats.reserved.peak];
    (places, counts)
}

#[test]
fn a_reused_block_has_the_address_that_the_engine_would_choose() {
    if !is_alone("a_reused_block_has_the_address_that_the_engine_would_choose") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let serves = |name: &&str| {
        let policy = policies::build(name, &Settings::default()).expect("a policy");
        device.has_virtual_memory() || !policy.needs_pages()
    };
    for policy in policies::names().filter(serves) {
        let told = places(&device, &stream, policy, true);
        let quick = places(&device, &stream, policy, false);
        assert_eq!(quick, told, "{policy}");
    }
}
