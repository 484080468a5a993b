use super::*;
use millpond_trace::{ReadOptions, read_bytes};

#[test]
fn a_device_below_the_peak_is_not_searched() {
    let csv = b"time_us,action,id,bytes,stream,tag\n0,alloc,1,209715200,0,a\n1,free,1,209715200,0,\n";
    let recording = read_bytes(csv, "large", &ReadOptions::default()).expect("valid");
    let device = Device {
        bytes: Some(100 << 20),
        ..Device::UNLIMITED
    };
    let options = TuneOptions {
        device,
        ..TuneOptions::default()
    };
    let tuned = tune(&recording.traces[0], &options, &|_, _| {}).expect("replayable");
    assert!(tuned.families.is_empty());
    assert!(tuned.verdict.sentences[0].starts_with("No allocator can run this in 100 MiB"));
}
