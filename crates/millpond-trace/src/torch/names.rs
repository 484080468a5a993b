//! Names and roles of single frames.

use super::frames::Role;
use crate::stack::{is_program, python_file};
use std::fmt::Write;

/// Maximum characters of a frame's file or function. C++ templates have thousands.
const NAME: usize = 80;
/// Maximum bytes of a function that are searched.
const SEARCHED: usize = 512;

/// Adds `file:function:line`. Native frames have no arguments and template parameters, which are long and not useful.
pub(super) fn push_name(file: &str, function: &str, line: i64, is_python: bool, name: &mut String) {
    let start = name.len();
    let file = python_file(file);
    if !matches!(file, "" | "??") {
        push_clean(name, file);
        name.push(':');
    }
    if is_python {
        push_clean(name, function);
    } else {
        push_native(name, function);
    }
    // Semicolons separate the fields of a tag.
    if name[start..].contains(';') {
        let plain = name[start..].replace(';', "_");
        name.truncate(start);
        name.push_str(&plain);
    }
    if line > 0 {
        let _ = write!(name, ":{line}");
    }
}

/// Adds a native function up to its arguments or template parameters. Anonymous namespaces are left out.
fn push_native(name: &mut String, function: &str) {
    const ANONYMOUS: &str = "(anonymous namespace)::";
    let mut rest = head(function);
    while let Some(at) = rest.find(['(', '<']) {
        let Some(after) = rest[at..].strip_prefix(ANONYMOUS) else {
            rest = &rest[..at];
            break;
        };
        push_clean(name, &rest[..at]);
        rest = after;
    }
    push_clean(name, rest);
}

/// Returns the part of a function that is searched: its beginning.
fn head(function: &str) -> &str {
    let end = (0..=function.len().min(SEARCHED)).rev();
    let end = end.into_iter().find(|&at| function.is_char_boundary(at));
    &function[..end.unwrap_or(0)]
}

/// Returns the role of a native frame that is not in every stack.
pub(super) fn native_role(function: &str) -> Role {
    let function = head(function);
    let autograd = function.strip_prefix("torch::autograd::");
    if autograd.is_some_and(|rest| rest.starts_with("Engine::evaluate_function")) {
        Role::Engine
    } else if autograd.is_some_and(|rest| ["Node::", "PyNode::"].iter().any(|of| rest.starts_with(of))) {
        // The frame runs any node, or a node that is written in Python.
        Role::Framework
    } else if autograd.is_some_and(|rest| ends_in(rest, "::apply")) {
        Role::Node
    } else if function.starts_with("at::_ops::") && ends_in(function, "::call") {
        Role::Operator
    } else {
        Role::Native
    }
}

/// Returns whether a function ends in `name`, before its arguments if it has them.
fn ends_in(function: &str, name: &str) -> bool {
    let called = function.find(name).map(|at| &function[at + name.len()..]);
    called.is_some_and(|rest| rest.is_empty() || rest.starts_with('('))
}

/// Returns the name and the role of a line of Python's traceback, such as `File "model.py", line 12, in forward`.
/// Further lines of the text, which show the code, are ignored.
pub(super) fn named_by_line(text: &str) -> Option<(String, Role)> {
    let line = head(text.trim_start()).lines().next()?;
    let (file, rest) = line.strip_prefix("File \"")?.split_once("\", line ")?;
    let (line, function) = rest.split_once(", in ")?;
    let (function, line) = (function.trim(), line.parse().ok()?);
    let mut name = String::new();
    push_name(file, function, line, true, &mut name);
    let role = match is_program(python_file(file), function) {
        true => Role::Program,
        false => Role::Framework,
    };
    Some((name, role))
}

/// Adds at most [`NAME`] characters, without any that would end a line or a field.
pub(super) fn push_clean(text: &mut String, words: &str) {
    let plain = |&byte: &u8| byte.is_ascii() && byte != b',' && !byte.is_ascii_control();
    let head = words.len().min(NAME);
    if words.as_bytes()[..head].iter().all(plain) {
        text.push_str(&words[..head]);
        return;
    }
    text.extend(words.chars().take(NAME).map(|char| match char {
        ',' => ';',
        char if char.is_control() => ' ',
        char => char,
    }));
}
