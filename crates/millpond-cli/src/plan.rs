//! `millpond plan`: finds the repeating step of a recording, and solves its placement.

use crate::args::PlanArgs;
use crate::exit::{CliError, Exit};
use crate::progress::Work;
use crate::terminal::{bold, width};
use crate::text::{self, number, size, wrap};
use crate::{files, output};
use millpond_engine::plan::{Plan, solve};
use millpond_replay::{Program, Redactor, Selection, Steps, picture};
use serde::Serialize;
use std::io::Write;
use std::time::Instant;

/// The number of rows in the picture.
const ROWS: usize = 20;

/// The contents of the JSON.
#[derive(Serialize)]
struct Facts {
    schema: u32,
    trace: String,
    device: i32,
    /// `None` if no step repeats.
    step: Option<StepFacts>,
}

#[derive(Serialize)]
struct StepFacts {
    /// The number of equal steps in a row, and the position of the first call of each in the program.
    steps: usize,
    first_events: Vec<usize>,
    allocations: usize,
    /// Whether the steps are rounds of a loop that stays far below the program's peak. `report` does not count such rounds as steps.
    is_loop: bool,
    peak_bytes: u64,
    program_peak_bytes: u64,
    /// Allocations that are not placed because they outlive a whole step.
    unplanned: usize,
    /// Allocations whose bytes differ from step to step. Their places have the most bytes.
    varying: usize,
    /// Bytes that live when a step begins. They keep their place.
    base_bytes: u64,
    lower_bound_bytes: u64,
    plan_bytes: u64,
    /// Plan bytes over the lower bound. The best possible value is 1.
    ratio: f64,
    solve_ms: f64,
}

/// Runs the command.
pub(crate) fn command(args: &PlanArgs) -> Result<Exit, CliError> {
    for path in [&args.svg, &args.save].into_iter().flatten() {
        output::check_writable(path)?;
    }
    let selection = Selection::from(&args.selection);
    let mut traces = files::traces(&args.file, &Work::new(args.quiet), &selection)?;
    if traces.len() > 1 && (args.svg.is_some() || args.save.is_some()) {
        return Err(CliError::Usage(format!(
            "{} records {} devices; --svg and --save write the plan of one",
            args.file.display(),
            traces.len()
        )));
    }
    let mut redactor = args.redact.then(Redactor::default);
    let mut all = Vec::new();
    let mut texts = Vec::new();
    for trace in &mut traces {
        if let Some(redactor) = &mut redactor {
            redactor.redact(trace);
        }
        let program = Program::new(trace, selection)?;
        let (facts, plan) = match Steps::find(&program) {
            None => (None, None),
            Some(steps) => {
                let start = Instant::now();
                let plan = solve(steps.step.clone());
                let solve_ms = start.elapsed().as_secs_f64() * 1e3;
                (Some(facts(&steps, &plan, solve_ms)), Some(plan))
            }
        };
        let facts = Facts {
            schema: 1,
            trace: trace.origin.name.clone(),
            device: trace.origin.device,
            step: facts,
        };
        if let Some(plan) = &plan {
            if let Some(path) = &args.svg {
                let picture = picture::svg(plan, &facts.trace);
                output::write_file(path, |out| out.write_all(picture.as_bytes()))?;
                output::note(args.quiet, &format!("wrote {}", path.display()));
            }
            if let Some(path) = &args.save {
                output::write_file(path, |out| out.write_all(plan.to_text().as_bytes()))?;
                output::note(args.quiet, &format!("wrote {}", path.display()));
            }
        }
        texts.push(text(&facts, plan.as_ref()));
        all.push(facts);
    }
    match args.json {
        true => output::print_json_list(&all)?,
        false => output::print(&texts.join("\n"))?,
    }
    Ok(Exit::Done)
}

fn facts(steps: &Steps, plan: &Plan, solve_ms: f64) -> StepFacts {
    let (_, first_events) = steps.starts.split_last().unwrap_or((&0, &[]));
    StepFacts {
        steps: first_events.len(),
        first_events: first_events.to_vec(),
        allocations: plan.step.period(),
        is_loop: steps.are_a_loop(),
        peak_bytes: steps.peak,
        program_peak_bytes: steps.program_peak,
        unplanned: plan.step.slots.iter().filter(|s| !s.is_planned()).count(),
        varying: plan.step.slots.iter().filter(|s| s.varies()).count(),
        base_bytes: steps.base,
        lower_bound_bytes: plan.lower_bound,
        plan_bytes: plan.height,
        ratio: plan.height as f64 / plan.lower_bound.max(1) as f64,
        solve_ms,
    }
}

fn text(facts: &Facts, plan: Option<&Plan>) -> String {
    let mut out = format!("{}\n", bold(&facts.trace));
    let (Some(step), Some(plan)) = (&facts.step, plan) else {
        let none = "No repeating step was found. For a whole step, neither the sizes of the allocations nor the frees between them \
                    repeat. The policy planned then works like millpond.";
        out.push_str(&format!(
            "  {}\n",
            wrap(none, width().saturating_sub(2), 0).replace('\n', "\n  ")
        ));
        return out;
    };
    let mut line = |name: &str, value: String| out.push_str(&text::fact(name, &value, 18, width()));
    let unplanned = match step.unplanned {
        0 => String::new(),
        some => format!(", {} without a place", number(some as u64)),
    };
    line(
        if step.is_loop { "rounds" } else { "steps" },
        format!(
            "{} alike, {} allocations each{unplanned}",
            number(step.steps as u64),
            number(step.allocations as u64)
        ),
    );
    if step.varying > 0 {
        line(
            "sizes vary",
            format!(
                "in {} of them; each has a place for its most bytes",
                number(step.varying as u64)
            ),
        );
    }
    if step.is_loop {
        line(
            "a loop",
            format!(
                "peak {}, that of the program {}: `report` does not count these rounds as steps",
                size(step.peak_bytes),
                size(step.program_peak_bytes)
            ),
        );
    }
    line(
        "held across",
        format!(
            "{} when a step begins; it stays where it is",
            size(step.base_bytes)
        ),
    );
    line(
        "lower bound",
        format!("{}, the most live bytes in a step", size(step.lower_bound_bytes)),
    );
    line(
        "reached",
        format!("{}, {:.4} times the bound", size(step.plan_bytes), step.ratio),
    );
    line("solved in", format!("{:.1} ms", step.solve_ms));
    let columns = width().clamp(40, 120) - 4;
    let picture = picture::text(plan, columns, ROWS);
    out.push_str(&format!(
        "\n  {} at the top, one step from left to right\n",
        size(step.plan_bytes)
    ));
    for line in picture.lines() {
        out.push_str(&format!("  |{line}\n"));
    }
    out.push_str(&format!("  +{}\n", "-".repeat(columns)));
    out
}
