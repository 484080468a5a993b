//! Tests replays against the peaks of PyTorch's own allocator, which were measured with its released library.

mod support;

use std::collections::BTreeMap;
use support::{json, shared, trace};

type Figures = BTreeMap<&'static str, (u64, u64, u64)>;

/// Peak requested bytes, peak reserved bytes with the native allocator, and with expandable segments.
fn measured() -> Figures {
    BTreeMap::from([
        ("cpu_tiny_gpt_varlen", (153_098_096, 245_366_784, 171_966_464)),
        ("gnn_sage_sampled", (1_297_543_656, 3_198_156_800, 1_310_720_000)),
        (
            "gpt2m_train_amp",
            (17_617_034_216, 18_987_614_208, 18_517_852_160),
        ),
        (
            "llama1b_train_fixed",
            (36_781_472_724, 37_266_391_040, 39_048_970_240),
        ),
        (
            "llama1b_train_varlen",
            (50_625_590_596, 113_390_911_488, 54_272_196_608),
        ),
        (
            "llama8b_fsdp_streams",
            (39_375_651_860, 47_641_001_984, 44_904_218_624),
        ),
        (
            "llama8b_serve_contbatch_cat",
            (17_617_905_648, 18_039_701_504, 17_819_500_544),
        ),
        ("moe_train", (34_935_771_010, 36_083_597_312, 35_917_922_304)),
        (
            "resnet50_multires",
            (14_465_310_224, 18_951_962_624, 14_485_028_864),
        ),
        (
            "t5_large_varlen",
            (28_217_351_960, 31_304_187_904, 28_762_439_680),
        ),
        (
            "random/rmm_1MiB_100k",
            (16_777_215_997, 17_242_783_744, 17_152_606_208),
        ),
        (
            "random/rmm_64MiB_100k",
            (16_777_214_347, 20_147_339_264, 18_874_368_000),
        ),
        (
            "random/rmm_1024MiB_100k",
            (16_777_213_763, 34_951_135_232, 23_909_629_952),
        ),
    ])
}

fn check(name: &str, file: &str) {
    let (requested, native, expandable) = measured()[name];
    let report = json(&[
        "replay",
        file,
        "--json",
        "--policy",
        "torch-native,torch-expandable",
    ]);
    assert_eq!(report["peak_requested_bytes"], requested, "{name}");
    assert_eq!(
        report["results"][0]["peak_reserved_bytes"], native,
        "{name} native"
    );
    assert_eq!(
        report["results"][1]["peak_reserved_bytes"], expandable,
        "{name} expandable"
    );
}

#[test]
fn recordings_in_the_repository_replay_to_the_byte() {
    for name in [
        "cpu_tiny_gpt_varlen",
        "gnn_sage_sampled",
        "llama1b_train_varlen",
        "llama8b_fsdp_streams",
    ] {
        check(name, &trace(name));
    }
}

#[test]
fn recordings_outside_the_repository_replay_to_the_byte() {
    // Without optimisation and with all invariants checked, these take many minutes.
    if cfg!(debug_assertions) {
        eprintln!("skipped: run with --release");
        return;
    }
    let Some(shared) = shared() else { return };
    for name in measured().keys() {
        let file = shared.join(format!("{name}.csv.zst"));
        if file.is_file() {
            check(name, &file.display().to_string());
        } else {
            eprintln!("skipped: no {}", file.display());
        }
    }
}
