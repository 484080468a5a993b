//! Bytes as the rows of a recording: any kinds in any order, with the values that hurt more often than by chance.

use millpond_trace::recording::{Kind, Row, Writer};

/// Bytes that one row is made of.
pub(crate) const ROW: usize = 12;

/// A recording of these rows, as a writer without any sense would write it.
pub(crate) fn written(bytes: &[u8]) -> Vec<u8> {
    let facts = [("program".to_owned(), "<script>alert(1)</script>".to_owned())];
    let mut writer = Writer::new(Vec::new(), &facts).expect("memory");
    for row in bytes.chunks_exact(ROW) {
        put(&mut writer, row).expect("memory");
    }
    writer.finish(value(bytes.first().copied())).expect("memory")
}

/// Small numbers, and those at the edges.
fn value(byte: Option<u8>) -> u64 {
    match byte.unwrap_or(0) {
        255 => u64::MAX,
        254 => u64::MAX - 1,
        253 => 1 << 63,
        252 => (1 << 63) - 1,
        251 => 1 << 62,
        250 => u64::from(u32::MAX),
        249 => u64::from(u32::MAX) + 1,
        small @ 200.. => 1 << (small - 200),
        small => u64::from(small),
    }
}

fn put(writer: &mut Writer<Vec<u8>>, bytes: &[u8]) -> Result<(), millpond_trace::recording::RecordingError> {
    let at = |place: usize| value(bytes.get(place).copied());
    let kind = Kind::ALL[usize::from(bytes[0]) % Kind::ALL.len()];
    let row = Row {
        id: at(2),
        address: at(3) << 9,
        requested: at(4),
        bytes: at(5),
        pool: at(6) as u32,
        stream: at(7) as u32,
        thread: at(8) as u32,
        tag: at(9) as u32,
        stack: at(10) as u32,
        ..Row::new(kind, at(1))
    };
    let last = bytes[11];
    if (kind as u8) < Kind::DefineTag as u8 && kind != Kind::Mark {
        return writer.push(&row);
    }
    let texts = [
        "",
        "</script><script>alert(1)</script>",
        "cuda\n\u{1b}[2Jname\0\u{202e}",
        "a;b\nfile.rs\n99999999999999999999\nf\nf.rs\n-1",
        "\n\n\n",
    ];
    let long = "x".repeat(usize::from(last) * 16);
    let text = texts.get(usize::from(last) % 7).copied().unwrap_or(&long);
    let list: Vec<u64> = (0..u64::from(last % 9))
        .map(|place| at(3).wrapping_mul(place))
        .collect();
    let (text, list) = (Some(text), Some(list));
    writer.say(
        &row,
        text.filter(|_| last != 13),
        list.as_deref().filter(|_| last != 14),
    )
}
