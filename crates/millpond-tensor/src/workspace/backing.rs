//! The memory of a workspace: that of the host or of a device.
#![forbid(unsafe_code)]

use super::WorkspaceError;
use super::arena::{Arena, ArenaMemory};
use millpond_account::error::AllocError;
use millpond_pool::dtype::DType;
use std::fmt;

/// A kind of memory for workspaces. The trait is implemented for the host and for devices.
pub trait Backing: ArenaMemory + Clone + fmt::Debug + 'static {
    /// A tensor in this memory.
    type Tensor: fmt::Debug;
    /// A named buffer. The workspace stores the type of its elements.
    type Buffer;
    /// A scope's access to the arena.
    type Scratch<'s>;

    /// The name of a workspace in this memory, for `Debug`.
    const WORKSPACE: &'static str;

    /// Returns an error if no workspace can be made now.
    fn expect_usable(&self) -> Result<(), AllocError> {
        Ok(())
    }

    /// Allocates a tensor of zeros.
    fn zeroed_tensor(&self, shape: Vec<usize>, dtype: DType) -> Result<Self::Tensor, WorkspaceError>;

    /// Returns the bytes of a tensor's storage.
    fn tensor_bytes(tensor: &Self::Tensor) -> usize;

    /// Runs `work` in a new scope.
    fn enter<R>(&self, arena: &mut Arena<Self>, work: impl for<'s> FnOnce(&mut Self::Scratch<'s>) -> R) -> R;
}
