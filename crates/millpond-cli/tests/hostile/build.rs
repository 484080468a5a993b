//! Builds hostile recordings, and a hostile module.

use arrow_array::builder::{ListBuilder, UInt64Builder};
use arrow_array::{
    Array, ArrayRef, Int32Array, Int64Array, LargeListArray, RecordBatch, StringArray, UInt8Array,
    UInt32Array, UInt64Array, UnionArray,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Schema, UnionFields};
use millpond_trace::recording::{Kind, Row, Writer};
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

/// A recording that is being written by the normal writer.
pub(crate) struct Made {
    writer: Writer<Vec<u8>>,
    next: u64,
}

impl Made {
    pub(crate) fn new() -> Self {
        Self::with_fact("train")
    }

    /// Creates a recording of a program of this name.
    pub(crate) fn with_fact(program: &str) -> Self {
        let facts = [("program".to_owned(), program.to_owned())];
        let writer = Writer::new(Vec::new(), &facts).expect("memory");
        Self { writer, next: 1 }
    }

    fn say(&mut self, row: Row, text: Option<&str>, list: Option<&[u64]>) {
        self.writer.say(&row, text, list).expect("memory");
    }

    pub(crate) fn stack(&mut self, stack: u32, addresses: &[u64]) {
        let row = Row {
            stack,
            ..Row::new(Kind::DefineStack, 0)
        };
        self.say(row, None, Some(addresses));
    }

    pub(crate) fn frame(&mut self, text: &str, addresses: &[u64]) {
        self.say(Row::new(Kind::DefineFrame, 0), Some(text), Some(addresses));
    }

    pub(crate) fn tag(&mut self, tag: u32, text: &str) {
        let row = Row {
            tag,
            ..Row::new(Kind::DefineTag, 0)
        };
        self.say(row, Some(text), None);
    }

    /// Defines a module whose code lies from 0x1000 to 0x2000.
    pub(crate) fn module(&mut self, build_id: &str, path: &str) {
        let row = Row {
            address: 0x1000,
            bytes: 0x1000,
            ..Row::new(Kind::DefineModule, 0)
        };
        self.say(row, Some(&format!("{build_id}\n{path}")), Some(&[0x1000]));
    }

    /// Defines `devices` devices, each with a pool and a block in it. The pool's number is the device's plus one.
    pub(crate) fn devices(&mut self, devices: u32) {
        self.pools(devices, u64::from);
    }

    /// Defines pools with the numbers from 1 on, each with a block in it. `device` gives the device of a pool by its index.
    pub(crate) fn pools(&mut self, pools: u32, device: fn(u32) -> u64) {
        for index in 0..pools {
            let row = Row {
                pool: index + 1,
                ..Row::new(Kind::DefinePool, 0)
            };
            self.say(row, Some("cuda\n"), Some(&[device(index)]));
            self.block(0, 0, index + 1, 512);
        }
    }

    fn block(&mut self, stack: u32, tag: u32, pool: u32, bytes: u64) {
        let row = Row {
            id: self.next,
            requested: bytes,
            bytes,
            stack,
            tag,
            pool,
            ..Row::new(Kind::Alloc, self.next)
        };
        self.next += 1;
        self.writer.push(&row).expect("memory");
    }

    /// Allocates blocks that are not freed. They have the stacks from 1 on in turn.
    pub(crate) fn blocks(&mut self, blocks: u32, stacks: u32) {
        for number in 0..blocks {
            let stack = number.checked_rem(stacks).map_or(0, |at| at + 1);
            self.block(stack, 0, 0, 512);
        }
    }

    /// Allocates blocks that are not freed. They have the tags and pools from 1 on in turn.
    pub(crate) fn tagged(&mut self, blocks: u32, tags: u32, pools: u32) {
        for number in 0..blocks {
            self.block(0, number / pools % tags + 1, number % pools + 1, 512);
        }
    }

    /// Allocates blocks of 512 bytes at random addresses, which are not freed.
    pub(crate) fn random_blocks(&mut self, blocks: u32) {
        let mut state = 1_u64;
        for _ in 0..blocks {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let row = Row {
                id: self.next,
                address: state >> 8 << 9,
                requested: 512,
                bytes: 512,
                ..Row::new(Kind::Alloc, self.next)
            };
            self.next += 1;
            self.writer.push(&row).expect("memory");
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.writer.finish(self.next).expect("memory")
    }
}

/// A column outside the format, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    /// Its offsets are not aligned.
    UnalignedLargeList,
    /// Its buffer of types is empty.
    UnionWithoutTypes,
}

