//! Buffers of a tenant as futures, which wait until the tenant's budget has room.

use super::Buffer;
use crate::block::{ALIGN, Memory, Owner, bytes_of};
use crate::budget::{BudgetError, Charge, Wait};
use crate::error::AllocError;
use crate::pool::{Alarm, PoolBlock, Terms, wake_at};
use crate::tenant::Tenant;
use bytemuck::AnyBitPattern;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

impl Tenant {
    /// A buffer of `len` elements, all zero, as a future of any runtime: it stands in the budget's line until there is
    /// room, or [as long as the tenant waits](Self::wait) where that was said. Where the pool's own memory is short it fails,
    /// as no thread is there to wait. Dropped, it leaves the line.
    ///
    /// # Errors
    /// When there is no memory for it, or never will be; [`BudgetError::TimedOut`] when the time is over.
    pub async fn alloc_zeroed_async<T: AnyBitPattern>(&self, len: usize) -> Result<Buffer<T>, AllocError> {
        let make = |owner| Buffer::zeroed(owner, len, ALIGN);
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
        let make = |owner| Buffer::uninit(owner, len, ALIGN);
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
        let Some(budget) = &self.terms().budget else {
            return make(self.pool().owner());
        };
        let bytes = bytes_of::<T>(len)?;
        // The room is held until the block's own charge has been made of it.
        let block = PoolBlock::of(0, bytes, ALIGN).bytes as u64;
        let charge = Patient {
            wait: budget.charge_async(block),
            began: Instant::now(),
            limit: self.terms().wait,
            alarm: None,
        };
        let charge = charge.await;
        let charge = charge.map_err(|error| AllocError::Budget(Box::new(error)))?;
        let terms = Terms {
            budget: None,
            wait: None,
            charged: self.terms().heap.is_covered_by(budget),
            ..self.terms().clone()
        };
        let buffer = make(Owner::Tenant(Arc::new(terms)))?;
        if len > 0 {
            self.terms().heap.charge_to(buffer.as_ptr().addr(), charge);
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
