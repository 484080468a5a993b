//! Maintenance of all pools of a set.

use super::Pools;
use millpond_engine::{Compaction, ConfError};

impl Pools {
    /// Returns all unused memory to the system and resets the statistics, like [`Pool::clear`](millpond_pool::Pool::clear).
    ///
    /// ```
    /// # let set = millpond::Pools::new();
    /// drop(set.host()?.alloc_zeroed::<u8>(1 << 20)?);
    /// set.clear();
    /// let total = set.stats().total;
    /// assert_eq!((total.reserved.current, total.allocations, total.allocated.peak), (0, 0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(&self) {
        self.members().iter().for_each(|pool| pool.clear());
    }

    /// Returns all unused memory to the system, like [`Pool::trim`](millpond_pool::Pool::trim).
    pub fn trim(&self) {
        self.members().iter().for_each(|pool| pool.trim());
    }

    /// Compacts every pool, like [`Pool::compact`](millpond_pool::Pool::compact), and returns the total. The largest hole is the largest of
    /// any pool.
    pub fn compact(&self) -> Compaction {
        self.members()
            .iter()
            .fold(Compaction::default(), |mut sum, pool| {
                let one = pool.compact();
                let add = |to: &mut u64, bytes| *to = to.saturating_add(bytes);
                add(&mut sum.reserved_before, one.reserved_before);
                add(&mut sum.reserved_after, one.reserved_after);
                add(&mut sum.waited, one.waited);
                add(&mut sum.allocated, one.allocated);
                add(&mut sum.shared, one.shared);
                add(&mut sum.kept, one.kept);
                sum.largest_hole = sum.largest_hole.max(one.largest_hole);
                sum
            })
    }

    /// Completes pending work, like [`Pool::collect_garbage`](millpond_pool::Pool::collect_garbage).
    pub fn collect_garbage(&self) {
        self.members().iter().for_each(|pool| pool.collect_garbage());
    }

    /// Resets every peak to the current value.
    pub fn reset_peak(&self) {
        self.members().iter().for_each(|pool| pool.reset_peak());
    }

    /// Changes settings of all pools, including those created later. The keys are those of
    /// [`Pool::configure`](millpond_pool::Pool::configure). A limit applies to each pool.
    ///
    /// ```
    /// # let set = millpond::Pools::new();
    /// set.configure("limit:2GiB,cache-size:512MiB")?;
    /// assert_eq!(set.host()?.limit(), Some(2 << 30));
    /// assert!(set.configure("handle:4MiB").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error for an unknown key, an invalid value, a setting that cannot be changed after the creation of a pool, or a
    /// setting that the policy of a pool or template does not have. In this case nothing is changed.
    pub fn configure(&self, settings: &str) -> Result<(), ConfError> {
        self.set.configure(settings, &self.members())
    }
}
