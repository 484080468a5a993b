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
                a_request_of_zero_bytes_gets_its_own_block,
                a_request_that_no_device_can_serve_is_an_error,
                a_freed_block_is_reused,
                groups_share_nothing,
                the_same_calls_give_the_same_addresses,
            }
            repeats::{
                repeat_has_the_same_effect_as_a_free_and_an_allocation,
            }
            streams::{
                another_stream_reuses_memory_only_after_a_wait,
                small_blocks_of_many_streams,
                a_freed_block_waits_for_another_stream_that_used_it,
                a_freed_block_waits_for_every_stream_that_used_it,
            }
            exhaustion::{
                a_refusal_reports_the_free_and_the_cached_memory,
                blocks_that_wait_for_a_stream_are_freed_when_memory_runs_out,
                no_call_waits_while_a_stream_is_captured,
                cached_blocks_are_returned_for_a_large_request,
                small_blocks_of_all_streams_make_room_for_a_large_request,
                the_capacity_is_never_exceeded,
                release_returns_memory_that_no_block_uses,
            }
            faults::{
                no_memory_at_each_call,
                a_driver_error_at_each_call,
                a_driver_error_is_reported_as_an_error_of_the_source,
                no_memory_at_each_call_between_compactions_and_ticks,
                a_driver_error_at_each_call_between_compactions_and_ticks,
            }
            compaction::{
                blocks_keep_their_places_and_contents,
                without_live_blocks_all_memory_is_returned,
                after_a_compaction_no_free_handle_or_segment_is_kept,
                a_compaction_returns_all_returnable_memory,
                memory_that_waited_for_streams_is_returned,
                a_compacted_pool_serves_further_requests,
                ticks_do_not_change_live_blocks,
                completed_events_are_found_at_a_tick,
            }
            account::{
                the_ratios_of_an_empty_engine_are_zero,
                peaks_are_exact,
                stats_match_the_calls,
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
