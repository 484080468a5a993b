//! Kernels as Rust functions, selected by the name of an entry. No foreign code is run.
//!
//! A few kernels on f32 are built in for any client. The kernels of `millpond`'s tensors are in separate
//! files, one for each of their CUDA sources.

mod blas;
mod elementwise;
mod matmul;
mod motion;
mod number;
mod ptx;
mod sum;
mod unpack;
mod walk;

use crate::access::Access;
use crate::error::{Answer, Code};
use crate::memory::os;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

type Run = dyn Fn(&Call<'_>) -> Answer + Send + Sync;

/// Returns the bytes that a launch accesses, computed from its parameters.
type Touches = dyn Fn(&Params) -> Vec<Access> + Send + Sync;

/// A function that implements a kernel.
pub(crate) struct Kernel {
    /// The size of each parameter in bytes.
    sizes: Vec<usize>,
    run: Box<Run>,
    /// Returns the bytes it accesses, if they are known.
    accesses: Option<Box<Touches>>,
    cost: Cost,
}

/// The modelled cost of a launch.
enum Cost {
    /// Modelled nanoseconds.
    Fixed(u64),
    /// The number of bytes that it reads and writes, computed from its parameters.
    Bytes(Box<dyn Fn(&Params) -> u64 + Send + Sync>),
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("sizes", &self.sizes)
            .finish_non_exhaustive()
    }
}

impl Kernel {
    pub(crate) fn new(sizes: &[usize], cost: u64, run: Box<Run>) -> Self {
        Self {
            sizes: sizes.to_vec(),
            run,
            accesses: None,
            cost: Cost::Fixed(cost),
        }
    }

    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the offset of a parameter. Each is aligned to its size, or to 8 bytes if it is larger.
    pub(crate) fn offset(&self, index: usize) -> usize {
        let aligned = |end: usize, size: usize| end.next_multiple_of(size.next_power_of_two().min(8));
        let before = self.sizes[..index].iter();
        let end = before.fold(0, |end, size| aligned(end, *size) + size);
        aligned(end, self.sizes[index])
    }
}

/// The values of a launch's parameters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params(pub(crate) Vec<Vec<u8>>);

impl Params {
    fn bytes<const N: usize>(&self, index: usize) -> [u8; N] {
        let value = self
            .0
            .get(index)
            .and_then(|value| value.as_slice().try_into().ok());
        value.unwrap_or([0; N])
    }

    fn u64(&self, index: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(index))
    }

    fn u32(&self, index: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(index))
    }

    /// Returns a parameter that is a structure of 64-bit numbers.
    fn numbers(&self, index: usize) -> Vec<u64> {
        let bytes = self.0.get(index).map_or(&[][..], Vec::as_slice);
        let (whole, _) = bytes.as_chunks::<8>();
        whole.iter().map(|number| u64::from_ne_bytes(*number)).collect()
    }

    fn f32(&self, index: usize) -> f32 {
        f32::from_ne_bytes(self.bytes(index))
    }
}

/// A queued kernel with its parameters.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) params: Params,
}

impl Launch {
    pub(crate) fn cost(&self) -> u64 {
        match &self.kernel.cost {
            Cost::Fixed(nanoseconds) => *nanoseconds,
            Cost::Bytes(bytes) => crate::clock::compute(bytes(&self.params)),
        }
    }

    pub(crate) fn accesses(&self) -> Vec<Access> {
        let accesses = self.kernel.accesses.as_ref();
        accesses.map_or_else(Vec::new, |accesses| accesses(&self.params))
    }

    /// Runs the kernel on the memory that `resolve` finds.
    pub(crate) fn run(&self, resolve: &Resolve<'_>) -> Answer {
        (self.kernel.run)(&Call {
            launch: self,
            memory: DeviceMemory(resolve),
        })
    }
}

/// The environment of a running kernel.
pub(crate) struct Call<'a> {
    pub(crate) launch: &'a Launch,
    memory: DeviceMemory<'a>,
}

/// Finds the bytes at an address. The arguments are address, length, and whether the bytes are written.
pub(crate) type Resolve<'a> = dyn Fn(u64, u64, bool) -> Answer<Vec<os::Span>> + 'a;

struct DeviceMemory<'a>(&'a Resolve<'a>);

impl DeviceMemory<'_> {
    fn read(&self, at: u64, len: u64) -> Answer<Vec<u8>> {
        let spans = (self.0)(at, len, false)?;
        Ok(spans.iter().flat_map(|span| span.read()).collect())
    }

    /// Returns memory for reading, or for reading and writing if `write` is true.
    fn reach(&self, at: u64, len: u64, write: bool) -> Answer<os::Reach> {
        Ok(os::Reach::new((self.0)(at, len, write)?))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Answer {
        let mut rest = bytes;
        for span in (self.0)(at, bytes.len() as u64, true)? {
            let (now, later) = rest.split_at(span.len().min(rest.len()));
            span.write(now);
            rest = later;
        }
        Ok(())
    }
}

