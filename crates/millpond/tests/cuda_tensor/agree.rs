//! Compares each kernel with the same operation on the host, for random shapes, random kinds of views, and every type.

use crate::device;
use millpond::cuda::{CudaModule, CudaQueue, DeviceTensor};
use millpond::{DType, Device, Tensor, TensorError};

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn shape(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| 1 + self.below(6)).collect()
    }
}

/// Returns the types with arithmetic.
fn numbers() -> impl Iterator<Item = DType> {
    let half = |dtype: &DType| matches!(dtype, DType::F16 | DType::BF16);
    let none = |dtype: &DType| matches!(dtype, DType::Bool | DType::Complex64 | DType::Complex128);
    DType::all().filter(move |dtype| !none(dtype) && (cfg!(feature = "half") || !half(dtype)))
}

fn is_integer(dtype: DType) -> bool {
    !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
}

/// The same elements on the host and on the device: quarters of both signs, or integers, none of them 0.
struct Pair {
    host: Tensor,
    there: DeviceTensor,
}

impl Pair {
    fn new(random: &mut Random, queue: &CudaQueue, shape: &[usize], dtype: DType) -> Self {
        let len = shape.iter().product();
        let mut element = || {
            let number = 1.0 + random.below(40) as f64;
            let number = if random.below(2) == 0 { number } else { -number };
            if is_integer(dtype) { number } else { number / 4.0 }
        };
        let values: Vec<f64> = (0..len).map(|_| element()).collect();
        let values = Tensor::from_slice(&values, shape).expect("memory");
        let host = match dtype {
            // Negative numbers would become 0.
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => {
                values.mul(&values).expect("squares").cast(dtype)
            }
            dtype => values.cast(dtype),
        };
        let mut host = host.expect("numbers").into_tensor();
        if dtype == DType::U8 {
            // Squares above 255 would be clamped, so the values are reduced.
            host = host.div(3).and_then(|host| host.add(1)).expect("none is 0");
        }
        let there = host.to(queue).expect("a copy").into_tensor();
        Self { host, there }
    }

    /// Returns a view of both, of a random kind.
    fn viewed(self, random: &mut Random) -> Self {
        let rank = self.host.rank();
        if rank == 0 {
            return self;
        }
        let (dim, other) = (random.below(rank), random.below(rank));
        let size = self.host.shape()[dim];
        let (start, step) = (random.below(size), 1 + random.below(3));
        let kind = random.below(4);
        let host = match kind {
            0 => self.host.transpose(dim, other),
            1 => self.host.slice(dim, start..),
            2 => self.host.step(dim, step),
            _ => self.host.unsqueeze(dim),
        };
        let there = match kind {
            0 => self.there.transpose(dim, other),
            1 => self.there.slice(dim, start..),
            2 => self.there.step(dim, step),
            _ => self.there.unsqueeze(dim),
        };
        match (host, there) {
            (Ok(host), Ok(there)) => Self { host, there },
            (host, there) => {
                assert_eq!(host.is_err(), there.is_err());
                self
            }
        }
    }
}

/// Returns the numbers of a tensor, in order.
fn all(tensor: &Tensor) -> Vec<f64> {
    tensor
        .cast(DType::F64)
        .expect("numbers")
        .to_vec()
        .expect("they are f64")
}

fn same(what: &str, host: &Tensor, there: &DeviceTensor) {
    assert_eq!(
        (host.dtype(), host.shape()),
        (there.dtype(), there.shape()),
        "{what}"
    );
    let back = there.to(Device::Host).expect("a copy").into_tensor();
    let host = host.deep_copy().expect("memory");
    assert_eq!(
        host.storage().as_bytes(),
        back.storage().as_bytes(),
        "{what} of {}: {:?} and {:?}",
        host.dtype(),
        all(&host),
        all(&back)
    );
}

/// Checks that results agree as well as sums in different orders do.
fn near(what: &str, host: &Tensor, there: &DeviceTensor) {
    if is_integer(host.dtype()) {
        return same(what, host, there);
    }
    let least = match host.dtype() {
        DType::F64 => 1e-14,
        DType::F32 => 1e-6,
        DType::F16 => 1e-3,
        _ => 1e-2,
    };
    assert_eq!(
        (host.dtype(), host.shape()),
        (there.dtype(), there.shape()),
        "{what}"
    );
    let back = there.to(Device::Host).expect("a copy");
    for (expected, found) in all(host).into_iter().zip(all(&back)) {
        let off = (expected - found).abs();
        assert!(
            off <= least * expected.abs().max(16.0),
            "{what}: {expected}, {found}"
        );
    }
}

