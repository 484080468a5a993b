//! Kernel launches: the arguments for views, and the order among the streams of the operands.

use super::storage::DeviceView;
use super::{DeviceTensor, DeviceTensorMut, DeviceTensorRef};
use crate::error::TensorError;
use crate::layout::{Layout, MAX_RANK};
use crate::walk::Walk;
pub(crate) use millpond_cuda::kernels::{self, Entry, Wide};
pub(crate) use millpond_cuda::launch::{Arguments, Launch, Shape, THREADS, sealed};
use millpond_cuda::{CudaQueue, CudaStream, Gemm, KernelArg, KernelArgMut, PARTS, products};
use millpond_pool::dtype::DType;

/// `Walk` of `walk.cuh`: the number of elements and dimensions, sizes, and strides of three views.
pub(super) type WalkArgument = [u64; 2 + 4 * MAX_RANK];

/// Returns up to three views of one shape as a kernel argument.
pub(super) fn walk<const N: usize>(views: [&Layout; N]) -> WalkArgument {
    let mut argument = [0; 2 + 4 * MAX_RANK];
    // Without elements there is one dimension of size 0.
    argument[1] = 1;
    let Some(dims) = Walk::in_any_order(views).dims() else {
        return argument;
    };
    argument[0] = 1;
    for (at, (size, strides)) in dims.enumerate() {
        argument[0] *= size as u64;
        argument[1] = at as u64 + 1;
        argument[2 + at] = size as u64;
        for (view, stride) in strides.into_iter().enumerate() {
            argument[2 + (view + 1) * MAX_RANK + at] = stride as u64;
        }
    }
    argument
}

/// A launch: the kernel, the number of blocks, and the arguments.
pub(super) struct Task<'a> {
    pub(super) entry: Entry,
    pub(super) shape: Shape,
    pub(super) arguments: Arguments,
    /// The views that it reads and writes. Their layouts and addresses are in the arguments.
    pub(super) sides: &'a [DeviceView<'a>],
}

impl Task<'_> {
    /// Launches the kernel in order with all other uses of its operands.
    pub(super) fn run(self, stream: &CudaStream) -> Result<(), TensorError> {
        let others = others(stream, self.sides);
        // SAFETY: the caller has exclusive access to the written memory (through a borrowed view for writing, or because the
        // tensor is new), and the read memory is borrowed. By the invariant of a view, both lie in live storages, and their
        // streams are these. The functions of this file assemble the arguments that the kernel expects.
        let run = unsafe { kernels::run(self.entry, (stream, &others), self.shape, self.arguments) };
        Ok(run?)
    }
}

/// Returns the streams of the operands' elements, except the one on which the work is queued.
fn others<'a>(stream: &CudaStream, sides: &[DeviceView<'a>]) -> Vec<&'a CudaStream> {
    let mut others: Vec<&CudaStream> = Vec::new();
    for side in sides {
        if side.stream() != stream && !others.contains(&side.stream()) {
            others.push(side.stream());
        }
    }
    others
}

/// The destination of an operation. Invariant: access to its elements is exclusive, and the elements do not overlap.
pub(super) struct Target<'a>(DeviceView<'a>);

impl<'a> DeviceTensorMut<'a> {
    pub(super) fn target(&mut self) -> Target<'_> {
        Target(self.side())
    }
}

