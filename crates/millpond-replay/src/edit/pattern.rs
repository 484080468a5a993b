//! Patterns that name the blocks of an edit by their tags.

use super::draft::Draft;
use crate::tags::tag_group;
use millpond_trace::Trace;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// The number of groups that an error names.
const NEAR: usize = 6;

/// One or more patterns. At least one of them must match.
///
/// A pattern consists of fields joined by `;`. They match consecutive fields of a tag, or of its group,
/// beginning at any field. `*` stands for any text. A field also matches all module paths below it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pattern {
    alternatives: Vec<Vec<String>>,
}

impl Pattern {
    /// Reads patterns joined by commas. Returns `None` if one is empty.
    pub(super) fn new(text: &str) -> Option<Self> {
        let fields = |pattern: &str| -> Option<Vec<String>> {
            let fields: Vec<String> = pattern.split(';').map(|field| field.trim().to_owned()).collect();
            fields.iter().any(|field| !field.is_empty()).then_some(fields)
        };
        let alternatives: Option<Vec<_>> = text.split(',').map(fields).collect();
        alternatives.map(|alternatives| Self { alternatives })
    }

    /// Returns a pattern that matches exactly these tag groups.
    pub(super) fn of_groups(groups: &[String]) -> Option<Self> {
        // A group with a comma in its name would be read as two patterns.
        let safe = |group: &&String| !group.contains(',');
        let groups: Vec<&str> = groups.iter().filter(safe).map(String::as_str).collect();
        Self::new(&groups.join(","))
    }

    /// Returns whether a tag matches.
    pub(super) fn matches(&self, tag: &str) -> bool {
        let group = tag_group(tag);
        self.alternatives
            .iter()
            .any(|fields| occurs(fields, &group) || occurs(fields, tag))
    }

    /// Returns the number of dotted parts of the longest field that matches this module path.
    pub(super) fn depth(&self, module: &str) -> Option<usize> {
        let general = tag_group(&format!(";{module};"));
        let fields = self.alternatives.iter().flatten();
        let fits = |field: &&String| {
            !field.is_empty() && field.as_str() != "*" && (below(field, module) || below(field, &general))
        };
        fields.filter(fits).map(|field| field.split('.').count()).max()
    }

    /// Returns the blocks whose tags match.
    pub(super) fn matched(&self, trace: &Trace, draft: &Draft) -> Vec<usize> {
        let matches: Vec<bool> = trace.tags.iter().map(|tag| self.matches(tag)).collect();
        let lives = draft.lives.iter().enumerate();
        let matched = lives.filter(|(_, life)| matches.get(life.tag as usize).copied().unwrap_or(false));
        matched.map(|(index, _)| index).collect()
    }

    /// Returns the groups that share most words with the pattern, then those with the most bytes.
    pub(super) fn near(&self, trace: &Trace, draft: &Draft) -> Vec<String> {
        let mut bytes = vec![0u64; trace.tags.len()];
        for life in &draft.lives {
            if let Some(bytes) = bytes.get_mut(life.tag as usize) {
                *bytes = bytes.saturating_add(life.bytes);
            }
        }
        let mut groups: HashMap<String, u64> = HashMap::new();
        for (tag, bytes) in trace
            .tags
            .iter()
            .zip(bytes)
            .skip(1)
            .filter(|(_, bytes)| *bytes > 0)
        {
            let sum = groups.entry(tag_group(tag)).or_default();
            *sum = sum.saturating_add(bytes);
        }
        let wanted: HashSet<String> = words(&self.to_string()).collect();
        let mut ranked: Vec<(usize, u64, String)> = groups
            .into_iter()
            .map(|(group, bytes)| {
                let alike = |word: &String| {
                    wanted
                        .iter()
                        .any(|one| word.starts_with(one) || one.starts_with(word))
                };
                let shared = words(&group).filter(alike).count();
                (shared, bytes, group)
            })
            .collect();
        ranked.sort_by(|a, b| (b.0, b.1, &a.2).cmp(&(a.0, a.1, &b.2)));
        ranked.into_iter().take(NEAR).map(|(_, _, group)| group).collect()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alternatives: Vec<String> = self.alternatives.iter().map(|fields| fields.join("; ")).collect();
        f.write_str(&alternatives.join(","))
    }
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| word.len() > 1)
        .map(str::to_lowercase)
}

/// Returns whether the fields match consecutive fields of a text.
fn occurs(fields: &[String], text: &str) -> bool {
    let parts: Vec<&str> = text.split(';').map(str::trim).collect();
    parts
        .windows(fields.len())
        .any(|window| fields.iter().zip(window).all(|(field, part)| below(field, part)))
}

/// Returns whether a field is a text, a module path above it, or the file or the function of a call site such as
/// `model.py:forward:35`. The text may end in `/` and a node of the backward pass.
fn below(field: &str, text: &str) -> bool {
    let path = text.split_once('/').map_or(text, |(path, _)| path);
    let is_above = |end: &str| glob(&format!("{field}{end}*"), path);
    glob(field, text) || glob(field, path) || is_above(".") || is_above(":")
}

/// Returns whether a text matches a pattern in which `*` stands for any text. It takes time in proportion to
/// the product of their lengths.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut read) = (0, 0);
    // The position of the last `*`, and the end of the text that it stands for.
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, read));
            at += 1;
        } else if pattern.get(at) == Some(&text[read]) {
            at += 1;
            read += 1;
        } else if let Some((last, from)) = star {
            star = Some((last, from + 1));
            at = last + 1;
            read = from + 1;
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_groups_tags_and_paths_below() {
        let tag = "forward;layers.12.mlp;mm;models.py:forward:80<x.py:f:1";
        for pattern in [
            "forward",
            "layers.*",
            "layers.12",
            "layers.*.mlp",
            "layers.*.mlp; mm",
            "forward; layers.*.mlp; mm",
            "*mlp",
            "m*",
            "nothing, mm",
            "forward;*;mm",
            "models.py",
            "models.py:forward",
        ] {
            assert!(Pattern::new(pattern).expect(pattern).matches(tag), "{pattern}");
        }
        for pattern in [
            "layers.1",
            "layer",
            "mlp",
            "forward; mm",
            "mm; layers.*",
            "backward",
            "m",
            "models.py:for",
        ] {
            assert!(!Pattern::new(pattern).expect(pattern).matches(tag), "{pattern}");
        }
        let node = "bwd;layers.3.mlp/MmBackward0;mm";
        assert!(Pattern::new("layers.3").expect("valid").matches(node));
        assert!(Pattern::new("layers.*.mlp").expect("valid").matches(node));
        assert!(Pattern::new("").is_none() && Pattern::new("a,").is_none() && Pattern::new(" ; ").is_none());
    }

    #[test]
    fn a_glob_of_many_stars_is_not_slow() {
        assert!(!glob(&"*a".repeat(1000), &format!("{}b", "a".repeat(4000))));
        assert!(glob("", "") && glob("*", "") && !glob("a", "") && glob("a*", "a") && !glob("a*b", "a"));
    }

    #[test]
    fn the_depth_of_a_layer_is_that_of_its_pattern() {
        let depth = |pattern: &str| Pattern::new(pattern).expect("valid").depth("layers.3.mlp.up");
        assert_eq!(depth("layers.*"), Some(2));
        assert_eq!(depth("forward; layers.*.mlp; mm"), Some(3));
        assert_eq!(depth("forward"), None);
    }
}
