//! Compares safetensors files with the format's own library, in Rust and in Python (which the test installs into a
//! folder of the build), and tests damaged files and files that change.

#![cfg(target_os = "linux")]

#[path = "support/files.rs"]
mod files;

use files::{Folder, python, run};
use millpond::{
    Budget, DType, DataError, Pool, Pools, SafeTensors, Tensor, TensorError, TensorRef,
    budget::Measure,
    data::{Access, SafeTensorsError},
};
use proptest::prelude::*;
use safetensors::SafeTensors as Peer;
use safetensors::tensor::{Dtype as PeerType, TensorView};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

const NAMES: [(DType, &str); 14] = [
    (DType::F64, "F64"),
    (DType::F32, "F32"),
    (DType::F16, "F16"),
    (DType::BF16, "BF16"),
    (DType::I8, "I8"),
    (DType::I16, "I16"),
    (DType::I32, "I32"),
    (DType::I64, "I64"),
    (DType::U8, "U8"),
    (DType::U16, "U16"),
    (DType::U32, "U32"),
    (DType::U64, "U64"),
    (DType::Bool, "BOOL"),
    (DType::Complex64, "C64"),
];

/// Returns bytes 0, 1, 2… as elements of a type, in any shape. Truth values alternate.
fn counted(dtype: DType, shape: &[usize]) -> Tensor {
    let elements: usize = shape.iter().product();
    let pool = millpond::pools()
        .pool(millpond::Device::Host, millpond::MemoryKind::Host)
        .expect("a pool");
    let mut storage = pool.storage(dtype, elements).expect("room");
    for (at, byte) in storage.as_mut_bytes().iter_mut().enumerate() {
        *byte = if dtype == DType::Bool {
            at as u8 % 2
        } else {
            at as u8
        };
    }
    Tensor::from_storage(storage, shape).expect("as many")
}

fn bytes_of(tensor: &TensorRef<'_>) -> Vec<u8> {
    let copy = tensor.to_tensor().expect("room");
    copy.storage().as_bytes().to_vec()
}

fn same(one: &TensorRef<'_>, other: &TensorRef<'_>) {
    assert_eq!((one.dtype(), one.shape()), (other.dtype(), other.shape()));
    assert_eq!(bytes_of(one), bytes_of(other));
}

/// Writes a file with a header and data.
fn file(path: &Path, header: &str, data: &[u8]) -> PathBuf {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(data);
    fs::write(path, bytes).expect("room");
    path.to_owned()
}

/// Opens a file and reads all tensors in every supported way.
fn look(path: &Path) -> Result<Vec<(String, Tensor)>, SafeTensorsError> {
    let file = SafeTensors::open(path)?;
    // SAFETY: no other code has the file.
    let mapped = unsafe { file.map() }?;
    let mut found = Vec::new();
    for info in file.tensors() {
        assert_eq!(file.info(info.name())?, info);
        let loaded = file.load(info.name())?;
        let mut into = Tensor::zeros(loaded.shape(), loaded.dtype())?;
        file.load_into(info.name(), &mut into)?;
        same(&loaded.view()?, &into.view()?);
        match mapped.get(info.name()) {
            Ok(view) => same(&view, &loaded.view()?),
            Err(SafeTensorsError::Data(DataError::Misaligned { skip, align, .. })) => {
                assert!(!skip.is_multiple_of(align as u64) && info.bytes() > 0);
            }
            Err(error) => return Err(error),
        }
        found.push((info.name().to_owned(), loaded));
    }
    Ok(found)
}

#[test]
fn python_reads_what_is_written_and_writes_what_is_read() {
    let Some(python) = python(&["numpy", "safetensors"]) else {
        return;
    };
    let folder = Folder::new("safetensors-python");
    let shapes: [&[usize]; 5] = [&[], &[7], &[2, 3], &[4, 1, 5], &[0, 3]];
    let mut tensors = Vec::new();
    for (dtype, name) in NAMES {
        for (at, shape) in shapes.iter().enumerate() {
            tensors.push((format!("{name}.{at}"), counted(dtype, shape)));
        }
    }
    let turned = Tensor::arange(0.0f32, 15.0, 1.0).expect("room");
    let turned = turned.reshape([3, 5]).expect("15");
    let turned = turned.transpose(0, 1).expect("two").slice(0, 1..4).expect("five");
    tensors.push(("a \"view\"\n\u{1f411}".to_owned(), turned));
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.view().expect("host")))
        .collect();
    let said = [("format", "np"), ("who \"says\"", "ours\n")];
    SafeTensors::write(folder.0.join("ours.safetensors"), &views, &said).expect("room");
    SafeTensors::write(folder.0.join("none.safetensors"), &[], &[]).expect("room");
    let script = "
