//! Futures that allocate a tenant's buffers when the tenant's budget has room.

use super::Buffer;
use crate::block::{ALIGN, Memory, Owner, bytes_of};
use crate::pool::{Alarm, RawBlock, Terms, wake_at};
use crate::tenant::Tenant;
use bytemuck::AnyBitPattern;
use millpond_account::budget::{BudgetError, Charge, Wait};
use millpond_account::error::AllocError;
use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

impl Tenant {
    /// Allocates a buffer of `len` elements, all zero, when the budget has room. The future works in any runtime. It waits
    /// in the budget's queue until there is room, or until the [tenant's timeout](Self::wait) if it has one. It does not
    /// wait for the pool: if the pool itself has no memory, the future fails. Dropping the future removes it from the queue.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory, or if there can never be enough. Returns [`BudgetError::TimedOut`]
    /// at the timeout.
    pub async fn alloc_zeroed_async<T: AnyBitPattern>(&self, len: usize) -> Result<Buffer<T>, AllocError> {
        let make = |owner| Buffer::zeroed(owner, len, ALIGN);
        self.when_there_is_room::<T, T>(len, make).await
    }

    /// Allocates a buffer of `len` uninitialised elements like [`alloc_zeroed_async`](Self::alloc_zeroed_async).
    ///
    /// # Errors
    /// Returns the same errors as [`alloc_zeroed_async`](Self::alloc_zeroed_async).
    pub async fn alloc_async<T: AnyBitPattern>(
        &self,
        len: usize,
    ) -> Result<Buffer<MaybeUninit<T>>, AllocError> {
        let make = |owner| Buffer::uninit(owner, len, ALIGN);
        self.when_there_is_room::<T, MaybeUninit<T>>(len, make).await
    }

    /// Allocates a buffer with a copy of a slice like [`alloc_zeroed_async`](Self::alloc_zeroed_async). The slice is copied
    /// when there is room.
    ///
    /// ```
    /// use millpond::{AllocError, Budget, Buffer, Pool, budget::Measure};
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
    /// Returns the same errors as [`alloc_zeroed_async`](Self::alloc_zeroed_async).
    pub async fn alloc_from_async<T: AnyBitPattern>(&self, values: &[T]) -> Result<Buffer<T>, AllocError> {
        Ok(self.alloc_async(values.len()).await?.copied(values))
    }

    /// Creates a buffer for `len` elements when the budget has room for it.
    async fn when_there_is_room<T: AnyBitPattern, E: AnyBitPattern>(
        &self,
        len: usize,
        make: impl FnOnce(Owner) -> Result<Buffer<E>, AllocError>,
    ) -> Result<Buffer<E>, AllocError> {
        let Some(budget) = &self.terms().budget else {
            return make(self.pool().owner());
        };
        let bytes = bytes_of::<T>(len)?;
        // The charge holds the room until the block itself is charged.
        let block = RawBlock::of(0, bytes, ALIGN).bytes as u64;
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

/// A request in a budget's queue with an optional timeout. The queue wakes it when there is room, and an alarm wakes it at
/// the timeout. The alarm does not need a runtime.
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
        // An instant that the clock cannot represent needs no alarm.
        if let Some(at) = this.began.checked_add(limit) {
            // The task may have moved since the last poll, and may have another waker.
            this.alarm = wake_at(at, context.waker().clone());
            if this.alarm.is_none() {
                return Poll::Ready(Err(BudgetError::NoMemory));
            }
        }
        Poll::Pending
    }
}
