//! `millpond diff`: compares two recordings or two moments of one, and checks limits that can fail a build.

use crate::args::DiffArgs;
use crate::exit::{CliError, Exit, complain};
use crate::progress::Work;
use crate::stack;
use crate::symbols::ModuleSymbols;
use crate::table::{Align, Grid, Row};
use crate::terminal::{bold, green, red, width, yellow};
use crate::text::{counted, item, number, percent, short, size};
use crate::{files, output};
use millpond_replay::PoolOccupancy;
use millpond_replay::analysis::{
    At, By, Change, Diff, Gate, Lines, Measure, Moment, Verdict, Window, at, diff, missing,
};
use millpond_trace::recording::End;
use serde::Serialize;
use std::path::Path;

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// Runs the command.
pub(crate) fn command(args: &DiffArgs) -> Result<Exit, CliError> {
    if args.second.is_none() && !args.at.two {
        return Err(CliError::Usage(
            "name a second recording, or two moments of the one, such as --at step:2,step:50".to_owned(),
        ));
    }
    let second = args.second.as_deref().unwrap_or(&args.first);
    let sides = [
        side(&args.first, args.at.first, args.quiet)?,
        side(second, args.at.second, args.quiet)?,
    ];
    let [before, after] = &sides;
    let usual = match [before.usual, after.usual] {
        [By::Site, By::Site] => By::Site,
        _ => By::Tag,
    };
    let by = args.by.map_or(usual, By::from);
    let mut compared = diff(
        [&before.at.summary, &after.at.summary],
        [before.at.held(), after.at.held()],
        by,
        args.top,
    );
    if let [Some(first), Some(last)] = [&before.state, &after.state] {
        compared.measures.extend(state_measures(first, last));
    }
    let gates = judge(args, &sides, &compared)?;
    if args.json {
        output::print_json(&value(by, &sides, &compared, &gates))?;
    } else {
        output::print(&text(args, by, &sides, &compared, &gates))?;
    }
    let failed: Vec<String> = gates.iter().filter(|gate| gate.fails).map(told).collect();
    for line in &failed {
        complain(line);
    }
    Ok(if failed.is_empty() {
        Exit::Done
    } else {
        Exit::Failed
    })
}

struct Side {
    name: String,
    at: At,
    /// The usual grouping of the recording's blocks.
    usual: By,
    /// The bytes that one stack represents, if the groups of the comparison are estimates.
    bytes_per_sample: Option<u64>,
    /// The sum of all segments, if the recording has no history.
    state: Option<PoolOccupancy>,
    /// The reason why figures may be too low, if events are lost or the end is missing.
    incomplete: Option<String>,
}

impl Side {
    /// Returns the name of the moment that is compared.
    fn moment(&self, asked: Moment) -> String {
        if self.at.summary.state_only {
            return "the moment of its snapshot".to_owned();
        }
        moment(asked)
    }
}

fn side(path: &Path, moment: Moment, quiet: bool) -> Result<Side, CliError> {
    let history = files::open_history(path, &Work::new(quiet))?;
    let failed = |source| CliError::Analysis {
        path: path.to_owned(),
        source,
    };
    let symbols = ModuleSymbols::new(&history.definitions);
    let at = at(&history, &symbols, Lines::LeftOut, Window::ALL, moment, 0).map_err(failed)?;
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(Side {
        name: name.to_string_lossy().into_owned(),
        at,
        usual: By::usual(&history.definitions),
        bytes_per_sample: By::Site.bytes_per_sample(&history),
        incomplete: (history.lost > 0 || matches!(history.end, Some(End::Cut { .. } | End::Damaged { .. })))
            .then(|| missing(&history).into_iter().next())
            .flatten(),
        state: history
            .state_only
            .then(|| PoolOccupancy::of_all(&history.standing)),
    })
}

