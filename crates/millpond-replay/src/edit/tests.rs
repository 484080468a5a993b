use super::*;
use crate::program::{Program, Selection};
use millpond_trace::{Action, InitialBlock, NO_ALLOCATION, ReadOptions, read_bytes};
use proptest::prelude::*;
use std::fmt::Write;

/// Returns a trace from lines such as `alloc 1 100 fwd;a;mm` and `free 1 100`.
fn trace(lines: &str) -> Trace {
    let mut csv = String::from("time_us,action,id,bytes,stream,tag\n");
    for (time, line) in lines
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .enumerate()
    {
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().unwrap_or("");
        let (action, id, bytes, tag) = (word(), word(), word(), word());
        writeln!(csv, "{time},{action},{id},{bytes},0,{tag}").expect("a string");
    }
    let recording = read_bytes(csv.as_bytes(), "made", &ReadOptions::default()).expect("valid");
    recording.traces.into_iter().next().expect("one device")
}

/// Returns three training steps with two layers and a loss. The parameters have 600 bytes, the state 1200 and
/// the gradients 600.
fn training() -> Trace {
    let mut lines = String::from("alloc 1 300 init;;empty\nalloc 2 300 init;;empty\n");
    for step in 0..3 {
        let id = |n: u32| 100 * (step + 1) + n;
        let mut line = |action: &str, n: u32, bytes: u64, tag: &str| {
            writeln!(lines, "{action} {} {bytes} {tag}", id(n)).expect("a string");
        };
        line("alloc", 1, 100, "data;;tokens");
        line("alloc", 2, 500, "fwd;embed;embedding");
        for layer in 0..2 {
            let at = 10 * (layer + 1);
            line("alloc", at, 1000, &format!("fwd;layers.{layer}.up;mm"));
            line("alloc", at + 1, 200, &format!("fwd;layers.{layer}.up;work"));
            line("free", at + 1, 200, "");
            line("alloc", at + 2, 1000, &format!("fwd;layers.{layer};gelu"));
            line("alloc", at + 3, 500, &format!("fwd;layers.{layer};add"));
        }
        line("alloc", 40, 4000, "fwd;head;mm");
        line("alloc", 41, 4000, "fwd;;log_softmax");
        line("free", 40, 4000, "");
        line("alloc", 42, 4000, "bwd;/LogSoftmaxBackward0;softmax");
        line("free", 41, 4000, "");
        line("alloc", 43, 500, "bwd;head/MmBackward0;mm");
        line("free", 42, 4000, "");
        for layer in [1, 0] {
            let at = 10 * (layer + 1);
            line(
                "alloc",
                at + 4,
                1000,
                &format!("bwd;layers.{layer}/GeluBackward0;gelu"),
            );
            line("free", at + 2, 1000, "");
            line(
                "alloc",
                at + 5,
                300,
                &format!("bwd;layers.{layer}.up/MmBackward0;mm"),
            );
            line("free", at, 1000, "");
            line("free", at + 4, 1000, "");
            line("free", at + 3, 500, "");
        }
        line("free", 43, 500, "");
        line("free", 2, 500, "");
        line("free", 1, 100, "");
        if step == 0 {
            line("alloc", 50, 600, "opt;;state");
            line("alloc", 51, 600, "opt;;state");
        }
        line("alloc", 52, 64, "opt;;work");
        line("free", 52, 64, "");
        line("free", 15, 300, "");
        line("free", 25, 300, "");
    }
    trace(&lines)
}

fn edited(trace: &Trace, edits: &[&str]) -> Edited {
    let edits: Vec<Edit> = edits.iter().map(|edit| edit.parse().expect("an edit")).collect();
    apply(trace, &edits).expect("applicable")
}

fn peak(trace: &Trace) -> u64 {
    Program::new(trace, Selection::default())
        .expect("allocations")
        .peak_requested
}

fn refused(trace: &Trace, edit: &str) -> String {
    let edit: Edit = edit.parse().expect("an edit");
    apply(trace, &[edit]).expect_err("refused").to_string()
}

/// Returns the sizes of all blocks with a tag.
fn sizes(trace: &Trace, tag: &str) -> Vec<u64> {
    let allocs = trace.events.iter().filter(|event| event.action == Action::Alloc);
    let tagged = allocs.filter(|event| trace.tags.get(event.tag) == tag);
    tagged.map(|event| event.bytes).collect()
}

