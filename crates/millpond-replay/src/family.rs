//! The allocators whose settings can be searched, and the settings to try.

use crate::program::{OpKind, Program};
use crate::run::Device;
use millpond_engine::{MillpondConf, Settings, TorchConf, policies};
use serde::Serialize;

/// An allocator with settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// PyTorch's allocator, native or with expandable segments.
    Torch,
    /// This project's default allocator.
    Millpond,
}

impl Family {
    /// Returns all families whose policies exist.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Torch, Self::Millpond]
            .into_iter()
            .filter(|family| family.settings("").is_some())
    }

    /// Returns the family that a policy belongs to, if its settings can be searched.
    pub(crate) fn of(policy: &str) -> Option<Self> {
        match policy {
            "torch-native" | "torch-expandable" | "cuda-async" => Some(Self::Torch),
            "millpond" => Some(Self::Millpond),
            _ => None,
        }
    }

    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Torch => "torch",
            Self::Millpond => "millpond",
        }
    }

    /// Returns the environment variable that takes its settings.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Torch => "PYTORCH_CUDA_ALLOC_CONF",
            Self::Millpond => "MILLPOND_CONF",
        }
    }

    /// Returns the shell line that puts settings into the environment, or `None` for the defaults.
    #[must_use]
    pub fn line(self, conf: &str) -> Option<String> {
        let variable = self.variable();
        Some(match conf {
            "" => return None,
            // Brackets and `>` have a meaning in shells.
            conf if conf.contains(['[', '>']) => format!("export {variable}='{conf}'"),
            conf => format!("export {variable}={conf}"),
        })
    }

    /// Returns the settings to try one at a time, in the form of the environment variable. The fixed settings
    /// of each space come first, and then single settings in each space.
    pub(crate) fn points(self, program: &Program, device: Device) -> Vec<String> {
        let spaces = spaces(self, program, device);
        let single = spaces.iter().flat_map(|dimensions| one_at_a_time(dimensions));
        let mut points = self.fixed(program, device);
        for conf in single.map(|point| point.conf()) {
            if !conf.is_empty() && !points.contains(&conf) {
                points.push(conf);
            }
        }
        points
    }

    /// Returns the fixed settings of each space, such as `expandable_segments:True`.
    pub(crate) fn fixed(self, program: &Program, device: Device) -> Vec<String> {
        let spaces = spaces(self, program, device);
        let mut fixed: Vec<String> = spaces
            .iter()
            .map(|dimensions| Point::fixed(dimensions).conf())
            .collect();
        fixed.retain(|conf| !conf.is_empty());
        fixed.dedup();
        fixed
    }

    /// Returns the policy that a setting selects, with the parsed settings. Returns `None` if the setting
    /// cannot be parsed.
    pub(crate) fn settings(self, conf: &str) -> Option<(&'static str, Settings)> {
        let (policy, settings) = match self {
            Self::Torch => {
                let torch = TorchConf::parse(conf).ok()?;
                let expandable = torch.expandable_segments == Some(true);
                let policy = if expandable {
                    "torch-expandable"
                } else {
                    "torch-native"
                };
                (
                    policy,
                    Settings {
                        torch,
                        ..Settings::default()
                    },
                )
            }
            Self::Millpond => {
                let millpond = MillpondConf::parse(conf).ok()?;
                (
                    "millpond",
                    Settings {
                        millpond,
                        ..Settings::default()
                    },
                )
            }
        };
        policies::build(policy, &settings).ok()?;
        Some((policy, settings))
    }
}

/// One setting and the values to try. The first value of a fixed setting is always used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dimension {
    /// Each entry has the form `key:value,…`.
    values: Vec<String>,
    /// Whether it belongs to every point of this space.
    fixed: bool,
}

impl Dimension {
    fn new(values: impl IntoIterator<Item = String>) -> Self {
        Self {
            values: values.into_iter().collect(),
            fixed: false,
        }
    }

    fn of(key: &str, values: &[u64]) -> Self {
        Self::new(values.iter().map(|value| format!("{key}:{value}")))
    }