/// Compares the segments of two snapshots without a history.
fn state_measures(before: &PoolOccupancy, after: &PoolOccupancy) -> Vec<Measure> {
    type Figure = (&'static str, bool, fn(&PoolOccupancy) -> u64);
    let figures: [Figure; 6] = [
        ("reserved", true, |of| of.reserved_bytes),
        ("segments", false, |of| of.segments),
        ("free", true, |of| of.free_bytes),
        ("holes", false, |of| of.holes),
        ("largest hole", true, |of| of.largest_hole_bytes),
        ("can be given back", true, |of| of.returnable_bytes),
    ];
    let measure = |(name, is_bytes, of): (&'static str, bool, fn(&PoolOccupancy) -> u64)| Measure {
        name,
        before: Some(of(before) as f64),
        after: Some(of(after) as f64),
        is_bytes,
    };
    figures.into_iter().map(measure).collect()
}

/// The result of a limit.
#[derive(Serialize)]
struct Judged {
    condition: String,
    fails: bool,
    before: Option<f64>,
    after: Option<f64>,
    #[serde(skip)]
    measure: Measure,
}

/// Checks all limits. A limit that cannot be judged is an error, because it must not look like a success.
fn judge(args: &DiffArgs, sides: &[Side; 2], compared: &Diff) -> Result<Vec<Judged>, CliError> {
    let incomplete = sides
        .iter()
        .find_map(|side| Some((&side.name, side.incomplete.as_ref()?)));
    let one = |gate: &Gate| {
        let (fails, measure) = match (gate.judge(compared), incomplete) {
            (Verdict::Passes(_), Some((name, why))) => {
                return Err(CliError::Usage(format!(
                    "--fail-if {gate}: '{name}' is incomplete, so this cannot be judged: {why}"
                )));
            }
            (Verdict::Fails(measure), _) => (true, measure),
            (Verdict::Passes(measure), None) => (false, measure),
            (Verdict::Unknown(measure), _) => {
                return Err(CliError::Usage(format!(
                    "--fail-if {gate}: a recording has no figure for '{}', so this cannot be judged",
                    measure.name
                )));
            }
        };
        Ok(Judged {
            condition: gate.to_string(),
            fails,
            before: measure.before,
            after: measure.after,
            measure,
        })
    };
    args.fail_if.iter().map(one).collect()
}

#[derive(Serialize)]
struct Value<'a> {
    schema: u32,
    names: [&'a str; 2],
    times_ns: [u64; 2],
    by: By,
    #[serde(flatten)]
    diff: &'a Diff,
    fail_if: &'a [Judged],
    missing: [&'a [String]; 2],
}

fn value<'a>(by: By, sides: &'a [Side; 2], compared: &'a Diff, gates: &'a [Judged]) -> Value<'a> {
    let [before, after] = sides;
    Value {
        schema: SCHEMA,
        names: [&before.name, &after.name],
        times_ns: [before.at.held().time, after.at.held().time],
        by,
        diff: compared,
        fail_if: gates,
        missing: [
            &before.at.summary.loss.sentences,
            &after.at.summary.loss.sentences,
        ],
    }
}

fn text(args: &DiffArgs, by: By, sides: &[Side; 2], compared: &Diff, gates: &[Judged]) -> String {
    let [before, after] = sides;
    let mut out = format!(
        "{} at {} against {} at {}\n",
        bold(&before.name),
        before.moment(args.at.first),
        bold(&after.name),
        after.moment(args.at.second)
    );
    for side in sides {
        for missing in &side.at.summary.loss.sentences {
            let line = format!("{}: {missing}", side.name);
            out.push_str(&format!("{}\n", item(&yellow("!"), &line, width())));
        }
    }
    out.push_str(&format!("\n{}\n", measures(compared)));
    let per_sample = sides.iter().filter_map(|side| side.bytes_per_sample).max();
    out.push_str(&groups(
        compared,
        by,
        per_sample.filter(|_| matches!(by, By::Site | By::Stack)),
    ));
    if !gates.is_empty() {
        out.push('\n');
    }
    for gate in gates {
        let mark = if gate.fails { red("✗") } else { green("✓") };
        out.push_str(&format!("{}\n", item(&mark, &told(gate), width())));
    }
    out
}

fn moment(moment: Moment) -> String {
    match moment {
        Moment::Peak => "the peak".to_owned(),
        Moment::End => "the end".to_owned(),
        Moment::Time(time) => crate::text::duration_us(time as f64 / 1e3),
        Moment::Step(step) => format!("the peak of step {step}"),
    }
}

fn told(gate: &Judged) -> String {
    let verdict = if gate.fails { "holds" } else { "does not hold" };
    let of = |figure| shown(&gate.measure, figure);
    format!(
        "{} {verdict}: {} before, {} after",
        gate.condition,
        of(gate.before),
        of(gate.after)
    )
}