/// State and parameters 1800, inputs 600, layers 2 x 2500, the loss and the logits.
const PEAK: u64 = 1800 + 600 + 5000 + 8000;

#[test]
fn the_program_holds_the_loss_at_its_peak() {
    assert_eq!(peak(&training()), PEAK);
}

#[test]
fn a_smaller_batch_keeps_parameters_gradients_and_state() {
    let half = edited(&training(), &["scale=0.5"]);
    assert_eq!(peak(&half.trace), 1800 + (600 + 5000 + 8000) / 2);
    for (tag, bytes) in [
        ("init;;empty", 300),
        ("opt;;state", 600),
        ("bwd;layers.0.up/MmBackward0;mm", 300),
        ("bwd;layers.0/GeluBackward0;gelu", 500),
        ("bwd;head/MmBackward0;mm", 250),
        ("fwd;layers.1.up;mm", 500),
        ("data;;tokens", 50),
    ] {
        let sizes = sizes(&half.trace, tag);
        assert!(
            !sizes.is_empty() && sizes.iter().all(|size| *size == bytes),
            "{tag}: {sizes:?}"
        );
    }
}

#[test]
fn a_gradient_that_is_copied_to_another_number_type_keeps_its_size() {
    let lines = "\
        alloc 1 400 init;;empty
        alloc 2 200 fwd;up;_to_copy
        alloc 3 400 fwd;up;_to_copy
        alloc 4 4096 fwd;up;mm
        alloc 5 200 bwd;up/MmBackward0;mm
        alloc 6 4096 bwd;up/MmBackward0;mm
        free 4 4096
        alloc 7 400 bwd;up/ToCopyBackward0;_to_copy
        free 5 200
        free 6 4096
        free 2 200
        free 3 400
        alloc 8 16 opt;;work
        free 8 16
        free 7 400";
    let half = edited(&trace(lines), &["scale=0.5"]);
    assert_eq!(sizes(&half.trace, "bwd;up/MmBackward0;mm"), [200, 2048]);
    // One is a copy of the parameter in half of its width. The other has the width of the parameter.
    assert_eq!(sizes(&half.trace, "fwd;up;_to_copy"), [200, 200]);
}

#[test]
fn constant_blocks_in_steps_of_varying_size_do_not_follow_the_batch() {
    let mut lines = String::new();
    for step in 0..4u32 {
        let (id, bytes) = (10 * (step + 1), 1000 * (step + 1));
        writeln!(
            lines,
            "alloc {id} {bytes} fwd;a;mm\nalloc {} 640 fwd;a;mask\nalloc {} {bytes} bwd;a/MmBackward0;mm\nfree {id} {bytes}\n\
             free {} 640\nfree {} {bytes}\nalloc {} 64 opt;;work\nfree {} 64",
            id + 1, id + 2, id + 1, id + 2, id + 3, id + 3
        )
        .expect("a string");
    }
    let half = edited(&trace(&lines), &["scale=0.5"]);
    assert_eq!(sizes(&half.trace, "fwd;a;mask"), [640; 4]);
    assert_eq!(sizes(&half.trace, "fwd;a;mm"), [500, 1000, 1500, 2000]);
}

#[test]
fn gathered_parameters_do_not_follow_the_batch() {
    let lines = "\
        alloc 1 4000 fwd;up;t.default
        alloc 2 1000 fwd;up;mm.default
        alloc 3 1000 bwd;up/MmBackward0;mm
        free 1 4000
        free 2 1000
        free 3 1000";
    let half = edited(&trace(lines), &["scale=0.5"]);
    assert_eq!(peak(&half.trace), 4000 + 500 + 500);
}

#[test]
fn stacks_without_gradients_are_not_scaled() {
    let lines = "\
        alloc 1 4000 model.py:forward:3<train.py:run:1
        alloc 2 1000 tensor.py:backward:9<train.py:run:1
        free 1 4000
        free 2 1000";
    assert!(refused(&trace(lines), "scale=0.5").contains("no gradients"));
}