    /// Returns the dimension with the `most` values that `place` ranks first. Leaves out values that it does
    /// not rank.
    pub(super) fn keep(&self, most: usize, place: impl Fn(&str) -> Option<usize>) -> Self {
        if self.fixed {
            return self.clone();
        }
        let mut placed: Vec<(usize, &String)> = self
            .values
            .iter()
            .filter_map(|value| Some((place(value)?, value)))
            .collect();
        placed.sort_unstable();
        let values = placed.into_iter().take(most).map(|(_, value)| value.clone());
        Self {
            values: values.collect(),
            fixed: false,
        }
    }
}

/// Settings that are not the defaults, in the order of their dimensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Point(Vec<String>);

impl Point {
    /// Returns the settings that all points of a space share.
    pub(super) fn fixed(dimensions: &[Dimension]) -> Self {
        Self(
            dimensions
                .iter()
                .filter(|d| d.fixed)
                .flat_map(|d| d.values.first().cloned())
                .collect(),
        )
    }

    /// Returns this point with one more value.
    pub(super) fn with(&self, dimension: &Dimension, value: &str) -> Self {
        let mut point = self.clone();
        if !dimension.fixed {
            point.0.push(value.to_owned());
        }
        point
    }

    /// Returns the number of settings.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the settings as they are written in the environment.
    pub(super) fn conf(&self) -> String {
        self.0.join(",")
    }
}

/// Returns the spaces of an allocator. Each is searched separately.
pub(super) fn spaces(family: Family, program: &Program, device: Device) -> Vec<Vec<Dimension>> {
    match family {
        Family::Torch => torch(program, device),
        Family::Millpond => vec![millpond()],
    }
}

/// Returns the spaces of PyTorch's allocator. `large_segment_size_mb` is not included. Only recent releases of
/// PyTorch know it. Others stop at the first allocation with "Unrecognized CachingAllocator option". It also
/// changes the smallest valid value of `max_split_size_mb`.
fn torch(program: &Program, device: Device) -> Vec<Vec<Dimension>> {
    let splits = Dimension::of("max_split_size_mb", &split_ladder(program));
    let rounding = Dimension::of("roundup_power2_divisions", &[2, 4, 8, 16]);
    let mut native = vec![splits.clone(), rounding.clone()];
    if device.bytes.is_some() {
        // Garbage collection works only on a share of the device, so the setting includes the share.
        native.push(Dimension::new([60, 80, 90].map(|percent| {
            format!(
                "garbage_collection_threshold:0.{},per_process_memory_fraction:1.0",
                percent / 10
            )
        })));
    }
    if !device.paged {
        return vec![native];
    }
    let on = Dimension {
        values: vec!["expandable_segments:True".to_owned()],
        fixed: true,
    };
    vec![native, vec![on, splits, rounding]]
}

/// Returns powers of two in MiB up to the largest request. Above that, the setting has no effect.
fn split_ladder(program: &Program) -> Vec<u64> {
    let largest = program
        .ops
        .iter()
        .filter(|op| op.kind == OpKind::Alloc)
        .map(|op| op.bytes)
        .max()
        .unwrap_or(0);
    (5..14)
        .map(|log| 1u64 << log)
        .take_while(|mib| mib << 20 <= largest.max(32 << 20))
        .collect()
}

fn millpond() -> Vec<Dimension> {
    let handles = [2, 4, 8, 16, 32, 64, 128].map(|mib| format!("handle:{mib}MiB"));
    vec![
        Dimension::new(handles),
        Dimension::of("handle-share", &[8, 32, 128, 512]),
        Dimension::of("slack", &[0, 2, 4, 8, 16, 32]),
        Dimension::of("moved", &[0, 10, 40, 160]),
    ]
}

/// Returns the defaults of a space, and every value of every dimension alone.
pub(super) fn one_at_a_time(dimensions: &[Dimension]) -> Vec<Point> {
    let base = Point::fixed(dimensions);
    let mut points = vec![base.clone()];
    for dimension in dimensions.iter().filter(|d| !d.fixed) {
        points.extend(dimension.values.iter().map(|value| base.with(dimension, value)));
    }
    points
}

/// Returns every combination of the remaining values. Each dimension may also keep its default.
pub(super) fn combinations(dimensions: &[Dimension]) -> Vec<Point> {
    let mut points = vec![Point::fixed(dimensions)];
    for dimension in dimensions.iter().filter(|d| !d.fixed) {
        let before = points.clone();
        for value in &dimension.values {
            points.extend(before.iter().map(|point| point.with(dimension, value)));
        }
    }
    points
}
