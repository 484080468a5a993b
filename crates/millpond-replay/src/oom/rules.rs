//! The rules by which a free range of an allocator may serve a request.

use super::layout::Hole;
use crate::program::Wanted;
use millpond_engine::policies::{TorchExpandable, TorchNative};
use millpond_engine::{Settings, TorchConf};

/// The largest request of PyTorch's small pool.
const SMALL: u64 = 1 << 20;

/// The rules of an allocator that decide where a request may be served.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// The settings of PyTorch's allocator, whose free ranges belong to one stream and one size class. `None`
    /// for other allocators.
    torch: Option<TorchConf>,
    /// Whether it maps pages instead of taking whole segments.
    paged: bool,
}

impl Rules {
    /// Returns the rules of a policy with these settings.
    pub(crate) fn of(policy: &str, settings: &Settings) -> Self {
        Self {
            torch: policy.starts_with("torch-").then(|| settings.torch.clone()),
            paged: policy != "torch-native",
        }
    }

    /// Returns the bytes of the block that serves a request.
    pub(crate) fn block_bytes(&self, requested: u64) -> u64 {
        let rounded = self.torch.as_ref();
        let rounded = rounded.and_then(|conf| TorchNative::block_bytes(conf, requested));
        rounded.unwrap_or(requested)
    }

    /// Returns whether a request of this size is served only from segments for small requests, or only from
    /// others. Returns `None` if the allocator does not separate small requests.
    pub(crate) fn is_small(&self, requested: u64) -> Option<bool> {
        let torch = self.torch.as_ref()?;
        TorchNative::block_bytes(torch, requested).map(|bytes| bytes <= SMALL)
    }

    /// Returns the bytes that the allocator takes from the device for a request that no free range serves.
    pub(crate) fn segment_bytes(&self, requested: u64) -> u64 {
        let bytes = self.torch.as_ref().and_then(|conf| match self.paged {
            true => TorchExpandable::segment_bytes(conf, requested),
            false => TorchNative::segment_bytes(conf, requested),
        });
        bytes.unwrap_or(requested)
    }

    /// Returns the largest gap behind a block that belongs to the block, because the allocator does not split
    /// off less. `small` says whether the segment is for small requests.
    pub(crate) fn kept(&self, block: u64, small: bool) -> u64 {
        match &self.torch {
            Some(conf) if !self.paged && !small => {
                let whole = conf.max_split_size.is_some_and(|most| block >= most);
                if whole { u64::MAX } else { SMALL }
            }
            _ => 511,
        }
    }

    /// Returns whether a free range belongs to another stream than the request.
    pub(crate) fn is_other_stream(&self, hole: &Hole, wanted: &Wanted) -> bool {
        self.torch.is_some() && hole.stream.is_some_and(|stream| stream != wanted.stream)
    }

    /// Returns whether a free range belongs to another pool than the request.
    pub(crate) fn is_other_pool(&self, hole: &Hole, wanted: &Wanted) -> bool {
        hole.pool.is_some_and(|pool| pool != wanted.pool)
    }

    /// Returns whether a free range may serve a part of the request.
    pub(crate) fn serves(&self, hole: &Hole, wanted: &Wanted) -> bool {
        let class = self.is_small(wanted.bytes).zip(hole.small);
        !self.is_other_stream(hole, wanted)
            && !self.is_other_pool(hole, wanted)
            && class.is_none_or(|(wanted, hole)| wanted == hole)
    }
}