import numpy as np
from safetensors import safe_open, deserialize
from safetensors.numpy import load_file, save_file
shapes = [(), (7,), (2, 3), (4, 1, 5), (0, 3)]
types = dict(F64='f8', F32='f4', F16='f2', I8='i1', I16='i2', I32='i4', I64='i8', U8='u1', U16='u2', U32='u4', U64='u8', BOOL='?', C64='c8')
def expected(name, shape):
    dtype = np.dtype(types[name])
    count = int(np.prod(shape))
    bytes = np.arange(count * dtype.itemsize).astype('u1')
    if name == 'BOOL': bytes = bytes % 2
    return np.frombuffer(bytes.tobytes(), dtype=dtype).reshape(shape)
with safe_open('ours.safetensors', framework='np') as file:
    assert file.metadata() == {'format': 'np', 'who \"says\"': 'ours\\n'}, file.metadata()
    assert len(file.keys()) == 14 * 5 + 1
    for name in types:
        for at, shape in enumerate(shapes):
            if name == 'C64': continue
            array = file.get_tensor(f'{name}.{at}')
            wanted = expected(name, shape)
            assert array.dtype == wanted.dtype and array.shape == shape, (name, array.dtype, array.shape)
            assert array.tobytes() == wanted.tobytes(), name
    view = file.get_tensor('a \"view\"\\n\\U0001f411')
    assert (view == np.arange(15).reshape(3, 5).T[1:4]).all()
raw = dict(deserialize(open('ours.safetensors', 'rb').read()))
for name in ['BF16', 'C64']:
    assert raw[f'{name}.2']['dtype'] == name and raw[f'{name}.2']['shape'] == [2, 3]
assert load_file('none.safetensors') == {}
arrays = {f'{name}.{at}': expected(name, shape) for name in types if name != 'C64' for at, shape in enumerate(shapes)}
save_file(arrays, 'theirs.safetensors', metadata={'made': 'by Python', 'b': ''})
save_file({}, 'empty.safetensors')
";
    run(&python, script, &folder.0);
    let path = folder.0.join("theirs.safetensors");
    let theirs = SafeTensors::open(&path).expect("a file");
    assert_eq!(
        theirs.metadata().collect::<Vec<_>>(),
        [("b", ""), ("made", "by Python")]
    );
    let found = look(&path).expect("a file");
    assert_eq!(found.len(), 12 * 5, "all that Python can write");
    for (name, tensor) in found {
        let (dtype, at) = name.split_once('.').expect("ours");
        let (dtype, _) = NAMES.iter().find(|(_, name)| *name == dtype).expect("ours");
        let expected = counted(*dtype, shapes[at.parse::<usize>().expect("ours")]);
        same(&tensor.view().expect("host"), &expected.view().expect("host"));
    }
    let empty = SafeTensors::open(folder.0.join("empty.safetensors")).expect("a file");
    assert!(
        empty.is_empty()
            && look(&folder.0.join("none.safetensors"))
                .expect("a file")
                .is_empty()
    );
}

#[derive(Clone, Debug)]
struct Written {
    name: String,
    dtype: usize,
    shape: Vec<usize>,
}

fn written() -> impl Strategy<Value = Vec<Written>> {
    let one = (".{0,12}", 0..NAMES.len(), prop::collection::vec(0usize..5, 0..5))
        .prop_map(|(name, dtype, shape)| Written { name, dtype, shape });
    prop::collection::vec(one, 0..8).prop_map(|mut all| {
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all.dedup_by(|one, other| one.name == other.name);
        all
    })
}

/// The name, type, shape and bytes of each tensor, in the order of the names.
type Found = Vec<(String, String, Vec<usize>, Vec<u8>)>;

