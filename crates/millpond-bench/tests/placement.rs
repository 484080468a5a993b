//! Tests the programs that compute placements.

use std::process::Command;

fn run(program: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn placement(arguments: &[&str]) -> (Option<i32>, String, String) {
    run(env!("CARGO_BIN_EXE_placement"), arguments)
}

#[test]
fn invalid_arguments_are_reported_in_one_line() {
    for (arguments, told) in [
        (&["missing"][..], "placement: cannot read the folder missing: "),
        (
            &["traces", "nosuch"],
            "placement: traces contains no *.csv.zst with nosuch in its name",
        ),
        (&["crates"], "placement: crates contains no *.csv.zst"),
        (
            &["traces", "gnn", "--costs", "missing.toml"],
            "placement: cannot read missing.toml: ",
        ),
        (
            &["traces", "gnn", "--costs", "clippy.toml"],
            "placement: clippy.toml: the cost table ",
        ),
        (&["traces", "gnn", "--policy", "nosuch"], "nosuch"),
        (&["traces", "cpu_", "--sensitivity"], "no GPU-scale recording"),
    ] {
        let (code, stdout, stderr) = placement(arguments);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(told) && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn variants_have_a_row_for_each_policy() {
    let policies = ["--policy", "pow2", "--policy", "torch-expandable"];
    let (code, stdout, stderr) = placement(&[&["traces", "cpu_", "--jitter", "2"][..], &policies].concat());
    assert_eq!(code, Some(0), "{stderr}");
    let rows: Vec<Vec<&str>> = stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let [_, pow2, peer] = rows.as_slice() else {
        panic!("{stdout}")
    };
    assert_eq!(
        (pow2[1], peer[1], peer[7]),
        ("pow2", "torch-expandable", "+0.0000")
    );
    let figure = |text: &str| text.parse::<f64>().expect("a figure");
    for row in [pow2, peer] {
        let [median, percentile, worst] = [3, 4, 5].map(|column| figure(row[column]));
        assert!(
            1.0 <= median && median <= percentile && percentile <= worst,
            "{row:?}"
        );
    }
    assert!(figure(pow2[7]) > 0.0, "powers of two waste more: {pow2:?}");
}

/// The recording that exceeds the bound, with a ratio of 3.6, if the costs are those that were measured on a card.
const MISSED: &str = "gnn_sage_sampled";

/// After the first tenth of a run, all driver calls except the creation of handles take at most three times as long as the
/// driver calls of PyTorch's expandable segments in the whole run. The figures are modelled, so they are the same on every
/// machine.
#[test]
fn mapping_pages_again_costs_little() {
    let fixed = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/costs.toml");
    for (costs, missed) in [(&["--costs", fixed][..], None), (&[], Some(MISSED))] {
        let policies = ["--policy", "millpond", "--policy", "torch-expandable"];
        let (code, stdout, stderr) =
            placement(&[&["traces", "gnn", "varlen", "fsdp"][..], &policies, costs].concat());
        assert_eq!(code, Some(0), "{stderr}");
        let rows: Vec<Vec<&str>> = stdout
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .filter(|row: &Vec<&str>| row.first().is_some_and(|name| !name.starts_with("cpu_")))
            .collect();
        let figure = |text: &str| text.parse::<f64>().expect("a figure");
        let mut seen = 0;
        for pair in rows.chunks(2) {
            let [ours, theirs] = pair else { break };
            if ours[1] != "millpond" {
                break;
            }
            let (late, whole) = (figure(ours[8]), figure(theirs[6]));
            let holds = late <= 3.0 * whole;
            assert!(holds || missed == Some(ours[0]), "{ours:?} against {theirs:?}");
            seen += 1;
        }
        assert_eq!(seen, 4, "{stdout}");
    }
}
