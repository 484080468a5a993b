//! PyTorch's settings, with the same meaning and limits as in its own parser.

use super::{ConfError, entries};

const MIB: u64 = 1 << 20;

/// Keys that PyTorch knows and that do not change where device memory is placed.
const WITHOUT_EFFECT: [&str; 12] = [
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
];

/// Which allocator PyTorch uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TorchBackend {
    /// PyTorch's own allocator, which these settings configure.
    #[default]
    Native,
    /// The driver's pool, simulated by the policy `cuda-async`. It ignores all other settings.
    CudaMallocAsync,
}

/// The settings of PyTorch's caching allocator that change placement.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchConf {
    /// The allocator to which these settings apply.
    pub backend: TorchBackend,
    /// Whether expandable segments were turned on or off explicitly.
    pub expandable_segments: Option<bool>,
    /// Blocks of this size and more are not split.
    pub max_split_size: Option<u64>,
    /// How many bytes larger than the request an unsplittable block may be.
    pub max_non_split_rounding: u64,
    /// Bytes of a segment that serves several requests of 1 to 10 MiB.
    pub large_segment: u64,
    /// The share of the allowed memory above which unsplit cached blocks are returned before memory grows.
    pub garbage_collection_threshold: f64,
    /// The share of the device that may be reserved. `None` allows all of it.
    pub memory_fraction: Option<f64>,
    /// Rounding of sizes between powers of two.
    pub roundup_power2_divisions: RoundupDivisions,
    /// Settings that were parsed but have no effect here.
    pub without_effect: Vec<String>,
}

impl Default for TorchConf {
    fn default() -> Self {
        Self {
            backend: TorchBackend::Native,
            expandable_segments: None,
            max_split_size: None,
            max_non_split_rounding: 20 * MIB,
            large_segment: 20 * MIB,
            garbage_collection_threshold: 0.0,
            memory_fraction: None,
            roundup_power2_divisions: RoundupDivisions::default(),
            without_effect: Vec::new(),
        }
    }
}

impl TorchConf {
    /// Parses a setting text in the format of `PYTORCH_CUDA_ALLOC_CONF`.
    ///
    /// # Errors
    /// Returns an error if a key is unknown or if PyTorch would refuse the value.
    ///
    /// ```
    /// use millpond_engine::TorchConf;
    ///
    /// let conf = TorchConf::parse("expandable_segments:True,max_split_size_mb:128")?;
    /// assert_eq!(conf.expandable_segments, Some(true));
    /// assert_eq!(conf.max_split_size, Some(128 << 20));
    /// # Ok::<(), millpond_engine::ConfError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let mut conf = Self::default();
        for (key, value) in entries(text)? {
            match key {
                "backend" => conf.backend = backend(key, value)?,
                "expandable_segments" => conf.expandable_segments = Some(boolean(key, value)?),
                "max_split_size_mb" => conf.max_split_size = Some(megabytes_above(key, value, 20)?),
                "max_non_split_rounding_mb" => conf.max_non_split_rounding = megabytes_above(key, value, 20)?,
                "large_segment_size_mb" => conf.large_segment = megabytes_above(key, value, 1)?,
                "garbage_collection_threshold" => {
                    conf.garbage_collection_threshold = fraction(key, value, false)?;
                }
                "per_process_memory_fraction" => conf.memory_fraction = Some(fraction(key, value, true)?),
                "roundup_power2_divisions" => {
                    conf.roundup_power2_divisions = RoundupDivisions::parse(key, value)?;
                }
                other if WITHOUT_EFFECT.contains(&other) => conf.without_effect.push(other.to_owned()),
                _ => {
                    return Err(ConfError::UnknownKey {
                        key: key.to_owned(),
                        known: known(),
                    });
                }
            }
        }
        Ok(conf)
    }
}

fn known() -> String {
    let with_effect = [
        "backend",
        "expandable_segments",
        "max_split_size_mb",
        "max_non_split_rounding_mb",
        "large_segment_size_mb",
        "garbage_collection_threshold",
        "per_process_memory_fraction",
        "roundup_power2_divisions",
    ];
    with_effect.join(", ")
}

fn backend(key: &str, value: &str) -> Result<TorchBackend, ConfError> {
    match value {
        "native" => Ok(TorchBackend::Native),
        "cudaMallocAsync" => Ok(TorchBackend::CudaMallocAsync),
        _ => Err(ConfError::value(key, value, "write native or cudaMallocAsync")),
    }
}

fn boolean(key: &str, value: &str) -> Result<bool, ConfError> {
    match value {
        "True" | "true" | "1" => Ok(true),
        "False" | "false" | "0" => Ok(false),
        _ => Err(ConfError::value(key, value, "write True or False")),
    }
}

fn megabytes_above(key: &str, value: &str, least: u64) -> Result<u64, ConfError> {
    let expected = || ConfError::value(key, value, format!("write a whole number of MiB above {least}"));
    let number: u64 = value.parse().map_err(|_| expected())?;
    if number <= least {
        return Err(expected());
    }
    number.checked_mul(MIB).ok_or_else(expected)
}