type Host = fn(&Tensor, &Tensor) -> Result<Tensor, TensorError>;
type There = fn(&DeviceTensor, &DeviceTensor) -> Result<DeviceTensor, TensorError>;

const OPERATIONS: [(&str, Host, There); 7] = [
    ("add", |a, b| a.add(b), |a, b| a.add(b)),
    ("sub", |a, b| a.sub(b), |a, b| a.sub(b)),
    ("mul", |a, b| a.mul(b), |a, b| a.mul(b)),
    ("div", |a, b| a.div(b), |a, b| a.div(b)),
    ("rsub", |a, b| a.rsub(b), |a, b| a.rsub(b)),
    ("rdiv", |a, b| a.rdiv(b), |a, b| a.rdiv(b)),
    ("add_scaled", |a, b| a.add_scaled(3, b), |a, b| a.add_scaled(3, b)),
];

#[test]
pub(crate) fn arithmetic_equals_the_hosts_bit_for_bit() {
    let Some((_device, pool, stream)) = device() else {
        return;
    };
    let queue = pool.on(&stream).expect("memory");
    let mut random = Random(1);
    for dtype in numbers() {
        for round in 0..8 {
            let rank = random.below(5);
            let shape = random.shape(rank);
            let left = Pair::new(&mut random, &queue, &shape, dtype);
            let left = left.viewed(&mut random).viewed(&mut random);
            // The operand has the same shape, or is a row that is broadcast.
            let shape = left.host.shape();
            let shape = if round % 2 == 0 {
                shape
            } else {
                &shape[shape.len().min(1)..]
            };
            let right = Pair::new(&mut random, &queue, shape, dtype);
            for (what, host, there) in OPERATIONS {
                let expected = host(&left.host, &right.host).expect("it goes");
                same(
                    what,
                    &expected,
                    &there(&left.there, &right.there).expect("it goes"),
                );
                // In the reverse order, the first operand is the smaller one.
                let expected = host(&right.host, &left.host).expect("it goes");
                same(
                    what,
                    &expected,
                    &there(&right.there, &left.there).expect("it goes"),
                );
            }
            for number in [1, 2, 7] {
                let (host, there) = (left.host.div(number), left.there.div(number));
                same("div", &host.expect("it goes"), &there.expect("it goes"));
                let (host, there) = (left.host.rsub(number), left.there.rsub(number));
                same("rsub", &host.expect("it goes"), &there.expect("it goes"));
            }
        }
    }
}

#[test]
pub(crate) fn arithmetic_in_place_and_into_outputs_equals_the_hosts() {
    let Some((_device, pool, stream)) = device() else {
        return;
    };
    let queue = pool.on(&stream).expect("memory");
    let mut random = Random(2);
    for dtype in numbers() {
        let shape = random.shape(3);
        let mut left = Pair::new(&mut random, &queue, &shape, dtype);
        let right = Pair::new(&mut random, &queue, &shape[1..], dtype);
        let mut out = Pair::new(&mut random, &queue, &shape, dtype);
        macro_rules! both {
            ($($name:ident $args:tt;)*) => {
                $({
                    both!(@one $name $args left.host right.host out.host);
                    both!(@one $name $args left.there right.there out.there);
                    same(stringify!($name), &left.host, &left.there);
                    same(stringify!($name), &out.host, &out.there);
                })*
            };
            (@one $name:ident (right) $l:ident.$ls:ident $r:ident.$rs:ident $o:ident.$os:ident) => {
                $l.$ls.$name(&$r.$rs).expect("it goes")
            };
            (@one $name:ident (number) $l:ident.$ls:ident $r:ident.$rs:ident $o:ident.$os:ident) => {
                $l.$ls.$name(3).expect("it goes")
            };
            (@one $name:ident (scaled) $l:ident.$ls:ident $r:ident.$rs:ident $o:ident.$os:ident) => {
                $l.$ls.$name(2, &$r.$rs).expect("it goes")
            };
            (@one $name:ident (into) $l:ident.$ls:ident $r:ident.$rs:ident $o:ident.$os:ident) => {
                $l.$ls.$name(&$r.$rs, &mut $o.$os).expect("it goes")
            };
        }
        both! {
            mul_assign(right);
            add_assign(right);
            sub_assign(number);
            rsub_assign(right);
            scal(number);
            div_assign(right);
            axpy(scaled);
            add_into(into);
            sub_into(into);
            mul_into(into);
            div_into(into);
            rsub_into(into);
            copy_from(right);
            rdiv_assign(right);
            copy_from(number);
        }
        // These are parts of a tensor as borrowed views.
        let (host, there) = (left.host.view_mut(), left.there.view_mut());
        let (host, there) = (host.expect("alone"), there.expect("alone"));
        let mut host = host
            .transpose(0, 2)
            .and_then(|view| view.step(0, 2))
            .expect("a view");
        let mut there = there
            .transpose(0, 2)
            .and_then(|view| view.step(0, 2))
            .expect("a view");
        host.fill(5).expect("it goes");
        there.fill(5).expect("it goes");
        host.axpy(2, 3).expect("it goes");
        there.axpy(2, 3).expect("it goes");
        same("a part", &left.host, &left.there);
    }
}

