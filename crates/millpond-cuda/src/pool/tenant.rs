//! A pool handle with a budget and a timeout.

use super::{DevicePool, Terms};
use millpond_account::budget::{Budget, BudgetError, Measure};
use std::time::Duration;

/// A pool handle whose allocations are charged to a budget of its own and may wait for memory. It is the device's counterpart of
/// [`Tenant`](millpond_pool::Tenant).
///
/// If the device's memory is short, a request with a timeout waits until a buffer is dropped or the device has passed the last use of one.
/// A thread that holds memory while it waits for more may wait for its own memory. The timeout ends this wait.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
/// use millpond::{Budget, budget::Measure};
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
    /// Returns a handle that charges a budget of allocated bytes. The budget may be a child of the [pool's own budget](Self::budget) or
    /// independent of it.
    ///
    /// # Errors
    /// Returns [`BudgetError::OtherMeasure`] if the budget counts other bytes.
    pub fn tenant(&self, budget: &Budget) -> Result<DeviceTenant, BudgetError> {
        let budget = Some(budget.measured(Measure::Allocated)?.clone());
        Ok(DeviceTenant {
            pool: self.clone(),
            terms: Terms { budget, wait: None },
        })
    }

    /// Returns a handle whose requests wait for memory for at most `limit`.
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
    /// Returns a copy of this handle whose requests wait for memory for at most `limit`.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Self {
        let mut patient = self.clone();
        patient.terms.wait = Some(limit);
        patient
    }

    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &DevicePool {
        &self.pool
    }

    /// Returns the budget that is charged with the blocks, if there is one.
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.terms.budget.as_ref()
    }

    pub(crate) fn requests(&self) -> (&DevicePool, &Terms) {
        (&self.pool, &self.terms)
    }
}
