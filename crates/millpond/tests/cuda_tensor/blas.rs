//! Products of matrices by cuBLAS. The emulated driver replaces the few functions of cuBLAS and checks every argument.

use crate::agree::Random;
use crate::{each_call_fails, emulator};
use millpond::cuda::{
    CublasError, CudaDevice, CudaQueue, CudaStream, DevicePool, DeviceTensor, MatmulBackend,
};
use millpond::{DType, Tensor};

/// Runs the body in a process of its own for each set of options and each value of `MILLPOND_CUBLAS`, which is unset
/// for `None`. Returns the output after `says: `.
fn in_children(test: &str, runs: &[(&str, Option<&str>)], body: impl FnOnce()) -> Vec<String> {
    if emulator::is_child(test) {
        assert!(emulator::load());
        body();
        return Vec::new();
    }
    if emulator::is_real() || !emulator::load() {
        eprintln!("skipped: on the emulated driver only");
        return Vec::new();
    }
    let run = |(options, cublas): &(&str, Option<&str>)| {
        let mut variables = vec![("MILLPOND_CUDA_EMU", *options)];
        variables.extend(cublas.map(|path| ("MILLPOND_CUBLAS", path)));
        let (passed, text) = emulator::child_with(test, &variables);
        assert!(passed, "{options} {cublas:?}:\n{text}");
        let said = text.lines().filter_map(|line| line.split_once("says: "));
        said.map(|(_, said)| said).collect::<Vec<_>>().join("\n")
    };
    runs.iter().map(run).collect()
}

/// Returns the path of the emulated driver's library, which has both.
fn library() -> String {
    // On a real driver the emulated library does not exist, and the tests that need it are skipped.
    if emulator::is_real() {
        return String::new();
    }
    let path = emulator::library().expect("it is built");
    path.into_os_string().into_string().expect("a path of text")
}

fn queue() -> CudaQueue {
    let device = CudaDevice::get(0).expect("a device");
    let pool = DevicePool::builder().settings("").build(&device).expect("a pool");
    let stream = CudaStream::new(&device).expect("a stream");
    pool.on(&stream).expect("memory")
}

fn floats() -> impl Iterator<Item = DType> {
    let all = [DType::F64, DType::F32, DType::F16, DType::BF16];
    all.into_iter()
        .filter(|dtype| cfg!(feature = "half") || dtype.size() > 2)
}

/// Returns numbers in one of several layouts. The roundings of their products all differ.
fn matrices(random: &mut Random, queue: &CudaQueue, shape: &[usize], dtype: DType) -> DeviceTensor {
    let (kind, rank) = (random.below(6), shape.len());
    let mut there = shape.to_vec();
    let (rows, columns) = (rank - 2, rank - 1);
    match kind {
        0 | 1 => {}
        2 => there[columns] += 3,
        3 => there[rows] += 2,
        4 => there[columns] *= 2,
        _ => there.rotate_left(1),
    }
    if kind % 2 == 1 && kind < 5 {
        there.swap(rows, columns);
    }
    let len = there.iter().product();
    let values: Vec<f64> = (0..len)
        .map(|_| (random.below(2_000_001) as f64 - 1e6) / 3e5)
        .collect();
    let tensor = Tensor::from_slice(&values, &there).expect("memory");
    let tensor = tensor.cast(dtype).expect("numbers").into_tensor();
    let tensor = tensor.to(queue).expect("a copy").into_tensor();
    view(tensor, kind, shape)
}

/// Returns the view of a shape in memory of the given layout.
fn view(tensor: DeviceTensor, kind: usize, shape: &[usize]) -> DeviceTensor {
    let rank = shape.len();
    let (rows, columns) = (rank - 2, rank - 1);
    let view = match kind {
        0 => Ok(tensor),
        1 => tensor.transpose(rows, columns),
        2 => tensor.slice(columns, 1..=shape[columns]),
        3 => tensor
            .transpose(rows, columns)
            .and_then(|view| view.slice(rows, ..shape[rows])),
        4 => tensor.step(columns, 2),
        _ => {
            let mut order = vec![rank - 1];
            order.extend(0..rank - 1);
            tensor.permute(order)
        }
    };
    let view = view.expect("a view");
    assert_eq!(view.shape(), shape);
    view
}