/// The number of elements that a kernel processes at once.
const STEP: u64 = 16 << 10;

impl Call<'_> {
    fn floats(&self, at: u64, len: u64) -> Answer<Vec<f32>> {
        let bytes = self.memory.read(at, len * 4)?;
        Ok(bytes
            .chunks_exact(4)
            .map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }

    fn put(&self, at: u64, values: &[f32]) -> Answer {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.memory.write(at, &bytes)
    }

    /// Computes `out[i] = f(inputs[i])` for `n` floats. The inputs are given by their addresses.
    fn each(&self, out: u64, inputs: &[u64], n: u64, f: impl Fn(&[f32]) -> f32) -> Answer {
        check_extent(n)?;
        for from in (0..n).step_by(STEP as usize) {
            let len = STEP.min(n - from);
            let columns: Vec<Vec<f32>> = inputs
                .iter()
                .map(|at| self.floats(at + from * 4, len))
                .collect::<Answer<_>>()?;
            let mut row = vec![0.0; inputs.len()];
            let values = (0..len as usize).map(|i| {
                row.iter_mut()
                    .zip(&columns)
                    .for_each(|(cell, column)| *cell = column[i]);
                f(&row)
            });
            let values: Vec<f32> = values.collect();
            self.put(out + from * 4, &values)?;
        }
        Ok(())
    }
}

fn check_extent(n: u64) -> Answer {
    Code::ILLEGAL_ADDRESS.when(n > 1 << 40)
}

fn floats(at: u64, n: u64, write: bool) -> Access {
    Access {
        at,
        len: n.saturating_mul(4),
        write,
    }
}

/// Kernels by the name of their entry.
#[derive(Debug)]
pub(crate) struct Kernels {
    by_name: HashMap<String, Arc<Kernel>>,
    modules: HashMap<u64, Vec<String>>,
    functions: HashMap<u64, Function>,
}

/// A function of a module, for which the client has a handle.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) kernel: Arc<Kernel>,
    /// Attributes that the client has set.
    pub(crate) attributes: HashMap<i32, i32>,
    pub(crate) name: String,
}

const BASE_COST: u64 = 5_000;

/// Computes an element of a built-in kernel from the elements of its inputs and its number.
type MapElement = fn(&[f32], f32) -> f32;

/// The built-in kernels that compute each element of their first array: the name, the sizes of the parameters, whether the first array
/// is also the first input, and the function.
const MAPS: [(&str, &[usize], bool, MapElement); 5] = [
    ("fill", &[8, 4, 8], false, |_, value| value),
    ("copy", &[8, 8, 8], false, |x, _| x[0]),
    ("scale", &[8, 8, 4, 8], false, |x, by| x[0] * by),
    ("add", &[8, 8, 8, 8], false, |x, _| x[0] + x[1]),
    ("axpy", &[8, 8, 4, 8], true, |x, by| by.mul_add(x[1], x[0])),
];

/// Returns the arrays of a launch of one of [`MAPS`], its number or 0, and the number of elements, which is the last parameter.
fn map_params(sizes: &[usize], params: &Params) -> (Vec<u64>, f32, u64) {
    let last = sizes.len() - 1;
    let arrays = (0..last).filter(|index| sizes[*index] == 8);
    let number = sizes.iter().position(|size| *size == 4);
    (
        arrays.map(|index| params.u64(index)).collect(),
        number.map_or(0.0, |index| params.f32(index)),
        params.u64(last),
    )
}

fn sum_floats(call: &Call<'_>) -> Answer {
    let params = &call.launch.params;
    let (at, n) = (params.u64(1), params.u64(2));
    check_extent(n)?;
    let mut sum = 0.0f64;
    for from in (0..n).step_by(STEP as usize) {
        let values = call.floats(at + from * 4, STEP.min(n - from))?;
        sum += values.iter().map(|x| f64::from(*x)).sum::<f64>();
    }
    call.put(params.u64(0), &[sum as f32])
}

impl Default for Kernels {
    /// Returns the built-in kernels on f32: `fill(out, value, n)`, `copy(out, in, n)`, `scale(out, in, a,
    /// n)`, `add(out, x, y, n)`, `axpy(y, x, a, n)` and `sum(out, in, n)`, where n has 64 bits. Also returns
    /// the kernels of `millpond`'s tensors.
    fn default() -> Self {
        let mut kernels = Self {
            by_name: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
        };
        for (name, sizes, updates, f) in MAPS {
            let accesses = move |params: &Params| {
                let (arrays, _, n) = map_params(sizes, params);
                let arrays = arrays.into_iter().enumerate();
                arrays.map(|(index, at)| floats(at, n, index == 0)).collect()
            };
            let run = move |call: &Call<'_>| {
                let (arrays, number, n) = map_params(sizes, &call.launch.params);
                let inputs = if updates { &arrays } else { &arrays[1..] };
                call.each(arrays[0], inputs, n, |x| f(x, number))
            };
            let kernel = Kernel {
                accesses: Some(Box::new(accesses)),
                ..Kernel::new(sizes, BASE_COST, Box::new(run))
            };
            kernels.register(name, kernel);
        }
        let sum = Kernel {
            accesses: Some(Box::new(|p| {
                vec![floats(p.u64(0), 1, true), floats(p.u64(1), p.u64(2), false)]
            })),
            ..Kernel::new(&[8, 8, 8], BASE_COST, Box::new(sum_floats))
        };
        kernels.register("sum", sum);
        elementwise::register(&mut kernels);
        sum::register(&mut kernels);
        matmul::register(&mut kernels);
        blas::register(&mut kernels);
        motion::register(&mut kernels);
        unpack::register(&mut kernels);
        kernels
    }
}

