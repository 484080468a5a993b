//! Tests of hostile files. Each results in a one-line error or a counted finding, in a short time and in less than 500
//! MB.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use flate2::write::GzEncoder;
use millpond_trace::{Caution, Finding, ReadError, ReadOptions, Recording, read_bytes};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use support::*;

/// Counts live bytes and their peak.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Only one file is read at a time, so that the peak belongs to that file.
static ALONE: Mutex<()> = Mutex::new(());

const MOST: usize = 500 << 20;

// SAFETY: every call is passed unchanged to the system's allocator. Counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads a file. Asserts a limit on its memory, and that an error is one line.
fn hostile(bytes: &[u8]) -> Result<Recording, ReadError> {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = read_bytes(bytes, "hostile", &ReadOptions::default());
    let grown = PEAK.load(Relaxed).saturating_sub(before);
    assert!(grown < MOST, "took {grown} bytes for a file of {}", bytes.len());
    if let Err(error) = &result {
        let line = error.to_string();
        assert!(!line.contains('\n') && line.len() < 400, "{line}");
    }
    for caution in result
        .iter()
        .flat_map(|recording| &recording.traces)
        .flat_map(|trace| &trace.cautions)
    {
        assert!(!caution.to_string().contains('\n'));
    }
    result
}

#[track_caller]
fn refused(bytes: &[u8], part: &str) {
    let error = hostile(bytes).expect_err("a hostile file was read").to_string();
    assert!(error.contains(part), "{error:?} does not say {part:?}");
}

