//! Tests what is said about programs that run out of memory because they keep what each step makes, and about requests that the
//! program could do without.

use millpond_replay::{Device, Options, OutOfMemory, Program, RemedyKind, Selection, replay};
use millpond_trace::{ReadOptions, Trace, read_bytes};

const MIB: u64 = 1 << 20;

/// A recording of a training program, written row by row.
struct Rows {
    text: String,
    next: u64,
}

impl Rows {
    fn new() -> Self {
        let mut rows = Self {
            text: "time_us,action,id,bytes,stream,tag,address\n".to_owned(),
            next: 1,
        };
        for _ in 0..4 {
            rows.alloc(10 * MIB, "init;weights");
        }
        rows
    }

    fn alloc(&mut self, bytes: u64, tag: &str) -> u64 {
        let id = self.next;
        self.next += 1;
        self.text
            .push_str(&format!("{id},alloc,{id},{bytes},0,{tag},0\n"));
        id
    }

    fn free(&mut self, id: u64, bytes: u64) {
        self.text
            .push_str(&format!("{},free,{id},{bytes},0,,0\n", self.next));
    }

    fn oom(&mut self, bytes: u64, tag: &str) {
        let time = self.next;
        self.text.push_str(&format!("{time},oom,0,{bytes},0,{tag},1\n"));
    }

    /// A forward pass, a block that the program keeps if `kept` is not 0, and a backward pass.
    fn step(&mut self, activation: u64, kept: u64) {
        let activations: Vec<u64> = (0..4)
            .map(|_| self.alloc(activation, "fwd;layers.1;act"))
            .collect();
        if kept > 0 {
            self.alloc(kept, "metrics;update");
        }
        for id in activations.into_iter().rev() {
            let gradient = self.alloc(activation, "bwd;layers.1;grad");
            self.free(id, activation);
            self.free(gradient, activation);
        }
    }

    fn trace(&self) -> Trace {
        let recording = read_bytes(self.text.as_bytes(), "run.csv", &ReadOptions::default());
        recording.expect("valid").traces.remove(0)
    }

    fn explain(&self, device: u64) -> OutOfMemory {
        OutOfMemory::recorded(&self.trace(), &on(device)).expect("it has an event")
    }
}

fn on(device: u64) -> Options {
    Options {
        device: Device {
            bytes: Some(device),
            ..Device::UNLIMITED
        },
        ..Options::default()
    }
}

#[test]
fn a_group_that_each_step_leaves_behind_is_the_reason_and_a_smaller_batch_is_not_the_cure() {
    let mut rows = Rows::new();
    for _ in 0..12 {
        rows.step(20 * MIB, 8 * MIB);
    }
    rows.oom(8 * MIB, "metrics;update");
    // 40 MiB of weights, 96 MiB of kept blocks, and the activations of a step.
    let told = rows.explain(230 * MIB);
    let growing = told.growing.as_ref().expect("a growing group");
    assert_eq!(growing.tag, "metrics; update");
    assert_eq!(
        (growing.bytes, growing.blocks, growing.passes),
        (96 * MIB, 12, 12)
    );
    let said = told.sentences().join(" ");
    assert!(
        said.contains("metrics; update grows from step to step: it holds 96.0 MiB in 12 blocks, left by 12 forward and backward passes.")
            && said.contains("A smaller batch only delays the error."),
        "{said}"
    );
    assert!(!said.contains("Most of it"), "{said}");
}

#[test]
fn the_first_remedy_leaves_out_the_growing_group() {
    let mut rows = Rows::new();
    for _ in 0..12 {
        rows.step(20 * MIB, 8 * MIB);
    }
    rows.step(20 * MIB, 8 * MIB);
    rows.oom(120 * MIB, "fwd;head;loss");
    let told = rows.explain(250 * MIB);
    let best = told.remedies.first().expect("a remedy");
    assert_eq!(
        (best.kind, best.edits.as_slice()),
        (RemedyKind::Change, &["without=metrics; update".to_owned()][..]),
        "{told:?}"
    );
    let said = told.sentences().join(" ");
    assert!(
        said.contains("With `metrics; update` left out, the request would have been served."),
        "{said}"
    );
}

#[test]
fn state_that_stays_and_activations_of_one_step_do_not_grow() {
    let mut rows = Rows::new();
    for step in 0..12 {
        rows.step(20 * MIB, 0);
        // The first steps make the state of the optimizer.
        if step < 2 {
            for _ in 0..4 {
                rows.alloc(10 * MIB, "opt;adam");
            }
        }
    }
    rows.oom(400 * MIB, "fwd;head;loss");
    let told = rows.explain(300 * MIB);
    assert_eq!(told.growing, None);
    let said = told.sentences().join(" ");
    assert!(!said.contains("grows"), "{said}");
    assert!(
        said.contains("the request alone is 1.3 times the 300 MiB"),
        "{said}"
    );
}

/// A search for the largest batch is refused memory, and the program goes on with a smaller batch.
#[test]
fn a_refusal_that_the_program_handled_is_not_its_end() {
    let mut rows = Rows::new();
    rows.step(20 * MIB, 0);
    rows.oom(900 * MIB, "fwd;head;loss");
    (0..40).for_each(|_| rows.step(20 * MIB, 0));
    let trace = rows.trace();
    let program = Program::new(&trace, Selection::default()).expect("a program");
    assert_eq!((program.refused, program.peak_requested), (0, 140 * MIB));
    let told = rows.explain(200 * MIB);
    assert!(told.was_handled && told.remedies.is_empty());
    let said = told.sentences().join(" ");
    assert!(said.contains("The program went on without them."), "{said}");
    let report = replay(&trace, &on(200 * MIB), &|_, _| {})
        .expect("a report")
        .report;
    assert!(
        report.results[0].first_failure.is_none(),
        "{:?}",
        report.results[0]
    );
    // A later refusal ends the program. It is explained, and the first one is not replayed.
    rows.oom(120 * MIB, "fwd;head;loss");
    let told = rows.explain(200 * MIB);
    assert_eq!(
        (told.was_handled, told.refused, told.request.bytes),
        (false, 2, 120 * MIB)
    );
    let program = Program::new(&rows.trace(), Selection::default()).expect("a program");
    assert_eq!(program.refused, 1);
}
