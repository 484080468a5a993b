//! Tests the errors of invalid inputs and their places, the list of reserved names, and the generated code.

use super::{expand, input::METHODS, limits};
use proc_macro2::{TokenStream, TokenTree};

fn tokens(text: &str) -> TokenStream {
    text.parse().expect("tokens")
}

/// Returns the error with its line and its tokens.
fn refused(text: &str) -> (String, usize, String) {
    let Err(error) = expand(tokens(text)) else {
        panic!("not refused: {text}");
    };
    let span = error.span();
    (
        error.to_string(),
        span.start().line,
        span.source_text().unwrap_or_default(),
    )
}

#[test]
fn unsupported_items_are_refused_at_their_place() {
    for (text, line, place, why) in [
        ("enum E { A, B }", 1, "enum", "do not all have the same fields"),
        ("\nunion U { a: f32, b: u32 }", 2, "union", "share their bytes"),
        ("struct T(f32, u8);", 1, "(", "needs fields with names"),
        ("struct Z;", 1, "Z", "at least one field"),
        ("\n\nstruct Z {}", 3, "Z", "at least one field"),
        (
            "struct G<T: Pod> { a: T }",
            1,
            "<",
            "does not support generic parameters",
        ),
        (
            "struct L<'a> { a: &'a u8 }",
            1,
            "<",
            "does not support generic parameters",
        ),
        (
            "struct C<const N: usize> { a: [u8; N] }",
            1,
            "<",
            "does not support generic parameters",
        ),
    ] {
        let (error, at, words) = refused(text);
        assert!(error.contains(why), "{text}: {error}");
        assert_eq!((at, words.starts_with(place)), (line, true), "{text}: {words}");
    }
}

#[test]
fn invalid_soa_attributes_and_slice_names_are_refused_at_their_line() {
    for (text, line, why) in [
        ("#[soa(align = 48)]\nstruct P { a: f32 }", 1, "a power of two"),
        (
            "#[soa(align = 4194304)]\nstruct P { a: f32 }",
            1,
            "at most 2097152",
        ),
        ("#[soa(align = 0)]\nstruct P { a: f32 }", 1, "a power of two"),
        (
            "#[soa(name = A, name = B)]\nstruct P { a: f32 }",
            1,
            "this option is set twice",
        ),
        (
            "#[soa(wide)]\nstruct P { a: f32 }",
            1,
            "unknown option: use `name",
        ),
        (
            "struct P {\n a: f32,\n #[soa(align = 64)]\n b: f32 }",
            3,
            "supports only",
        ),
        ("struct P {\n a: f32,\n len: u8 }", 3, "`len` already exists"),
        ("struct P {\n a: f32,\n a_mut: u8 }", 3, "`a_mut` already exists"),
        (
            "struct P {\n a: f32,\n #[soa(slice = a)]\n b: u8 }",
            3,
            "`a` already exists",
        ),
    ] {
        let (error, at, _) = refused(text);
        assert!(error.contains(why), "{text}: {error}");
        assert_eq!(at, line, "{text}: {error}");
    }
}

/// Collects the line of every token of the generated code that equals `word`.
fn lines_of(made: TokenStream, word: &str, lines: &mut Vec<usize>) {
    for token in made {
        match token {
            TokenTree::Group(group) => lines_of(group.stream(), word, lines),
            TokenTree::Ident(ident) if ident == word => lines.push(ident.span().start().line),
            _ => {}
        }
    }
}

#[test]
fn errors_of_generated_checks_point_at_the_field() {
    let text = "#[soa(no_padding)]\nstruct P {\n    a: f32,\n    b:\n        u64,\n}";
    let made = expand(tokens(text)).expect("accepted");
    let mut lines = Vec::new();
    // The check of the column is at the line of the field's type.
    lines_of(made.clone(), "Column", &mut lines);
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines, [3, 5]);
    lines.clear();
    lines_of(made.clone(), "size_of", &mut lines);
    assert_eq!(lines, [3, 5]);
    lines.clear();
    lines_of(made, "padding_after", &mut lines);
    assert_eq!(lines, [3, 4]);
}

