//! Ten seconds of the run that `cargo xtask soak` does for longer.

#![cfg(target_os = "linux")]

#[path = "../examples/soak/run.rs"]
mod run;
#[path = "../examples/soak/work.rs"]
mod work;

#[test]
fn nothing_grows_in_ten_seconds() {
    let report = run::soak(std::time::Duration::from_secs(10));
    println!("{report}");
    assert_eq!(report.growth(), None, "{report}");
}