#[test]
fn blocks_from_before_the_recording_keep_their_sizes() {
    let lines = "\
        alloc 9 9000 model.py:build:2<train.py:run:1
        alloc 1 4000 model.py:forward:3<train.py:run:1
        alloc 2 1000 tensor.py:backward:9<train.py:run:1
        alloc 3 1000 tensor.py:backward:9<train.py:run:1
        free 1 4000
        alloc 4 8 torch/optim/adam.py:step:5<train.py:run:1
        free 4 8
        free 2 1000
        free 3 1000
        free 9 9000";
    let mut trace = trace(lines);
    let made = trace.events.remove(0);
    trace.initial_blocks.push(InitialBlock {
        address: 0,
        requested: made.bytes,
        bytes: None,
        allocation: made.allocation,
        tag: made.tag,
        stream: made.stream,
        pool: made.pool,
        pending: false,
    });
    assert_eq!(peak(&trace), 9000 + 4000 + 2000);
    let half = edited(&trace, &["scale=0.5"]);
    assert_eq!(peak(&half.trace), 9000 + 2000 + 2000);
    assert!(
        half.edits[0]
            .assumes
            .iter()
            .any(|text| text.contains("before the recording"))
    );
}

#[test]
fn scaling_a_tag_changes_only_its_blocks() {
    let scaled = edited(&training(), &["scale=log_softmax:2"]);
    assert_eq!(peak(&scaled.trace), PEAK + 4000);
    assert_eq!(scaled.edits[0].changed_blocks, 3);
}

#[test]
fn pieces_are_allocated_one_after_the_other() {
    let pieces = edited(&training(), &["chunk=fwd;head;mm,*softmax:8"]);
    // Two pieces of 500 live at once. The backward pass of a layer then holds most.
    let loss = 1800 + 600 + 5000 + 1000;
    assert_eq!(peak(&pieces.trace), loss + 500);
    assert_eq!(sizes(&pieces.trace, "fwd;head;mm"), [500; 24]);
    assert_eq!(sizes(&pieces.trace, "fwd;;log_softmax"), [500; 24]);
}

#[test]
fn the_gradient_of_a_parameter_that_all_pieces_use_is_summed() {
    let lines = "\
        alloc 1 4000 fwd;head;mm
        alloc 2 4000 bwd;head/MmBackward0;mm
        free 1 4000
        alloc 3 300 bwd;head/MmBackward0;weight
        free 2 4000
        alloc 4 64 opt;;work
        free 4 64
        free 3 300";
    let pieces = edited(&trace(lines), &["chunk=head:4"]);
    // The last of four pieces: the sum, and two blocks of the chain. The gradient itself stays whole.
    assert_eq!(peak(&pieces.trace), 300 + 2000);
    assert_eq!(sizes(&pieces.trace, "bwd;head/MmBackward0;weight"), [300; 4]);
    assert_eq!(sizes(&pieces.trace, "bwd;head/MmBackward0;mm"), [1000; 4]);
}

#[test]
fn a_loss_that_a_variable_holds_does_not_join_the_pieces_of_two_steps() {
    let step = |id: u32, held: &str| {
        format!(
            "alloc {} 4000 fwd;head;loss\nalloc {} 4 fwd;head;loss\n{held}alloc {} 4000 bwd;head;loss\nfree {} 4000\n\
             free {} 4000\nalloc {} 300 bwd;up;mm\nalloc {} 64 opt;;work\nfree {} 64\nfree {} 300\n",
            id,
            id + 1,
            id + 2,
            id,
            id + 2,
            id + 3,
            id + 4,
            id + 4,
            id + 3
        )
    };
    let lines = format!("{}{}", step(10, ""), step(20, "free 11 4\n"));
    let pieces = edited(&trace(&lines), &["chunk=loss:4"]);
    assert_eq!(peak(&pieces.trace), 2000 + 4);
    // The gradient of the other module is made after the loss, so no piece adds to it.
    assert_eq!(sizes(&pieces.trace, "bwd;up;mm"), [300, 300]);
}

