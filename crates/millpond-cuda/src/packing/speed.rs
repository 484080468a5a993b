//! Decides from measured speeds whether packing pays on this host and link.

use super::{GROUP, pack};
use std::sync::OnceLock;
use std::time::Instant;

/// The speeds of one thread of the host, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HostSpeed {
    pub(crate) copy: f64,
    pub(crate) pack: f64,
}

static HOST: OnceLock<HostSpeed> = OnceLock::new();

/// The bytes that are packed for the measurement, which are more than a core's own cache holds.
const MEASURED: usize = 4 << 20;

impl HostSpeed {
    /// A host whose work takes no time on the device's clock, as with an emulated device.
    pub(crate) const FREE: Self = Self {
        copy: f64::INFINITY,
        pack: f64::INFINITY,
    };

    /// Returns the speeds, which are measured once. The measurement takes some milliseconds.
    pub(crate) fn measured() -> Self {
        *HOST.get_or_init(Self::measure)
    }

    /// Returns the speeds if they were measured or set before.
    pub(crate) fn known() -> Option<Self> {
        HOST.get().copied()
    }

    /// Sets the speeds if they were not measured or set before.
    pub(crate) fn assume(self) {
        let _ = HOST.set(self);
    }

    fn measure() -> Self {
        let half = |at: usize| {
            if at.wrapping_mul(2_654_435_761) >> 16 & 1 == 1 {
                at as u32 | 1
            } else {
                0
            }
        };
        let words: Vec<u32> = (0..MEASURED / 4).map(half).collect();
        let from = bytemuck::cast_slice::<u32, u8>(&words);
        let mut to = vec![1; MEASURED];
        Self {
            copy: rate(|| to.copy_from_slice(from)),
            pack: rate(|| {
                let _ = std::hint::black_box(pack(from, &mut to));
            }),
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
pub(crate) struct Speeds {
    pub(crate) host: HostSpeed,
    /// The speed of copies from pinned memory to the device.
    pub(crate) link: f64,
}

impl Speeds {
    /// Returns whether a packed copy with this share of the original bytes is faster by at least an eighth. The host fills slots while the
    /// link carries another, so the slower of the two determines the time. Several threads are assumed to be as many times as
    /// fast as one.
    pub(crate) fn pay(&self, share: f64, threads: usize) -> bool {
        let of_host = |speed: f64| 1.0 / (speed * threads as f64);
        let packed = of_host(self.host.pack).max(share / self.link);
        let plain = of_host(self.host.copy).max(1.0 / self.link);
        packed <= plain * 7.0 / 8.0
    }
}

const _: () = assert!(MEASURED.is_multiple_of(GROUP));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_pays_where_the_link_is_the_slower() {
        let speeds = |copy, pack, link| Speeds {
            host: HostSpeed { copy, pack },
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
    fn this_host_packs_at_some_speed() {
        let HostSpeed { copy, pack } = HostSpeed::measured();
        assert!(copy.is_finite() && copy > 0.0 && pack.is_finite() && pack > 0.0);
        assert_eq!(
            HostSpeed::known(),
            Some(HostSpeed::measured()),
            "once and for all"
        );
    }
}
