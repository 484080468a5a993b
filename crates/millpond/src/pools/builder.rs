//! What the pools of a set are to be like.

use super::Pools;
use super::set::{Place, Set};
use crate::device::Device;
use crate::memory::MemoryKind;
use crate::pool::{Pool, PoolBuilder, PoolError, Prewarm};
use millpond_engine::ConfError;
use std::sync::Arc;

/// Describes a set of pools. Nothing in it can fail: what cannot be is told when a pool is made.
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
    /// Templates of their own.
    own: Vec<(Place, PoolBuilder)>,
    carves: bool,
    #[cfg(feature = "cuda")]
    cuda: Option<crate::gpu::DevicePoolBuilder>,
}

impl PoolsBuilder {
    /// What the names of its pools begin with: `host` and `pinned` are then `training host` and `training pinned`. Where
    /// it is not said, the name that the template has.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How each pool is made that has no template of its own.
    #[must_use]
    pub fn template(mut self, template: PoolBuilder) -> Self {
        self.template = template;
        self
    }

    /// How the pool of one device and kind is made. Where the template has a name, the pool has just that.
    #[must_use]
    pub fn template_for(mut self, device: Device, kind: MemoryKind, template: PoolBuilder) -> Self {
        let place = Place { device, kind };
        self.own.retain(|(other, _)| *other != place);
        self.own.push((place, template));
        self
    }

    /// How the pools of CUDA devices are made. Where it has a name, they have just that.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn cuda_template(mut self, template: crate::gpu::DevicePoolBuilder) -> Self {
        self.cuda = Some(template);
        self
    }

    #[cfg(feature = "cuda")]
    pub(super) fn make_cuda(
        &self,
        device: &crate::gpu::CudaDevice,
    ) -> Result<crate::gpu::DevicePool, crate::gpu::DevicePoolError> {
        let name = self.name.as_deref().or(self.template.given_name());
        super::devices::make(self.cuda.as_ref(), name, device)
    }

    /// The host's pool has the small sizes ready, where nothing else is said of what is to be.
    pub(super) fn carve_small_sizes(mut self) -> Self {
        self.carves = true;
        self
    }

    /// The set. No pool is made yet.
    #[must_use]
    pub fn build(self) -> Pools {
        Pools {
            set: Arc::new(Set::new(self)),
        }
    }

    /// What a pool is called.
    pub(super) fn name_of(&self, place: Place) -> String {
        match self.name.as_deref().or(self.template.given_name()) {
            Some(name) => format!("{name} {place}"),
            None => place.to_string(),
        }
    }

    pub(super) fn make(&self, place: Place) -> Result<Pool, PoolError> {
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
            (device, MemoryKind::Device) | (device @ Device::Cuda(_), _) => {
                Err(PoolError::NotTheHosts { device })
            }
        }
    }

    /// Whether pools that are made later can be changed so.
    pub(super) fn check_change(&self, text: &str) -> Result<(), ConfError> {
        let templates = self.own.iter().map(|(_, own)| own).chain([&self.template]);
        templates
            .into_iter()
            .try_for_each(|template| template.check_change(text))
    }
}