#[test]
fn activations_are_dropped_and_recomputed_before_the_backward_pass() {
    let made_again = edited(&training(), &["recompute=layers.*"]);
    // The outputs of both layers stay. The loss is the peak.
    assert_eq!(peak(&made_again.trace), PEAK - 4000);
    assert_eq!(sizes(&made_again.trace, "fwd;layers.0.up;mm"), [1000; 3]);
    assert_eq!(sizes(&made_again.trace, "rec;layers.0.up;mm"), [1000; 3]);
    assert_eq!(sizes(&made_again.trace, "rec;layers.0.up;work"), [200; 3]);
    // The recomputation ends with the last dropped block, so the output is not made again.
    assert_eq!(sizes(&made_again.trace, "rec;layers.0;add"), [0; 0]);
    // Without the loss, one layer and the gradients are the peak, not two layers.
    let small = edited(&training(), &["recompute=layers.*", "without=*softmax,head"]);
    let before = edited(&training(), &["without=*softmax,head"]);
    assert_eq!(peak(&before.trace), 1800 + 600 + 5000 + 1000);
    assert_eq!(peak(&small.trace), 1800 + 600 + 1000 + 2000 + 1000);
}

#[test]
fn the_input_of_a_layer_is_kept_until_its_backward_pass() {
    let lines = "\
        alloc 1 10 fwd;layers.0;mm
        alloc 2 50 fwd;layers.0;out
        alloc 3 10 fwd;layers.1;mm
        free 2 50
        alloc 4 50 fwd;layers.1;out
        alloc 5 7 bwd;layers.1/N;mm
        free 3 10
        free 4 50
        alloc 6 7 bwd;layers.0/N;mm
        free 1 10
        free 5 7
        free 6 7";
    let made_again = edited(&trace(lines), &["recompute=layers.*"]).trace;
    let mut held = Vec::new();
    let mut now: Vec<String> = Vec::new();
    let mut tags = vec![0; made_again.allocations as usize];
    for event in &made_again.events {
        if event.action == Action::Alloc {
            tags[event.allocation as usize] = event.tag;
        }
        let tag = made_again.tags.get(tags[event.allocation as usize]).to_owned();
        match event.action {
            Action::Alloc => now.push(tag),
            _ => now.retain(|held| *held != tag),
        }
        held.push(now.join(" "));
    }
    assert!(
        held.contains(&"fwd;layers.0;out fwd;layers.1;out rec;layers.1;mm".to_owned()),
        "{held:#?}"
    );
    assert!(
        !held
            .iter()
            .any(|held| held.contains("fwd;layers.1;mm") && held.contains("rec;layers.1;mm")),
        "{held:#?}"
    );
}

#[test]
fn state_and_activations_are_offloaded_between_their_uses() {
    let moved = edited(&training(), &["offload=state"]);
    assert_eq!(peak(&moved.trace), PEAK - 1200);
    // Out after the first and the second step, and back in the second and the third.
    assert_eq!(moved.edits[0].moved_bytes_per_step, Some(4 * 1200 / 3));
    assert_eq!(sizes(&moved.trace, "opt;;state"), [600; 6]);
    let activations = edited(&training(), &["offload=layers.*"]);
    assert_eq!(peak(&activations.trace), PEAK - 4000);
    assert_eq!(activations.edits[0].moved_bytes_per_step, Some(2 * 4000));
}

#[test]
fn shards_are_rounded_up() {
    let shard = edited(&training(), &["shard=state:7"]);
    assert_eq!(sizes(&shard.trace, "opt;;state"), [86, 86]);
    assert_eq!(peak(&shard.trace), PEAK - 1200 + 172);
}

#[test]
fn blocks_are_freed_after_the_next_operator() {
    let lines = "\
        alloc 1 1000 fwd;a;mm
        alloc 2 100 fwd;a;softmax
        alloc 3 10 fwd;a;softmax
        alloc 4 500 fwd;b;mm
        free 1 1000
        free 4 500
        free 2 100
        free 3 10";
    let early = edited(&trace(lines), &["free-early=a;mm"]);
    assert_eq!(peak(&early.trace), 1110);
    assert!(refused(&early.trace, "free-early=a;mm").contains("already"));
}

#[test]
fn an_operand_that_the_backward_pass_may_read_is_held_until_then() {
    let lines = |next: &str| {
        format!(
            "\
        alloc 1 1000 fwd;a;mm
        alloc 2 100 fwd;b;{next}
        alloc 3 900 fwd;c;mm
        free 3 900
        alloc 4 200 bwd;b/N;mm
        free 2 100
        alloc 5 300 bwd;a/N;mm
        free 4 200
        alloc 6 400 opt;;work
        free 6 400
        free 1 1000
        free 5 300"
        )
    };
    let early = |next| edited(&trace(&lines(next)), &["free-early=fwd;a"]).trace;
    assert_eq!(peak(&early("softmax")), 1100);
    assert_eq!(peak(&early("gelu")), 2000);
    let next_step = lines("gelu").replace("free 6 400", "free 6 400\nalloc 7 5000 data;;tokens");
    let gradient = edited(&trace(&next_step), &["free-early=bwd;a"]).trace;
    assert_eq!(peak(&gradient), peak(&trace(&next_step)) - 300);
    let both = edited(&trace(&lines("gelu")), &["free-early=fwd;a", "without=fwd;c"]).trace;
    assert_eq!(peak(&both), 1300);
}

