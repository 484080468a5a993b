//! Groups tags, so that forty layers become one line, and redacts them, so that a report can be shared.

use millpond_trace::{OLDER, Trace, is_plumbing, split_frames, tag_site};
use std::collections::HashMap;

/// Returns the group of a tag: its phase, its module path with layer numbers as `*`, and its operator. The
/// group of a bare stack is the frame that a person recognises (see [`tag_site`]). The group of an empty tag is `(no tag)`.
///
/// ```
/// use millpond_replay::tag_group;
///
/// assert_eq!(tag_group("forward;layers.12.mlp;mm;models.py:forward:80<x.py:f:1"), "forward; layers.*.mlp; mm");
/// ```
#[must_use]
pub fn tag_group(tag: &str) -> String {
    if tag.is_empty() {
        return "(no tag)".to_owned();
    }
    if !tag.contains(';') {
        return tag_site(tag).to_owned();
    }
    let fields: Vec<&str> = tag.split(';').collect();
    let kept = if fields.len() > 3 {
        &fields[..3]
    } else {
        &fields[..]
    };
    let kept: Vec<String> = kept
        .iter()
        .filter(|f| !f.is_empty())
        .map(|f| without_numbers(f))
        .collect();
    if kept.is_empty() {
        "(no tag)".to_owned()
    } else {
        kept.join("; ")
    }
}

/// Returns `layers.12.mlp` as `layers.*.mlp`.
fn without_numbers(path: &str) -> String {
    let parts = path.split('.').map(|part| {
        let number = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if number { "*" } else { part }
    });
    parts.collect::<Vec<_>>().join(".")
}

/// Replaces module paths, file names and function names by numbered placeholders. The same name always gets
/// the same placeholder. Phases, operators and line numbers stay.
#[derive(Debug, Default)]
pub struct Redactor {
    names: HashMap<String, String>,
}

impl Redactor {
    /// Redacts every tag of a recording, and its name.
    pub fn redact(&mut self, trace: &mut Trace) {
        trace.origin.name = self.stand_in("trace", &trace.origin.name.clone());
        trace.origin.header.clear();
        trace.tags = trace.tags.map(|tag| self.tag(tag));
    }

    /// Redacts one tag.
    pub fn tag(&mut self, tag: &str) -> String {
        if tag.is_empty() || tag == OLDER {
            return tag.to_owned();
        }
        let fields: Vec<&str> = tag.split(';').collect();
        let (labels, stack) = match fields.split_last() {
            Some((stack, labels)) if !labels.is_empty() => (labels, *stack),
            _ => (&[][..], tag),
        };
        let mut redacted: Vec<String> = Vec::with_capacity(fields.len());
        for (index, label) in labels.iter().enumerate() {
            // The phase and the operator describe the structure of the program. The module path may be confidential.
            let keep = index != 1;
            redacted.push(if keep {
                (*label).to_owned()
            } else {
                self.path(label)
            });
        }
        let stack: Vec<String> = split_frames(stack).map(|frame| self.frame(frame)).collect();
        redacted.push(stack.join("<"));
        redacted.join(";")
    }

    fn path(&mut self, path: &str) -> String {
        let parts: Vec<String> = path.split('.').map(|part| self.part("m", part)).collect();
        parts.join(".")
    }

    fn frame(&mut self, frame: &str) -> String {
        let (file, function) = match frame.split_once(':') {
            Some((file, rest)) => (file, rest.rsplit_once(':').map_or(rest, |(function, _)| function)),
            None => (frame, ""),
        };
        // Frameworks are public. Their frames reveal nothing about the code of the program.
        if is_plumbing(file, function) || file.starts_with("torch/") {
            return frame.to_owned();
        }
        let mut parts = Vec::new();
        for (index, part) in frame.split(':').enumerate() {
            parts.push(match (index, part.strip_suffix(".py")) {
                (0, Some(name)) => format!("{}.py", self.part("file", name)),
                (0, None) => self.part("file", part),
                _ => self.part("f", part),
            });
        }
        parts.join(":")
    }

    fn part(&mut self, kind: &str, part: &str) -> String {
        let plain = part.is_empty() || part.bytes().all(|b| b.is_ascii_digit());
        if plain {
            part.to_owned()
        } else {
            self.stand_in(kind, part)
        }
    }

    fn stand_in(&mut self, kind: &str, name: &str) -> String {
        let next = self.names.len() + 1;
        self.names
            .entry(format!("{kind}:{name}"))
            .or_insert_with(|| format!("{kind}{next}"))
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_short_and_never_empty() {
        assert_eq!(tag_group(""), "(no tag)");
        assert_eq!(
            tag_group("init;;empty.memory_format;models.py:__init__:252"),
            "init; empty.memory_format"
        );
        assert_eq!(tag_group("train.py:step:10<main.py:run:3"), "train.py:step:10");
        assert_eq!(
            tag_group("at::mul<torch/nn/f.py:linear:1<model.py:forward:12"),
            "model.py:forward:12"
        );
        assert_eq!(
            tag_group("bwd;model.py:forward:12/MulBackward0;mul_Tensor;at::mul<x.cpp:f:1"),
            "bwd; model.py:forward:12/MulBackward0; mul_Tensor"
        );
        assert_eq!(tag_group(";;;"), "(no tag)");
    }

    #[test]
    fn redaction_keeps_the_structure_and_removes_names() {
        let mut redactor = Redactor::default();
        let tag = "forward;secret.layers.3.attn;mm;secret_model.py:attend:41<train.py:main:7";
        let redacted = redactor.tag(tag);
        assert_eq!(
            redacted,
            redactor.tag(tag),
            "the same name gives the same stand-in"
        );
        for name in ["secret", "attn", "layers", "attend", "train", "main"] {
            assert!(!redacted.contains(name), "{redacted}");
        }
        let framework = "at::mul<torch/nn/module.py:_call_impl:7<secret.py:main:3";
        let hidden = redactor.tag(framework);
        assert!(hidden.contains("<torch/nn/module.py:_call_impl:7<file") && !hidden.contains("secret"));
        assert_eq!(redactor.tag(OLDER), OLDER);
        assert!(redacted.starts_with("forward;") && redacted.contains(";mm;") && redacted.contains(":41<"));
    }
}
