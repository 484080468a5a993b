//! Hash maps with keys from files.

use foldhash::fast::SeedableRandomState;
use std::hash::BuildHasher;

/// A hasher with a random seed, so that no file can be written to make keys collide.
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

/// A hash map with numbers from a file as keys.
pub(crate) type Map<K, V> = hashbrown::HashMap<K, V, Seeded>;
