//! The builder of a set of pools.

use super::Pools;
use super::set::{PoolPlace, Set};
use millpond_account::memory::MemoryKind;
use millpond_engine::ConfError;
use millpond_os::device::Device;
use millpond_pool::pool::{Pool, PoolBuilder, PoolError, Prewarm};
use std::fmt;
use std::sync::Arc;

/// A builder of a set of pools. Its methods do not fail. Errors are returned when a pool is created.
///
/// ```
/// use millpond::{Device, MemoryKind, Pool, Pools};
///
/// let set = Pools::builder()
///     .name("training")
///     .template(Pool::builder().settings("cache-size:1GiB"))
///     .template_for(Device::Host, MemoryKind::Pinned, Pool::builder().limit(1 << 20))
///     .build();
/// assert_eq!(set.host()?.name(), "training host");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PoolsBuilder {
    name: Option<String>,
    template: PoolBuilder,
    /// The templates for single devices and kinds.
    own: Vec<(PoolPlace, PoolBuilder)>,
    carves: bool,
    #[cfg(feature = "cuda")]
    cuda: Option<millpond_cuda::DevicePoolBuilder>,
}

impl PoolsBuilder {
    /// Sets the prefix of the pools' names, for example `training host` and `training pinned` for `training`. The default is the
    /// name of the template.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the template of all pools that do not have their own.
    #[must_use]
    pub fn template(mut self, template: PoolBuilder) -> Self {
        self.template = template;
        self
    }

    /// Sets the template of the pool of one device and kind. If the template has a name, the pool has exactly this name.
    #[must_use]
    pub fn template_for(mut self, device: Device, kind: MemoryKind, template: PoolBuilder) -> Self {
        let place = PoolPlace { device, kind };
        self.own.retain(|(other, _)| *other != place);
        self.own.push((place, template));
        self
    }

    /// Sets the template of the pools of CUDA devices. If it has a name, they have exactly this name.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn cuda_template(mut self, template: millpond_cuda::DevicePoolBuilder) -> Self {
        self.cuda = Some(template);
        self
    }

    #[cfg(feature = "cuda")]
    pub(super) fn make_cuda(
        &self,
        device: &millpond_cuda::CudaDevice,
    ) -> Result<millpond_cuda::DevicePool, millpond_cuda::DevicePoolError> {
        let mut builder = self.cuda.clone().unwrap_or_default();
        if builder.given_name().is_none() {
            builder = builder.name(self.name_of(Device::Cuda(device.number())));
        }
        builder.build(device)
    }

    /// Prepares blocks of small sizes in the host pool, unless a setting says otherwise.
    pub(super) fn carve_small_sizes(mut self) -> Self {
        self.carves = true;
        self
    }

    /// Builds the set. No pool is created yet.
    #[must_use]
    pub fn build(self) -> Pools {
        Pools {
            set: Arc::new(Set::new(self)),
        }
    }

    /// Returns the name of a pool in this place.
    pub(super) fn name_of(&self, place: impl fmt::Display) -> String {
        match self.name.as_deref().or(self.template.given_name()) {
            Some(name) => format!("{name} {place}"),
            None => place.to_string(),
        }
    }

    pub(super) fn make(&self, place: PoolPlace) -> Result<Pool, PoolError> {
        let own = self.own.iter().find(|(other, _)| *other == place);
        let mut builder = match own {
            Some((_, own)) if own.given_name().is_some() => own.clone(),
            Some((_, own)) => own.clone().name(self.name_of(place)),
            None => self.template.clone().name(self.name_of(place)),
        };
        match (place.device, place.kind) {
            (Device::Host, MemoryKind::Host) => {
                if self.carves {
                    builder = builder.carved(Prewarm::small_sizes());
                }
                builder.host()
            }
            (Device::Host, MemoryKind::Pinned) => builder.pinned(),
            (Device::Host, MemoryKind::Managed) => Err(PoolError::NotManaged),
            (device, _) => Err(PoolError::NotTheHosts { device }),
        }
    }

    /// Returns an error if the settings cannot be applied to pools that are created later.
    pub(super) fn check_change(&self, text: &str) -> Result<(), ConfError> {
        let templates = self.own.iter().map(|(_, own)| own).chain([&self.template]);
        templates
            .into_iter()
            .try_for_each(|template| template.check_change(text))
    }
}
