//! The Rust code of the README, of the book and of the macros' documentation. The documentation tests compile and run it.
#![allow(dead_code, reason = "each item only carries documentation")]

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../docs/getting-started.md")]
struct GettingStarted;

#[cfg(feature = "derive")]
#[doc = include_str!("../../../docs/pools.md")]
struct Pools;

#[cfg(feature = "derive")]
#[doc = include_str!("../../millpond-derive/src/soa.md")]
struct Soa;

#[cfg(feature = "derive")]
#[doc = include_str!("../../millpond-derive/src/limits.md")]
struct Limits;

#[cfg(feature = "cudarc")]
#[doc = include_str!("../../../docs/gpus.md")]
struct Gpus;

#[cfg(feature = "cuda")]
#[doc = include_str!("../../../docs/cuda-emulator.md")]
struct CudaEmulator;

#[cfg(feature = "record")]
#[doc = include_str!("../../../docs/recording.md")]
struct Recording;

/// The calls on the page *Coming from*. `tests/examples.rs` compares the page with this list.
///
/// ```no_run
/// use millpond::cuda::{
///     Advice, CudaDevice, CudaManaged, CudaMemory, CudaModule, CudaPinned, CudaQueue, CudaStream, DevicePool, DeviceSoa, DeviceTensor,
///     DeviceTensorMut, DriverPool, Registered, Staging, UnpooledDevice,
/// };
/// use millpond::monitor::Threshold;
/// use millpond::pressure::Share;
/// use millpond::{
///     event::Context, pool::Prewarm, source::Node, Budget, DType, DataSet, Device, Event, Monitor, Pool,
///     Pools, Recorder, SafeTensors, Soa, Tensor, Tracking, Workspace,
/// };
/// use std::ptr::NonNull;
/// use std::time::Duration;
///
/// #[derive(Clone, Copy, Soa)]
/// struct Particle {
///     position: [f32; 3],
///     mass: f32,
/// }
///
/// type Outcome = Result<(), Box<dyn std::error::Error>>;
///
/// fn pools(device: &CudaDevice, node: Node, initial: u64, maximum: u64, total: usize) -> Outcome {
///     let pool = Pool::host()?;
///     let pinned = Pool::builder().pinned()?;
///     let managed = Pool::builder().over(Box::new(CudaManaged::new(device)?))?;
///     let by_driver = Pool::builder().over(Box::new(CudaPinned::new(device)))?;
///     let described = Pool::builder().capacity(16 << 20).cache_size(2 << 30).align(4096).node(node).track(Some(Tracking::All));
///     let ready = [Prewarm::small_sizes(), Prewarm::six_sizes(total), Prewarm::of([(4096, 10)])];
///     let on_device = DevicePool::new(device)?;
///     let builder = DevicePool::builder().memory_fraction(0.8).memory(CudaMemory::Pooled).policy("rmm-arena");
///     let limited = DevicePool::builder().capacity(initial).limit(maximum).build(device)?;
///     let plain = UnpooledDevice::new(device)?;
///     let drivers = DriverPool::builder().limit(maximum).build(device)?;
///     let set = Pools::new();
///     set.scope(|| ());
///     let before = millpond::set_default_pools(Pools::builder().cuda_template(DevicePool::builder()).build());
///     millpond::pools().insert_cuda(limited);
///     millpond::pools().pinned()?;
///     millpond::pools().larger_than(100 << 20);
///     millpond::empty_cache();
///     millpond::collect_garbage();
///     millpond::compact();
///     let of_device = millpond::memory_stats().on(Device::Cuda(0));
///     millpond::pressure().level();
///     Ok(())
/// }
///
/// fn upkeep(pool: &Pool, limit: Duration, bytes: u64, value: u64) -> Outcome {
///     let stats = pool.stats();
///     let figures = [stats.allocated.current, stats.allocated.peak, stats.reserved.current, stats.reserved.peak];
///     let counts = [stats.allocations, stats.frees, stats.saved()];
///     let sums = [stats.cached(), stats.available(), stats.active(), stats.inactive()];
///     let ratios = [stats.utilisation(), stats.fragmentation_ratio(), stats.hit_rate()];
///     pool.reset_peak();
///     pool.trim();
///     pool.clear();
///     pool.configure("trim-at-pressure:80%")?;
///     pool.reserve(bytes)?;
///     pool.set_limit(bytes);
///     pool.set_cache_size(2 << 30)?;
///     pool.waiting(limit).alloc_zeroed::<u8>(1)?;
///     pool.subscribe(|event: &Event<'_>| {});
///     pool.set_context(Some(Context::new(value)));
///     pool.leak_report();
///     pool.leak_check();
///     let rented = pool.rent::<f32>(1000)?;
///     rented.give_back();
///     let budget = Budget::builder("tenant").limit(bytes).build()?;
///     millpond::profile(&[pool], || ());
///     millpond::profiler().enable();
///     println!("{}", millpond::profiler().report().summary());
///     Ok(())
/// }
///
/// fn blocks(pool: &Pool, path: &str) -> Outcome {
///     let block = pool.alloc_raw(1024, 64)?;
///     // SAFETY: nothing uses the block.
///     unsafe { pool.free_raw(block.cast()) }?;
///     millpond::source::is_pinned(block.as_ptr());
///     let buffer = pool.alloc::<u8>(1024)?;
///     buffer.free();
///     let zeroed = pool.alloc_zeroed::<f64>(128)?;
///     let storage = pool.storage(DType::F32, 1000)?;
///     storage.free();
///     let error: millpond::AllocError = pool.alloc_zeroed::<u8>(4 << 30).unwrap_err();
///     error.is_out_of_memory();
///     let recorder = Recorder::start("run.mpr")?;
///     millpond::snapshot(path)?;
///     Ok(())
/// }
///
/// fn tensors(pool: &Pool, queue: &CudaQueue, mut a: Tensor, b: Tensor, mut c: Tensor) -> Outcome {
///     let made = [Tensor::zeros([1000, 1000], DType::F32)?, Tensor::full([2], 1.0f32)?, Tensor::from_slice(&[1, 2, 3], [3])?];
///     let empty = Tensor::empty::<f32>([1000])?;
///     let on_device = DeviceTensor::zeros(Device::Cuda(0), [2, 2], DType::F32)?;
///     let empty = DeviceTensor::empty(Device::Cuda(0), [2, 2], DType::F32)?;
///     a.reshape([4])?;
///     a.slice(0, 1..2)?;
///     a.step(0, 2)?;
///     a.batches(0, 10)?;
///     a.deep_copy()?;
///     a.to_contiguous()?;
///     a.to(queue)?;
///     a.add_assign(&b)?;
///     a.mul_assign(0.5)?;
///     a.scal(2.0)?;
///     a.axpy(2.0, &b)?;
///     a.matmul_into(&b, &mut c)?;
///     let exported = a.to_dlpack()?;
///     let import = Tensor::from_dlpack::<millpond::dlpack::DLManagedTensor>;
///     SafeTensors::open("weights")?.load_in(pool, "name")?;
///     Workspace::builder(pool).tensor("temp1", [10], DType::F32).build()?;
///     println!("{}", Particle::layout_report());
///     Ok(())
/// }
///
/// fn data(file: &str, pool: &DevicePool, stream: &CudaStream) -> Outcome {
///     let data = DataSet::<f32>::open(file)?;
///     data.batch(0, 64)?;
///     data.pass().for_each(|chunk| ())?;
///     data.pass().to_device(pool, stream, 3).for_each(|chunk| ())?;
///     // SAFETY: nobody writes to the file.
///     let mapped = unsafe { data.map() }?;
///     Ok(())
/// }
///
/// fn devices(device: &CudaDevice, pool: &DevicePool, stream: &CudaStream, arrays: &ParticleVec, host: &Pool) -> Outcome {
///     device.memory()?;
///     let queue = pool.on(stream)?;
///     let mut buffer = pool.alloc::<f32>(1000, stream)?;
///     buffer.record_use(stream)?;
///     buffer.fill_zero()?;
///     DeviceTensorMut::from_buffer(&queue, &mut buffer, [1000])?.scal(2.0)?;
///     let address = pool.alloc_raw(1000, stream)?;
///     // SAFETY: nothing uses the block.
///     unsafe { pool.free_raw(address) }?;
///     let mut values = buffer.to_vec()?;
///     buffer.copy_from_host(&values)?;
///     buffer.copy_to_host(&mut values)?;
///     let pinned = Registered::new(device, host.alloc_zeroed::<f32>(1000)?).map_err(|failed| failed.to_string())?;
///     let copy = stream.upload(pinned, pool.alloc(1000, stream)?).map_err(|failed| failed.to_string())?;
///     let (there, here) = copy.wait().map_err(|failed| failed.to_string())?;
///     let copy = stream.upload(there, here).map_err(|failed| failed.to_string())?;
///     copy.split().map_err(|failed| failed.to_string())?;
///     let awaited = async { stream.synchronize_async().await };
///     let staging = Staging::new(device)?;
///     staging.upload(&values, &mut buffer)?;
///     staging.upload_compressed(&values, &mut buffer, pool)?;
///     let managed = host.alloc_zeroed::<f32>(1000)?;
///     device.advise(&managed, Advice::ReadMostly)?;
///     let moved = stream.prefetch(managed, Device::Cuda(0)).map_err(|failed| failed.to_string())?;
///     let lent = |table: &mut millpond::Buffer<f32>| stream.lend(table, |table| table.fill_zero());
///     let back = |buffer| stream.prefetch::<f32>(buffer, Device::Host);
///     let arrays = DeviceSoa::<Particle>::from_arrays(pool, arrays, stream)?;
///     let kernel = CudaModule::load(device, "")?.kernel("scale")?;
///     // SAFETY: the argument is the kernel's only parameter.
///     unsafe { kernel.launch(stream).block(256).arg(&buffer).launch() }?;
///     let capture = pool.capture(stream)?;
///     let graph = capture.end()?;
///     // SAFETY: the graph is empty.
///     unsafe { graph.launch(stream) }?;
///     Ok(())
/// }
///
/// fn monitor(interval: Duration) -> Outcome {
///     let above = [Threshold::utilisation(Share::percent(80)), Threshold::device(Share::percent(90))];
///     let monitor = Monitor::builder().interval(interval).start()?;
///     monitor.stop();
///     Ok(())
/// }
/// ```
#[cfg(all(
    feature = "cuda",
    feature = "derive",
    feature = "dlpack",
    feature = "record",
    feature = "safetensors"
))]
struct ComingFrom;
