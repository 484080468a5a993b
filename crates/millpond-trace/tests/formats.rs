//! Tests of the meaning of each text format, and of format detection by content instead of name.

mod support;

use millpond_trace::{Action, Caution, Finding, Format, Interrupt, ReadError, ReadOptions, read_bytes};
use std::cell::Cell;
use support::read;

#[test]
fn columns_are_found_by_name_and_ids_reused() {
    let text = "tag,device,bytes,id,action,time_us,pool,address\n\
        a;b,1,100,7,alloc,5,0:2,0x10\n,1,100,7,free,6,0:2,\nc,1,50,7,alloc,7,,\nd,0,1,7,alloc,8,,\n";
    let recording = read(text.as_bytes()).unwrap();
    assert_eq!(recording.format, Format::MillpondCsv);
    let [zero, one] = recording.traces.as_slice() else {
        panic!("two devices")
    };
    assert_eq!(
        (zero.origin.device, zero.events.len(), one.origin.device),
        (0, 1, 1)
    );
    let rows: Vec<_> = one
        .events
        .iter()
        .map(|event| (event.action, event.allocation, event.bytes))
        .collect();
    assert_eq!(
        rows,
        [
            (Action::Alloc, 0, 100),
            (Action::Free, 0, 100),
            (Action::Alloc, 1, 50)
        ]
    );
    assert_eq!(
        (
            one.tags.get(one.events[0].tag),
            one.events[0].address,
            one.events[1].address
        ),
        ("a;b", 16, 16)
    );
    assert_eq!(one.pools, [(0, 0), (0, 2)]);
}

#[test]
fn the_header_is_kept_in_order() {
    let text = "# {\"trace\": \"x\", \"params\": {\"b\": 1, \"a\": [2]}, \"device\": 3}\naction,id,bytes\nalloc,1,1\n";
    let trace = read(text.as_bytes()).unwrap().traces.remove(0);
    let pairs: Vec<_> = trace
        .origin
        .header
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(pairs[0], ("trace", "x"));
    assert_eq!(pairs[1].0, "params");
    assert_eq!(trace.origin.device, 3);
    assert!(trace.cautions.contains(&Caution::NoTimes));
}

#[test]
fn rmm_logs_may_cross_midnight_and_reuse_pointers() {
    let text = "Thread,Time,Action,Pointer,Size,Stream\r\n\
        1,23:59:59:999999,allocate,0x7f00,1024,0x0\r\n1,00:00:00:000001,allocate,8f00,2048,7f2a\r\n\
        1,00:00:01.5,free,0x7f00,1024,0x0\r\n1,00:00:01.6,allocate,0x7f00,77,0x0\r\n\
        1,00:00:02.0,allocate failure,(nil),99999,0x0\r\n";
    let trace = read(text.as_bytes()).unwrap().traces.remove(0);
    let rows: Vec<_> = trace
        .events
        .iter()
        .map(|event| (event.time_us, event.action, event.allocation, event.bytes))
        .collect();
    let day = 24 * 3600 * 1_000_000;
    assert_eq!(
        rows,
        [
            (day - 1, Action::Alloc, 0, 1024),
            (day + 1, Action::Alloc, 1, 2048),
            (day + 1_500_000, Action::Free, 0, 1024),
            (day + 1_600_000, Action::Alloc, 2, 77),
            (day + 2_000_000, Action::OutOfMemory, u32::MAX, 99999),
        ]
    );
    assert_eq!(
        (trace.streams.as_slice(), trace.cautions.len()),
        (&[0, 0x7f2a][..], 0)
    );
}