impl Target<'_> {
    fn layout(&self) -> &Layout {
        self.0.layout()
    }

    pub(super) fn side(&self) -> DeviceView<'_> {
        self.0
    }

    /// Computes the products of the left and right side by cuBLAS, in order with all other uses of the three views. Returns
    /// false if cuBLAS cannot compute them.
    pub(super) fn by_cublas(
        &self,
        left: DeviceView<'_>,
        right: DeviceView<'_>,
        calls: impl FnOnce() -> Option<Vec<Gemm>>,
    ) -> bool {
        let queue = self.0.queue();
        let others = others(queue.stream(), &[self.0, left, right]);
        // SAFETY: as for a task, access to the written memory is exclusive, the read memory is borrowed, and both lie in live
        // storages with these streams. `blas` makes the calls for exactly these matrices.
        unsafe { products::by_cublas((queue, &others), self.0.dtype(), calls) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.layout().len() == 0
    }

    /// Copies elements of the same type and shape.
    pub(super) fn copy(self, from: DeviceView<'_>) -> Result<(), TensorError> {
        debug_assert_eq!(self.0.dtype(), from.dtype());
        self.copy_or_fill(Some(from), &[0; 16])
    }

    /// Writes the bytes of one element to every element.
    pub(super) fn fill(self, element: &[u8; 16]) -> Result<(), TensorError> {
        self.copy_or_fill(None, element)
    }

    /// Launches a kernel with a thread for each element. Its arguments are the walk of this view and of up to two others of the
    /// same shape, the address of this view, and those that `push` adds.
    fn launch<const N: usize>(
        self,
        entry: Entry,
        layouts: [&Layout; N],
        sides: &[DeviceView<'_>],
        push: impl FnOnce(&mut Arguments),
    ) -> Result<(), TensorError> {
        if self.is_empty() {
            return Ok(());
        }
        let mut arguments = Arguments::default();
        arguments.push(walk(layouts));
        arguments.push(self.0.address());
        push(&mut arguments);
        Task {
            entry,
            shape: Shape::each(self.layout().len()),
            arguments,
            sides,
        }
        .run(self.0.queue().stream())
    }

    fn copy_or_fill(self, from: Option<DeviceView<'_>>, element: &[u8; 16]) -> Result<(), TensorError> {
        let (to, size) = (self.0, self.0.dtype().size());
        let other = from.unwrap_or(to);
        let (layouts, sides) = ([to.layout(), other.layout()], [to, other]);
        self.launch(Entry::Copy(size), layouts, &sides, |arguments| {
            arguments.push(from.map_or(0, |from| from.address()));
            arguments.push_bytes(&element[..size]);
        })
    }

    /// Computes `self = left op right`, all of one type and shape. The right side is a tensor or a single element.
    pub(super) fn binary(
        self,
        operation: u32,
        left: Option<DeviceView<'_>>,
        right: Result<DeviceView<'_>, [u8; 16]>,
        factor: &[u8; 16],
    ) -> Result<(), TensorError> {
        let (to, dtype) = (self.0, self.0.dtype());
        // Without a left side the operation is in place.
        let left = left.unwrap_or(to);
        let (right, value) = match right {
            Ok(right) => (Some(right), [0; 16]),
            Err(value) => (None, value),
        };
        let third = right.unwrap_or(left);
        let layouts = [to.layout(), left.layout(), third.layout()];
        self.launch(Entry::Binary(dtype), layouts, &[to, left, third], |arguments| {
            arguments.push(left.address());
            arguments.push(right.map_or(0, |right| right.address()));
            arguments.push_bytes(&value[..dtype.size()]);
            arguments.push_bytes(&factor[..dtype.size()]);
            arguments.push(operation);
        })
    }

    /// Converts elements of the same shape from another type.
    pub(super) fn cast(self, from: DeviceView<'_>) -> Result<(), TensorError> {
        let to = self.0;
        let (layouts, sides) = ([to.layout(), from.layout()], [to, from]);
        self.launch(Entry::Cast, layouts, &sides, |arguments| {
            arguments.push(from.address());
            arguments.push(to.dtype() as u32);
            arguments.push(from.dtype() as u32);
        })
    }

    /// Writes the sum of all elements to the only element.
    pub(super) fn sum(self, wide: Wide, what: Summand<'_>) -> Result<(), TensorError> {
        let to = (self.0.address(), self.0.dtype());
        let sides = [self.0, what.left, what.right.unwrap_or(what.left)];
        let sums = self.0.queue().sums();
        total(self.0.queue(), wide, &what, to, &sides, sums.address())
    }

    /// Writes the sums along a dimension of the operand. `gone` is the operand's layout without the dimension, `many`
    /// its size and `apart` its stride.
    pub(super) fn sum_dim(
        self,
        wide: Wide,
        of: DeviceView<'_>,
        (gone, many, apart): (&Layout, usize, usize),
    ) -> Result<(), TensorError> {
        let to = self.0;
        let layouts = [to.layout(), gone];
        self.launch(Entry::SumDim(wide), layouts, &[to, of], |arguments| {
            arguments.push(of.address());
            arguments.push(to.dtype() as u32);
            arguments.push(of.dtype() as u32);
            arguments.push(many as u64);
            arguments.push(apart as u64);
        })
    }
}

/// The terms of a sum.
#[derive(Clone, Copy)]
pub(super) struct Summand<'a> {
    left: DeviceView<'a>,
    right: Option<DeviceView<'a>>,
    what: u32,
}

/// The minimum number of elements that a block sums.
const SHARE: usize = 4096;