/// Returns the contents of a file as read by the format's own library.
fn peers(bytes: &[u8]) -> Option<Found> {
    let peer = Peer::deserialize(bytes).ok()?;
    let mut all: Vec<_> = peer
        .iter()
        .map(|(name, view)| {
            let kind = view.dtype().to_string();
            (name.to_owned(), kind, view.shape().to_vec(), view.data().to_vec())
        })
        .collect();
    all.sort();
    Some(all)
}

/// Returns the contents of a file as read by this crate.
fn ours(path: &Path) -> Result<Found, SafeTensorsError> {
    let mut all: Vec<_> = look(path)?
        .into_iter()
        .map(|(name, tensor)| {
            let (_, kind) = NAMES
                .iter()
                .find(|(of, _)| *of == tensor.dtype())
                .expect("of the format");
            let bytes = tensor.storage().as_bytes().to_vec();
            (name, (*kind).to_owned(), tensor.shape().to_vec(), bytes)
        })
        .collect();
    all.sort();
    Ok(all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_formats_own_library_agrees(all in written(), said in prop::collection::btree_map(".{0,9}", ".{0,9}", 0..4)) {
        let folder = Folder::new("safetensors-peer");
        let tensors: Vec<_> = all.iter().map(|one| counted(NAMES[one.dtype].0, &one.shape)).collect();
        let views: Vec<_> = all.iter().zip(&tensors).map(|(one, tensor)| (&one.name[..], tensor.view().expect("host"))).collect();
        let pairs: Vec<_> = said.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        let path = folder.0.join("ours");
        SafeTensors::write(&path, &views, &pairs).expect("room");
        let bytes = fs::read(&path).expect("ours");
        prop_assert!((bytes.len() - tensors.iter().map(|tensor| tensor.storage().bytes()).sum::<usize>()).is_multiple_of(64));
        let mine = ours(&path).expect("a file");
        let theirs = peers(&bytes);
        prop_assert_eq!(Some(&mine), theirs.as_ref());
        prop_assert_eq!(mine.len(), all.len());
        for (one, tensor) in all.iter().zip(&tensors) {
            let found = mine.iter().find(|found| found.0 == one.name).expect("it was written");
            prop_assert_eq!((&found.2, &found.3[..]), (&one.shape, tensor.storage().as_bytes()));
        }
        // All tensors are aligned in files that this crate has written.
        let file = SafeTensors::open(&path).expect("a file");
        prop_assert_eq!(file.metadata().collect::<Vec<_>>(), pairs);
        // SAFETY: no other code has the file.
        let mapped = unsafe { file.map() }.expect("a map");
        for name in file.names() {
            prop_assert!(mapped.get(name).is_ok());
        }

        // Files that the library writes can be read too.
        let theirs: Vec<_> = all.iter().zip(&tensors).map(|(one, tensor)| {
            let kind: PeerType = serde_json::from_str(&format!("{:?}", NAMES[one.dtype].1)).expect("of the format");
            let view = TensorView::new(kind, one.shape.clone(), tensor.storage().as_bytes());
            (one.name.clone(), view.expect("as many bytes"))
        }).collect();
        let said = (!said.is_empty()).then(|| said.into_iter().collect());
        let bytes = safetensors::serialize(theirs, said).expect("room");
        fs::write(&path, &bytes).expect("room");
        prop_assert_eq!(ours(&path).ok(), peers(&bytes));
    }

    /// For any changed file, this crate reads the same as the library, and both refuse invalid files.
    #[test]
    fn damaged_files_are_refused(at in any::<prop::sample::Index>(), byte in prop_oneof![any::<u8>(), prop::sample::select(&b"0123456789{}[]\":,."[..])], cut in prop::option::weighted(0.2, any::<prop::sample::Index>())) {
        let folder = Folder::new("safetensors-damage");
        let header = "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"U8\",\"shape\":[10],\"data_offsets\":[8,18]}}";
        let path = file(&folder.0.join("a"), header, &[1; 18]);
        let mut bytes = fs::read(&path).expect("ours");
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, &bytes).expect("room");
        match (ours(&path), peers(&bytes)) {
            (Ok(mine), theirs) => prop_assert_eq!(Some(mine), theirs),
            (Err(error), Some(theirs)) => {
                // The library accepts some files that this crate refuses: with repeated names, other types, or blanks
                // before the header.
                let types = NAMES.iter().map(|(_, name)| *name);
                let known = theirs.iter().all(|tensor| types.clone().any(|name| name == tensor.1));
                let more = matches!(error, SafeTensorsError::Duplicate { .. }) || !known || bytes.get(8) != Some(&b'{');
                let truths = matches!(error, SafeTensorsError::Data(DataError::NotBools { .. }));
                prop_assert!(more || truths, "{error}");
            }
            (Err(_), None) => {}
        }
    }
}

