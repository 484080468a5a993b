//! Asking a pool on somebody's account, and with patience.

use crate::block::Owner;
use crate::budget::{Budget, BudgetError, Charge, Measure, Wait};
use crate::buffer::{Buffer, Memory};
use crate::error::AllocError;
use crate::pool::{Alarm, Pool, PoolBlock, PoolHeap, wake_at};
use bytemuck::AnyBitPattern;
use std::fmt;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// One who uses a pool: what is allocated by it is charged to a budget of its own, and may be waited for.
///
/// A request over the budget fails with who holds what. One that [may wait](Self::wait) stands in line, first come,
/// first served, until so much has been freed or the time is over; see [`Budget`] for the order. Where not the budget but
/// the pool's memory is short, it waits for that too: until someone frees, or other pools under the same budget give back.
/// Whoever holds memory while waiting for more can wait for itself; the time limit is what ends that.
///
/// ```
/// use millpond::{Budget, Measure, Pool};
/// use std::time::Duration;
///
/// let pool = Pool::host()?;
/// let budget = Budget::builder("tenant a").measure(Measure::Allocated).limit(1 << 20).build()?;
/// let tenant = pool.tenant(&budget)?;
/// let held = tenant.alloc_zeroed::<f32>(100_000)?;
/// assert!(budget.used() >= held.bytes() as u64);
///
/// let refused = tenant.alloc_zeroed::<f32>(200_000).unwrap_err();
/// assert!(refused.to_string().contains("over budget 'tenant a'"));
///
/// // Another thread gives back in time.
/// let patient = tenant.wait(Duration::from_secs(60));
/// let giver = std::thread::spawn(move || held.free());
/// assert_eq!(patient.alloc_zeroed::<f32>(200_000)?.len(), 200_000);
/// # giver.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tenant {
    pool: Pool,
    terms: Arc<Terms>,
}

/// How a tenant asks.
#[derive(Clone)]
pub(crate) struct Terms {
    heap: &'static PoolHeap,
    budget: Option<Budget>,
    wait: Option<Duration>,
    /// Whether the pool's own budget has been charged already.
    charged: bool,
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms")
            .field("budget", &self.budget)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl Terms {
    pub(crate) fn heap(&self) -> &'static PoolHeap {
        self.heap
    }

    pub(crate) fn allocate(&self, bytes: usize, align: usize, zeroed: bool) -> Result<PoolBlock, AllocError> {
        self.heap.allocate_for(
            (self.budget.as_ref(), self.charged),
            self.wait,
            (bytes, align, zeroed),
        )
    }
}

impl Pool {
    /// The pool's own budget of allocated bytes, if it has one: what tenants' budgets are to be made below, so that each
    /// block is charged to it once.
    ///
    /// ```
    /// use millpond::{Budget, Measure, Pool};
    ///
    /// let all = Budget::builder("all").measure(Measure::Allocated).limit(1 << 30).build()?;
    /// let pool = Pool::builder().name("pool").budget(&all).host()?;
    /// let own = pool.budget().expect("it was given one");
    /// let tenant = pool.tenant(&own.child_builder("tenant").limit(1 << 20).build()?)?;
    /// let held = tenant.alloc_zeroed::<u8>(1 << 16)?;
    /// assert_eq!((all.used(), own.used()), (1 << 16, 1 << 16));
    /// drop(held);
    /// assert_eq!(all.used(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.heap().budget()
    }

    /// One who uses the pool at the expense of a budget of allocated bytes, [below](Self::budget) the pool's own or beside
    /// it.
    ///
    /// # Errors
    /// [`BudgetError::OtherMeasure`] if the budget counts other bytes.
    pub fn tenant(&self, budget: &Budget) -> Result<Tenant, BudgetError> {
        let budget = budget.measured(Measure::Allocated)?.clone();
        self.heap().have_tenants();
        Ok(Tenant::new(self, Some(budget), None))
    }

    /// One who waits at most so long where there is no memory now.
    ///
    /// ```
    /// use millpond::Pool;
    /// use std::time::Duration;
    ///
    /// let pool = Pool::builder().limit(8 << 20).host()?;
    /// let held = pool.alloc_zeroed::<u8>(6 << 20)?;
    /// let giver = std::thread::spawn(move || held.free());
    /// let patient = pool.waiting(Duration::from_secs(60));
    /// assert_eq!(patient.alloc_zeroed::<u8>(6 << 20)?.len(), 6 << 20);
    /// # giver.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn waiting(&self, limit: Duration) -> Tenant {
        Tenant::new(self, None, Some(limit))
    }
}

impl Tenant {
    fn new(pool: &Pool, budget: Option<Budget>, wait: Option<Duration>) -> Self {
        Self {
            pool: pool.clone(),
            terms: Arc::new(Terms {
                heap: pool.heap(),
                budget,
                wait,
                charged: false,
            }),
        }
    }

