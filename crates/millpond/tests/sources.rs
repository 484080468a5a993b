//! One suite of tests, which runs for every source and for stacks of them.

#![cfg(target_os = "linux")]

mod support;

use millpond::engine::{Counted, Faulty, Limit, Limited, Logged, Simulated, Source, SourceEvent};
use millpond::{
    Host, MemoryKind, Pinned,
    source::{HostBuilder, HugePages, MemorySource, Node},
};
use std::collections::BTreeMap;
use std::sync::Mutex;
use support::suite::{account, aliases, contents, faults, misuse, programs};

/// Makes a module of tests for each source, from its constructor with a limit. Sources of real memory also get the
/// tests of memory.
macro_rules! source_behaviour {
    ($($kind:ident $module:ident $make:expr;)*) => {
        $(mod $module {
            use super::*;
            source_behaviour!(@$kind $make);
        })*
    };
    (@numbers $make:expr) => {
        source_behaviour!(@tests $make;
            account::{
                capacity_is_a_wall,
                handles_stay_whole,
                segments_are_apart,
                ranges_are_apart,
                too_much_is_an_error,
                events_pass,
            }
            aliases::{pages_are_mapped_at_a_second_address}
            programs::{random_programs_agree_with_the_model}
            faults::{each_call_fails_in_turn}
        );
    };
    (@memory $make:expr) => {
        source_behaviour!(@numbers $make);
        source_behaviour!(@tests $make;
            contents::{
                fresh_memory_is_zero,
                contents_move_along,
                contents_change_places,
                only_committed_parts_are_open,
                memory_goes_back_to_the_system,
            }
            aliases::{mappings_of_a_page_have_the_same_contents, crooked_mappings_are_refused}
            misuse::{foreign_tokens_are_refused, crooked_parts_are_refused}
            programs::{random_programs_keep_contents}
            faults::{failures_keep_contents}
        );
    };
    (@tests $make:expr; $($topic:ident::{$($test:ident),* $(,)?})*) => {
        $($(
            #[test]
            fn $test() {
                $topic::$test($make);
            }
        )*)*
    };
}

fn host(capacity: Option<u64>, rules: impl Fn(HostBuilder) -> HostBuilder) -> Option<Host> {
    match rules(Host::builder()).capacity(capacity).build() {
        Ok(host) => Some(host),
        Err(error) => {
            eprintln!("{error}");
            None
        }
    }
}

/// Returns a source of locked memory if this process may lock enough for concurrent tests.
fn pinned(capacity: Option<u64>, page: u64, rules: impl Fn(HostBuilder) -> HostBuilder) -> Option<Pinned> {
    static ENOUGH: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());
    let try_it = || {
        let mut trial = Host::builder().page_bytes(page).build_pinned().ok()?;
        let outcome = trial.take(1024 * page);
        outcome
            .inspect_err(|error| eprintln!("{error}"))
            .ok()
            .map(|segment| trial.give(segment))
    };
    let mut enough = ENOUGH.lock().expect("no test fails in here");
    if !*enough.entry(page).or_insert_with(|| try_it().is_some()) {
        return None;
    }
    let rules = rules(Host::builder()).page_bytes(page);
    rules.capacity(capacity).build_pinned().ok()
}

/// Limits a source that has no limit of its own.
fn limited<S>(capacity: Option<u64>, source: S) -> Limited<S> {
    Limited::new(source, Limit::new(capacity.unwrap_or(u64::MAX)))
}

/// Returns a source with all wrappers.
fn stacked<S: Source>(source: S) -> Logged<Counted<Faulty<S>>, impl FnMut(&SourceEvent<'_>)> {
    Logged::new(Counted::new(Faulty::new(source)), |event: &SourceEvent<'_>| {
        assert!(event.error().is_none() || event.kind().can_fail());
    })
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

// Each source needs a line here.
source_behaviour! {
    numbers simulated |capacity| Some(Simulated::new().with_capacity(capacity));
    numbers simulated_plain |capacity| Some(Simulated::new().with_capacity(capacity).with_paging(false));
    memory host_4k |capacity| host(capacity, |b| b.page_bytes(4 * KIB));
    memory host_64k |capacity| host(capacity, |b| b.page_bytes(64 * KIB));
    memory host_2m |capacity| host(capacity, |b| b);
    memory host_transparent |capacity| host(capacity, |b| b.page_bytes(4 * KIB).huge_pages(HugePages::Transparent));
    memory host_explicit |capacity| host(capacity, |b| b.huge_pages(HugePages::Explicit(2 * MIB)));
    memory host_populated |capacity| host(capacity, |b| b.page_bytes(16 * KIB).populate(true));
    memory host_node_0 |capacity| host(capacity, |b| b.page_bytes(4 * KIB).node(Node::Only(0)));
    memory host_aliases_4k |capacity| host(capacity, |b| b.page_bytes(4 * KIB).aliases(true));
    memory host_aliases_2m |capacity| host(capacity, |b| b.aliases(true));
    memory host_aliases_huge |capacity| host(capacity, |b| b.aliases(true).huge_pages(HugePages::Transparent));
    memory host_aliases_populated |capacity| host(capacity, |b| b.page_bytes(16 * KIB).populate(true).aliases(true));
    memory pinned_4k |capacity| pinned(capacity, 4 * KIB, |b| b);
    memory pinned_16k |capacity| pinned(capacity, 16 * KIB, |b| b);
    memory pinned_aliases |capacity| pinned(capacity, 4 * KIB, |b| b.aliases(true));
    numbers simulated_limited |capacity| Some(limited(capacity, Simulated::new()));
    numbers simulated_stacked |capacity| Some(limited(capacity, stacked(Simulated::new())));
    numbers simulated_boxed |capacity| Some(Box::new(Simulated::new().with_capacity(capacity)) as Box<dyn Source>);
    memory host_limited |capacity| Some(limited(capacity, host(None, |b| b.page_bytes(4 * KIB))?));
    memory host_stacked |capacity| Some(limited(capacity, stacked(host(None, |b| b)?)));
    memory host_stacked_otherwise |capacity| Some(stacked(limited(capacity, host(None, |b| b.page_bytes(64 * KIB))?)));
    memory pinned_stacked |capacity| Some(stacked(pinned(capacity, 4 * KIB, |b| b)?));
    memory host_aliases_stacked |capacity| Some(limited(capacity, stacked(host(None, |b| b.page_bytes(4 * KIB).aliases(true))?)));
    memory host_boxed |capacity| Some(Box::new(host(capacity, |b| b.page_bytes(4 * KIB))?) as Box<dyn MemorySource>);
}

#[test]
fn a_wrapped_source_has_the_kind_of_its_inner_source() {
    let pinned = Host::builder().build_pinned().expect("a source");
    let host = host(None, |b| b).expect("a source");
    assert_eq!(
        (pinned.kind(), host.kind()),
        (MemoryKind::Pinned, MemoryKind::Host)
    );
    assert_eq!(limited(None, stacked(pinned)).kind(), MemoryKind::Pinned);
    let boxed: Box<dyn MemorySource> = Box::new(limited(None, stacked(host)));
    assert_eq!(boxed.kind(), MemoryKind::Host);
    assert!(boxed.fresh_is_zero() && boxed.is_paged());
}