#[test]
fn chrome_traces_are_sorted_and_paired_by_device() {
    let memory = |ts: &str, bytes: i64, kind: u8| {
        format!(
            r#"{{"ph":"i","name":"[memory]","ts":{ts},"args":{{"Total Allocated":1,"Bytes":{bytes},"Addr":139,"Device Id":0,"Device Type":{kind}}}}}"#
        )
    };
    let list = [
        r#"{"ph":"X","name":"a\"b{","ts":1,"dur":2,"args":{"Bytes":"x","l":[1,[2,{}]]}}"#.to_owned(),
        memory("200.5", -64, 1),
        memory("100.25", 64, 1),
        memory("150", 8, 0),
        r#"{"name":"[memory]","ts":3,"args":{}}"#.to_owned(),
    ]
    .join(",");
    for text in [
        format!("[{list}]"),
        format!(r#"{{"schemaVersion":1,"d":[{{"n":"]"}}],"traceEvents":[{list}],"z":null}}"#),
    ] {
        let recording = read(text.as_bytes()).unwrap();
        let [host, card] = recording.traces.as_slice() else {
            panic!("two devices")
        };
        assert_eq!((host.origin.device, host.events[0].bytes), (-1, 8));
        let rows: Vec<_> = card
            .events
            .iter()
            .map(|event| (event.time_us, event.action, event.bytes))
            .collect();
        assert_eq!(rows, [(100, Action::Alloc, 64), (200, Action::Free, 64)]);
        assert_eq!(card.cautions, [Caution::Counted(Finding::UnreadableEvents, 1)]);
    }
    let cut = read(format!("[{list}").as_bytes()).unwrap();
    assert!(matches!(cut.traces[0].cautions[0], Caution::Cut { .. }));
}

#[test]
fn progress_reaches_the_end() {
    let text = format!("action,id,bytes\n{}", "alloc,1,1\nfree,1,1\n".repeat(100_000));
    let last = Cell::new((0, None));
    let progress = |read, total| last.set((read, total));
    let options = ReadOptions {
        progress: Some(&progress),
        ..ReadOptions::default()
    };
    read_bytes(text.as_bytes(), "x.pickle", &options).unwrap();
    assert_eq!(last.get(), (text.len() as u64, Some(text.len() as u64)));
}

#[test]
fn an_interrupt_ends_reading() {
    let text = format!("action,id,bytes\n{}", "alloc,1,1\nfree,1,1\n".repeat(200_000));
    let interrupt = Interrupt::default();
    let last = Cell::new(0);
    let progress = |read, _| {
        interrupt.set();
        last.set(read);
    };
    let options = ReadOptions {
        progress: Some(&progress),
        interrupt: Some(&interrupt),
        ..ReadOptions::default()
    };
    let outcome = read_bytes(text.as_bytes(), "x.csv", &options).map(drop);
    assert!(matches!(outcome, Err(ReadError::Interrupted)), "{outcome:?}");
    assert!(
        last.get() < text.len() as u64 / 2,
        "{} bytes were read",
        last.get()
    );
}

#[test]
fn a_file_with_only_invalid_lines_reports_the_first() {
    let csv = "time_us,action,id,bytes,stream,tag\n";
    let rmm = "Thread,Time,Action,Pointer,Size,Stream\n";
    for (text, line, what) in [
        (format!("{csv}nonsense"), 2, "1 fields"),
        (
            format!("{csv}0,alloc,1,-5,0,a\n0,alloc,2,9223372036854775808,0,a\n"),
            2,
            "negative",
        ),
        (
            format!("{csv}\n0,alloc,2,9223372036854775808,0,a\nnonsense"),
            3,
            "2^62",
        ),
        (format!("{rmm}1,10:00:00.0,allocate,0x1,-8,0x0\n"), 2, "negative"),
        (format!("{rmm}1,10:00"), 2, "2 fields"),
    ] {
        match read(text.as_bytes()) {
            Err(ReadError::Csv {
                line: found,
                what: why,
            }) => {
                assert!(found == line && why.contains(what), "{text}: line {found}: {why}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    assert!(matches!(
        read(csv.as_bytes()),
        Err(ReadError::NoMemoryEvents { .. })
    ));
    let mixed = read(format!("{csv}0,alloc,1,-5,0,a\n0,alloc,2,5,0,a\nnonsense").as_bytes());
    assert_eq!(
        mixed.unwrap().traces[0].events.len(),
        1,
        "one good line is a recording"
    );
}
