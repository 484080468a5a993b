//! Tests `.npy` files against NumPy itself, which the test installs into a folder of the build, and tests damaged
//! files.

#![cfg(target_os = "linux")]

#[path = "support/files.rs"]
mod files;

use files::{Folder, python, run};
use millpond::{
    DType, DataError, Npy, Order, Pool, Tensor, TensorError,
    data::{Access, NpyError},
};
use std::fs;
use std::path::Path;

const NAMES: [(DType, &str); 12] = [
    (DType::F64, "f8"),
    (DType::F32, "f4"),
    (DType::I8, "i1"),
    (DType::I16, "i2"),
    (DType::I32, "i4"),
    (DType::I64, "i8"),
    (DType::U8, "u1"),
    (DType::U16, "u2"),
    (DType::U32, "u4"),
    (DType::U64, "u8"),
    (DType::Complex64, "c8"),
    (DType::Complex128, "c16"),
];

/// Returns 0, 1, 2… of a type, in any shape.
fn counted(dtype: DType, shape: &[usize]) -> Tensor {
    let len: usize = shape.iter().product();
    let numbers: Vec<f64> = (0..len).map(|n| n as f64).collect();
    let tensor = Tensor::from_slice(&numbers, shape).expect("room");
    tensor.cast(dtype).expect("numbers of every type").into_tensor()
}

fn same(one: &Tensor, other: &Tensor) {
    assert_eq!((one.dtype(), one.shape()), (other.dtype(), other.shape()));
    let [one, other] = [one, other].map(|tensor| tensor.to_contiguous().expect("room").into_tensor());
    let bytes = |tensor: &Tensor| {
        let size = tensor.dtype().size();
        tensor.storage().as_bytes()[tensor.offset() * size..][..tensor.len() * size].to_vec()
    };
    assert_eq!(bytes(&one), bytes(&other));
}

#[test]
fn numpy_reads_what_is_written_and_writes_what_is_read() {
    let Some(python) = python(&["numpy"]) else { return };
    let folder = Folder::new("npy");
    let shapes: [&[usize]; 5] = [&[], &[7], &[2, 3], &[4, 1, 5], &[0, 3]];
    // NumPy checks the files that this crate writes: plain arrays, and views.
    for (dtype, name) in NAMES {
        for (at, shape) in shapes.iter().enumerate() {
            Npy::write_tensor(folder.0.join(format!("{name}.{at}.npy")), &counted(dtype, shape))
                .expect("room");
        }
        let turned = counted(dtype, &[3, 5])
            .transpose(0, 1)
            .expect("two")
            .slice(0, 1..4)
            .expect("five");
        Npy::write_tensor(folder.0.join(format!("{name}.view.npy")), &turned).expect("room");
    }
    Npy::write_tensor(
        folder.0.join("b1.npy"),
        &Tensor::from_bools(&[true, false, true], [3]).expect("room"),
    )
    .expect("room");
    let script = "
import numpy as np
shapes = [(), (7,), (2, 3), (4, 1, 5), (0, 3)]
names = 'f8 f4 i1 i2 i4 i8 u1 u2 u4 u8 c8 c16'.split()
for name in names:
    for at, shape in enumerate(shapes):
        array = np.load(f'{name}.{at}.npy', allow_pickle=False)
        expected = np.arange(int(np.prod(shape)), dtype=np.float64).astype(name).reshape(shape)
        assert array.dtype == expected.dtype and array.shape == shape, (name, array.dtype, array.shape)
        assert (array == expected).all(), name
        np.save(f'{name}.{at}.back.npy', expected)
        np.save(f'{name}.{at}.fortran.npy', np.array(expected, order='F'))
        with open(f'{name}.{at}.long.npy', 'wb') as file:
            np.lib.format.write_array(file, expected, version=(2, 0))
    view = np.load(f'{name}.view.npy')
    assert (view == np.arange(15).reshape(3, 5).T[1:4]).all(), name
assert np.load('b1.npy').tolist() == [True, False, True]
np.save('b1.back.npy', np.array([[True], [False]]))
np.save('big.npy', np.arange(3, dtype='>f4'))
np.save('text.npy', np.array(['a', 'bc']))
np.save('fields.npy', np.zeros(3, dtype=[('x', 'f4'), ('y', 'i8')]))
np.save('half.npy', np.arange(5, dtype='f2'))
";
    run(&python, script, &folder.0);
    let pool = Pool::builder().trim_every(None).host().expect("a pool");
    for (dtype, name) in NAMES {
        for (at, shape) in shapes.iter().enumerate() {
            for kind in ["back", "fortran", "long"] {
                let npy = Npy::open(folder.0.join(format!("{name}.{at}.{kind}.npy"))).expect(kind);
                let sizes: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
                assert_eq!((npy.dtype(), npy.shape()), (dtype, &sizes[..]));
                same(&npy.tensor_in(&pool).expect(kind), &counted(dtype, shape));
            }
        }
    }
    let turned = Npy::open(folder.0.join("f4.3.fortran.npy")).expect("a file");
    assert!(turned.is_fortran_order());
    assert!(matches!(turned.rows::<f32>(), Err(NpyError::FortranOrder { .. })));
    let rows = Npy::open(folder.0.join("f4.3.back.npy"))
        .expect("a file")
        .rows::<f32>()
        .expect("rows");
    assert_eq!((rows.rows(), rows.row()), (4, 5));
    assert_eq!(
        rows.batch(3, 9).expect("room")[..],
        [15.0, 16.0, 17.0, 18.0, 19.0]
    );
    // SAFETY: no other code has the file.
    let map = unsafe { rows.map() }.expect("NumPy aligns to 64");
    assert_eq!(map.batch(1, 1), [5.0, 6.0, 7.0, 8.0, 9.0]);
    let bools = Npy::open(folder.0.join("b1.back.npy"))
        .expect("a file")
        .tensor()
        .expect("room");
    assert_eq!(
        (bools.shape(), bools.to_bools().expect("bools")),
        (&[2, 1][..], vec![true, false])
    );
    let half = Npy::open(folder.0.join("half.npy")).expect("a file");
    assert_eq!(
        (half.dtype(), half.tensor().expect("room").shape()),
        (DType::F16, &[5][..])
    );
    for (file, says) in [
        ("big", ">f4"),
        ("text", "<U2"),
        ("fields", "[('x', '<f4'), ('y', '<i8')]"),
    ] {
        let error = Npy::open(folder.0.join(format!("{file}.npy"))).expect_err(file);
        assert!(
            matches!(&error, NpyError::Type { descr, .. } if descr == says),
            "{error}"
        );
    }
}

