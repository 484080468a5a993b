//! Every policy over real memory: blocks of an engine can be written, and belong to their holder alone.

#![cfg(target_os = "linux")]

mod support;

use millpond::engine::{AllocError, Block, CallKind, Counted, Engine, Request, Settings, Stream, policies};
use millpond::{Host, source::MemorySource};
use support::memory::{is_stamped, stamp};

const MIB: u64 = 1 << 20;

fn host(capacity: Option<u64>, aliases: bool) -> Counted<Host> {
    let host = Host::builder().page_bytes(64 << 10).capacity(capacity);
    let host = host.aliases(aliases);
    Counted::new(host.build().expect("ordinary pages"))
}

/// Returns the number of checked bytes of a block, in whole words.
fn seen(block: &Block) -> u64 {
    block.requested() / 8 * 8
}

fn run<S: MemorySource>(policy: &str, source: S, steps: u64) -> Engine<S> {
    let policy = policies::build(policy, &Settings::default()).expect("a policy");
    let mut engine = Engine::new(policy, source);
    let mut live: Vec<(Block, u64)> = Vec::new();
    let mut dice = 0x2545_f491_4f6c_dd1du64;
    let mut roll = move |below: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % below
    };
    for step in 1..steps {
        if roll(100) < 55 {
            let bytes = 64 + (roll(8192) << roll(10));
            match engine.allocate(Request::new(bytes, Stream(roll(2) as u32))) {
                Ok(block) => {
                    stamp(engine.source(), block.address(), seen(&block), step << 32);
                    live.push((block, step << 32));
                }
                Err(error) => assert!(matches!(error, AllocError::Exhausted { .. }), "{error}"),
            }
        } else if !live.is_empty() {
            let (block, value) = live.swap_remove(roll(live.len() as u64) as usize);
            assert!(
                is_stamped(engine.source(), block.address(), seen(&block), value),
                "step {step}"
            );
            engine.free(block, &[]);
        }
    }
    for (block, value) in live {
        assert!(is_stamped(engine.source(), block.address(), seen(&block), value));
        engine.free(block, &[]);
    }
    engine.release_cached();
    engine
}

#[test]
fn every_policy_serves_from_the_host() {
    for policy in policies::names() {
        let capacities = [Some(48 * MIB), Some(512 * MIB), None];
        let with = |aliases| capacities.map(|capacity| (capacity, aliases));
        for (capacity, aliases) in with(false).into_iter().chain(with(true)) {
            let engine = run(policy, host(capacity, aliases), 1500);
            let counts = engine.source().counts();
            let (moves, seconds) = (counts.of(CallKind::Move).calls, counts.of(CallKind::Alias).calls);
            let (used, unused) = if aliases {
                (seconds, moves)
            } else {
                (moves, seconds)
            };
            assert!(
                unused == 0 && (used > 0 || policy != "millpond"),
                "{policy}: {moves} moves, {seconds} second mappings"
            );
            assert!(
                engine.stats().allocations > 300,
                "{policy} {capacity:?}: {:?}",
                engine.stats()
            );
            assert_eq!(
                counts.held().current,
                engine.stats().reserved.current,
                "{policy} {capacity:?}"
            );
            assert_eq!(
                counts.held().peak,
                engine.stats().reserved.peak,
                "{policy} {capacity:?}"
            );
        }
    }
}