/// Returns the methods of the first inherent `impl` of a type, in order.
fn methods(made: TokenStream, of: &str) -> Vec<String> {
    let tokens: Vec<TokenTree> = made.into_iter().collect();
    let body = tokens.windows(3).find_map(|three| match three {
        [
            TokenTree::Ident(word),
            TokenTree::Ident(name),
            TokenTree::Group(body),
        ] => (word == "impl" && name == of).then(|| body.stream()),
        _ => None,
    });
    let body: Vec<TokenTree> = body.expect("an impl").into_iter().collect();
    let named = body.windows(2).filter_map(|two| match two {
        [TokenTree::Ident(word), TokenTree::Ident(name)] if word == "fn" => Some(name.to_string()),
        _ => None,
    });
    named.collect()
}

#[test]
fn reserved_slice_names_are_the_methods_of_the_owner() {
    let made = expand(tokens("struct P { only: f32 }")).expect("accepted");
    let mut found = methods(made, "PVec");
    found.retain(|name| !["only", "only_mut"].contains(&name.as_str()));
    let mut expected: Vec<String> = METHODS.iter().map(|name| (*name).to_owned()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

/// Returns the error of a `limits` attribute and its tokens.
fn unlimited(options: &str, function: &str) -> (String, String) {
    let Err(error) = limits::expand(tokens(options), tokens(function)) else {
        panic!("not refused: {options}; {function}");
    };
    let words = error.span().source_text().unwrap_or_default();
    (error.to_string(), words)
}

#[test]
fn invalid_limits_attributes_are_refused_at_their_place() {
    let plain = "fn f() {}";
    for (options, function, place, why) in [
        ("peek = 1", plain, "peek", "the options are `peak`, `total`"),
        ("peak = 1, peak = 2", plain, "peak", "this option is set twice"),
        (
            "peak = 1, runs = 2, runs = 3",
            plain,
            "runs",
            "this option is set twice",
        ),
        ("peak", plain, "", "expected `=`"),
        ("peak = 1, runs = 0", plain, "0", "must be at least 1"),
        ("peak = 1, warm_up = many", plain, "many", "expected integer"),
        (
            "peak = 1, warm_up = 5000000000",
            plain,
            "5000000000",
            "number too large",
        ),
        ("warm_up = 1", plain, "warm_up", "no limit is set"),
        ("", plain, "", "no limit is set"),
        (
            "peak = 1",
            "async fn f() {}",
            "async",
            "cannot limit an async function",
        ),
        (
            "peak = 1",
            "const fn f() {}",
            "const",
            "cannot limit a const function",
        ),
        (
            "peak = 1, runs = 2",
            "fn f(a: u8) {}",
            "a",
            "cannot have parameters",
        ),
        (
            "peak = 1, warm_up = 2",
            "fn f(self) {}",
            "self",
            "cannot have parameters",
        ),
        ("peak = 1", "struct S;", "struct", "expected"),
    ] {
        let (error, words) = unlimited(options, function);
        assert!(error.contains(why), "{options}; {function}: {error}");
        assert!(words.starts_with(place), "{options}; {function}: about {words:?}");
    }
}

#[test]
fn limits_keep_attributes_and_signature_and_become_method_calls() {
    let made = |options, function| {
        let made = limits::expand(tokens(options), tokens(function)).expect("accepted");
        made.to_string().replace(' ', "")
    };
    assert_eq!(
        made(
            "peak = \"1 MiB\", leaked = 3 * 4, warm_up = 2, crate = a::b",
            "#[test] pub fn f() { g() }"
        ),
        "#[test]pubfnf(){a::b::limits::Limits::new().peak(\"1MiB\").leaked(3*4).warm_up(2).assert(||->(){g()})}"
    );
    assert_eq!(
        made("total = N", "fn f<T>(a: T) -> std::io::Result<T> { Ok(a) }"),
        "fnf<T>(a:T)->std::io::Result<T>{::millpond::limits::Limits::new().total(N)\
         .__assert_once(move||->std::io::Result<T>{Ok(a)},::core::result::Result::is_ok)}"
    );
    assert!(
        made("peak = 1, runs = 2", "fn f() -> Result<(), E> { g() }").contains(".assert_ok(||->Result<(),E>")
    );
    assert!(made("peak = 1", "fn f() -> impl Copy { 1 }").contains("(move||{1},|_|true)"));
}
