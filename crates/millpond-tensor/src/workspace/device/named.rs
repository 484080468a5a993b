//! The named buffers of a workspace on a device.

use crate::workspace::WorkspaceError;
use crate::workspace::named::{NamedOn, Planned};
use millpond_cuda::{CudaQueue, DeviceBuffer};
use millpond_pool::dtype::Element;

/// The named buffers and tensors of a workspace on a device.
pub type DeviceNamed = NamedOn<CudaQueue>;

impl Planned<CudaQueue> {
    pub(super) fn device_buffer<T: Element>(name: &str, len: usize) -> Self {
        Self::buffer::<T>(name, len, |queue, len| {
            let buffer: DeviceBuffer<T> = queue.pool().alloc_zeroed(len, queue.stream())?;
            Ok(Box::new(buffer))
        })
    }
}

impl DeviceNamed {
    /// Returns a buffer.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get<T: Element>(&self, name: &str) -> Result<&DeviceBuffer<T>, WorkspaceError> {
        let named = self.buffers.get(name)?;
        let buffer = named.buffer.downcast_ref();
        buffer.ok_or_else(|| named.elements.other::<T>(name))
    }

    /// Returns a buffer for writing.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get_mut<T: Element>(&mut self, name: &str) -> Result<&mut DeviceBuffer<T>, WorkspaceError> {
        self.get_disjoint_mut([name]).map(|[one]| one)
    }

    /// Returns several buffers for writing.
    ///
    /// # Errors
    /// Returns an error if a name has no buffer, if the elements of a buffer have another type, or if a name occurs
    /// twice.
    pub fn get_disjoint_mut<T: Element, const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[&mut DeviceBuffer<T>; N], WorkspaceError> {
        let mut found = Vec::with_capacity(N);
        for (named, name) in self.buffers.get_disjoint_mut(names)?.into_iter().zip(names) {
            let buffer = named.buffer.downcast_mut();
            found.push(buffer.ok_or_else(|| named.elements.other::<T>(name))?);
        }
        // There is one buffer for each name, so the conversion succeeds.
        found
            .try_into()
            .map_err(|_| WorkspaceError::Twice { name: names.concat() })
    }
}