#[test]
fn hostile_headers_are_refused() {
    let folder = Folder::new("safetensors-hostile");
    let path = folder.0.join("a");
    let open = |header: &str, data: &[u8]| SafeTensors::open(file(&path, header, data)).expect_err(header);
    let one = |kind: &str, shape: &str, offsets: &str| {
        format!("{{\"a\":{{\"dtype\":{kind},\"shape\":{shape},\"data_offsets\":{offsets}}}}}")
    };
    for (header, why) in [
        ("", "does not begin with {"),
        (" {}", "does not begin with {"),
        ("[]", "does not begin with {"),
        ("{", "EOF"),
        ("{}}", "trailing"),
        ("{\"a\":1}", "an object of dtype, shape and data_offsets"),
        (
            "{\"a\":[\"F32\",[],[0,4]]}",
            "an object of dtype, shape and data_offsets",
        ),
        ("{\"__metadata__\":{\"a\":1}}", "a text"),
        ("{\"__metadata__\":{},\"__metadata__\":{}}", "twice"),
        (&one("4", "[1]", "[0,4]"), "a text"),
        (&one("\"F32\"", "1", "[0,4]"), "sizes of dimensions"),
        (&one("\"F32\"", "[-1]", "[0,4]"), "-1"),
        (&one("\"F32\"", "[1.0]", "[0,4]"), "1.0"),
        (
            &one("\"F32\"", "[18446744073709551616]", "[0,4]"),
            "floating point",
        ),
        (&one("\"F32\"", "[1]", "[0]"), "length 1"),
        (&one("\"F32\"", "[1]", "[0,4,8]"), "trailing"),
        (&one("\"F32\"", "[1]", "[0,-4]"), "-4"),
        (&one("\"F32\"", "[1]", "[0,4],\"shape\":[1]"), "twice"),
        ("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "lacks"),
        (
            &one("\"F32\"", &format!("[{}1]", "1,".repeat(64)), "[0,4]"),
            "64 dimensions",
        ),
    ] {
        let error = open(header, &[0; 4]);
        assert!(
            matches!(&error, SafeTensorsError::Header { why: told, .. } if told.contains(why)),
            "{header}: {error}"
        );
    }
    // Deep nesting is not followed to the end of the stack.
    let deep = format!("{{\"a\":{{\"other\":{}", "[".repeat(1 << 20));
    assert!(matches!(open(&deep, &[]), SafeTensorsError::Header { .. }));
    for (shape, offsets) in [
        ("[1]", "[0,3]"),
        ("[2]", "[0,4]"),
        ("[4294967296,4294967296]", "[0,4]"),
        ("[4611686018427387905]", "[0,4]"),
        ("[0]", "[0,4]"),
    ] {
        let error = open(&one("\"F32\"", shape, offsets), &[0; 4]);
        assert!(matches!(error, SafeTensorsError::Shape { .. }), "{error}");
    }
    for offsets in [
        "[4,0]",
        "[1,5]",
        "[18446744073709551612,18446744073709551616]",
        "[18446744073709551615,3]",
    ] {
        let error = open(&one("\"F32\"", "[1]", offsets), &[0; 4]);
        let overflows = offsets.contains("616");
        assert!(
            matches!(&error, SafeTensorsError::Offsets { expected: 0, .. }) || overflows,
            "{error}"
        );
    }
    let two = |first: &str, second: &str, last: &str| {
        let tensor = |offsets: &str| format!("{{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":{offsets}}}");
        format!("{{\"a\":{},\"{last}\":{}}}", tensor(first), tensor(second))
    };
    // The ranges overlap, are the same, or have a hole.
    for second in ["[2,6]", "[0,4]", "[5,9]"] {
        let error = open(&two("[0,4]", second, "b"), &[0; 9]);
        assert!(
            matches!(&error, SafeTensorsError::Offsets { name, .. } if name == "b" || second == "[0,4]"),
            "{error}"
        );
    }
    let twice = open(&two("[0,4]", "[4,8]", "\\u0061"), &[0; 8]);
    assert!(matches!(twice, SafeTensorsError::Duplicate { name, .. } if name == "a"));
    // The library keeps one of two tensors without bytes, and reports nothing.
    let none = "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    assert!(matches!(open(none, &[]), SafeTensorsError::Duplicate { .. }));
    assert_eq!(
        peers(&fs::read(&path).expect("ours")).expect("it reads it").len(),
        1
    );
    let keys = "{\"__metadata__\":{\"k\":\"v\",\"k\":\"w\"}}";
    assert!(matches!(open(keys, &[]), SafeTensorsError::Duplicate { name, .. } if name == "k"));
    // The data is truncated, or has bytes that belong to no tensor.
    let whole = one("\"F32\"", "[1]", "[0,4]");
    for found in [0, 3, 5] {
        let error = open(&whole, &[0; 5][..found]);
        assert!(
            matches!(error, SafeTensorsError::Length { expected: 4, found: there, .. } if there == found as u64)
        );
    }
    // No memory is allocated for the length of a missing header.
    for length in [3, 1 << 40, u64::MAX] {
        fs::write(&path, [&length.to_le_bytes()[..], b"{}"].concat()).expect("room");
        let error = SafeTensors::open(&path).expect_err("it is shorter");
        assert!(
            error.to_string().contains("the rest of the file has only 2"),
            "{error}"
        );
    }
    let large = fs::File::create(&path).expect("room");
    large.set_len(200_000_000).expect("a hole");
    (&large).write_all(&100_000_001_u64.to_le_bytes()).expect("room");
    let error = SafeTensors::open(&path).expect_err("more than the format has");
    assert!(
        error.to_string().contains("the format's limit of 100000000"),
        "{error}"
    );
    for length in 0..8 {
        fs::write(&path, &[0; 8][..length]).expect("room");
        let error = SafeTensors::open(&path).expect_err("no length");
        assert!(error.to_string().contains("its header alone takes 8"), "{error}");
    }
    let missing = SafeTensors::open(folder.0.join("none")).expect_err("it is not there");
    assert!(missing.to_string().contains("none: cannot find it"), "{missing}");
    assert!(matches!(
        SafeTensors::open("/dev/null"),
        Err(SafeTensorsError::Data(DataError::NotAFile { .. }))
    ));
}