#[test]
fn damaged_files_are_refused() {
    let folder = Folder::new("npy-damaged");
    let path = folder.0.join("a.npy");
    Npy::write(&path, &[4, 3], &[1u16; 12]).expect("room");
    let whole = fs::read(&path).expect("ours");
    assert!(
        !fs::read_dir(&folder.0)
            .expect("ours")
            .any(|entry| entry.expect("ours").path() != path),
        "nothing beside"
    );
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).expect("room");
        match Npy::open(&path) {
            Err(NpyError::Header { .. }) => assert!(length < 128, "{length}"),
            Ok(npy) => {
                assert!(length >= 128, "{length}");
                let short = npy.tensor().expect_err("it is short");
                assert!(
                    matches!(
                        short,
                        NpyError::Shape { .. } | NpyError::Data(DataError::Uneven { .. })
                    ),
                    "{short}"
                );
                assert!(npy.rows::<u16>().is_err());
            }
            Err(error) => panic!("{length}: {error}"),
        }
    }
    let with = |at: usize, bytes: &[u8]| {
        let mut damaged = whole.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(&path, damaged).expect("room");
        Npy::open(&path).map(|npy| npy.tensor().map(drop))
    };
    assert!(matches!(with(0, b"PK"), Err(NpyError::Header { .. })));
    assert!(matches!(with(6, &[4]), Err(NpyError::Header { why, .. }) if why.contains("version is 4.0")));
    // A header that claims four gigabytes allocates no memory for them.
    assert!(
        matches!(with(6, &[2, 0, 255, 255, 255, 255]), Err(NpyError::Header { why, .. }) if why.contains("more than the limit of 65536"))
    );
    // A shape that claims more elements than there are allocates none either.
    let place = whole
        .windows(6)
        .position(|six| six == b"(4, 3)")
        .expect("the shape");
    assert!(matches!(
        with(place, b"(999,)"),
        Ok(Err(NpyError::Shape {
            expected: 999,
            found: 12,
            ..
        }))
    ));
    assert!(matches!(with(place, b"(-4,3)"), Err(NpyError::Header { .. })));
    let place = whole
        .windows(5)
        .position(|five| five == b"'<u2'")
        .expect("the type");
    let odd = with(place, b"'\n<2'").expect_err("no type");
    assert!(
        matches!(odd, NpyError::Type { .. }) && !odd.to_string().contains('\n'),
        "one line: {odd}"
    );
    let _ = fs::remove_file(&path);
    Npy::write_tensor(&path, &Tensor::from_bools(&[true], [1]).expect("room")).expect("room");
    let mut bytes = fs::read(&path).expect("ours");
    *bytes.last_mut().expect("a bool") = 2;
    fs::write(&path, bytes).expect("room");
    let bools = Npy::open(&path).expect("a header").tensor();
    assert!(matches!(bools, Err(NpyError::Data(DataError::NotBools { .. }))));
    assert!(matches!(
        Npy::open(&path).expect("a header").rows::<u8>(),
        Err(NpyError::OtherType { .. })
    ));
    assert!(matches!(
        Npy::open("/dev/null"),
        Err(NpyError::Data(DataError::NotAFile { .. }))
    ));
    assert!(matches!(
        Npy::write(&path, &[5], &[1u8; 4]),
        Err(NpyError::Shape {
            expected: 5,
            found: 4,
            ..
        })
    ));
    assert!(matches!(
        Npy::write(&path, &[1; 65], &[1u8]),
        Err(NpyError::Tensor(TensorError::Rank { found: 65, most: 64 }))
    ));
    Npy::write(&path, &[2], &[1u8, 2]).expect("room");
    let old = Npy::open(&path).expect("a header");
    Npy::write(&path, &[3], &[1u8, 2, 3]).expect("room");
    assert!(matches!(
        old.tensor(),
        Err(NpyError::Data(DataError::Changed { .. }))
    ));
    assert!(matches!(
        old.rows::<u8>(),
        Err(NpyError::Data(DataError::Changed { .. }))
    ));
    let nowhere = Npy::write(folder.0.join("no/where.npy"), &[1], &[1u8]).expect_err("no folder");
    assert!(nowhere.to_string().contains("cannot write it"), "{nowhere}");
}

