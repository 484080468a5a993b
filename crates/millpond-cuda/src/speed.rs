//! Decides from measured speeds whether packing pays on this host and link.

use millpond_codec::{Scheme, pack};
use std::sync::OnceLock;
use std::time::Instant;

/// The speeds of one thread of the host, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HostSpeed {
    pub(super) copy: f64,
    /// The speed for data that is packed fastest.
    pub(super) pack: f64,
    /// Whether all data is packed at this speed, whatever a sample shows.
    pub(super) is_set: bool,
}

static HOST: OnceLock<HostSpeed> = OnceLock::new();

/// The bytes that are packed for the measurement, which are more than a core's own cache holds.
const MEASURED: usize = 4 << 20;

impl HostSpeed {
    /// A host whose work takes no time on the device's clock, as with an emulated device.
    pub(super) const FREE: Self = Self {
        copy: f64::INFINITY,
        pack: f64::INFINITY,
        is_set: true,
    };

    /// Returns the speeds, which are measured once. The measurement takes some milliseconds.
    pub(super) fn measured() -> Self {
        *HOST.get_or_init(Self::measure)
    }

    /// Returns the speeds if they were measured or set before.
    pub(super) fn known() -> Option<Self> {
        HOST.get().copied()
    }

    /// Sets the speeds if they were not measured or set before.
    pub(super) fn set(copy: f64, pack: f64) {
        let is_set = true;
        let _ = HOST.set(Self { copy, pack, is_set });
    }

    fn measure() -> Self {
        let (from, mut to) = (vec![0; MEASURED], vec![1; MEASURED]);
        let scheme = Scheme::default();
        Self {
            copy: rate(|| to.copy_from_slice(std::hint::black_box(&from))),
            pack: rate(|| {
                let _ = std::hint::black_box(pack(&from, &mut to, scheme));
            }),
            is_set: false,
        }
    }
}

/// Returns the best of three runs, in bytes per second.
fn rate(mut work: impl FnMut()) -> f64 {
    let mut round = || {
        let begun = Instant::now();
        work();
        begun.elapsed()
    };
    let best = [round(), round(), round()].into_iter().min().unwrap_or_default();
    MEASURED as f64 / best.as_secs_f64().max(1e-9)
}

/// The speeds of the host and the link, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speeds {
    pub(super) host: HostSpeed,
    /// The speed of copies from pinned memory to the device.
    pub(super) link: f64,
}

impl Speeds {
    /// Returns the speeds for data, given the speed at which a sample of it was packed.
    pub(super) fn with(self, sampled: f64) -> Self {
        let pack = if self.host.is_set { self.host.pack } else { sampled };
        let host = HostSpeed { pack, ..self.host };
        Self { host, ..self }
    }

    /// Returns whether a packed copy with this share of the original bytes is faster by at least an eighth.
    pub(super) fn pay(&self, share: f64, threads: usize) -> bool {
        let (plain, packed) = self.seconds(share, threads);
        packed <= plain * 7.0 / 8.0
    }

    /// Returns the seconds per byte of a plain and of a packed copy. The host fills one slot while the link carries another, so the slower
    /// of the two determines the time. The host's speed is assumed to be proportional to the number of threads.
    fn seconds(&self, share: f64, threads: usize) -> (f64, f64) {
        let of_host = |speed: f64| 1.0 / (speed * threads as f64);
        let plain = of_host(self.host.copy).max(1.0 / self.link);
        let packed = of_host(self.host.pack).max(share / self.link);
        (plain, packed)
    }
}

/// Returns the speeds of a plain copy and of the one that is chosen, for a host that copies and packs at these speeds.
#[doc(hidden)]
#[must_use]
pub fn copy_speeds(copy: f64, pack: f64, link: f64, share: f64, threads: usize) -> (f64, f64) {
    let is_set = true;
    let host = HostSpeed { copy, pack, is_set };
    let speeds = Speeds { host, link };
    let (plain, packed) = speeds.seconds(share, threads);
    let chosen = if speeds.pay(share, threads) { packed } else { plain };
    (1.0 / plain, 1.0 / chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_pays_if_the_link_is_slower_than_the_host() {
        let speeds = |copy, pack, link| Speeds {
            host: HostSpeed {
                copy,
                pack,
                is_set: true,
            },
            link,
        };
        assert!(speeds(20.0, 15.0, 10.0).pay(0.5, 1));
        assert!(!speeds(20.0, 15.0, 10.0).pay(0.9, 1), "little is zero");
        assert!(
            !speeds(20.0, 8.0, 10.0).pay(0.5, 1),
            "the host is slower than the link"
        );
        assert!(!speeds(20.0, 11.0, 10.0).pay(0.5, 1), "and hardly faster");
        assert!(
            !speeds(20.0, 15.0, 50.0).pay(0.1, 1),
            "copying is slower than the link, packing is so too"
        );
        assert!(
            speeds(20.0, 15.0, 50.0).pay(0.1, 6),
            "six threads are faster than the link"
        );
        assert!(
            Speeds {
                host: HostSpeed::FREE,
                link: 25.0
            }
            .pay(0.87, 1)
        );
        assert!(
            !Speeds {
                host: HostSpeed::FREE,
                link: 25.0
            }
            .pay(0.88, 1)
        );
    }

    #[test]
    fn host_speeds_are_positive_and_measured_once() {
        let HostSpeed { copy, pack, is_set } = HostSpeed::measured();
        assert!(!is_set);
        let speeds = Speeds {
            host: HostSpeed::measured(),
            link: 1.0,
        };
        assert_eq!(
            speeds.with(5.0).host,
            HostSpeed {
                copy,
                pack: 5.0,
                is_set
            }
        );
        assert!(copy.is_finite() && copy > 0.0 && pack.is_finite() && pack > 0.0);
        assert_eq!(
            HostSpeed::known(),
            Some(HostSpeed::measured()),
            "once and for all"
        );
    }
}
