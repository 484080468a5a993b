//! Writes the recording that the tests of other formats read: `sample OUT [hostile]`. With `hostile`, it contains names
//! that are difficult for file formats.

#[path = "../tests/support/sample.rs"]
mod sample;

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "sample.mpr".to_owned());
    let names = match args.next().as_deref() {
        Some("hostile") => sample::hostile(),
        _ => sample::ordinary(),
    };
    std::fs::write(path, sample::sample(50, &names))
}