fn shown(measure: &Measure, figure: Option<f64>) -> String {
    match figure {
        None => "not recorded".to_owned(),
        Some(bytes) if measure.is_bytes => size(bytes as u64),
        Some(share) if measure.name == "fragmentation" => percent(share),
        Some(count) => number(count as u64),
    }
}

fn measures(compared: &Diff) -> String {
    // Figures that neither recording contains get no row.
    let told = |measure: &&Measure| measure.before.is_some() || measure.after.is_some();
    let rows: Vec<&Measure> = compared.measures.iter().filter(told).collect();
    let mut grid = Grid::new();
    let column = |of: &dyn Fn(&Measure) -> String| rows.iter().map(|measure| of(measure)).collect::<Vec<_>>();
    grid.column("  figure", Align::Left, column(&|m| format!("  {}", m.name)));
    grid.column("before", Align::Right, column(&|m| shown(m, m.before)));
    grid.column("after", Align::Right, column(&|m| shown(m, m.after)));
    grid.column("change", Align::Right, column(&difference));
    grid.render(&[])
}

fn difference(measure: &Measure) -> String {
    let (Some(before), Some(after)) = (measure.before, measure.after) else {
        return String::new();
    };
    if measure.name == "fragmentation" {
        return format!("{:+.1} points", (after - before) * 100.0);
    }
    relative(before, after)
}

fn relative(before: f64, after: f64) -> String {
    if before == after {
        return "=".to_owned();
    }
    if before == 0.0 {
        return "new".to_owned();
    }
    let share = (after - before) / before * 100.0;
    if share.abs() >= 1000.0 {
        format!("×{:.0}", after / before)
    } else {
        format!("{share:+.1} %")
    }
}

/// Returns the table of groups. If they are estimates, `per_sample` is the number of bytes that one stack represents.
fn groups(compared: &Diff, by: By, per_sample: Option<u64>) -> String {
    let title = bold(&format!("Held then, by {}", by.name()));
    if compared.groups.is_empty() {
        let same = counted(compared.unchanged, "group");
        return format!("\n{title}\n  {same}, all with the same bytes in both\n");
    }
    let mut rows: Vec<Change> = compared.groups.clone();
    if compared.rest_groups > 0 {
        rows.push(Change {
            name: format!("({})", counted(compared.rest_groups, "other")),
            ..compared.rest.clone()
        });
    }
    rows.push(Change {
        name: "(all)".to_owned(),
        ..compared.total.clone()
    });
    let mut grid = Grid::new();
    let column = |of: &dyn Fn(&Change) -> String| rows.iter().map(of).collect::<Vec<_>>();
    let signed = |change: &Change| match change.difference() {
        0 => "=".to_owned(),
        bytes => format!("{}{}", if change.is_more() { '+' } else { '-' }, size(bytes)),
    };
    grid.column(
        "  difference",
        Align::Right,
        column(&|change| format!("  {}", signed(change))),
    );
    grid.column(
        "",
        Align::Right,
        column(&|change| relative(change.before.shown() as f64, change.after.shown() as f64)),
    );
    grid.column(
        "before",
        Align::Right,
        column(&|change| size(change.before.shown())),
    );
    grid.column(
        "after",
        Align::Right,
        column(&|change| size(change.after.shown())),
    );
    if per_sample.is_none() {
        grid.column("blocks", Align::Right, column(&blocks));
    }
    let room = width().saturating_sub(grid.width() + 2).max(20);
    let name = |change: &Change| {
        let name = stack::head(&change.name);
        name.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    grid.column("who", Align::Left, column(&|change| short(&name(change), room)));
    let mut looks = vec![Row::Plain; compared.groups.len()];
    looks.resize(rows.len(), Row::Bound);
    let same = match compared.unchanged {
        0 => String::new(),
        some => format!("  {} the same in both\n", counted(some, "group")),
    };
    let stacks = compared.groups.iter().filter(|_| by == By::Stack);
    let names = stacks.map(|change| change.name.as_str());
    let drawn = stack::below_rows(&grid.render(&looks), rows.len(), names);
    let estimate = per_sample.map_or_else(String::new, |bytes| format!("{}\n", stack::sampling(bytes)));
    format!("\n{title}\n{drawn}{same}{estimate}")
}

fn blocks(change: &Change) -> String {
    let (before, after) = (change.before.blocks, change.after.blocks);
    if before == after {
        number(after)
    } else {
        format!("{} → {}", number(before), number(after))
    }
}