#[test]
pub(crate) fn copies_and_casts_equal_the_hosts_bit_for_bit() {
    let Some((_device, pool, stream)) = device() else {
        return;
    };
    let queue = pool.on(&stream).expect("memory");
    let mut random = Random(3);
    let every: Vec<DType> = numbers().chain([DType::Bool]).collect();
    for from in &every {
        let rank = 1 + random.below(3);
        let shape = random.shape(rank);
        let numbers = if *from == DType::Bool { DType::I8 } else { *from };
        let whole = Pair::new(&mut random, &queue, &shape, numbers).viewed(&mut random);
        let whole = Pair {
            host: whole.host.cast(*from).expect("a cast").into_tensor(),
            there: whole.there.cast(*from).expect("a cast").into_tensor(),
        };
        let view = whole.viewed(&mut random).viewed(&mut random);
        same("a copy", &view.host, &view.there);
        same("a copy", &view.host, &view.there.deep_copy().expect("memory"));
        for to in &every {
            let (host, there) = (view.host.cast(*to), view.there.cast(*to));
            same("a cast", &host.expect("a cast"), &there.expect("a cast"));
        }
    }
    // Smaller types cannot represent these values.
    let far = [
        f64::NAN,
        f64::INFINITY,
        -1e300,
        1e10,
        -129.5,
        127.5,
        255.9,
        -0.5,
        65520.0,
        1e-7,
        3e38,
        0.1,
    ];
    let host = Tensor::from_slice(&far, [12]).expect("memory");
    let there = host.to(&queue).expect("a copy").into_tensor();
    for to in every.iter().filter(|to| is_integer(**to) || **to == DType::F32) {
        let (host, there) = (host.cast(*to), there.cast(*to));
        same("a cast", &host.expect("a cast"), &there.expect("a cast"));
    }
    for dtype in [DType::Complex64, DType::Complex128] {
        let mut host = Tensor::zeros([3, 4], dtype).expect("memory");
        host.fill([1.5f64, -2.0]).expect("a number");
        let there = host.to(&queue).expect("a copy").transpose(0, 1).expect("a view");
        same("a copy", &host.transpose(0, 1).expect("a view"), &there);
        let filled = DeviceTensor::full_of(&queue, [3, 4], [1.5f64, -2.0], dtype).expect("memory");
        same("a fill", &host, &filled);
    }
    let pairs = DeviceTensor::full(&queue, [2], [1.0f64, 2.0]).expect("memory");
    assert_eq!(pairs.to_vec::<[f64; 2]>().expect("a copy"), [[1.0, 2.0]; 2]);
    let ones = DeviceTensor::ones(&queue, [2], DType::U16).expect("memory");
    assert_eq!(ones.to_vec::<u16>().expect("a copy"), [1; 2]);
    let truth = DeviceTensor::ones(&queue, [3], DType::Bool).expect("memory");
    let zeros = DeviceTensor::zeros(&queue, [2, 2], DType::F64).expect("memory");
    assert_eq!(truth.sum().expect("a sum").to_u64(), Some(3));
    assert_eq!(zeros.to_vec::<f64>().expect("a copy"), [0.0; 4]);
}