#[test]
fn other_types_leave_the_rest_readable() {
    let folder = Folder::new("safetensors-types");
    let header = "{\"x\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[0,3]},\"new\":{\"dtype\":\"Z9\",\"shape\":[2],\"data_offsets\":[3,4],\"more\":{\"a\":[null]}},\"y\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[4,6]},\"z\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[6,10]},\"e\":{\"dtype\":\"F64\",\"shape\":[0,3],\"data_offsets\":[10,10]},\"b\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[10,12]}}";
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let path = file(
        &folder.0.join("a"),
        &header,
        &[1, 2, 3, 4, 7, 0, 0, 0, 128, 63, 1, 2],
    );
    let file = SafeTensors::open(&path).expect("a file");
    // SAFETY: no other code has the file.
    let mapped = unsafe { file.map() }.expect("a map");
    assert_eq!(file.names().collect::<Vec<_>>(), ["x", "new", "y", "z", "e", "b"]);
    for (name, kind) in [("x", "F8_E4M3"), ("new", "Z9")] {
        let info = file.info(name).expect("it is there");
        assert_eq!((info.dtype(), info.type_name()), (None, kind));
        for error in [
            file.load(name).map(drop).expect_err(kind),
            mapped.get(name).map(drop).expect_err(kind),
        ] {
            assert!(matches!(&error, SafeTensorsError::Type { type_name, .. } if type_name == kind));
        }
    }
    let y = mapped.get("y").expect("aligned");
    assert_eq!(y.as_slice::<i16>().expect("its type"), [7]);
    assert!(matches!(y.as_slice::<u16>(), Err(TensorError::DType(_))));
    // The tensor is not aligned for a view, but can be copied.
    assert!(matches!(
        mapped.get("z"),
        Err(SafeTensorsError::Data(DataError::Misaligned { align: 4, .. }))
    ));
    assert_eq!(file.load("z").expect("room").to_vec::<f32>().expect("f32"), [1.0]);
    assert_eq!(mapped.get("e").expect("nothing is aligned").shape(), [0, 3]);
    // Invalid truth values are refused when they are read.
    assert!(matches!(
        file.load("b"),
        Err(SafeTensorsError::Data(DataError::NotBools { .. }))
    ));
    let mut truths = Tensor::zeros([2], DType::Bool).expect("room");
    assert!(matches!(
        file.load_into("b", &mut truths),
        Err(SafeTensorsError::Data(DataError::NotBools { .. }))
    ));
    assert_eq!(
        mapped
            .get("b")
            .expect("bytes")
            .to_bools()
            .expect("what is not 0 is true"),
        [true, true]
    );
    assert!(matches!(file.load("Z"), Err(SafeTensorsError::NoTensor { name, .. }) if name == "Z"));
}