#[test]
fn blocks_that_the_backward_pass_frees_are_not_freed_early() {
    let refusal = refused(&training(), "free-early=fwd;layers.*;gelu");
    assert!(refusal.contains("backward pass, which uses them"), "{refusal}");
}

#[test]
fn blocks_can_be_left_out() {
    let without = edited(&training(), &["without=opt;state"]);
    assert_eq!(peak(&without.trace), PEAK - 1200);
    assert_eq!(sizes(&without.trace, "opt;;state"), [0; 0]);
}

#[test]
fn edits_that_the_recording_cannot_support_are_refused() {
    let plain = trace("alloc 1 100 a;b;c\nfree 1 100\nalloc 2 100 a;b;c");
    for edit in ["scale=0.5", "recompute=b", "offload=b"] {
        assert!(refused(&plain, edit).contains("cannot be applied"), "{edit}");
    }
    let near = refused(&training(), "recompute=layer.up");
    assert!(
        near.contains("matches no block")
            && near.contains("groups of this recording: 'fwd; layers.*.up; mm'"),
        "{near}"
    );
    assert!(refused(&training(), "offload=init").contains("when other blocks are used"));
    assert!(refused(&training(), "recompute=data").contains("no block of the group"));
    assert!(refused(&training(), "recompute=fwd; layers.*; gelu").contains("the next layer keeps it"));
}

#[test]
fn edits_are_parsed_and_printed() {
    for text in [
        "scale=0.5",
        "scale=a; b:2",
        "chunk=a,b:8",
        "recompute=layers.*",
        "offload=train.py:step:10",
        "shard=opt:1024",
        "free-early=a",
        "without=*",
    ] {
        let edit: Edit = text.parse().expect(text);
        assert_eq!(edit.to_string(), text);
    }
    for text in [
        "",
        "=",
        "scale",
        "scale=",
        "scale=0",
        "scale=-1",
        "scale=nan",
        "scale=inf",
        "scale=1001",
        "scale=:0.5",
        "chunk=a",
        "chunk=a:1",
        "chunk=a:1025",
        "chunk=:8",
        "chunk=a:99999999999999999999",
        "shard=a:-2",
        "recompute=",
        "recompute=,",
        "recompute= ; ",
        "drop=a",
        "Scale=0.5",
    ] {
        assert!(text.parse::<Edit>().is_err(), "{text}");
    }
    assert!(format!("without={}", "a".repeat(5000)).parse::<Edit>().is_err());
}

#[test]
fn a_program_does_not_grow_without_bound() {
    let mut lines = String::new();
    for id in 0..20_000 {
        writeln!(lines, "alloc {id} 64 a;b;c\nfree {id} 64").expect("a string");
    }
    let edit: Edit = "chunk=a:1024".parse().expect("an edit");
    let error = apply(&trace(&lines), &[edit]).expect_err("too long");
    assert!(matches!(error, EditError::TooLong { .. }), "{error}");
}

/// Checks the properties that every reader guarantees.
fn check(trace: &Trace) {
    let mut begun = vec![false; trace.allocations as usize];
    let mut ended = vec![false; trace.allocations as usize];
    for (index, block) in trace.initial_blocks.iter().enumerate() {
        assert_eq!(block.allocation as usize, index);
        begun[index] = true;
        assert!(block.requested <= 1 << 62);
    }
    let mut next = trace.initial_blocks.len() as u32;
    for event in &trace.events {
        assert!(event.bytes <= 1 << 62);
        assert!((event.tag as usize) < trace.tags.len());
        assert!(
            usize::from(event.stream) < trace.streams.len() && usize::from(event.pool) < trace.pools.len()
        );
        assert_ne!(event.allocation, NO_ALLOCATION);
        let at = event.allocation as usize;
        if event.action == Action::Alloc {
            assert_eq!(event.allocation, next, "dense, in order of appearance");
            assert!(!std::mem::replace(&mut begun[at], true));
            next += 1;
        } else {
            assert!(begun[at]);
        }
        if matches!(event.action, Action::Free | Action::FreeRequested) {
            assert!(!std::mem::replace(&mut ended[at], true));
        }
    }
    assert_eq!(next, trace.allocations);
    assert!(begun.iter().all(|begun| *begun));
}

