//! Trains a model with PyTorch and compares what its allocator does on the card with what replays of its recording say.

use super::Session;
use super::child::Program;
use super::programs::{COMMAND, has_torch};
use super::report::Step;
use serde_json::{Value, json};

const TABLE: &str = "A training program of PyTorch's";
const EXPANDABLE: &str = "expandable_segments:True";
const NATIVE: &str = "";
/// The memory that the program takes outside of PyTorch's allocator after its start, for the code of kernels.
const BESIDE: u64 = 256 << 20;
const PAGE: u64 = 2 << 20;

/// The result of a run of `torch_train.py`.
struct Run {
    snapshot: String,
    facts: Value,
}

impl Run {
    fn number(&self, key: &str) -> u64 {
        self.facts[key].as_u64().unwrap_or(0)
    }

    fn finished(&self) -> bool {
        self.facts["error"].is_null() && self.number("steps") > 0
    }
}

/// Trains the model without a limit, with the least memory that the replay says, with a page less, and on a full device.
pub(super) fn run(session: &Session, step: &mut Step, seconds: u64) {
    let script = session.folder.join("torch_train.py");
    if session.rehearse || !script.exists() || !session.folder.join(COMMAND).exists() {
        return step.note("no model was trained: training needs a card, millpond and torch_train.py");
    }
    if !has_torch(session, step) {
        return;
    }
    step.table(
        TABLE,
        &[
            "run",
            "settings",
            "memory, bytes",
            "steps",
            "ran out",
            "peak reserved, bytes",
            "peak allocated, bytes",
            "retries",
            "seconds",
        ],
    );
    if let Err(why) = compare(session, step, seconds) {
        step.trouble(why);
    }
}

fn compare(session: &Session, step: &mut Step, seconds: u64) -> Result<(), String> {
    let mut train = |name: &str, settings: &str, memory: Option<(&str, u64)>| {
        train(session, step, seconds, name, settings, memory)
    };
    let native = train("without a limit", NATIVE, None)?;
    let expandable = train("without a limit", EXPANDABLE, None)?;
    let replay = millpond(session, seconds, &["replay", &native.snapshot, "--json"])?;
    let of = |policy: &str, key: &str| -> u64 {
        let results = replay["results"].as_array().into_iter().flatten();
        let mut result = results.filter(|result| result["policy"] == policy);
        result.next().and_then(|result| result[key].as_u64()).unwrap_or(0)
    };
    let peak = |policy| of(policy, "peak_reserved_bytes");
    let (least, least_expandable) = (
        of("torch-native", "smallest_device_bytes"),
        of("torch-expandable", "smallest_device_bytes"),
    );
    let enough = train(
        "with the least memory by the replay",
        NATIVE,
        Some(("--limit", least)),
    )?;
    let short = train(
        "with a page less",
        NATIVE,
        Some(("--limit", least.saturating_sub(PAGE))),
    )?;
    let enough_expandable = train(
        "with the least memory by the replay",
        EXPANDABLE,
        Some(("--limit", least_expandable)),
    )?;
    let free = least.midpoint(least_expandable) + BESIDE;
    let full = train("on a full device", NATIVE, Some(("--free", free)))?;
    let told = millpond(session, seconds, &["report", &full.snapshot, "--json"])?;
    let told = &told["out_of_memory"][0];
    let setting = setting(told).unwrap_or_default();
    let helped = train("as the verdict says", &setting, Some(("--free", free)))?;
    step.check(
        "PyTorch reserves as many bytes as the replay of its recording",
        native.number("peak_reserved") == peak("torch-native"),
        format!("{} and {}", native.number("peak_reserved"), peak("torch-native")),
    );
    step.check(
        "with expandable segments it reserves as many bytes as the replay of the other recording",
        expandable.number("peak_reserved") == peak("torch-expandable"),
        format!(
            "{} and {}",
            expandable.number("peak_reserved"),
            peak("torch-expandable")
        ),
    );
    step.check(
        "it finishes with the least memory that the replay says",
        enough.finished() && enough_expandable.finished(),
        format!("{least} bytes, {least_expandable} with expandable segments"),
    );
    step.check(
        "it runs out of memory with a page less",
        !short.finished(),
        short.facts["error"].as_str().unwrap_or("it finished").to_owned(),
    );
    step.check(
        "the verdict on the full device names a setting with which the program finishes",
        !full.finished() && !setting.is_empty() && helped.finished(),
        format!("{}; {setting}", told["why"].as_str().unwrap_or("no reason")),
    );
    step.answer("the verdict on the full device", told.clone());
    Ok(())
}

/// Returns the value of PyTorch's variable that the verdict names first.
fn setting(told: &Value) -> Option<String> {
    let mut texts = told["remedies"].as_array()?.iter().filter_map(|remedy| {
        let exact = remedy["fidelity"] != "estimate";
        remedy["text"].as_str().filter(|_| exact)
    });
    texts.find_map(|text| Some(text.split_once("ALLOC_CONF=")?.1.to_owned()))
}

fn millpond(session: &Session, seconds: u64, arguments: &[&str]) -> Result<Value, String> {
    let ran = Program::new(session, COMMAND, &format!("{}-training", arguments[0]), seconds)
        .args(arguments.iter().copied())
        .run(session)?;
    match (ran.trouble(), serde_json::from_str(&ran.out)) {
        (None, Ok(facts)) => Ok(facts),
        (trouble, _) => Err(trouble.unwrap_or(ran.out)),
    }
}

fn train(
    session: &Session,
    step: &mut Step,
    seconds: u64,
    name: &str,
    settings: &str,
    memory: Option<(&str, u64)>,
) -> Result<Run, String> {
    let script = session.folder.join("torch_train.py");
    let number = step.rows(TABLE);
    let snapshot = session.work.join(format!("training-{number}.pickle"));
    let (script, snapshot) = (script.to_string_lossy(), snapshot.to_string_lossy().into_owned());
    let bytes = memory.map(|(_, bytes)| bytes.to_string());
    let option = memory.iter().map(|(option, _)| *option).chain(bytes.as_deref());
    let arguments = [script.as_ref(), &snapshot].into_iter().chain(option);
    let ran = Program::new(session, "python3", &format!("training-{number}"), seconds)
        .args(arguments)
        .env("PYTORCH_CUDA_ALLOC_CONF", settings)
        .env("PYTORCH_ALLOC_CONF", settings)
        .run(session)?;
    let facts: Value = match (ran.trouble(), serde_json::from_str(&ran.out)) {
        (None, Ok(facts)) => facts,
        (trouble, _) => return Err(format!("PyTorch: {}", trouble.unwrap_or(ran.out))),
    };
    let of = |key: &str| facts[key].clone();
    step.row(
        TABLE,
        vec![
            json!(name),
            json!(if settings.is_empty() { "default" } else { settings }),
            json!(bytes.unwrap_or_else(|| "all".to_owned())),
            of("steps"),
            json!(if facts["error"].is_null() { "no" } else { "yes" }),
            of("peak_reserved"),
            of("peak_allocated"),
            of("retries"),
            of("seconds"),
        ],
    );
    Ok(Run { snapshot, facts })
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_first_setting_that_is_not_an_estimate_is_used() {
        let told = json!({ "remedies": [
            { "text": "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", "fidelity": "estimate" },
            { "text": "the batch times 0.5", "fidelity": "exact" },
            { "text": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "fidelity": "exact" },
        ] });
        assert_eq!(setting(&told).as_deref(), Some("expandable_segments:True"));
        assert_eq!(setting(&json!({})), None);
    }
}
