//! The parts of a tag.

use millpond_trace::split_frames;

/// Returns the module path of a tag, without the node of the backward pass. It is empty if the tag names none.
pub(super) fn module(tag: &str) -> &str {
    let module = tag.split(';').nth(1).unwrap_or("").trim();
    module.split_once('/').map_or(module, |(module, _)| module)
}

/// Returns the operator of a tag, without its namespace and its overload.
pub(super) fn operator(tag: &str) -> &str {
    let operator = match tag.contains(';') {
        true => tag.split(';').nth(2),
        false => split_frames(tag).nth(1),
    };
    let operator = operator.unwrap_or("").trim();
    let operator = operator.rsplit("::").next().unwrap_or(operator);
    operator.split('.').next().unwrap_or(operator)
}