#[test]
fn a_file_that_is_truncated_or_written_is_an_error_and_no_crash() {
    let folder = Folder::new("safetensors-cut");
    let path = folder.0.join("a");
    let elements = vec![3u32; 1 << 20];
    let tensor = TensorRef::from_slice(&elements, [1 << 10, 1 << 10]).expect("as many");
    let write = || SafeTensors::write(&path, &[("first", tensor), ("second", tensor)], &[]).expect("room");
    write();
    let whole = fs::metadata(&path).expect("ours").len();
    for length in [0, 7, 8, 63, 64, 200, whole / 2, whole - 1] {
        write();
        OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(length))
            .expect("cut");
        assert!(SafeTensors::open(&path).is_err(), "{length}");

        write();
        let file = SafeTensors::open(&path).expect("a file");
        // SAFETY: the file is truncated only in a part that is not read afterwards.
        let mapped = unsafe { file.map() }.expect("a map");
        let before = mapped.get("second").expect("it is there");
        assert_eq!(
            before.as_slice::<u32>().expect("u32").iter().max(),
            Some(&3),
            "all of it is looked at"
        );
        OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(length))
            .expect("cut");
        let mut into = Tensor::zeros([1 << 10, 1 << 10], DType::U32).expect("room");
        for name in ["first", "second"] {
            assert!(
                matches!(
                    mapped.get(name),
                    Err(SafeTensorsError::Data(DataError::Changed { .. }))
                ),
                "{length}"
            );
            for error in [
                file.load(name).map(drop).expect_err("it is cut"),
                file.load_into(name, &mut into).expect_err("it is cut"),
            ] {
                assert!(
                    matches!(
                        error,
                        SafeTensorsError::Data(DataError::Truncated { .. } | DataError::Changed { .. })
                    ),
                    "{error}"
                );
            }
        }
        // SAFETY: the call is refused.
        let again = unsafe { file.map() };
        assert!(matches!(
            again,
            Err(SafeTensorsError::Data(DataError::Changed { .. }))
        ));
    }
    // A new file under this name does not change the open one.
    write();
    let file = SafeTensors::open(&path).expect("a file");
    // SAFETY: the file does not change. Another file replaces it.
    let mapped = unsafe { file.map() }.expect("a map");
    mapped.advise(Access::Sequential);
    mapped.expect("second");
    let view = mapped.get("second").expect("it is there");
    SafeTensors::write(&path, &[("other", tensor)], &[]).expect("room");
    mapped.forget("second");
    assert_eq!(view.sum().expect("u32"), (3u64 << 20).into());
    assert_eq!(
        mapped
            .get("first")
            .expect("it is there")
            .as_slice::<u32>()
            .expect("u32")
            .len(),
        1 << 20
    );
    assert_eq!(SafeTensors::open(&path).expect("a file").len(), 1);
}