const TAGS: [&str; 12] = [
    "",
    "init;;empty",
    "data;;tokens",
    "fwd;layers.0.up;mm",
    "fwd;layers.0;add",
    "fwd;layers.1;_to_copy",
    "fwd;;softmax",
    "bwd;layers.1/N;mm",
    "bwd;layers.0.up/N;mm",
    "opt;;state",
    "train.py:forward:3<main.py:run:1",
    "adam.py:step:9",
];

fn random_trace() -> impl Strategy<Value = Trace> {
    let call = (
        0..12usize,
        0..40usize,
        prop_oneof![0..5000u64, Just(u64::MAX >> 2)],
        0..3u8,
    );
    prop::collection::vec(call, 1..120).prop_map(|calls| {
        let mut csv = String::from("time_us,action,id,bytes,stream,tag\n");
        let mut live: Vec<(usize, u64)> = Vec::new();
        for (id, (tag, which, bytes, action)) in calls.into_iter().enumerate() {
            if action > 0 || live.is_empty() {
                writeln!(csv, "{id},alloc,{id},{bytes},0,{}", TAGS[tag]).expect("a string");
                live.push((id, bytes));
            } else {
                let (freed, bytes) = live.remove(which % live.len());
                writeln!(csv, "{id},free,{freed},{bytes},0,").expect("a string");
            }
        }
        let recording = read_bytes(csv.as_bytes(), "random", &ReadOptions::default()).expect("valid");
        recording.traces.into_iter().next().expect("one device")
    })
}

fn random_edit() -> impl Strategy<Value = Edit> {
    let tag = prop::sample::select(vec![
        "*", "layers.*", "layers.0", "fwd", "bwd", "opt", "init,fwd", "fwd;*;mm", "softmax", "state",
        "forward*",
    ]);
    let kind = prop::sample::select(vec![
        "scale",
        "scale=TAG:1000",
        "scale=TAG:0.3",
        "chunk=TAG:3",
        "recompute=TAG",
        "offload=TAG",
        "shard=TAG:5",
        "free-early=TAG",
        "without=TAG",
    ]);
    (kind, tag, 0.001..1000.0f64).prop_map(|(kind, tag, factor)| {
        let text = match kind {
            "scale" => format!("scale={factor}"),
            kind => kind.replace("TAG", tag),
        };
        text.parse().expect("an edit")
    })
}

proptest! {
    #[test]
    fn edited_traces_keep_the_guarantees_of_readers(
        trace in random_trace(),
        edits in prop::collection::vec(random_edit(), 1..4),
    ) {
        if let Ok(edited) = apply(&trace, &edits) {
            check(&edited.trace);
            prop_assert_eq!(edited.edits.len(), edits.len());
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "(scale|chunk|shard|recompute|without|)=?[a-z*;,.: 0-9é]{0,20}") {
        if let Ok(edit) = text.parse::<Edit>() {
            let again: Edit = edit.to_string().parse().expect("the text of an edit");
            prop_assert_eq!(again.to_string(), edit.to_string());
        }
    }

    #[test]
    fn an_edit_that_frees_or_shrinks_never_raises_the_peak(trace in random_trace(), tag in 0..4usize) {
        let tag = ["*", "fwd", "layers.*", "opt"][tag];
        let before = Program::as_recorded(&trace, Selection::default()).expect("allocations").peak_requested;
        for edit in [format!("shard={tag}:3"), format!("free-early={tag}"), format!("without={tag}"), format!("offload={tag}")] {
            let edit: Edit = edit.parse().expect("an edit");
            let Ok(edited) = apply(&trace, std::slice::from_ref(&edit)) else { continue };
            let after = Program::as_recorded(&edited.trace, Selection::default()).map_or(0, |program| program.peak_requested);
            prop_assert!(after <= before, "{}: {} to {}", edit, before, after);
        }
    }
}
