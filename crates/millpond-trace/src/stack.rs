//! Stacks as text: frames of the form `file:function:line`, the innermost first, joined by `<`.
//!
//! Most frames of a stack are the framework's. The frame that a person recognises is the innermost one of the program.

/// Frameworks, by the folder in which they are installed. Memory that they allocate belongs to their caller.
const FRAMEWORKS: [&str; 13] = [
    "accelerate",
    "einops",
    "einx",
    "functorch",
    "lightning",
    "lightning_fabric",
    "numpy",
    "opt_einsum",
    "pytorch_lightning",
    "torch",
    "torch_xla",
    "torchvision",
    "triton",
];
/// Functions that frameworks put around every call.
pub const AROUND_CALLS: [&str; 22] = [
    "_call_impl",
    "_wrapped_call_impl",
    "_call_function",
    "_engine_run_backward",
    "_fn",
    "_run_code",
    "_run_module_as_main",
    "call_func_at_runtime_with_args",
    "compile_wrapper",
    "decorate_context",
    "decorate_autocast",
    "decorate_fwd",
    "decorate_bwd",
    "func_with_reraise",
    "inner_fn",
    "new_forward",
    "profile_hook_step",
    "runtime_wrapper",
    "wrapped_fn",
    "wrapped_func",
    "wrapped_method",
    "wrapper",
];
/// Folders in which Python packages are installed.
const PACKAGES: [&str; 2] = ["site-packages/", "dist-packages/"];
/// Maximum bytes of a path. Only the end of a longer path is searched for folders. No real path is longer.
const PATH: usize = 4096;

/// Returns the frames of a stack, innermost first.
///
/// `<` also begins names such as `<lambda>`, which follow a colon or another separator.
///
/// ```
/// let frames: Vec<_> = millpond_trace::split_frames("a.py:<lambda>:374<b.py:main:2").collect();
/// assert_eq!(frames, ["a.py:<lambda>:374", "b.py:main:2"]);
/// ```
pub fn split_frames(stack: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(stack);
    std::iter::from_fn(move || {
        let text = rest?;
        let is_joint = |&at: &usize| at > 0 && text.as_bytes()[at - 1] != b':';
        let joint = memchr::memchr_iter(b'<', text.as_bytes()).find(is_joint);
        rest = joint.map(|at| &text[at + 1..]);
        Some(&text[..joint.unwrap_or(text.len())])
    })
}

/// Splits a tag into its labels and its stack. Returns an empty stack if the last field is a label.
///
/// ```
/// use millpond_trace::split_tag;
///
/// assert_eq!(split_tag("fwd;layers.1;mm;a.py:f:3<b.py:g:4"), ("fwd;layers.1;mm", "a.py:f:3<b.py:g:4"));
/// assert_eq!(split_tag("fwd;layers.1"), ("fwd;layers.1", ""));
/// ```
#[must_use]
pub fn split_tag(tag: &str) -> (&str, &str) {
    let (labels, stack) = tag.rsplit_once(';').unwrap_or(("", tag));
    match is_stack(stack) {
        true => (labels, stack),
        false => (tag, ""),
    }
}

/// Returns whether a text is a stack and not a name: whether each frame has text and one of them has a line or a path of
/// namespaces.
fn is_stack(text: &str) -> bool {
    let is_frame = |frame: &str| ends_in_line(frame) || frame.contains("::") || frame.contains(".py:");
    split_frames(text).all(|frame| !frame.is_empty()) && split_frames(text).any(is_frame)
}

fn ends_in_line(frame: &str) -> bool {
    frame
        .rsplit_once(':')
        .is_some_and(|(_, line)| line.parse::<u32>().is_ok())
}

/// Returns the frame of a stack that a person recognises. Returns an empty string if the text has no frames.
///
/// The first of these frames that exists is returned:
///
/// - the innermost Python frame of the program
/// - the innermost Python frame of a framework, except those around every call
/// - the innermost native frame that does not only create a tensor
/// - the innermost frame
///
/// ```
/// let stack = "at::native::empty_cuda<torch/nn/functional.py:linear:9<torch/nn/modules/module.py:_call_impl:7<model.py:forward:12";
/// assert_eq!(millpond_trace::tag_site(stack), "model.py:forward:12");
/// ```
#[must_use]
pub fn tag_site(stack: &str) -> &str {
    let (mut framework, mut native) = ("", "");
    for frame in split_frames(stack) {
        let Some((file, function)) = python(frame) else {
            if native.is_empty() && !creates_tensor(frame) {
                native = frame;
            }
            continue;
        };
        if is_program(file, function) {
            return frame;
        }
        if framework.is_empty() && !AROUND_CALLS.contains(&function) {
            framework = frame;
        }
    }
    let innermost = split_frames(stack).next().unwrap_or("");
    let candidates = [framework, native, innermost];
    candidates
        .into_iter()
        .find(|frame| !frame.is_empty())
        .unwrap_or("")
}

