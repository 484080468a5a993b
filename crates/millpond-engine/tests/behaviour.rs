//! Runs one suite of behaviour tests on every policy.

mod support;

use support::suite::{account, compaction, exhaustion, faults, placement, repeats, streams};

/// Creates a module of tests for each policy, and the list of the tested policies.
macro_rules! policy_behaviour {
    ($($module:ident $name:literal),* $(,)?) => {
        const TESTED: &[&str] = &[$($name),*];
        $(policy_behaviour!(@tests $module $name
            placement::{
                alignment,
                blocks_are_distinct,
                nothing_is_a_block_too,
                too_much_is_an_error,
                a_freed_block_is_reused,
                groups_share_nothing,
                the_same_calls_give_the_same_addresses,
            }
            repeats::{
                an_engine_repeats_itself_only_where_it_would,
            }
            streams::{
                another_stream_takes_only_after_a_wait,
                small_blocks_of_many_streams,
                a_block_waits_for_foreign_streams,
                each_of_several_foreign_streams_counts,
            }
            exhaustion::{
                the_refusal_tells_the_state,
                waiting_blocks_serve_when_nothing_else_does,
                nothing_waits_while_a_stream_is_captured,
                cached_blocks_give_way_to_a_large_one,
                small_blocks_of_all_streams_give_way_too,
                capacity_is_never_passed,
                release_gives_back_what_no_block_uses,
            }
            faults::{
                no_memory_at_each_call,
                a_driver_error_at_each_call,
                a_driver_error_is_told_as_such,
                no_memory_at_each_call_between_compactions_and_ticks,
                a_driver_error_at_each_call_between_compactions_and_ticks,
            }
            compaction::{
                blocks_keep_their_places_and_contents,
                nothing_that_lives_keeps_nothing,
                only_what_lives_holds_memory,
                free_memory_is_given_back,
                memory_that_waited_for_streams_is_given_back,
                a_compacted_pool_serves_on,
                time_changes_no_block,
                passed_events_are_found_at_a_tick,
            }
            account::{
                an_empty_engine_has_no_ratios,
                peaks_are_exact,
                figures_are_those_of_the_calls,
            }
        );)*
    };
    (@tests $module:ident $name:literal $($topic:ident::{$($test:ident),* $(,)?})*) => {
        mod $module {
            $($(
                #[test]
                fn $test() {
                    super::$topic::$test($name);
                }
            )*)*
        }
    };
}

// Every new policy needs a line here.
policy_behaviour! {
    millpond "millpond",
    planned "planned",
    torch_native "torch-native",
    torch_expandable "torch-expandable",
    bfc "bfc",
    rmm_pool "rmm-pool",
    rmm_arena "rmm-arena",
    cuda_async "cuda-async",
    pow2 "pow2",
    buckets "buckets",
    none "none",
}

#[test]
fn every_policy_is_tested() {
    let known: Vec<&str> = millpond_engine::policies::names().collect();
    assert_eq!(known, TESTED, "the suite's list is not the registry's");
}
