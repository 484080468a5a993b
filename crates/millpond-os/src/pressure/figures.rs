//! Parses lines of the system's files. Every parser accepts any text and returns a value or `None`.

use super::evidence::StallKind;
use super::level::Share;
use std::borrow::Cow;

/// A limit as the system writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Unlimited,
    Bytes(u64),
}

/// cgroup v1 writes "no limit" as the largest number of whole pages, which depends on the page size. The largest page
/// size is 64 KiB.
const V1_UNLIMITED: u64 = i64::MAX as u64 & !0xffff;

/// Parses a number that is alone on its line.
pub(super) fn number(line: &str) -> Option<u64> {
    let digits = line.trim();
    // `parse` accepts a sign, which the system does not write.
    digits.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
    digits.parse().ok()
}

/// Parses `max` or a number of bytes.
pub(super) fn amount(line: &str) -> Option<Amount> {
    match line.trim() {
        "max" => Some(Amount::Unlimited),
        digits => number(digits).map(Amount::Bytes),
    }
}

/// Parses a limit of cgroup v1.
pub(super) fn amount_v1(line: &str) -> Option<Amount> {
    let bytes = number(line)?;
    Some(if bytes >= V1_UNLIMITED {
        Amount::Unlimited
    } else {
        Amount::Bytes(bytes)
    })
}

/// Parses `name 123`, as in `memory.stat` and `memory.events`.
pub(super) fn entry(line: &str) -> Option<(&str, u64)> {
    let (name, value) = line.split_once(' ')?;
    Some((name, number(value)?))
}

/// Parses `Name:   123 kB` into the name and bytes, as in `meminfo` and `status`. A value with another unit is not a
/// size.
pub(super) fn size(line: &str) -> Option<(&str, u64)> {
    let (name, value) = line.split_once(':')?;
    let kib = number(value.trim().strip_suffix("kB")?)?;
    Some((name, kib.checked_mul(1024)?))
}

/// Parses the soft limit with this name from a line of `limits`.
pub(super) fn resource(line: &str, name: &str) -> Option<Amount> {
    let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(' '))?;
    match rest.split_ascii_whitespace().next()? {
        "unlimited" => Some(Amount::Unlimited),
        digits => number(digits).map(Amount::Bytes),
    }
}

/// The averages in a line of pressure stall information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StallLine {
    pub(super) kind: StallKind,
    pub(super) avg10: Share,
    pub(super) avg60: Share,
    pub(super) avg300: Share,
    pub(super) total: u64,
}

/// Parses `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` with the fields in any order.
pub(super) fn stall(line: &str) -> Option<StallLine> {
    let mut words = line.split_ascii_whitespace();
    let kind = match words.next()? {
        "some" => StallKind::Some,
        "full" => StallKind::Full,
        _ => return None,
    };
    let (mut avg10, mut avg60, mut avg300, mut total) = (None, None, None, None);
    for word in words {
        let (name, value) = word.split_once('=')?;
        match name {
            "avg10" => avg10 = Some(share(value)?),
            "avg60" => avg60 = Some(share(value)?),
            "avg300" => avg300 = Some(share(value)?),
            "total" => total = Some(number(value)?),
            _ => {}
        }
    }
    Some(StallLine {
        kind,
        avg10: avg10?,
        avg60: avg60?,
        avg300: avg300?,
        total: total?,
    })
}

/// Parses a percentage such as `12.34`. Values above 100 count as 100.
fn share(text: &str) -> Option<Share> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    if whole.is_empty() || part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole = number(whole)?;
    let digit = |n: usize| part.as_bytes().get(n).map_or(0, |b| u64::from(b - b'0'));
    let hundredths = whole.saturating_mul(100).saturating_add(digit(0) * 10 + digit(1));
    Some(Share::hundredths(hundredths.min(10_000) as u32))
}

/// The hierarchy of cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hierarchy {
    /// v2.
    Unified,
    /// v1 with the memory controller.
    Memory,
}

/// Parses a line of `/proc/self/cgroup`: the process's position in a hierarchy. Other hierarchies are ignored.
pub(super) fn membership(line: &str) -> Option<(Hierarchy, &str)> {
    let mut fields = line.splitn(3, ':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let hierarchy = if id == "0" && controllers.is_empty() {
        Hierarchy::Unified
    } else if controllers.split(',').any(|name| name == "memory") {
        Hierarchy::Memory
    } else {
        return None;
    };
    path.starts_with('/').then_some((hierarchy, path))
}

/// The mount point of a hierarchy, and the directory of the hierarchy at which the mount begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount<'a> {
    pub(super) hierarchy: Hierarchy,
    pub(super) root: Cow<'a, str>,
    pub(super) point: Cow<'a, str>,
}

/// Parses a line of `/proc/self/mountinfo`. Other mounts are ignored.
pub(super) fn mount(line: &str) -> Option<Mount<'_>> {
    let (place, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let hierarchy = match system.next()? {
        "cgroup2" => Hierarchy::Unified,
        "cgroup" if system.nth(1)?.split(',').any(|name| name == "memory") => Hierarchy::Memory,
        _ => return None,
    };
    let mut place = place.split(' ').skip(3);
    let (root, point) = (unescape(place.next()?)?, unescape(place.next()?)?);
    (root.starts_with('/') && point.starts_with('/')).then_some(Mount {
        hierarchy,
        root,
        point,
    })
}

/// Replaces escapes such as `\040` for a space, as in `mountinfo`.
fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('\\') {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(octal.unwrap_or(*first));
        rest = &after[if octal.is_some() { 3 } else { 0 }..];
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Returns the path from `root` down to `path`. Returns `None` if `path` is not below `root`, or if one of its
/// components leads upwards.
pub(super) fn below<'a>(path: &'a str, root: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(root.trim_end_matches('/'))?;
    let whole = rest.is_empty() || rest.starts_with('/');
    let upwards = rest.split('/').any(|step| step == "..");
    (whole && !upwards).then(|| rest.trim_matches('/'))
}

#[cfg(test)]
mod tests;