/// Computes products of random shapes and views. Returns a sum of all bits, and the number of products by cuBLAS.
fn program(queue: &CudaQueue, products: u64) -> (u64, u64) {
    let (mut random, mut sum, mut by_cublas) = (Random(7), 0_u64, 0);
    for dtype in floats() {
        for _ in 0..products {
            let before = &[3, 1, 2][..random.below(4)];
            let [rows, inner, columns] = [0; 3].map(|_: i32| 1 + random.below(9));
            let left = matrices(&mut random, queue, &[before, &[rows, inner]].concat(), dtype);
            let kept = &before[random.below(before.len() + 1)..];
            let right = matrices(&mut random, queue, &[kept, &[inner, columns]].concat(), dtype);
            let product = if random.below(2) == 0 {
                left.matmul(&right).expect("a product")
            } else {
                let shape = [before, &[rows, columns]].concat();
                let mut whole = DeviceTensor::zeros(queue, shape, dtype).expect("memory");
                left.matmul_into(&right, &mut whole).expect("a product");
                whole
            };
            by_cublas += u64::from(matches!(
                queue.matmul_backend(),
                Some(MatmulBackend::Cublas { version: 120_000 })
            ));
            let numbers = product.to(millpond::Device::Host).expect("a copy");
            let numbers = numbers.deep_copy().expect("memory");
            for byte in numbers.storage().as_bytes() {
                sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    (sum, by_cublas)
}

#[test]
fn products_equal_the_kernels_bit_for_bit() {
    const PRODUCTS: u64 = 100;
    let path = library();
    let runs = [
        ("strict:on", Some("off")),
        ("strict:on", Some(path.as_str())),
        ("strict:on,streams:seeded,seed:3", Some(&path)),
        ("strict:on,streams:threads", Some(&path)),
    ];
    let said = in_children("blas::products_equal_the_kernels_bit_for_bit", &runs, || {
        let (sum, by_cublas) = program(&queue(), PRODUCTS);
        let all = floats().count() as u64 * PRODUCTS;
        if std::env::var("MILLPOND_CUBLAS").is_ok_and(|said| said == "off") {
            assert_eq!(by_cublas, 0);
        } else {
            // cuBLAS supports most views, but none with a step.
            assert!(by_cublas > all / 2 && by_cublas < all, "{by_cublas} of {all}");
        }
        assert_eq!(emulator::findings(), (0, String::new()));
        println!("says: {sum:016x}");
    });
    assert!(
        said.iter().all(|sum| !sum.is_empty() && *sum == said[0]),
        "{said:?}"
    );
}

/// Outputs are views too.
#[test]
fn only_the_elements_of_outputs_are_written() {
    let path = library();
    let runs = [("strict:on", Some("off")), ("strict:on", Some(path.as_str()))];
    let test = "blas::only_the_elements_of_outputs_are_written";
    let said = in_children(test, &runs, || {
        let (queue, mut random) = (queue(), Random(11));
        let mut sums = String::new();
        for dtype in floats() {
            let left = matrices(&mut random, &queue, &[3, 4, 5], dtype);
            let right = matrices(&mut random, &queue, &[5, 6], dtype);
            // The outputs are columns between others, transposed, and matrices side by side.
            for (shape, order) in [
                ([3, 6, 9], [0, 1, 2]),
                ([3, 9, 6], [0, 2, 1]),
                ([6, 3, 9], [1, 0, 2]),
            ] {
                let mut whole = DeviceTensor::full_of(&queue, shape, -1.0, dtype).expect("memory");
                let view = whole.view_mut().and_then(|view| view.permute(order));
                let view = view.and_then(|view| view.slice(1, 1..5));
                let mut view = view.and_then(|view| view.slice(2, 2..8)).expect("a view");
                left.matmul_into(&right, &mut view).expect("a product");
                sums += &format!("{:?} ", whole.sum().expect("a sum"));
                let there = whole.cast(DType::F64).expect("numbers");
                let untouched = there.to_vec::<f64>().expect("a copy");
                let untouched = untouched.iter().filter(|number| **number == -1.0).count();
                assert!(untouched >= 162 - 72, "{untouched}");
            }
        }
        assert_eq!(emulator::findings(), (0, String::new()));
        println!("says: {sums}");
    });
    assert!(
        said.iter().all(|sum| !sum.is_empty() && *sum == said[0]),
        "{said:?}"
    );
}

fn ones(queue: &CudaQueue, dtype: DType) -> DeviceTensor {
    DeviceTensor::ones(queue, [8, 8], dtype).expect("memory")
}

/// Returns the backend of a product of ones, after checking the product.
fn formed(queue: &CudaQueue, dtype: DType) -> MatmulBackend {
    let product = ones(queue, dtype).matmul(&ones(queue, dtype)).expect("a product");
    let product = product.cast(DType::F64).expect("numbers");
    assert_eq!(product.to_vec::<f64>().expect("a copy"), [8.0; 64]);
    queue.matmul_backend().expect("there was one")
}

#[test]
fn without_cublas_the_kernel_computes_products_and_reports_why() {
    let runs = [
        ("", None),
        ("", Some("off")),
        ("", Some("/nowhere/libcublas.so")),
        ("", Some("libm.so.6")),
    ];
    let test = "blas::without_cublas_the_kernel_computes_products_and_reports_why";
    let said = in_children(test, &runs, || {
        let queue = queue();
        assert_eq!(queue.matmul_backend(), None);
        let bytes = queue.pool().stats().requested.current;
        println!("says: {}", formed(&queue, DType::F32));
        assert_eq!(
            queue.pool().stats().requested.current,
            bytes,
            "nothing is held for it"
        );
    });
    if said.is_empty() {
        return;
    }
    let begins = [
        "the tiled kernel: cuBLAS is not loaded with the emulated driver",
        "the tiled kernel: cuBLAS is disabled",
        "the tiled kernel: cannot load cuBLAS (MILLPOND_CUBLAS is set, but ",
        "the tiled kernel: cannot load cuBLAS (the library that was found has no cublasCreate_v2): run `pip install",
    ];
    for (said, begins) in said.iter().zip(begins) {
        assert!(said.starts_with(begins), "{said}");
    }
}

#[test]
fn products_that_the_library_does_not_support_use_the_kernel() {
    let path = library();
    let runs = [("strict:on", Some(path.as_str()))];
    in_children(
        "blas::products_that_the_library_does_not_support_use_the_kernel",
        &runs,
        || {
            let queue = queue();
            assert_eq!(
                formed(&queue, DType::I32),
                MatmulBackend::Tiled {
                    why: CublasError::Type { dtype: DType::I32 }
                }
            );
            assert_eq!(
                formed(&queue, DType::F32),
                MatmulBackend::Cublas { version: 120_000 }
            );
            let every_second = ones(&queue, DType::F32).step(1, 2).expect("a view");
            let product = every_second.matmul(&every_second.transpose(0, 1).expect("a view"));
            assert_eq!(
                product.expect("a product").to_vec::<f32>().expect("a copy"),
                [4.0; 64]
            );
            let layout = MatmulBackend::Tiled {
                why: CublasError::Layout,
            };
            assert_eq!(queue.matmul_backend(), Some(layout));
            // There are more unevenly spaced batches than the maximum number of calls.
            let many = DeviceTensor::ones(&queue, [70, 1, 2, 2], DType::F32).expect("memory");
            let others = DeviceTensor::ones(&queue, [1, 70, 2, 2], DType::F32).expect("memory");
            let product = many.matmul(&others).expect("a product");
            assert_eq!(product.to_vec::<f32>().expect("a copy"), [2.0; 70 * 70 * 4]);
            assert_eq!(queue.matmul_backend(), Some(layout));

            let small = DevicePool::builder().settings("limit:2MiB");
            let small = small.build(queue.device()).expect("a pool");
            let small = small.on(queue.stream()).expect("memory");
            let MatmulBackend::Tiled { why } = formed(&small, DType::F32) else {
                panic!("there is no memory for a workspace");
            };
            assert_eq!(why, CublasError::Workspace { bytes: 4 << 20 });
        },
    );
}

/// Only permitted types are rounded.
#[test]
fn f32_products_use_tf32_only_if_allowed() {
    let path = library();
    let runs = [("", Some(path.as_str()))];
    in_children("blas::f32_products_use_tf32_only_if_allowed", &runs, || {
        let queue = queue();
        // The number is 1 plus a bit 12 places after the point.
        let number = 1.0 + 1.0 / 4096.0;
        let one = DeviceTensor::full(&queue, [2, 2], number as f32).expect("memory");
        let other = DeviceTensor::from_slice(&queue, &[1.0f32, 0.0, 0.0, 1.0], [2, 2]).expect("memory");
        let product = || {
            let product = one.matmul(&other).expect("a product");
            product.to_vec::<f32>().expect("a copy")[0]
        };
        assert_eq!(product(), number as f32);
        queue.allow_tf32(true);
        assert_eq!(product(), 1.0);
        queue.allow_tf32(false);
        assert_eq!(product(), number as f32);
    });
}

/// The pool counts cuBLAS's workspace, which is freed with the queue.
#[test]
fn the_workspace_of_the_library_is_memory_of_the_pool() {
    let path = library();
    let runs = [("strict:on", Some(path.as_str()))];
    in_children(
        "blas::the_workspace_of_the_library_is_memory_of_the_pool",
        &runs,
        || {
            let queue = queue();
            let pool = queue.pool().clone();
            let held = pool.stats().requested.current;
            for _ in 0..3 {
                formed(&queue, DType::F64);
                assert_eq!(pool.stats().requested.current, held + (4 << 20));
            }
            drop(queue);
            assert_eq!(pool.stats().requested.current, 0);
        },
    );
}

/// A product comes after earlier work on its operands in other streams, and before later work. Two queues run at once.
#[test]
fn products_are_ordered_among_streams() {
    let path = library();
    let options: Vec<String> = (0..20)
        .map(|seed| format!("streams:seeded,seed:{seed},strict:on"))
        .collect();
    let runs: Vec<_> = options
        .iter()
        .map(|options| (options.as_str(), Some(path.as_str())))
        .collect();
    in_children("blas::products_are_ordered_among_streams", &runs, || {
        let first = queue();
        let on = || {
            let stream = CudaStream::new(first.device()).expect("a stream");
            first.pool().on(&stream).expect("memory")
        };
        let (second, third) = (on(), on());
        let left = ones(&first, DType::F32);
        let mut right = ones(&second, DType::F32);
        let mut out = DeviceTensor::zeros(&third, [8, 8], DType::F32).expect("memory");
        left.matmul_into(&right, &mut out).expect("a product");
        right.fill(100.0).expect("a number");
        let other = left.matmul(&out).expect("a product");
        drop(left);
        assert_eq!(out.to_vec::<f32>().expect("a copy"), [8.0; 64]);
        assert_eq!(other.to_vec::<f32>().expect("a copy"), [64.0; 64]);
        for queue in [&first, &third] {
            assert!(matches!(
                queue.matmul_backend(),
                Some(MatmulBackend::Cublas { .. })
            ));
        }
        assert_eq!(emulator::findings(), (0, String::new()));
    });
}

#[test]
fn a_captured_product_finds_its_workspace_at_each_launch() {
    let path = library();
    let runs = [("strict:on", Some(path.as_str()))];
    let test = "blas::a_captured_product_finds_its_workspace_at_each_launch";
    in_children(test, &runs, || {
        for warm in [false, true] {
            let queue = queue();
            let (pool, stream) = (queue.pool(), queue.stream());
            let mut left = ones(&queue, DType::F32);
            let right = ones(&queue, DType::F32);
            let mut out = DeviceTensor::zeros(&queue, [8, 8], DType::F32).expect("memory");
            if warm {
                formed(&queue, DType::F32);
            }
            let capture = pool.capture(stream).expect("a capture");
            left.matmul_into(&right, &mut out).expect("a product");
            let graph = capture.end().expect("a graph");
            let expected = if warm {
                MatmulBackend::Cublas { version: 120_000 }
            } else {
                MatmulBackend::Tiled {
                    why: CublasError::Capturing,
                }
            };
            assert_eq!(queue.matmul_backend(), Some(expected));
            for turn in [1.0f32, 2.0, 3.0] {
                left.fill(turn).expect("a number");
                // SAFETY: the tensors and the queue still exist, and belong to this stream.
                unsafe { graph.launch(stream) }.expect("it is launched");
                // The same workspace is used, in the order of the stream.
                formed(&queue, DType::F32);
                assert_eq!(out.to_vec::<f32>().expect("a copy"), [8.0 * turn; 64]);
            }
            assert_eq!(emulator::findings(), (0, String::new()));
        }
    });
}

/// Every failure is reported, or the kernel computes the product.
#[test]
fn each_call_fails_in_turn() {
    let path = library();
    let runs = [("strict:on", Some(path.as_str()))];
    in_children("blas::each_call_fails_in_turn", &runs, || {
        let queue = queue();
        // This allocates the workspace, which stays.
        formed(&queue, DType::F32);
        each_call_fails(queue.pool(), || {
            let stream = CudaStream::new(queue.device())?;
            let other = queue.pool().on(&stream)?;
            let left = DeviceTensor::full(&other, [8, 8], 2.0f32)?;
            let product = left.matmul(&DeviceTensor::ones(&queue, [8, 8], DType::F32)?)?;
            let mut out = DeviceTensor::zeros(&queue, [8, 8], DType::F32)?;
            product.matmul_into(&left, &mut out)?;
            assert_eq!(out.to_vec::<f32>()?, [256.0; 64]);
            Ok(())
        });
    });
}

/// A cuBLAS that always fails.
#[test]
fn the_kernel_computes_products_if_cublas_fails() {
    let path = library();
    let calls = [
        "cublasCreate",
        "cublasGetVersion",
        "cublasSetStream",
        "cublasSetWorkspace",
        "cublasSetMathMode",
        "cublasGemmEx",
    ];
    let options = calls.map(|call| format!("strict:on,fail:{call}=7"));
    let runs = options
        .each_ref()
        .map(|options| (options.as_str(), Some(path.as_str())));
    let said = in_children(
        "blas::the_kernel_computes_products_if_cublas_fails",
        &runs,
        || {
            let queue = queue();
            for _ in 0..3 {
                println!("says: {}", formed(&queue, DType::F32));
            }
            assert_eq!(emulator::findings(), (0, String::new()));
        },
    );
    for (said, call) in said.iter().zip(calls) {
        let expected = format!("the tiled kernel: {call}");
        assert_eq!(said.lines().count(), 3);
        assert!(said.lines().all(|line| line.starts_with(&expected)), "{said}");
        assert!(
            said.lines()
                .all(|line| line.ends_with("failed: CUBLAS_STATUS_INVALID_VALUE (7)")),
            "{said}"
        );
    }
}

/// The machine's own cuBLAS computes products. Products of small whole numbers are exact in any order of summation.
#[test]
fn products_of_whole_numbers_are_exact_by_any_library() {
    const TEST: &str = "blas::products_of_whole_numbers_are_exact_by_any_library";
    if !emulator::is_child(TEST) {
        if !emulator::load() {
            return;
        }
        let path = if emulator::is_real() {
            std::env::var("MILLPOND_TEST_CUBLAS").ok()
        } else {
            Some(library())
        };
        let Some(path) = path else {
            eprintln!("skipped: set MILLPOND_TEST_CUBLAS to the machine's cuBLAS library");
            return;
        };
        let (passed, text) = emulator::child_with(TEST, &[("MILLPOND_CUBLAS", &path)]);
        assert!(passed, "{path}: {text}");
        return;
    }
    assert!(emulator::load());
    let queue = queue();
    let backend = formed(&queue, DType::F32);
    assert!(matches!(backend, MatmulBackend::Cublas { .. }), "{backend:?}");
    for (rows, inner, columns) in [(16, 16, 16), (100, 37, 65), (257, 130, 31)] {
        let whole = |many: usize, step: usize| -> Vec<f32> {
            (0..many).map(|at| (at * step % 23) as f32 - 11.0).collect()
        };
        let (left, right) = (whole(rows * inner, 7), whole(inner * columns, 5));
        let there = DeviceTensor::from_slice(&queue, &left, [rows, inner]).expect("memory");
        let other = DeviceTensor::from_slice(&queue, &right, [inner, columns]).expect("memory");
        let product = there.matmul(&other).expect("a product");
        let expected: Vec<f32> = (0..rows * columns)
            .map(|at| {
                let (row, column) = (at / columns, at % columns);
                (0..inner)
                    .map(|k| left[row * inner + k] * right[k * columns + column])
                    .sum()
            })
            .collect();
        assert_eq!(product.to_vec::<f32>().expect("a copy"), expected);
    }
}