/// Returns a recording of one batch whose rows differ only in their kinds. The extra columns follow the columns of the format.
pub(crate) fn raw(rows: usize, kind: impl Fn(usize) -> u8, id: i64, extras: &[Extra]) -> Vec<u8> {
    let item = Arc::new(Field::new("item", DataType::UInt64, false));
    let mut lists = ListBuilder::new(UInt64Builder::new()).with_field(Arc::clone(&item));
    lists.append_nulls(rows);
    let wide = |value: u64| -> ArrayRef { Arc::new(UInt64Array::from(vec![value; rows])) };
    let narrow = || -> ArrayRef { Arc::new(UInt32Array::from(vec![0; rows])) };
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        (
            "kind",
            Arc::new(UInt8Array::from_iter_values((0..rows).map(kind))),
        ),
        ("time", Arc::new(Int64Array::from(vec![1; rows]))),
        ("id", Arc::new(Int64Array::from(vec![id; rows]))),
        ("address", wide(0)),
        ("requested", wide(512)),
        ("bytes", wide(512)),
        ("pool", narrow()),
        ("stream", narrow()),
        ("thread", narrow()),
        ("tag", narrow()),
        ("stack", narrow()),
        ("text", Arc::new(StringArray::new_null(rows))),
        ("list", Arc::new(lists.finish())),
    ];
    columns.extend(extras.iter().map(|extra| ("other", column(*extra, rows))));
    let field = |(name, array): &(&str, ArrayRef)| {
        Field::new(*name, array.data_type().clone(), matches!(*name, "text" | "list"))
    };
    let fields: Vec<Field> = columns.iter().map(field).collect();
    let metadata = HashMap::from([("millpond.version".to_owned(), "1".to_owned())]);
    let schema = Arc::new(Schema::new(fields).with_metadata(metadata));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).expect("columns of one length");
    // Only uncompressed buffers can be damaged by changing their description.
    let compression = extras.is_empty().then_some(CompressionType::ZSTD);
    let options = IpcWriteOptions::default()
        .try_with_compression(compression)
        .expect("it can");
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).expect("memory");
    writer.write(&batch).expect("memory");
    let mut file = writer.into_inner().expect("memory");
    for extra in extras {
        damage(&mut file, *extra, rows);
    }
    file
}

fn column(extra: Extra, rows: usize) -> ArrayRef {
    match extra {
        Extra::UnalignedLargeList => {
            let empty = (0..rows).map(|_| Some(Vec::<Option<i32>>::new()));
            Arc::new(LargeListArray::from_iter_primitive::<
                arrow_array::types::Int32Type,
                _,
                _,
            >(empty))
        }
        Extra::UnionWithoutTypes => {
            let field = Arc::new(Field::new("a", DataType::Int32, false));
            let fields = UnionFields::try_new([0], [field]).expect("one");
            let child: ArrayRef = Arc::new(Int32Array::from(vec![0; rows]));
            let types = vec![0_i8; rows].into();
            Arc::new(UnionArray::try_new(fields, types, None, vec![child]).expect("a union"))
        }
    }
}

/// Changes the batch's description of the last buffer that has the length of the extra column's own buffer.
fn damage(file: &mut [u8], extra: Extra, rows: usize) {
    let length = match extra {
        Extra::UnalignedLargeList => 8 * (rows as i64 + 1),
        Extra::UnionWithoutTypes => rows as i64,
    };
    // The description of a buffer is two numbers: its offset and its length.
    let place = file
        .windows(8)
        .rposition(|bytes| bytes == length.to_le_bytes())
        .expect("it is described");
    let (at, value) = match extra {
        Extra::UnalignedLargeList => {
            let begins = i64::from_le_bytes(file[place - 8..place].try_into().expect("8 bytes"));
            (place - 8, begins + 1)
        }
        Extra::UnionWithoutTypes => (place, 0),
    };
    file[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// The sections that are read to find lines of code.
const SECTIONS: [&str; 12] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_loc",
    ".debug_loclists",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
];

/// Returns a shared object with this build id. All its sections are the same few bytes, which decompress to `bytes` zeroes.
pub(crate) fn elf(build_id: u32, bytes: u64) -> Vec<u8> {
    const HEADER: usize = 64;
    let mut zeroes = zstd::Encoder::new(Vec::new(), 19).expect("it can");
    zeroes.include_contentsize(false).expect("it can");
    let block = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        zeroes.write_all(&block).expect("memory");
    }
    // The compression header: the type, the uncompressed size, and the alignment.
    let mut compressed = [2_u64, bytes, 1].map(u64::to_le_bytes).concat();
    compressed.extend(zeroes.finish().expect("memory"));
    let mut note = [4_u32, 4, 3].map(u32::to_le_bytes).concat();
    note.extend(b"GNU\0");
    note.extend(build_id.to_be_bytes());
    let mut names = b"\0.note.gnu.build-id\0.shstrtab\0".to_vec();
    let mut headers: Vec<[u64; 6]> = vec![[0; 6]];
    let note_at = HEADER as u64;
    let compressed_at = note_at + note.len() as u64;
    let names_at = compressed_at + compressed.len() as u64;
    // Name, type, flags, offset, length, alignment.
    headers.push([1, 7, 2, note_at, note.len() as u64, 4]);
    for section in SECTIONS {
        let name = names.len() as u64;
        names.extend(section.bytes().chain([0]));
        headers.push([name, 1, 0x800, compressed_at, compressed.len() as u64, 1]);
    }
    headers.push([20, 3, 0, names_at, names.len() as u64, 1]);
    let headers_at = names_at + names.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let (shared, machine, version) = (3_u16, 62_u16, 1_u32);
    file.extend(shared.to_le_bytes());
    file.extend(machine.to_le_bytes());
    file.extend(version.to_le_bytes());
    for number in [0, 0, headers_at] {
        file.extend(u64::to_le_bytes(number));
    }
    file.extend(0_u32.to_le_bytes());
    let count = headers.len() as u16;
    for number in [HEADER as u16, 56, 0, 64, count, count - 1] {
        file.extend(number.to_le_bytes());
    }
    file.extend(note);
    file.extend(compressed);
    file.extend(names);
    for [name, kind, flags, at, length, alignment] in headers {
        file.extend((name as u32).to_le_bytes());
        file.extend((kind as u32).to_le_bytes());
        for number in [flags, 0, at, length] {
            file.extend(number.to_le_bytes());
        }
        file.extend([0; 8]);
        for number in [alignment, 0] {
            file.extend(number.to_le_bytes());
        }
    }
    file
}
