//! A handle of a pool with a budget and a timeout.

use crate::block::{Memory, Owner, origin};
use crate::pool::{Pool, Terms};
use millpond_account::budget::{Budget, BudgetError, Measure};
use std::sync::Arc;
use std::time::Duration;

/// A handle of a pool whose allocations are charged to a budget of its own. Its requests may wait for memory.
///
/// A request that exceeds the budget fails, and the error lists the holders of the memory. If the tenant [may
/// wait](Self::wait), requests queue in order of arrival until enough memory was freed or the timeout is over. See [`Budget`]
/// for the order. If the budget has room but the pool has no memory, the request waits for that too: until a block is freed,
/// or other pools under the same budget give memory back. If a thread waits for memory that only it can free, it waits until
/// the timeout.
///
/// ```
/// use millpond::{Budget, Pool, budget::Measure};
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

impl Pool {
    /// Returns the pool's own budget of allocated bytes, if it has one. Create tenants' budgets below it, so that each
    /// block is charged to it once.
    ///
    /// ```
    /// use millpond::{Budget, Pool, budget::Measure};
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

    /// Creates a tenant that charges a budget of allocated bytes, which may be [below](Self::budget) the pool's own budget
    /// or separate from it.
    ///
    /// # Errors
    /// Returns [`BudgetError::OtherMeasure`] if the budget counts other bytes.
    pub fn tenant(&self, budget: &Budget) -> Result<Tenant, BudgetError> {
        let budget = budget.measured(Measure::Allocated)?.clone();
        self.heap().have_tenants();
        Ok(Tenant::new(self, Some(budget), None))
    }

    /// Creates a tenant without a budget that waits for memory until a timeout.
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

    /// Returns the same tenant with a timeout for waiting for memory.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Self {
        Self::new(&self.pool, self.terms.budget.clone(), Some(limit))
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the budget that the tenant's blocks are charged to.
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.terms.budget.as_ref()
    }
}

impl Memory for Tenant {
    fn owner(&self) -> Owner {
        Owner::Tenant(Arc::clone(&self.terms))
    }
}

origin!(Tenant);