impl Kernels {
    pub(crate) fn register(&mut self, name: &str, kernel: Kernel) {
        self.by_name.insert(name.to_owned(), Arc::new(kernel));
    }

    /// Registers a kernel. `read` returns the parameters of a launch, or an error if they are invalid. `accesses` and `bytes` return the
    /// bytes that a launch accesses and their number, from which its cost is modelled.
    fn add<P>(
        &mut self,
        name: &str,
        sizes: &[usize],
        read: impl Fn(&Params) -> Answer<P> + Copy + Send + Sync + 'static,
        accesses: impl Fn(&P) -> Vec<Access> + Send + Sync + 'static,
        bytes: impl Fn(&P) -> u64 + Send + Sync + 'static,
        run: impl Fn(&P, &Call<'_>) -> Answer + Send + Sync + 'static,
    ) {
        let accesses =
            move |params: &Params| read(params).map_or_else(|_| Vec::new(), |read| accesses(&read));
        let bytes = move |params: &Params| read(params).map_or(0, |read| bytes(&read));
        let run = move |call: &Call<'_>| run(&read(&call.launch.params)?, call);
        let kernel = Kernel {
            accesses: Some(Box::new(accesses)),
            cost: Cost::Bytes(Box::new(bytes)),
            ..Kernel::new(sizes, 0, Box::new(run))
        };
        self.register(name, kernel);
    }

    /// Loads the text of a module, for a driver of this version. Checks the beginning of the text and the
    /// bodies of its entries. Keeps only the names of the entries.
    pub(crate) fn load(&mut self, handle: u64, ptx: &str, version: i32) -> Answer {
        ptx::check(ptx, version)?;
        self.modules.insert(handle, ptx::entries(ptx));
        Ok(())
    }

    /// Stores a module with kernels of these names.
    pub(crate) fn keep(&mut self, handle: u64, names: Vec<String>) {
        self.modules.insert(handle, names);
    }

    pub(crate) fn unload(&mut self, handle: u64) -> Answer {
        self.modules.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
        self.functions.retain(|_, function| function.module != handle);
        Ok(())
    }

    pub(crate) fn is_module(&self, handle: u64) -> bool {
        self.modules.contains_key(&handle)
    }

    /// Returns a handle of a function in a module. Fails if no function of this name is registered, because
    /// the device cannot run foreign code.
    pub(crate) fn function(&mut self, handle: u64, module: u64, name: &str) -> Answer<u64> {
        let entries = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        Code::NOT_FOUND.when(!entries.iter().any(|entry| entry == name))?;
        let known = |(_, function): &(&u64, &Function)| function.module == module && function.name == name;
        if let Some((known, _)) = self.functions.iter().find(known) {
            return Ok(*known);
        }
        let kernel = Arc::clone(self.by_name.get(name).ok_or(Code::NO_BINARY_FOR_GPU)?);
        let function = Function {
            module,
            kernel,
            attributes: HashMap::new(),
            name: name.to_owned(),
        };
        self.functions.insert(handle, function);
        Ok(handle)
    }

    pub(crate) fn get(&self, function: u64) -> Answer<&Function> {
        self.functions.get(&function).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn get_mut(&mut self, function: u64) -> Answer<&mut Function> {
        self.functions.get_mut(&function).ok_or(Code::INVALID_HANDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_the_names_of_entries() {
        const HEAD: &str = ".version 8.0\n.target sm_70\n";
        let mut kernels = Kernels::default();
        let mut load = |handle, body: &str| kernels.load(handle, &format!("{HEAD}{body}"), 12_080);
        load(1, ".visible .entry fill(.param .u64 a) { }").unwrap();
        load(4, ".entry mine() { }").unwrap();
        assert_eq!(load(6, ".entry mine()"), Err(Code::INVALID_PTX));
        assert_eq!(kernels.function(2, 1, "fill"), Ok(2));
        assert_eq!(kernels.function(3, 1, "fill"), Ok(2), "the same one again");
        assert_eq!(kernels.function(3, 1, "axpy"), Err(Code::NOT_FOUND));
        assert_eq!(kernels.function(5, 4, "mine"), Err(Code::NO_BINARY_FOR_GPU));
        assert!(!kernels.is_module(6));
    }
}