#[test]
fn memory_is_counted_and_can_be_refused() {
    let folder = Folder::new("safetensors-memory");
    let path = folder.0.join("a");
    let elements = vec![1.5f32; 1 << 18];
    let tensor = TensorRef::from_slice(&elements, [1 << 18]).expect("as many");
    let names: Vec<String> = (0..2000).map(|at| format!("{at:0>100}")).collect();
    let small = TensorRef::from_slice(&elements[..1], [1]).expect("one");
    let mut tensors: Vec<_> = names.iter().map(|name| (&name[..], small)).collect();
    tensors.push(("large", tensor));
    SafeTensors::write(&path, &tensors, &[]).expect("room");

    let pool = Pool::builder().trim_every(None).host().expect("a pool");
    let budget = Budget::builder("loading")
        .measure(Measure::Allocated)
        .limit(2 << 20)
        .build()
        .expect("a budget");
    let tenant = pool.tenant(&budget).expect("allocated bytes");
    let file = SafeTensors::open(&path).expect("a file");
    let mut first = file.load_in(&tenant, "large").expect("room");
    assert_eq!(budget.used(), 1 << 20);
    let _other = file.load_in(&tenant, "large").expect("room");
    assert!(matches!(
        file.load_in(&tenant, "large"),
        Err(SafeTensorsError::Tensor(TensorError::Alloc(_)))
    ));
    let allocations = pool.stats().allocations;
    file.load_into("large", &mut first).expect("it has room");
    file.load_into("large", &mut first.view_mut().expect("alone"))
        .expect("a view, too");
    assert_eq!(pool.stats().allocations, allocations);
    assert_eq!(first.as_slice::<f32>().expect("f32"), elements);

    // The outputs have another type or shape, or are shared or strided.
    let mut wrong = Tensor::zeros([1 << 18], DType::I32).expect("room");
    assert!(matches!(
        file.load_into("large", &mut wrong),
        Err(SafeTensorsError::Tensor(TensorError::DTypes {
            left: DType::I32,
            right: DType::F32,
            ..
        }))
    ));
    let mut wrong = Tensor::zeros([1 << 17, 2], DType::F32).expect("room");
    assert!(matches!(
        file.load_into("large", &mut wrong),
        Err(SafeTensorsError::Tensor(TensorError::Shapes { .. }))
    ));
    let mut column = wrong
        .view_mut()
        .expect("alone")
        .select(1, 0)
        .expect("two")
        .slice(0, 0..1)
        .expect("many");
    file.load_into(&names[7], &mut column)
        .expect("one alone lies together");
    let _shared = first.clone();
    assert!(matches!(
        file.load_into("large", &mut first),
        Err(SafeTensorsError::Tensor(TensorError::Shared { others: 1 }))
    ));

    // The header is in the account of the current pools, and its allocation can be refused.
    let set = |limit| {
        Pools::builder()
            .template(Pool::builder().trim_every(None).limit(limit))
            .build()
    };
    let large = set(64 << 20);
    let file = large.scope(|| SafeTensors::open(&path)).expect("a file");
    let held = large.stats().total.requested.current;
    assert!((2000 * 100..4 << 20).contains(&held), "{held}");
    assert_eq!(file.len(), 2001);
    assert!(file.names().take(2000).eq(&names));
    let (other, weak) = (
        file.clone(),
        file.info(&names[1999]).expect("the last").shape().len(),
    );
    drop(file);
    assert_eq!((weak, large.stats().total.requested.current), (1, held));
    drop(other);
    assert_eq!(large.stats().total.requested.current, 0);
    let mut refused = 0;
    for limit in [64 << 10, 300 << 10, 512 << 10, 768 << 10] {
        let small = set(limit);
        match small.scope(|| SafeTensors::open(&path)) {
            Err(SafeTensorsError::Data(DataError::Memory(_))) => refused += 1,
            Ok(file) => assert_eq!(file.len(), 2001),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(small.stats().total.requested.current, 0);
    }
    assert!(refused >= 2, "{refused}");
}

#[test]
fn a_refused_write_is_an_error_and_leaves_no_file() {
    let folder = Folder::new("safetensors-write");
    let path = folder.0.join("a");
    let one = TensorRef::from_slice(&[1u8], []).expect("one");
    SafeTensors::write(&path, &[("kept", one)], &[]).expect("room");
    let write = |tensors: &[(&str, TensorRef<'_>)], metadata: &[(&str, &str)]| {
        SafeTensors::write(&path, tensors, metadata).expect_err("it is refused")
    };
    assert!(matches!(
        write(&[("a", one), ("b", one), ("a", one)], &[]),
        SafeTensorsError::Duplicate { name, .. } if name == "a"
    ));
    assert!(matches!(
        write(&[], &[("k", "v"), ("k", "w")]),
        SafeTensorsError::Duplicate { name, .. } if name == "k"
    ));
    assert!(matches!(
        write(&[("__metadata__", one)], &[]),
        SafeTensorsError::Name { .. }
    ));
    let wide = TensorRef::from_slice(&[[1.0f64, 2.0]], [1]).expect("one");
    assert!(matches!(
        write(&[("a", wide)], &[]),
        SafeTensorsError::Unwritable {
            dtype: DType::Complex128,
            ..
        }
    ));
    let nowhere = SafeTensors::write(folder.0.join("no/where"), &[("a", one)], &[]).expect_err("no folder");
    assert!(nowhere.to_string().contains("cannot write it"), "{nowhere}");
    assert_eq!(
        SafeTensors::open(&path)
            .expect("as it was")
            .names()
            .collect::<Vec<_>>(),
        ["kept"]
    );
    let beside = fs::read_dir(&folder.0).expect("ours").count();
    assert_eq!(beside, 1, "nothing beside");
    // Tensors with larger elements come first, and otherwise the order is kept.
    let four = TensorRef::from_slice(&[1.0f32], [1]).expect("one");
    let named = [("b", one), ("d", four), ("a", one), ("c", four)];
    SafeTensors::write(&path, &named, &[]).expect("room");
    let file = SafeTensors::open(&path).expect("a file");
    assert_eq!(file.names().collect::<Vec<_>>(), ["d", "c", "b", "a"]);
    assert_eq!(
        format!("{file:?}"),
        format!("SafeTensors(4 tensors in {})", path.display())
    );
}

#[test]
fn a_tensor_is_rows_of_a_data_set_and_its_neighbours_are_not() {
    let folder = Folder::new("safetensors-rows");
    let path = folder.0.join("a.safetensors");
    let table: Vec<f32> = (0..60).map(|number| number as f32).collect();
    let table = Tensor::from_slice(&table, [5, 4, 3]).expect("room");
    let wall = Tensor::full_of([7], -1, DType::F32).expect("room");
    let one = Tensor::full_of([], 9, DType::F64).expect("room");
    let views = [
        ("before", &wall),
        ("table", &table),
        ("behind", &wall),
        ("one", &one),
    ];
    let views = views.map(|(name, tensor)| (name, tensor.view().expect("host")));
    SafeTensors::write(&path, &views, &[]).expect("room");
    let file = SafeTensors::open(&path).expect("ours");
    let rows = file.rows::<f32>("table").expect("f32");
    assert_eq!((rows.rows(), rows.row()), (5, 12));
    let mut seen = Vec::new();
    let passed = rows
        .pass()
        .rows(2)
        .for_each(|chunk| seen.extend_from_slice(chunk));
    assert_eq!(
        (passed.expect("rows").rows, seen),
        (5, table.to_vec::<f32>().expect("f32"))
    );
    assert_eq!(
        rows.batch(4, 9).expect("the last")[..],
        table.as_slice::<f32>().expect("f32")[48..]
    );
    // SAFETY: the file is not written while the map is read.
    match unsafe { rows.map() } {
        Ok(map) => assert_eq!(map.batch(3, 1), &table.as_slice::<f32>().expect("f32")[36..48]),
        Err(error) => assert!(matches!(error, DataError::Misaligned { .. }), "{error}"),
    }
    let one = file.rows::<f64>("one").expect("f64");
    assert_eq!(
        (one.rows(), one.batch(0, 1).expect("a row")[..].to_vec()),
        (1, vec![9.0])
    );

    assert!(matches!(
        file.rows::<f64>("table"),
        Err(SafeTensorsError::Tensor(TensorError::DType(_)))
    ));
    assert!(matches!(
        file.rows::<f32>("tabel"),
        Err(SafeTensorsError::NoTensor { .. })
    ));
    // A new file under this name is not this one, which is still open.
    let bytes = fs::read(&path).expect("ours");
    let other = folder.0.join("other");
    fs::write(&other, &bytes).expect("room");
    fs::rename(&other, &path).expect("one folder");
    assert_eq!(
        file.rows::<f32>("before")
            .and_then(|rows| Ok(rows.batch(6, 1)?))
            .expect("open")[..],
        [-1.0]
    );
    let file = SafeTensors::open(&path).expect("as good");
    let rows = file.rows::<f32>("table").expect("f32");
    fs::write(&path, &bytes[..bytes.len() - 1]).expect("room");
    assert!(matches!(
        file.rows::<f32>("table"),
        Err(SafeTensorsError::Data(DataError::Changed { .. }))
    ));
    assert!(rows.batch(0, 1).is_err());
}