impl<'a> Summand<'a> {
    fn new(left: DeviceView<'a>, right: Option<DeviceView<'a>>, what: u32) -> Self {
        Self { left, right, what }
    }

    /// Sums the elements.
    pub(super) fn elements(of: DeviceView<'a>) -> Self {
        Self::new(of, None, 0)
    }

    /// Sums the products of elements of one type and shape.
    pub(super) fn products(left: DeviceView<'a>, right: DeviceView<'a>) -> Self {
        Self::new(left, Some(right), 1)
    }

    /// Counts the integers that are 0.
    pub(super) fn zeros(of: DeviceView<'a>) -> Self {
        Self::new(of, None, 2)
    }

    /// Returns the sum as 8 bytes of the wide type. Waits for the stream.
    pub(super) fn read(self, wide: Wide) -> Result<[u8; 8], TensorError> {
        let queue = self.left.queue();
        let sides = [self.left, self.right.unwrap_or(self.left)];
        let mut bytes = [0; 8];
        let sums = queue.sums();
        let to = sums.address() + (PARTS * size_of::<u64>()) as u64;
        total(queue, wide, &self, (to, wide.dtype()), &sides, sums.address())?;
        // SAFETY: the address is that of the last of the queue's own sums, which are on this stream and locked.
        unsafe { kernels::read(queue.stream(), to, &mut bytes) }?;
        Ok(bytes)
    }
}

/// Computes a sum with the queue's locked partial sums. The number of partial sums, and so the order of additions, depends only
/// on the number of elements.
fn total(
    queue: &CudaQueue,
    wide: Wide,
    what: &Summand<'_>,
    to: (u64, DType),
    sides: &[DeviceView<'_>],
    sums: u64,
) -> Result<(), TensorError> {
    let len = what.left.layout().len();
    let parts = len.div_ceil(SHARE).clamp(1, PARTS);
    let share = len.div_ceil(parts);
    let part = if parts == 1 { to } else { (sums, wide.dtype()) };
    let right = what.right.as_ref().unwrap_or(&what.left);
    let views = walk([what.left.layout(), what.left.layout(), right.layout()]);
    let of = (what.left.address(), right.address(), what.left.dtype(), what.what);
    sum_parts(queue, wide, (views, share, parts), part, of, sides)?;
    if parts > 1 {
        let views = walk([&Layout::vector(parts); 3]);
        let of = (sums, sums, wide.dtype(), 0);
        sum_parts(queue, wide, (views, parts, 1), to, of, sides)?;
    }
    Ok(())
}

/// Writes one sum for each part of `share` elements to consecutive elements from an address.
fn sum_parts(
    queue: &CudaQueue,
    wide: Wide,
    (views, share, parts): (WalkArgument, usize, usize),
    (to, to_type): (u64, DType),
    (left, right, dtype, what): (u64, u64, DType, u32),
    sides: &[DeviceView<'_>],
) -> Result<(), TensorError> {
    let mut arguments = Arguments::default();
    arguments.push(views);
    arguments.push(to);
    arguments.push(left);
    arguments.push(right);
    arguments.push(to_type as u32);
    arguments.push(dtype as u32);
    arguments.push(what);
    arguments.push(share.max(1) as u64);
    Task {
        entry: Entry::Sum(wide),
        shape: Shape {
            grid: [parts as u32, 1, 1],
            block: [THREADS, 1, 1],
            shared: 0,
        },
        arguments,
        sides,
    }
    .run(queue.stream())
}

/// A program's own kernels receive the address of the first element, and must know the strides.
impl<'a> KernelArg<'a> for &'a DeviceTensor {}

impl<'a> sealed::Arg<'a> for &'a DeviceTensor {
    fn put(self, launch: &mut Launch<'a>) {
        let side = self.side();
        launch.memory(side.address(), side.stream());
    }
}

impl<'a> KernelArg<'a> for DeviceTensorRef<'a> {}

impl<'a> sealed::Arg<'a> for DeviceTensorRef<'a> {
    fn put(self, launch: &mut Launch<'a>) {
        let side = self.side();
        launch.memory(side.address(), side.stream());
    }
}

impl<'a> KernelArgMut<'a> for DeviceTensorMut<'a> {}

impl<'a> sealed::ArgMut<'a> for DeviceTensorMut<'a> {
    fn put(self, launch: &mut Launch<'a>) {
        let side = DeviceView::of(self.place, self.layout);
        launch.memory(side.address(), side.stream());
    }
}