/// Writes a file as other libraries may write it, in any order and with a header of any length.
fn write_raw(path: &Path, header: &str, length: usize, elements: &[u8]) {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(((length - 10) as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.resize(length - 1, b' ');
    bytes.push(b'\n');
    bytes.extend(elements);
    fs::write(path, bytes).expect("room");
}

#[test]
fn a_map_shows_the_array_in_its_own_order() {
    let folder = Folder::new("npy-mapped");
    let path = folder.0.join("a.npy");
    // SAFETY: no other code uses the file, here and below.
    let map = |path: &Path| unsafe { Npy::open(path).expect("a header").map() };
    for (dtype, name) in NAMES {
        for shape in [&[][..], &[7], &[2, 3], &[4, 1, 5], &[0, 3]] {
            Npy::write_tensor(&path, &counted(dtype, shape)).expect("room");
            let mapped = map(&path).expect(name);
            mapped.advise(Access::Sequential);
            let view = mapped.view().expect("as it was");
            assert!(view.is_contiguous());
            same(&view.to_tensor().expect("room"), &counted(dtype, shape));
            mapped.forget();
            same(
                &mapped.view().expect("as it was").to_tensor().expect("room"),
                &counted(dtype, shape),
            );
        }
        let header = format!("{{'descr': '<{name}', 'fortran_order': True, 'shape': (4, 2, 3), }}");
        let header = if dtype.size() == 1 {
            header.replace('<', "|")
        } else {
            header
        };
        // The file holds the elements row by row if the last dimension comes first.
        let turned = counted(dtype, &[3, 2, 4]);
        write_raw(&path, &header, 128, turned.storage().as_bytes());
        let mapped = map(&path).expect(name);
        let view = mapped.view().expect("as it was");
        assert_eq!((view.shape(), view.strides()), (&[4, 2, 3][..], &[1, 4, 8][..]));
        same(
            &view.to_tensor().expect("room"),
            &turned.permute([2, 1, 0]).expect("three"),
        );
    }
    Npy::write_tensor(
        &path,
        &Tensor::from_bools(&[true, false, true], [3]).expect("room"),
    )
    .expect("room");
    let mapped = map(&path).expect("bools");
    assert_eq!(
        mapped
            .view()
            .and_then(|view| Ok(view.to_bools()?))
            .expect("bools"),
        [true, false, true]
    );
    assert_eq!(
        (mapped.npy().dtype(), mapped.npy().shape()),
        (DType::Bool, &[3][..])
    );

    // The elements are not aligned for f64, so they can only be read.
    let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }";
    write_raw(&path, header, 100, counted(DType::F64, &[2]).storage().as_bytes());
    assert!(matches!(
        map(&path),
        Err(NpyError::Data(DataError::Misaligned {
            skip: 100,
            align: 8,
            ..
        }))
    ));
    same(
        &Npy::open(&path).and_then(|npy| npy.tensor()).expect("read"),
        &counted(DType::F64, &[2]),
    );
    // A truncated file has no view. A file that changes after it was mapped has none either.
    write_raw(&path, header, 128, &[0; 8]);
    assert!(matches!(
        map(&path),
        Err(NpyError::Shape {
            expected: 2,
            found: 1,
            ..
        })
    ));
    write_raw(&path, header, 128, &[0; 16]);
    let mapped = map(&path).expect("whole");
    write_raw(&path, header, 128, &[0; 24]);
    assert!(matches!(
        mapped.view(),
        Err(NpyError::Data(DataError::Changed { .. }))
    ));
}

#[test]
fn files_that_were_replaced_after_the_header_was_read_are_refused() {
    let folder = Folder::new("npy-replaced");
    let [path, other] = ["a.npy", "b.npy"].map(|name| folder.0.join(name));
    Npy::write(&path, &[2], &[1u8, 2]).expect("room");
    let npy = Npy::open(&path).expect("a header");
    let modified = fs::metadata(&path)
        .and_then(|file| file.modified())
        .expect("a time");
    // The new file has the same length and the same modification time.
    Npy::write(&other, &[2], &[3u8, 4]).expect("room");
    let file = fs::OpenOptions::new().write(true).open(&other).expect("ours");
    file.set_modified(modified).expect("ours");
    // SAFETY: neither file is written.
    let mapped = unsafe { npy.map() }.expect("as it was");
    fs::rename(&other, &path).expect("one folder");
    assert!(matches!(
        npy.tensor(),
        Err(NpyError::Data(DataError::Changed { .. }))
    ));
    assert!(matches!(
        npy.rows::<u8>(),
        Err(NpyError::Data(DataError::Changed { .. }))
    ));
    // The open file still has its old contents.
    assert_eq!(
        mapped
            .view()
            .and_then(|view| Ok(view.to_vec::<u8>()?))
            .expect("open"),
        [1, 2]
    );
}

#[test]
fn shards_are_rows_of_one_data_set() {
    let folder = Folder::new("npy-shards");
    let paths = ["0.npy", "1.npy", "2.npy", "3.npy"].map(|name| folder.0.join(name));
    let numbers: Vec<u32> = (0..60).collect();
    let bytes = |range: std::ops::Range<usize>| {
        numbers[range]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    Npy::write(&paths[0], &[3, 2, 2], &numbers[..12]).expect("room");
    Npy::write(&paths[1], &[0, 2, 2], &numbers[..0]).expect("room");
    // The headers have different lengths.
    let header = "{'descr': '<u4', 'fortran_order': False, 'shape': (10, 2, 2), }";
    write_raw(&paths[2], header, 320, &bytes(12..52));
    Npy::write(&paths[3], &[2, 2, 2], &numbers[52..]).expect("room");
    let data = Npy::rows_of::<u32, _>(&paths).expect("alike");
    assert_eq!((data.rows(), data.row()), (15, 4));
    for start in 0..15 {
        for count in [1, 4, 20] {
            let end = (start + count).min(15);
            let batch = data.batch(start as u64, count).expect("rows");
            assert_eq!(batch[..], numbers[4 * start..4 * end]);
        }
    }
    let mut seen = Vec::new();
    let pass = data.pass().rows(2).order(Order::shuffled(3));
    pass.for_each(|chunk| seen.extend(chunk.rows().map(|row| row[3])))
        .expect("rows");
    seen.sort_unstable();
    assert_eq!(seen, (0..15).map(|row| 4 * row + 3).collect::<Vec<_>>());
    // SAFETY: the files are not written.
    let map = unsafe { data.map() }.expect("aligned");
    assert_eq!(
        (map.batch(2, 5), map.batch(4, 3)),
        (&numbers[8..12], &numbers[16..28])
    );
    assert_eq!(map.batch(13, 9), &numbers[52..]);

    let other = folder.0.join("other.npy");
    let with_other = || Npy::rows_of::<u32, _>([&paths[0], &other]);
    Npy::write(&other, &[2, 4], &[0u32; 8]).expect("room");
    assert!(matches!(
        with_other(),
        Err(NpyError::OtherRows { path, expected, found }) if path == other && expected == [2, 2] && found == [4]
    ));
    Npy::write(&other, &[2, 2, 2], &[0i32; 8]).expect("room");
    assert!(matches!(
        with_other(),
        Err(NpyError::OtherType {
            found: DType::I32,
            ..
        })
    ));
    write_raw(&other, &header.replace("False", "True"), 128, &bytes(0..40));
    assert!(matches!(with_other(), Err(NpyError::FortranOrder { .. })));
    write_raw(&other, header, 128, &bytes(0..36));
    assert!(matches!(
        with_other(),
        Err(NpyError::Shape {
            expected: 40,
            found: 36,
            ..
        })
    ));
    let none = Npy::rows_of::<u32, &Path>([]);
    assert!(matches!(none, Err(NpyError::Data(DataError::NoFiles))));
}
