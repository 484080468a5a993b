//! The origins of blocks: a pool, a tenant of a pool, or a source without a pool.

use super::Owner;
use crate::pool::Pool;
use std::fmt;

/// An origin of blocks for the types that hold memory.
pub trait Memory {
    /// Returns the owner of the blocks.
    fn owner(&self) -> Owner;
}

impl fmt::Debug for dyn Memory + Send + Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner().fmt(f)
    }
}

/// An origin of memory: a [`Pool`], a [`Tenant`](crate::Tenant) of one, or an [`Unpooled`](crate::Unpooled) source. No
/// other type can implement it.
pub trait Origin {
    /// Returns the owner of the blocks.
    #[doc(hidden)]
    fn handle(&self) -> Handle;
}

/// The owner of blocks. Code outside this crate can only pass it on.
#[derive(Debug)]
pub struct Handle(pub Owner);

/// Implements [`Origin`] for a type that is [`Memory`].
macro_rules! origin {
    ($from:ty) => {
        impl crate::block::Origin for $from {
            #[inline]
            fn handle(&self) -> crate::block::Handle {
                crate::block::Handle(crate::block::Memory::owner(self))
            }
        }
    };
}

pub(crate) use origin;

impl Memory for Pool {
    #[inline]
    fn owner(&self) -> Owner {
        Owner::Pool(self.heap())
    }
}

origin!(Pool);