fn honest() -> Vec<u8> {
    let history = (0..50).flat_map(|at| {
        [
            entry("alloc", at * 512, 500, 0, at),
            entry("free_completed", at * 512, 500, 0, at),
        ]
    });
    pickle(
        &snapshot(vec![segment(0x7000, 2 << 20, "small", vec![])], history.collect()),
        4,
    )
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const CSV: &str = "# {\"trace\": \"x\"}\ntime_us,action,id,bytes,stream,tag\n";

#[test]
fn empty_and_unknown_files_are_refused() {
    refused(b"", "empty");
    refused(b" \n\t ", "white space");
    refused(b"hello", "no known format");
    refused(b"PK\x03\x04abc", "zip");
    refused(&gzip(&gzip(b"x")), "compressed twice");
    refused(&gzip(b""), "empty");
    refused(&[0x1f, 0x8b, 8], "empty");
    refused(&[0x28, 0xb5, 0x2f, 0xfd], "empty");
    refused(&[0x28, 0xb5, 0x2f, 0xfd, 9, 9, 9, 9, 9], "empty");
    refused(&[0xff; 4096], "no known format");
    refused(&[0; 4096], "no known format");
    refused(b"\x80\x09.", "unknown protocol");
    refused(b"{\"segments\": [], \"device_traces\": []}", "_dump_snapshot");
    refused(b"[{\"segment_type\": \"large\"}]", "_dump_snapshot");
    refused(b"# only a comment", "no memory events");
}

#[test]
fn a_cut_pickle_is_an_error_at_every_length() {
    let whole = honest();
    assert!(hostile(&whole).is_ok());
    for length in 1..whole.len() {
        assert!(
            hostile(&whole[..length]).is_err(),
            "{length} of {} bytes were read",
            whole.len()
        );
    }
    let squeezed = gzip(&whole);
    for length in (20..squeezed.len() - 8).step_by(37) {
        assert!(
            hostile(&squeezed[..length]).is_err(),
            "{length} of {} bytes were read",
            squeezed.len()
        );
    }
}

#[test]
fn opcodes_that_could_call_code_are_refused_by_name() {
    for (opcode, name) in [
        (&b"cos\nsystem\n"[..], "GLOBAL"),
        (b"\x93", "STACK_GLOBAL"),
        (b"R", "REDUCE"),
        (b"b", "BUILD"),
        (b"ios\nsystem\n", "INST"),
        (b"o", "OBJ"),
        (b"\x81", "NEWOBJ"),
        (b"\x92", "NEWOBJ_EX"),
        (b"\x82\x01", "EXT1"),
        (b"\x83\x01\x00", "EXT2"),
        (b"\x84\x01\x00\x00\x00", "EXT4"),
        (b"Pid\n", "PERSID"),
        (b"Q", "BINPERSID"),
        (b"\x97", "NEXT_BUFFER"),
    ] {
        let bytes = [b"\x80\x04)", opcode, b"."].concat();
        match hostile(&bytes) {
            Err(ReadError::PickleCall {
                opcode: found,
                offset: 3,
            }) => assert_eq!(found, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn malformed_pickles_are_refused() {
    let head = b"\x80\x04";
    for (body, part) in [
        (&b"."[..], "stack is empty"),
        (b"K", "ends before STOP"),
        (b"\xfe", "0xfe is not an opcode"),
        (b"e.", "no MARK"),
        (b"(e.", "no container"),
        (b"](K\x01u.", "not a dict"),
        (b"}(K\x01u.", "without a value"),
        (b"K\x01K\x02a.", "not a list"),
        (b"(K\x01d.", "without a value"),
        (b"h\x05.", "memo 5"),
        (b"j\xff\xff\xff\xff.", "memo 4294967295"),
        (b"]r\xff\xff\xff\xff.", "cannot be reached"),
        (b"](\x94.", "stack is empty"),
        (b"0.", "stack is empty"),
        (b"X\xff\xff\xff\xff.", "claims to have 4294967295 bytes"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "claims"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "ends within bytes"),
        (b"\x8b\xff\xff\xff\xff.", "negative length"),
        (b"\x8b\xff\xff\xff\x7f.", "claims"),
        (b"Ix\n.", "has no number"),
        (b"g99999999999999999999\n.", "has no number"),
        (b"Snope\n.", "has no quotes"),
        (b"I1", "ends within a line"),
        (b"K\x01.", "neither a dict nor a list"),
        (b"}.", "neither `segments`"),
        (b"}(\x8c\x08segmentsK\x01u.", "not a list"),
    ] {
        refused(&[head, body].concat(), part);
    }
}

#[test]
fn deeply_nested_tuples_do_not_overflow_the_stack() {
    let mut deep = b"\x80\x04)".to_vec();
    deep.extend(std::iter::repeat_n(0x85, 2_000_000));
    deep.push(b'.');
    refused(&deep, "neither a dict nor a list");
    deep.truncate(3);
    deep.extend(std::iter::repeat_n(0x85, 100_000_000));
    refused(&deep, "too many lists, dicts and tuples");
    let mut marks = b"\x80\x04".to_vec();
    marks.extend(std::iter::repeat_n(b'(', 100_000_000));
    refused(&marks, "too deeply");
    marks.iter_mut().skip(2).for_each(|byte| *byte = b'N');
    refused(&marks, "more values than any");
}

#[test]
fn values_that_contain_themselves_do_not_cause_endless_loops() {
    // l = []; l.append(l); {"segments": l, "device_traces": l}
    let cycle = b"\x80\x04]\x94h\x00a0}(\x8c\x08segmentsh\x00\x8c\x0ddevice_tracesh\x00u.";
    refused(cycle, "a segment is not a dict");
    let traces = b"\x80\x04]\x94h\x00a0}(\x8c\x08segments]\x8c\x0ddevice_tracesh\x00u.";
    refused(traces, "no memory events");
    // An event whose frames are the list of events that contains it.
    let mut own = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](]\x94}(".to_vec();
    own.extend(b"\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x01\x8c\x06framesh\x00uaeu.");
    assert_eq!(hostile(&own).unwrap().traces[0].events.len(), 1);
}

#[test]
fn excessive_sharing_of_values_is_refused() {
    // A list of ten thousand references to one list of ten thousand events.
    let events = Py::Shared(
        1,
        Box::new(Py::List(
            (0..10_000)
                .map(|_| Py::Shared(2, Box::new(entry("alloc", 1, 1, 0, 1))))
                .collect(),
        )),
    );
    // After it is written, a shared value is only referenced, so the others need no content.
    let again = vec![Py::Shared(1, Box::new(Py::None)); 9_999];
    let lists = std::iter::once(events).chain(again).collect();
    let value = dict! { "segments" => vec![], "host_traces" => Py::List(lists) };
    refused(&pickle(&value, 4), "referenced too many times");
}

#[test]
fn one_event_referenced_a_million_times_is_refused() {
    let mut file = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](}(".to_vec();
    file.extend(b"\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x01u");
    file.extend(b"2".repeat(1 << 20));
    file.extend(b"e22222222eu.");
    refused(&file, "referenced too many times");
}

#[test]
fn an_event_in_an_unexpected_place_is_tolerated_or_refused() {
    let mut events = b"\x80\x04\x8c\x06action\x940".to_vec();
    let event = b"}h\x00Ns";
    for _ in 0..100 {
        events.extend(event);
        events.push(b'0');
    }
    let file = |before: &[u8], after: &[u8]| [&events, before, event, after].concat();
    refused(&file(b"", b"."), "neither `segments`");
    // As a segment, the event is an empty one.
    for file in [file(b"}(\x8c\x08segments](", b"eu."), file(b"]", b"a.")] {
        assert!(hostile(&file).unwrap().traces.is_empty());
    }
    // The event as a frame, and as the settings.
    let mut framed = b"}(\x8c\x08segments]\x8c\x0ddevice_traces](](}(h\x00\x8c\x05alloc".to_vec();
    framed.extend(b"\x8c\x04addrK\x01\x8c\x04sizeK\x01\x8c\x06frames](");
    assert_eq!(
        hostile(&file(&framed, b"eueeu.")).unwrap().traces[0].events.len(),
        1
    );
    refused(
        &file(b"}(\x8c\x08segments]\x8c\x12allocator_settings", b"u."),
        "no memory events",
    );
}

#[test]
fn long_values_that_are_referenced_often_are_read_quickly() {
    let begun = std::time::Instant::now();
    let text = |text: &[u8]| [b"X", &(text.len() as u32).to_le_bytes()[..], text].concat();
    let memo = |value: &[u8]| [value, b"\x940"].concat();
    let head = b"\x80\x04".to_vec();
    // A dict with many keys that is nearly a frame, as the first item of many lists.
    let keys = [&b"}\x94("[..], &b"h\x00N".repeat(500_000), b"\x8c\x04sizeNu0"].concat();
    let lists = b"]h\x01a0".repeat(100_000);
    refused(
        &[head.clone(), memo(b"\x8c\x04line"), keys, lists, b".".to_vec()].concat(),
        "stack is empty",
    );
    // Many frames with the same long name.
    for key in [&b"\x8c\x04name"[..], b"\x8c\x08filename"] {
        let name = memo(&text(&b"x".repeat(20 << 20)));
        let events = b"}(h\x02\x8c\x05allocK\x00K\x00h\x03](}h\x00h\x01seu".repeat(20_000);
        let file = [
            head.clone(),
            memo(key),
            name,
            memo(b"\x8c\x06action"),
            memo(b"\x8c\x06frames"),
            b"}(\x8c\x08segments]\x8c\x0ddevice_traces](](".to_vec(),
            events,
            b"eeu.".to_vec(),
        ]
        .concat();
        let _ = hostile(&file);
    }
    // One long setting that occurs many times.
    for (key, value) in [
        (
            &b"\x8c\x16trace_alloc_overflowed"[..],
            [&b"]("[..], &b"K\x00".repeat(500_000), b"e"].concat(),
        ),
        (b"\x8c\x17PYTORCH_CUDA_ALLOC_CONF", text(&b"x".repeat(1 << 20))),
    ] {
        let file = [
            head.clone(),
            memo(key),
            memo(&value),
            b"}(\x8c\x08segments]\x8c\x12allocator_settings}(".to_vec(),
            b"h\x00h\x01".repeat(500_000),
            b"uu.".to_vec(),
        ]
        .concat();
        refused(&file, "no memory events");
    }
    // Each of these files took minutes when the value was read every time.
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

#[test]
fn a_long_header_is_not_kept_for_each_device() {
    let pairs: Vec<String> = (0..50_000).map(|at| format!("\"{at}\": 1")).collect();
    let mut text = format!("# {{{}}}\ndevice,action,id,bytes\n", pairs.join(", "));
    for device in 0..1024 {
        text.push_str(&format!("{device},alloc,1,1\n"));
    }
    refused(text.as_bytes(), "line 1: the header is longer than");
}

#[test]
fn a_memo_longer_than_its_file_is_refused() {
    let file = [&b"\x80\x04N"[..], &b"\x94".repeat(100 << 20), b"."].concat();
    refused(&file, "cannot be reached");
}

#[test]
fn decompression_bombs_are_refused() {
    let zeros = vec![0u8; 1 << 20];
    let mut gz = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut zst = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    for _ in 0..1024 {
        gz.write_all(&zeros).unwrap();
        zst.write_all(&zeros).unwrap();
    }
    for bomb in [gz.finish().unwrap(), zst.finish().unwrap()] {
        refused(&bomb, "no known format");
    }
    // The same after a valid beginning, for each format.
    let pickle = [&b"\x80\x04]("[..], &b"K\x01".repeat(1 << 20)].concat();
    let rmm = "Thread,Time,Action,Pointer,Size,Stream\n";
    for (head, body) in [
        (CSV.as_bytes(), &b"0,alloc,1,1,0,\n"[..]),
        (CSV.as_bytes(), b"0"),
        (CSV.as_bytes(), b"\n"),
        (rmm.as_bytes(), b"1,00:00:00.0,allocate,1,1,0\n"),
        (b"{\"traceEvents\": [", b"{},"),
        (b"[", b"["),
        (b"[\"", b"x"),
        (&pickle, b"]"),
        (b"\x80\x04", b"]0"),
        (b"\x80\x04(", b"N"),
    ] {
        let body = body.repeat((1 << 20) / body.len());
        let mut zst = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        zst.write_all(head).unwrap();
        for _ in 0..1024 {
            zst.write_all(&body).unwrap();
        }
        let bomb = zst.finish().unwrap();
        let error = hostile(&bomb).expect_err("a bomb was read");
        let expected = matches!(
            error,
            ReadError::Expands { .. }
                | ReadError::TooDense { .. }
                | ReadError::Csv { .. }
                | ReadError::Pickle { .. }
        );
        assert!(expected, "{error}");
    }
}

#[test]
fn decompression_bombs_with_incompressible_data_are_refused() {
    // Incompressible noise, so that the rest does not expand the file a hundred times.
    let mut seed = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        b' ' + (seed >> 58) as u8
    })
    .take(2 << 20)
    .collect();
    let ballast = [&b"B"[..], &(noise.len() as u32).to_le_bytes(), &noise, b"0"].concat();
    let pickle = |body: &[u8]| [b"\x80\x04\x8c\x06action\x940", &ballast[..], body].concat();
    let json: String = noise.iter().map(|&byte| char::from(byte | 0x40)).collect();
    let json = format!("[\"{}\"", json.replace(['"', '\\'], "x"));
    let sample = br#",{"name":"[memory]","ts":1,"args":{"Bytes":1,"Addr":1}}"#;
    for (head, body) in [
        (pickle(b"("), &b"}h\x00Ns0}h\x00Ns"[..]),
        (pickle(b""), b"]NNN0000"),
        (json.into_bytes(), sample),
    ] {
        let mut zst = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        zst.write_all(&head).unwrap();
        let body = body.repeat((1 << 20) / body.len());
        for _ in 0..140 {
            zst.write_all(&body).unwrap();
        }
        refused(&zst.finish().unwrap(), "of this compressed size");
    }
}

#[test]
fn limits_can_be_chosen() {
    let text = format!("{CSV}{}", "0,alloc,1,1,0,\n0,free,1,1,0,\n".repeat(10_000));
    let options = ReadOptions {
        max_decompressed: 100_000,
        ..ReadOptions::default()
    };
    match read_bytes(&gzip(text.as_bytes()), "x", &options) {
        Err(ReadError::TooLarge { limit: 100_000 }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_name_the_invalid_line() {
    for (line, part) in [
        ("0,alloc,1\n", "line 3: it has 3 fields"),
        ("0,eat,1,1,0,\n", "is not an action; the actions are alloc free"),
        ("0,alloc,x,1,0,\n", "line 3: \"x\" is not a valid id"),
        ("0,alloc,1,big,0,\n", "is not a number of bytes"),
        ("-1,alloc,1,1,0,\n", "is not a valid time"),
        ("0,alloc,1,1,zero,\n", "is not a valid stream"),
        ("0,alloc,\u{7f}\u{1},1,0,\n", "is not a valid id"),
        (
            "0,alloc,1,1,0,\n0,initial_block,2,1,0,\n",
            "line 4: initial_block must come before the first event",
        ),
    ] {
        refused(format!("{CSV}{line}").as_bytes(), part);
    }
    refused(
        b"time_us,action,id,stream\n0,alloc,1,0\n",
        "there is no column bytes",
    );
    refused(
        format!("{CSV}0,alloc,1,1,0,{}\n", "x".repeat(2 << 20)).as_bytes(),
        "longer than",
    );
    refused(
        b"Thread,Time,Action,Pointer,Size,Stream\n1,25:00:00.0,allocate,0x1,1,0\n",
        "is not a valid time",
    );
    refused(
        b"Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,allocate,zz,1,0\n",
        "is not a valid pointer",
    );
    refused(b"[{\"name\" 1}]", "malformed JSON");
    refused(b"{\"traceEvents\": []}", "no memory events");
}

#[test]
fn contradictory_lines_are_counted() {
    let text = format!(
        "{CSV}5,alloc,1,100,0,\n4,alloc,1,200,0,\n5,free,9,1,0,\n6,alloc,2,-5,0,\n\
         6,alloc,3,4611686018427387905,0,\n6,alloc,4,99999999999999999999999,0,\n7,alloc,5,0,0,\n\
         8,free,1,201,0,\n9,free,1,200,0,\n9,free_requested,5,0,0,\n9,free_requested,5,0,0,\n9,alloc,6,1"
    );
    let recording = hostile(text.as_bytes()).unwrap();
    let cautions = &recording.traces[0].cautions;
    for caution in [
        Caution::Counted(Finding::AllocatedTwice, 1),
        Caution::Counted(Finding::UnknownFrees, 2),
        Caution::Counted(Finding::NegativeBytes, 1),
        Caution::Counted(Finding::AbsurdBytes, 2),
        Caution::Counted(Finding::ZeroBytes, 1),
        Caution::Counted(Finding::FreeBytesDiffer, 1),
        Caution::Counted(Finding::FreedTwice, 1),
        Caution::Counted(Finding::TimesBackwards, 1),
        Caution::Cut {
            bytes: text.len() as u64,
        },
    ] {
        assert!(cautions.contains(&caution), "{caution:?} in {cautions:?}");
    }
    assert_eq!(cautions.len(), 9);
}

#[test]
fn a_cut_table_is_read_up_to_the_cut() {
    let line = |at: u64| format!("{at},alloc,{at},{},0,tag {}\n", at * 7, at * at);
    let text = format!("{CSV}{}", (1..20_000).map(line).collect::<String>());
    for squeezed in [
        gzip(text.as_bytes()),
        zstd::encode_all(text.as_bytes(), 3).unwrap(),
    ] {
        let whole = hostile(&squeezed).unwrap();
        assert_eq!(whole.traces[0].events.len(), 19_999);
        let recording = hostile(&squeezed[..squeezed.len() / 2]).unwrap();
        let trace = &recording.traces[0];
        assert!(
            trace.events.len() > 100 && trace.events.len() < 19_999,
            "{}",
            trace.events.len()
        );
        assert!(matches!(trace.cautions[0], Caution::Cut { .. }));
        assert_eq!(trace.events[..], whole.traces[0].events[..trace.events.len()]);
    }
}

#[test]
fn too_many_streams_are_folded_and_too_many_devices_are_refused() {
    let mut text = String::from(CSV);
    for id in 0..70_000 {
        text.push_str(&format!("0,alloc,{id},1,{id},\n"));
    }
    let recording = hostile(text.as_bytes()).unwrap();
    assert!(matches!(
        recording.traces[0].cautions[0],
        Caution::Counted(Finding::StreamsFolded, _)
    ));
    let mut text = String::from("device,action,id,bytes\n");
    for id in 0..2_000 {
        text.push_str(&format!("{id},alloc,{id},1\n"));
    }
    refused(text.as_bytes(), "more than 1024 devices");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random changes of bytes never cause a panic, whatever they do to the meaning.
    #[test]
    fn changed_bytes_never_cause_a_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let csv = format!("{CSV}5,alloc,1,100,0,a\n6,free,1,100,0,\n");
        let rmm = "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:01.5,allocate,0x10,5,0\n1,00:00:02.5,free,0x10,5,0\n";
        let json = r#"{"traceEvents":[{"ph":"i","name":"[memory]","ts":1.5,"args":{"Bytes":64,"Addr":16,"Device Type":1,"Device Id":0}}]}"#;
        for file in [honest(), csv.clone().into_bytes(), rmm.into(), json.into(), gzip(csv.as_bytes())] {
            let mut file = file;
            for (at, byte) in &flips {
                let at = at.index(file.len());
                file[at] = *byte;
            }
            let _ = hostile(&file);
        }
    }

    #[test]
    fn random_bytes_never_cause_a_panic(noise in prop::collection::vec(any::<u8>(), 0..600), head in 0..6usize) {
        let heads: [&[u8]; 6] = [b"", b"\x80\x04", CSV.as_bytes(), b"Thread,Time,Action,Pointer,Size,Stream\n", b"[", b"("];
        let _ = hostile(&[heads[head], noise.as_slice()].concat());
    }
}

#[test]
fn a_long_stack_with_different_words_each_time_is_cut() {
    let memo = |value: &[u8]| [value, b"\x940"].concat();
    let mut file = b"\x80\x04".to_vec();
    for word in ["action", "addr", "size", "frames", "user_metadata", "alloc"] {
        file.extend(memo(&[&[0x8c, word.len() as u8], word.as_bytes()].concat()));
    }
    file.extend(memo(
        b"}(\x8c\x08filename\x8c\x04m.py\x8c\x04name\x8c\x01f\x8c\x04lineK\x01u",
    ));
    file.extend(memo(&[&b"]("[..], &b"h\x06".repeat(20_000), b"e"].concat()));
    file.extend(b"}(\x8c\x08segments]\x8c\x0ddevice_traces](](");
    for number in 0..100_000 {
        file.extend(b"}(h\x00h\x05h\x01K\x01h\x02K\x01h\x03h\x07h\x04\x8c\x08");
        file.extend(format!("{number:08}u").bytes());
    }
    file.extend(b"eeu.");
    let trace = hostile(&file).unwrap().traces.remove(0);
    let lengths: Vec<usize> = trace.tags.iter().map(str::len).collect();
    assert_eq!(lengths.len(), 100_001);
    let (longest, last) = (lengths.iter().max(), lengths.last());
    assert!(
        longest > Some(&50_000) && last < Some(&100),
        "{longest:?} {last:?}"
    );
    // No stack is whole: the first ones are too long, and the others too many.
    let cut = Caution::Counted(Finding::StacksCut, 100_000);
    assert!(trace.cautions.contains(&cut), "{:?}", trace.cautions);
}
