//! What is done to all pools of a set.

use super::Pools;
use millpond_engine::{Compaction, ConfError};

impl Pools {
    /// Gives everything that no block uses back to the system, and begins the account anew; as
    /// [`Pool::clear`](crate::Pool::clear).
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

    /// Gives everything that no block uses back to the system; as [`Pool::trim`](crate::Pool::trim).
    pub fn trim(&self) {
        self.members().iter().for_each(|pool| pool.trim());
    }

    /// Compacts every pool, as [`Pool::compact`](crate::Pool::compact); answers what that came to in all. The largest hole
    /// is the largest of any pool's.
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

    /// Finishes what is pending; as [`Pool::collect_garbage`](crate::Pool::collect_garbage).
    pub fn collect_garbage(&self) {
        self.members().iter().for_each(|pool| pool.collect_garbage());
    }

    /// Starts every peak anew at the current value.
    pub fn reset_peak(&self) {
        self.members().iter().for_each(|pool| pool.reset_peak());
    }

    /// Changes settings of all pools, of those that are made later too; the keys are those of
    /// [`Pool::configure`](crate::Pool::configure). A limit holds for each pool.
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
    /// On a key that is not known, a value that cannot be, a setting that a pool keeps for life, or one that the policy of
    /// a pool or template has not; then nothing is changed.
    pub fn configure(&self, settings: &str) -> Result<(), ConfError> {
        self.set.configure(settings, &self.members())
    }
}