fn fraction(key: &str, value: &str, one_allowed: bool) -> Result<f64, ConfError> {
    let number = value.parse::<f64>().ok();
    let number = number.filter(|n| *n > 0.0 && (*n < 1.0 || one_allowed && *n <= 1.0));
    let most = if one_allowed { "at most" } else { "below" };
    number.ok_or_else(|| {
        ConfError::value(
            key,
            value,
            format!("write a fraction above 0 and {most} 1, such as 0.8"),
        )
    })
}

/// How sizes are rounded up between two powers of two: the number of equal steps for each power from 1 MiB (with
/// everything below) to 32 GiB (with everything above).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundupDivisions([u64; 16]);

impl RoundupDivisions {
    const FIRST: u32 = MIB.trailing_zeros();

    /// Uses the same number of steps between any two powers of two.
    #[must_use]
    pub fn uniform(divisions: u64) -> Self {
        Self([divisions; 16])
    }

    /// Creates it from pairs of a power of two in bytes and its steps, as a snapshot's settings list them.
    #[must_use]
    pub fn from_pairs(pairs: &[(u64, u64)]) -> Self {
        let mut divisions = [0; 16];
        for (bytes, steps) in pairs {
            divisions[Self::interval(*bytes)] = *steps;
        }
        Self(divisions)
    }

    /// Returns the number of steps for a size. The size is not rounded this way if the number is 0 or 1.
    #[must_use]
    pub fn of(&self, bytes: u64) -> u64 {
        self.0[Self::interval(bytes)]
    }

    fn interval(bytes: u64) -> usize {
        let log = bytes.checked_ilog2().unwrap_or(0);
        (log.saturating_sub(Self::FIRST) as usize).min(15)
    }

    fn parse(key: &str, value: &str) -> Result<Self, ConfError> {
        let steps = |text: &str| -> Result<u64, ConfError> {
            let number = text
                .trim()
                .parse::<u64>()
                .ok()
                .filter(|n| *n == 0 || n.is_power_of_two());
            number.ok_or_else(|| ConfError::value(key, text, "steps are 0 or a power of two"))
        };
        let Some(list) = value.strip_prefix('[').and_then(|v| v.strip_suffix(']')) else {
            return Ok(Self::uniform(steps(value)?));
        };
        let mut divisions = [0; 16];
        let mut last = None;
        for (size, text) in entries(list)? {
            let number = steps(text)?;
            if size == ">" {
                divisions[last.map_or(0, |l: usize| l + 1).min(16)..].fill(number);
                continue;
            }
            let mib = size
                .parse::<u64>()
                .ok()
                .filter(|n| n.is_power_of_two() && *n <= 1 << 40);
            let mib =
                mib.ok_or_else(|| ConfError::value(key, size, "sizes are powers of two, in MiB, or >"))?;
            let index = Self::interval(mib * MIB);
            if last.is_none() {
                divisions[..index].fill(number);
            }
            divisions[index] = number;
            last = Some(index);
        }
        Ok(Self(divisions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_the_way_pytorch_does() {
        let conf = TorchConf::parse("roundup_power2_divisions:[4:2,16:4,>:8], max_split_size_mb : 200")
            .expect("valid");
        let d = conf.roundup_power2_divisions;
        let at = |mib: u64| d.of(mib * MIB);
        assert_eq!(
            [at(1), at(2), at(4), at(8), at(16), at(32), at(40_000)],
            [2, 2, 2, 0, 4, 8, 8]
        );
        assert_eq!(d.of(700), 2);
        assert_eq!(conf.max_split_size, Some(200 * MIB));
    }

    #[test]
    fn refuses_what_pytorch_refuses() {
        for text in [
            "max_split_size_mb:20",
            "garbage_collection_threshold:1.5",
            "expandable_segments:yes",
            "roundup_power2_divisions:3",
            "roundup_power2_divisions:[3:4]",
            "backend:cudamallocasync",
            "max_split_size_mb:99999999999999999999",
        ] {
            assert!(
                matches!(TorchConf::parse(text), Err(ConfError::Value { .. })),
                "{text}"
            );
        }
        assert!(matches!(
            TorchConf::parse("nonsense:1"),
            Err(ConfError::UnknownKey { .. })
        ));
        assert!(matches!(
            TorchConf::parse("expandable_segments"),
            Err(ConfError::Shape { .. })
        ));
        assert_eq!(
            TorchConf::parse("pinned_num_register_threads:8")
                .expect("known")
                .without_effect,
            ["pinned_num_register_threads"]
        );
        let backend = |text| TorchConf::parse(text).map(|conf| conf.backend);
        assert_eq!(backend("backend:native"), Ok(TorchBackend::Native));
        assert_eq!(
            backend("backend:cudaMallocAsync"),
            Ok(TorchBackend::CudaMallocAsync)
        );
    }
}
