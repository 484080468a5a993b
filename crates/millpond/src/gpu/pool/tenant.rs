//! Asking a pool on somebody's account, and with patience.

use super::{DevicePool, Terms};
use crate::budget::{Budget, BudgetError, Measure};
use crate::dtype::Element;
use crate::error::AllocError;
use crate::gpu::buffer::DeviceBuffer;
use crate::gpu::stream::CudaStream;
use std::time::Duration;

/// One who uses a pool of a device: what is allocated by it is charged to a budget of its own, and may be waited for. The same
/// for a device as a [`Tenant`](crate::Tenant) for the host.
///
/// Where the device's memory is short, a request that may wait does so until a buffer is dropped, or the device has come past
/// the last use of one. Whoever holds memory while waiting for more can wait for itself; the time limit ends that.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
/// use millpond::{Budget, Measure};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let budget = Budget::builder("tenant a").measure(Measure::Allocated).limit(1 << 20).build()?;
/// let tenant = pool.tenant(&budget)?;
/// let held = tenant.alloc::<f32>(200_000, &stream)?;
/// let refused = tenant.alloc::<f32>(200_000, &stream).unwrap_err();
/// assert!(refused.to_string().contains("over budget 'tenant a'"));
/// drop(held);
/// assert!(tenant.wait(Duration::from_secs(1)).alloc::<f32>(200_000, &stream).is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DeviceTenant {
    pool: DevicePool,
    terms: Terms,
}

impl DevicePool {
    /// One who uses the pool at the expense of a budget of allocated bytes, [below](Self::budget) the pool's own or beside it.
    ///
    /// # Errors
    /// [`BudgetError::OtherMeasure`] if the budget counts other bytes.
    pub fn tenant(&self, budget: &Budget) -> Result<DeviceTenant, BudgetError> {
        let budget = Some(budget.measured(Measure::Allocated)?.clone());
        Ok(DeviceTenant {
            pool: self.clone(),
            terms: Terms { budget, wait: None },
        })
    }

    /// One who waits at most so long where there is no memory now.
    #[must_use]
    pub fn waiting(&self, limit: Duration) -> DeviceTenant {
        let terms = Terms {
            budget: None,
            wait: Some(limit),
        };
        DeviceTenant {
            pool: self.clone(),
            terms,
        }
    }
}

impl DeviceTenant {
    /// The same, who waits at most so long where there is no memory now.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Self {
        let mut patient = self.clone();
        patient.terms.wait = Some(limit);
        patient
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &DevicePool {
        &self.pool
    }

    /// What its blocks are charged to.
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.terms.budget.as_ref()
    }

    /// As [`DevicePool::alloc`].
    ///
    /// # Errors
    /// As there, and when the budget refuses or the time is over.
    pub fn alloc<T: Element>(&self, len: usize, stream: &CudaStream) -> Result<DeviceBuffer<T>, AllocError> {
        self.pool.alloc_by(&self.terms, len, stream)
    }

    /// As [`DevicePool::alloc_zeroed`].
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and what the driver says.
    pub fn alloc_zeroed<T: Element>(
        &self,
        len: usize,
        stream: &CudaStream,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        self.pool.alloc_zeroed_by(&self.terms, len, stream)
    }

    /// As [`DevicePool::alloc_from`].
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and what the driver says.
    pub fn alloc_from<T: Element>(
        &self,
        elements: &[T],
        stream: &CudaStream,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        self.pool.alloc_from_by(&self.terms, elements, stream)
    }
}