    /// The same, who waits at most so long where there is no memory now.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Self {
        Self::new(&self.pool, self.terms.budget.clone(), Some(limit))
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What its blocks are charged to.
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.terms.budget.as_ref()
    }

    /// A buffer of `len` elements, all zero, as a future of any runtime: it stands in the budget's line until there is
    /// room, or [as long as the tenant waits](Self::wait) where that was said. Where the pool's own memory is short it fails,
    /// as no thread is there to wait. Dropped, it leaves the line.
    ///
    /// # Errors
    /// When there is no memory for it, or never will be; [`BudgetError::TimedOut`] when the time is over.
    pub async fn alloc_zeroed_async<T: AnyBitPattern>(&self, len: usize) -> Result<Buffer<T>, AllocError> {
        let make = |owner| Buffer::zeroed(owner, len, crate::block::ALIGN);
        self.when_there_is_room::<T, T>(len, make).await
    }

    /// As [`alloc_zeroed_async`](Self::alloc_zeroed_async), of elements that are still to be written.
    ///
    /// # Errors
    /// As there.
    pub async fn alloc_async<T: AnyBitPattern>(
        &self,
        len: usize,
    ) -> Result<Buffer<MaybeUninit<T>>, AllocError> {
        let make = |owner| Buffer::uninit(owner, len, crate::block::ALIGN);
        self.when_there_is_room::<T, MaybeUninit<T>>(len, make).await
    }

    /// As [`alloc_zeroed_async`](Self::alloc_zeroed_async), with a copy of a slice, which is made when there is room.
    ///
    /// ```
    /// use millpond::{AllocError, Buffer, Budget, Measure, Pool};
    /// use std::time::Duration;
    ///
    /// async fn upload(tenant: &millpond::Tenant, rows: &[f32]) -> Result<Buffer<f32>, AllocError> {
    ///     // A runtime's own thread is free for others meanwhile; after two seconds it is an error.
    ///     tenant.wait(Duration::from_secs(2)).alloc_from_async(rows).await
    /// }
    /// # let budget = Budget::builder("tenant").measure(Measure::Allocated).limit(1 << 20).build()?;
    /// # let tenant = Pool::host()?.tenant(&budget)?;
    /// # let future = std::pin::pin!(upload(&tenant, &[1.0, 2.0]));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let std::task::Poll::Ready(rows) = future.poll(&mut context) else { panic!("there is room") };
    /// # assert_eq!(rows?[..], [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub async fn alloc_from_async<T: AnyBitPattern>(&self, values: &[T]) -> Result<Buffer<T>, AllocError> {
        Ok(self.alloc_async(values.len()).await?.copied(values))
    }

    /// Makes a buffer for so many elements when the budget has room for it.
    async fn when_there_is_room<T: AnyBitPattern, E: AnyBitPattern>(
        &self,
        len: usize,
        make: impl FnOnce(Owner) -> Result<Buffer<E>, AllocError>,
    ) -> Result<Buffer<E>, AllocError> {
        let Some(budget) = &self.terms.budget else {
            return make(self.pool.owner());
        };
        let bytes = crate::block::bytes_of::<T>(len)?;
        // The room is held until the block's own charge has been made of it.
        let block = PoolBlock::of(0, bytes, crate::block::ALIGN).bytes as u64;
        let charge = Patient {
            wait: budget.charge_async(block),
            began: Instant::now(),
            limit: self.terms.wait,
            alarm: None,
        };
        let charge = charge.await;
        let charge = charge.map_err(|error| AllocError::Budget(Box::new(error)))?;
        let terms = Terms {
            budget: None,
            wait: None,
            charged: self.terms.heap.is_covered_by(budget),
            ..(*self.terms).clone()
        };
        let buffer = make(Owner::Tenant(Arc::new(terms)))?;
        if len > 0 {
            self.terms.heap.charge_to(buffer.as_ptr().addr(), charge);
        }
        Ok(buffer)
    }
}

/// A request in a budget's line, at most for so long. The line wakes it when there is room, and an alarm when the time is
/// over, which no runtime has to be there for.
struct Patient {
    wait: Wait,
    began: Instant,
    limit: Option<Duration>,
    alarm: Option<Alarm>,
}

impl Future for Patient {
    type Output = Result<Charge, BudgetError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Poll::Ready(answer) = Pin::new(&mut this.wait).poll(context) {
            return Poll::Ready(answer);
        }
        let Some(limit) = this.limit else {
            return Poll::Pending;
        };
        let waited = this.began.elapsed();
        if waited >= limit {
            return Poll::Ready(this.wait.give_up(waited));
        }
        // One that is further off than any clock goes never rings.
        if let Some(at) = this.began.checked_add(limit) {
            // The task may have moved, and be woken otherwise than before.
            this.alarm = wake_at(at, context.waker().clone());
            if this.alarm.is_none() {
                return Poll::Ready(Err(BudgetError::NoMemory));
            }
        }
        Poll::Pending
    }
}

impl Memory for Tenant {
    fn owner(&self) -> Owner {
        Owner::Tenant(Arc::clone(&self.terms))
    }
}