#[test]
pub(crate) fn sums_are_close_to_the_hosts() {
    let Some((_device, pool, stream)) = device() else {
        return;
    };
    let queue = pool.on(&stream).expect("memory");
    let mut random = Random(4);
    for dtype in numbers() {
        for len in [1, 255, 4097, 30_000] {
            let one = Pair::new(&mut random, &queue, &[len], dtype);
            let other = Pair::new(&mut random, &queue, &[len], dtype);
            let close = |what: &str, host: millpond::tensor::Scalar, there: millpond::tensor::Scalar| {
                let (host, there) = (host.to_f64().expect("real"), there.to_f64().expect("real"));
                assert!(
                    (host - there).abs() <= 1e-9 * host.abs(),
                    "{what} of {dtype}: {host}, {there}"
                );
            };
            let (host, there) = (one.host.sum(), one.there.sum());
            close("sum", host.expect("a sum"), there.expect("a sum"));
            let again = one.there.sum().expect("a sum");
            assert_eq!(one.there.sum().expect("a sum"), again, "the same at every run");
            let (host, there) = (one.host.dot(&other.host), one.there.dot(&other.there));
            close("dot", host.expect("a product"), there.expect("a product"));
            let out = one.host.sum_dim(0).expect("a sum").dtype();
            let mut host = Tensor::zeros([], out).expect("memory");
            let mut there = DeviceTensor::zeros(&queue, [], out).expect("memory");
            one.host.sum_into(&mut host).expect("a sum");
            one.there.sum_into(&mut there).expect("a sum");
            near("sum_into", &host, &there);
            one.host.dot_into(&other.host, &mut host).expect("a product");
            one.there.dot_into(&other.there, &mut there).expect("a product");
            near("dot_into", &host, &there);
        }
        let shape = random.shape(3);
        let some = Pair::new(&mut random, &queue, &shape, dtype).viewed(&mut random);
        for dim in 0..some.host.rank() {
            let (host, there) = (some.host.sum_dim(dim), some.there.sum_dim(dim));
            near("sum_dim", &host.expect("sums"), &there.expect("sums"));
        }
    }
}

#[test]
pub(crate) fn products_of_matrices_are_close_to_the_hosts() {
    let Some((_device, pool, stream)) = device() else {
        return;
    };
    let queue = pool.on(&stream).expect("memory");
    let mut random = Random(5);
    for dtype in numbers() {
        for [many, rows, inner, columns] in [[1, 3, 4, 5], [2, 17, 33, 20], [3, 1, 16, 1], [1, 40, 1, 16]] {
            let left = Pair::new(&mut random, &queue, &[many, rows, inner], dtype);
            let right = Pair::new(&mut random, &queue, &[columns, inner], dtype);
            let (host, there) = (right.host.transpose(0, 1), right.there.transpose(0, 1));
            let (host, there) = (host.expect("a view"), there.expect("a view"));
            let expected = left.host.matmul(&host).expect("a product");
            near(
                "matmul",
                &expected,
                &left.there.matmul(&there).expect("a product"),
            );
            let mut out = DeviceTensor::zeros(&queue, expected.shape(), dtype).expect("memory");
            left.there.matmul_into(&there, &mut out).expect("a product");
            near("matmul_into", &expected, &out);
        }
    }
    // The sum of no elements is 0.
    let left = DeviceTensor::zeros(&queue, [2, 0], DType::F32).expect("nothing");
    let right = DeviceTensor::zeros(&queue, [0, 3], DType::F32).expect("nothing");
    let product = left
        .matmul(&right)
        .expect("zeros")
        .to_vec::<f32>()
        .expect("a copy");
    assert_eq!(product, [0.0; 6]);
    assert_eq!(left.sum().expect("a sum").to_f64(), Some(0.0));
    assert_eq!(
        left.sum_dim(1).expect("sums").to_vec::<f32>().expect("a copy"),
        [0.0; 2]
    );
}

/// The functions that the emulated driver runs instead have the same parameters as the kernels.
#[test]
pub(crate) fn emulated_kernels_have_the_parameters_of_the_kernels() {
    let Some((device, ..)) = device() else { return };
    const PTX: &str = include_str!("../../../millpond-cuda/src/kernels/tensor.ptx");
    let module = CudaModule::load(&device, PTX).expect("it loads");
    let mut entries = 0;
    for entry in PTX.split(".visible .entry ").skip(1) {
        let (name, rest) = entry.split_once('(').expect("parameters");
        let (parameters, _) = rest.split_once(')').expect("they end");
        let size = |line: &str| -> usize {
            match line.split_once('[') {
                Some((_, bytes)) => bytes.trim_end_matches([']', ',']).parse().expect("a number"),
                None => {
                    line.split(".param .").nth(1).expect("a type")[1..]
                        .split(' ')
                        .next()
                        .and_then(|bits| bits.parse::<usize>().ok())
                        .expect("bits")
                        / 8
                }
            }
        };
        let lines = parameters.lines().map(str::trim).filter(|line| !line.is_empty());
        let sizes: Vec<usize> = lines.map(size).collect();
        let kernel = module.kernel(name).expect("it is there");
        if let Some(told) = kernel.parameters() {
            assert_eq!(told, sizes, "{name}");
        }
        entries += 1;
    }
    assert_eq!(entries, 37);
}
