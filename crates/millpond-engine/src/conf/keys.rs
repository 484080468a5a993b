//! The list of the `millpond` policy's settings, for help texts.

use super::MillpondConf;
use crate::size::display_size;

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The key as written.
    pub key: &'static str,
    /// The value of the setting as text.
    pub value: String,
    /// A description of the setting.
    pub about: &'static str,
}

impl MillpondConf {
    /// Returns every setting with its current value.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        let retain = &self.retain;
        let key = |key, value, about| Key { key, value, about };
        vec![
            key(
                "handle",
                size(self.handle_bytes),
                "maximum bytes of a page handle",
            ),
            key(
                "handle-share",
                self.handle_share.to_string(),
                "maximum of a handle: its first request divided by this number",
            ),
            key(
                "slack",
                self.slack_permille.to_string(),
                "thousandths by which memory may exceed the peak before pages move",
            ),
            key(
                "moved",
                self.moved_permille.to_string(),
                "bytes that may be moved, in thousandths of those allocated; 0: none",
            ),
            key(
                "relocate",
                if self.relocate { "on" } else { "off" }.to_owned(),
                "pages under live blocks are replaced before a request is refused",
            ),
            key(
                "decay",
                retain.decay.to_string(),
                "ticks or steps after which unused memory is returned; 0: never",
            ),
            key(
                "low-water",
                retain.low_water.to_string(),
                "free memory to keep, as a size or in percent of the peak",
            ),
            key(
                "high-water",
                retain
                    .high_water
                    .map_or_else(|| "none".to_owned(), |high| high.to_string()),
                "free memory above this is returned at a tick, down to low-water",
            ),
            key(
                "memory-fraction",
                (retain.memory_millionths as f64 / 1e6).to_string(),
                "the share of the device that may be reserved",
            ),
            key(
                "compact-at",
                retain.compact_at_percent.to_string(),
                "percent of fragmentation above which pages move first; 0: never",
            ),
        ]
    }

    pub(super) fn known() -> String {
        let keys = Self::default().keys();
        let names: Vec<&str> = keys.iter().map(|key| key.key).collect();
        names.join(", ")
    }
}

/// Formats a size as a whole number of MiB if it is one.
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        _ => display_size(bytes).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_displayed_value_can_be_parsed() {
        let conf = MillpondConf::parse(
            "handle:8M,handle-share:3,slack:1,moved:5,relocate:on,\
             decay:6,low-water:7%,high-water:8%,memory-fraction:0.9,compact-at:10",
        )
        .expect("valid");
        for conf in [conf, MillpondConf::default()] {
            let written: Vec<String> = conf
                .keys()
                .into_iter()
                .map(|key| format!("{}:{}", key.key, key.value))
                .collect();
            let read = MillpondConf::parse(&written.join(",")).expect("as it was shown");
            assert_eq!(format!("{read:?}"), format!("{conf:?}"));
        }
    }
}
