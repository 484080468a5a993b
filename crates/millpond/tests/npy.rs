//! `.npy` files against NumPy itself, which the test installs into a folder of the build, and against damage.

#![cfg(target_os = "linux")]

#[path = "support/numpy.rs"]
mod numpy;

use millpond::{DType, DataError, Npy, NpyError, Pool, Tensor};
use numpy::python;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of its own, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(python: &Path, script: &str, folder: &Path) {
    let output = Command::new(python)
        .args(["-c", script])
        .current_dir(folder)
        .output()
        .expect("a child");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

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

/// 0, 1, 2… of a type, in any shape.
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
    let Some(python) = python() else { return };
    let folder = Folder::new("npy");
    let shapes: [&[usize]; 5] = [&[], &[7], &[2, 3], &[4, 1, 5], &[0, 3]];
    // NumPy checks what we write: plain arrays, and views that are copied for it.
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
    // SAFETY: nobody else has the file.
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
fn damaged_files_are_told() {
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
    assert!(matches!(with(6, &[4]), Err(NpyError::Header { why, .. }) if why.contains("version 4.0")));
    // A header that claims four gigabytes takes no memory for them.
    assert!(
        matches!(with(6, &[2, 0, 255, 255, 255, 255]), Err(NpyError::Header { why, .. }) if why.contains("the most"))
    );
    // A shape that claims more than there is takes none either.
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
    let _ = fs::remove_file(&path);
    Npy::write_tensor(&path, &Tensor::from_bools(&[true], [1]).expect("room")).expect("room");
    let mut bytes = fs::read(&path).expect("ours");
    *bytes.last_mut().expect("a bool") = 2;
    fs::write(&path, bytes).expect("room");
    let bools = Npy::open(&path).expect("a header").tensor();
    assert!(matches!(bools, Err(NpyError::Header { why, .. }) if why.contains("neither 0 nor 1")));
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
    let nowhere = Npy::write(folder.0.join("no/where.npy"), &[1], &[1u8]).expect_err("no folder");
    assert!(nowhere.to_string().contains("cannot write it"), "{nowhere}");
}
