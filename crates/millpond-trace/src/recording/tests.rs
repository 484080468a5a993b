//! Tests that read back what was written: complete, truncated and damaged.

use super::{Batch, End, Kind, Reader, RecordingError, Row, Writer};

/// Generates a program that allocates and frees, from a seed.
fn program(rows: u64) -> Vec<Row> {
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let (mut time, mut newest) = (5, 0);
    let mut live = Vec::new();
    let mut made = Vec::new();
    for _ in 0..rows {
        time += random(2_000);
        let frees = live.len() > 50 || !live.is_empty() && random(2) == 0;
        let mut row: Row = if frees {
            let at = random(live.len() as u64) as usize;
            live.swap_remove(at)
        } else {
            newest += 1;
            let requested = random(1 << 20);
            let row = Row {
                id: newest,
                address: 0x7f00_0000_0000 + (random(1 << 20) << 9),
                requested,
                bytes: requested.next_multiple_of(512),
                pool: 1,
                stream: random(3) as u32,
                thread: 1,
                tag: random(4) as u32,
                stack: random(9) as u32,
                ..Row::new(Kind::Alloc, time)
            };
            live.push(row);
            row
        };
        if frees {
            row = Row {
                kind: Kind::Free,
                address: 0,
                stack: 0,
                ..row
            };
        }
        row.time = time;
        made.push(row);
    }
    made
}

fn written(rows: &[Row]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &[("program".to_owned(), "test".to_owned())]).expect("memory");
    for row in rows {
        writer.push(row).expect("memory");
    }
    let last = rows.last().map_or(0, |row| row.time);
    writer.finish(last).expect("memory")
}

fn all_of(file: &[u8]) -> (Vec<Row>, End) {
    let mut reader = Reader::new(file).expect("a recording");
    let mut rows = Vec::new();
    while let Some(batch) = reader.next_batch().expect("it is in memory") {
        rows.extend(batch.rows());
    }
    (rows, reader.end().expect("it has ended").clone())
}

#[test]
fn rows_are_read_as_written() {
    let rows = program(200_000);
    let file = written(&rows);
    let (mut read, end) = all_of(&file);
    assert_eq!(read.pop().map(|row| row.kind), Some(Kind::End));
    assert_eq!(end, End::Closed);
    assert_eq!(read.len(), rows.len());
    assert!(read == rows, "rows differ");
    assert!(file.len() < 14 * rows.len(), "{} bytes", file.len());
}

#[test]
fn texts_and_lists_are_read_with_their_rows() {
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    let define = |kind, number| Row {
        tag: number,
        stack: number,
        ..Row::new(kind, 3)
    };
    writer.push(&Row::new(Kind::Step, 1)).expect("memory");
    writer
        .say(&define(Kind::DefineTag, 1), Some("weights"), None)
        .expect("memory");
    writer
        .say(&define(Kind::DefineStack, 2), None, Some(&[1, u64::MAX]))
        .expect("memory");
    writer.flush().expect("memory");
    writer
        .say(&define(Kind::Mark, 0), Some("after"), Some(&[]))
        .expect("memory");
    let file = writer.finish(9).expect("memory");
    let mut reader = Reader::new(&file[..]).expect("a recording");
    let mut said = Vec::new();
    let mut next = || reader.next_batch().expect("it is in memory");
    while let Some(batch) = next() {
        let mut rows = batch.rows();
        while let Some(row) = rows.next() {
            let place = rows.place();
            said.push((row.kind, batch.text(place).map(str::to_owned), batch.list(place)));
        }
    }
    let expected = [
        (Kind::Step, None, None),
        (Kind::DefineTag, Some("weights".to_owned()), None),
        (Kind::DefineStack, None, Some(vec![1, u64::MAX])),
        (Kind::Mark, Some("after".to_owned()), Some(vec![])),
        (Kind::End, None, None),
    ];
    assert_eq!(said, expected);
}

/// The file is truncated at every possible length.
#[test]
fn a_cut_file_is_read_up_to_its_last_whole_batch() {
    let rows = program(300);
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    let mut ends = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        writer.push(row).expect("memory");
        if at % 100 == 99 {
            writer.flush().expect("memory");
            ends.push((writer.get_ref().len(), at + 1));
        }
    }
    let file = writer.finish(rows[299].time).expect("memory");
    for cut in 0..file.len() {
        let whole = ends
            .iter()
            .rev()
            .find(|(end, _)| *end <= cut)
            .map_or(0, |(_, rows)| *rows);
        match Reader::new(&file[..cut]) {
            Err(RecordingError::NotOurs(_)) => assert_eq!(whole, 0),
            Err(error) => panic!("{error}"),
            Ok(mut reader) => {
                let mut read = Vec::new();
                while let Some(batch) = reader.next_batch().expect("it is in memory") {
                    read.extend(batch.rows().filter(|row| row.kind != Kind::End));
                }
                assert_eq!(read, rows[..whole], "cut at {cut}");
                let closed = cut >= file.len() - 8;
                assert_eq!(
                    matches!(reader.end(), Some(End::Cut { .. })),
                    !closed,
                    "cut at {cut}"
                );
            }
        }
    }
}

/// Every byte is changed in turn. This may change rows, but it has no other effect.
#[test]
fn a_damaged_file_never_causes_a_panic() {
    let file = written(&program(60));
    for at in 0..file.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut damaged = file.clone();
            damaged[at] ^= change;
            let Ok(mut reader) = Reader::new(&damaged[..]) else {
                continue;
            };
            let mut rows = 0;
            while let Ok(Some(batch)) = reader.next_batch() {
                rows += batch.rows().count();
                for at in 0..batch.len() {
                    let _ = (batch.text(at), batch.list(at));
                }
            }
            assert!(rows < 1_000, "{rows} rows");
            assert!(reader.end().is_some());
        }
    }
}

#[test]
fn other_files_are_refused_in_one_sentence() {
    for other in [
        &b""[..],
        b"ARROW1",
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        &[0; 64],
        b"kind,time",
    ] {
        let refused = Reader::new(other).expect_err("it is none").to_string();
        assert!(
            refused.starts_with("this is not a Millpond recording: "),
            "{refused}"
        );
    }
}

#[test]
fn a_batch_skips_its_own_row_and_accepts_any_position() {
    let rows = program(10);
    let file = written(&rows);
    let mut reader = Reader::new(&file[..]).expect("a recording");
    assert_eq!(reader.fact("program"), Some("test"));
    let batch: Batch = reader.next_batch().expect("it is in memory").expect("one");
    assert_eq!((batch.len(), batch.rows().count()), (12, 11));
    assert!(!batch.is_empty() && batch.text(100).is_none() && batch.list(100).is_none());
}