/// Returns whether a frame is one of those that frameworks put around every call and that only pass the call on. `file`
/// may be a path.
#[must_use]
pub fn is_plumbing(file: &str, function: &str) -> bool {
    let file = python_file(file);
    (is_python(file) || file.is_empty()) && AROUND_CALLS.contains(&function)
}

/// Returns whether a Python frame belongs to the program and not to a framework. `file` is as in a stack.
pub(crate) fn is_program(file: &str, function: &str) -> bool {
    let package = file.split_once('/').map_or("", |(package, _)| package);
    !file.starts_with('<')
        && !package.starts_with("python")
        && !is_generated(file)
        && !FRAMEWORKS.contains(&package)
        && !AROUND_CALLS.contains(&function)
}

/// Returns a path as in a stack. A file of an installed package keeps the path of the package. Any other file has only its
/// name.
pub(crate) fn python_file(path: &str) -> &str {
    let from = path.len().saturating_sub(PATH);
    let from = (from..path.len()).find(|&at| path.is_char_boundary(at));
    let path = &path[from.unwrap_or(path.len())..];
    for folder in PACKAGES {
        if let Some(at) = path.rfind(folder) {
            return &path[at + folder.len()..];
        }
    }
    let name = memchr::memrchr2(b'/', b'\\', path.as_bytes()).map_or(0, |at| at + 1);
    if let Some(at) = path.rfind("/lib/python") {
        return &path[at + "/lib/".len()..];
    }
    &path[name..]
}

/// Returns whether a file was generated by a compiler of PyTorch, which names its files by hashes.
fn is_generated(file: &str) -> bool {
    let is_of_hash = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let hash = file.strip_suffix(".py").unwrap_or("");
    hash.len() > 48 && hash.bytes().all(is_of_hash)
}

/// Returns the file and the function of a Python frame.
fn python(frame: &str) -> Option<(&str, &str)> {
    let before = frame
        .rsplit_once(':')
        .filter(|(_, line)| line.bytes().all(|byte| byte.is_ascii_digit()));
    let (file, function) = before.map_or(frame, |(before, _)| before).rsplit_once(':')?;
    is_python(file).then_some((file, function))
}

fn is_python(file: &str) -> bool {
    file.ends_with(".py") || file.starts_with('<')
}

/// Returns whether a native frame only creates a tensor for another function.
fn creates_tensor(frame: &str) -> bool {
    frame.starts_with("at::detail::") || frame.contains("empty") || frame.contains("resize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_the_innermost_frame_of_the_program() {
        for (stack, site) in [
            ("", ""),
            ("train.py:step:10<main.py:run:3", "train.py:step:10"),
            (
                "at::mul<torch/optim/adam.py:step:3<wrapper.py:wrapper:1<train.py:fit:9",
                "train.py:fit:9",
            ),
            // A package that is no framework has code of its own.
            (
                "torch/nn/f.py:linear:1<transformers/llama.py:forward:2<train.py:fit:9",
                "transformers/llama.py:forward:2",
            ),
            // Without the program's code, the framework's.
            (
                "at::mul<torch/a.py:_call_impl:1<torch/b.py:linear:2",
                "torch/b.py:linear:2",
            ),
            (
                "at::detail::empty_cuda<at::native::empty<at::native::mul<main",
                "at::native::mul",
            ),
            ("at::detail::empty_cuda<resize", "at::detail::empty_cuda"),
            // Files that a compiler wrote are named by hashes.
            (
                "c3uxhj5q2ablsqp5lrlrkd2ig2tub4do54ysdazmtvawnjje2knd.py:call:2<model.py:forward:107",
                "model.py:forward:107",
            ),
            ("<frozen runpy>:_run_code:8<app.py:main:2", "app.py:main:2"),
        ] {
            assert_eq!(tag_site(stack), site, "{stack}");
        }
    }

    #[test]
    fn only_python_functions_are_frames_around_a_call() {
        assert!(is_plumbing(
            "/v/site-packages/torch/nn/modules/module.py",
            "_call_impl"
        ));
        assert!(is_plumbing("", "decorate_context"));
        assert!(!is_plumbing("model.py", "forward") && !is_plumbing("wrap.cpp", "wrapper"));
    }
}
