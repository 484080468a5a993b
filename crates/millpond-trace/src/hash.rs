//! Hash maps whose keys come from files.

use foldhash::fast::SeedableRandomState;
use std::hash::BuildHasher;

/// Hashes with a seed of this process, so that no file can be written to make keys collide.
#[derive(Clone)]
pub(crate) struct Seeded(SeedableRandomState);

impl Default for Seeded {
    fn default() -> Self {
        Self(SeedableRandomState::random())
    }
}

impl BuildHasher for Seeded {
    type Hasher = <SeedableRandomState as BuildHasher>::Hasher;
    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

/// A hash map keyed by numbers out of a file.
pub(crate) type Map<K, V> = hashbrown::HashMap<K, V, Seeded>;
