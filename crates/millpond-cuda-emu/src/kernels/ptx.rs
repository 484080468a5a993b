//! Reads the version and the target of a PTX text, and the names and the extent of its entries. Instructions are not read.
#![forbid(unsafe_code)]

use crate::error::{Answer, Code};

/// The newest version of PTX that the driver of each version of CUDA compiles, from the table of releases in the documentation of PTX.
const NEWEST: &[(i32, (u32, u32))] = &[
    (11_000, (7, 0)),
    (11_010, (7, 1)),
    (11_020, (7, 2)),
    (11_030, (7, 3)),
    (11_040, (7, 4)),
    (11_050, (7, 5)),
    (11_060, (7, 6)),
    (11_070, (7, 7)),
    (11_080, (7, 8)),
    (12_000, (8, 0)),
    (12_010, (8, 1)),
    (12_020, (8, 2)),
    (12_030, (8, 3)),
    (12_040, (8, 4)),
    (12_050, (8, 5)),
    (12_070, (8, 6)),
    (12_080, (8, 7)),
    (12_090, (8, 8)),
    (13_000, (9, 0)),
    (13_010, (9, 1)),
];

/// Returns the words of a text, which whitespace and comments separate. Each bracket and each semicolon is a word of its own.
fn words(ptx: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = ptx;
    while let Some(first) = rest.chars().next() {
        let ends = |c: char| c.is_whitespace() || "(){};".contains(c);
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if ends(first) {
            if !first.is_whitespace() {
                words.push(&rest[..first.len_utf8()]);
            }
            first.len_utf8()
        } else {
            // A comment may follow a word directly. The search ends with the word, so the time is linear in the text.
            let word = &rest[..rest.find(ends).unwrap_or(rest.len())];
            let comments = ["//", "/*"].iter().filter_map(|comment| word.find(comment));
            let end = comments.fold(word.len(), usize::min);
            words.push(&word[..end]);
            end
        };
        rest = &rest[len..];
    }
    words
}

/// Checks that a text begins with its version and its target as PTX does, that the driver compiles this version, and that every entry has
/// a body.
pub(super) fn check(ptx: &str, driver: i32) -> Answer {
    let words = words(ptx);
    let [first, version, directive, target, ..] = words[..] else {
        return Err(if ptx.contains(".version") {
            Code::INVALID_PTX
        } else {
            Code::INVALID_IMAGE
        });
    };
    if first != ".version" {
        return Err(if ptx.contains(".version") {
            Code::INVALID_PTX
        } else {
            Code::INVALID_IMAGE
        });
    }
    let version = version.split_once('.').and_then(|(major, minor)| {
        let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
        Some((major, minor))
    });
    let version: (u32, u32) = version.ok_or(Code::INVALID_PTX)?;
    Code::INVALID_PTX.when(directive != ".target" || !target.starts_with("sm_"))?;
    let newest = NEWEST.iter().rev().find(|(of, _)| *of <= driver);
    Code::UNSUPPORTED_PTX_VERSION.when(newest.is_none_or(|(_, newest)| version > *newest))?;
    bodies(&words)
}

/// Checks that brackets are closed in order, and that every entry has a body before the next entry begins.
fn bodies(words: &[&str]) -> Answer {
    let (mut open, mut waits) = (Vec::new(), false);
    for word in words {
        match *word {
            "(" | "{" => {
                waits &= !(open.is_empty() && *word == "{");
                open.push(*word);
            }
            ")" if open.pop() == Some("(") => {}
            "}" if open.pop() == Some("{") => {}
            ")" | "}" => return Err(Code::INVALID_PTX),
            ".entry" if waits => return Err(Code::INVALID_PTX),
            ".entry" => waits = true,
            _ => {}
        }
    }
    Code::INVALID_PTX.when(waits || !open.is_empty())?;
    Ok(())
}

/// Returns the names of the entries.
pub(super) fn entries(ptx: &str) -> Vec<String> {
    let words = words(ptx);
    let names = words.windows(2).filter(|pair| pair[0] == ".entry");
    names.map(|pair| pair[1].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "// made by hand\n.version 8.0\n.target sm_70, texmode_unified\n.address_size 64\n";

    #[test]
    fn entries_are_read_without_comments() {
        let text = format!(
            "{HEAD}.visible .entry fill(\n.param .u64 a) {{ }} // .entry no\n/* .entry no */.entry\n  scale () .maxntid 8 {{ {{ ret; }} }}\n"
        );
        assert_eq!(entries(&text), ["fill", "scale"]);
        assert_eq!(check(&text, 12_080), Ok(()));
        assert_eq!(check(HEAD, 12_080), Ok(()), "an empty module");
    }

    #[test]
    fn a_text_that_is_not_ptx_is_refused() {
        for (text, code) in [
            ("nothing", Code::INVALID_IMAGE),
            ("", Code::INVALID_IMAGE),
            ("see .version 8.0 of this", Code::INVALID_PTX),
            (".version 8.0", Code::INVALID_PTX),
            (".version eight .target sm_70", Code::INVALID_PTX),
            (".version 8.0 .entry f() { ret; }", Code::INVALID_PTX),
            (
                ".version 8.0 .target gfx90a .entry f() { ret; }",
                Code::INVALID_PTX,
            ),
            (".version 8.0 .target sm_70 .entry f()", Code::INVALID_PTX),
            (
                ".version 8.0 .target sm_70 .entry f() .entry g() { ret; }",
                Code::INVALID_PTX,
            ),
            (".version 8.0 .target sm_70 .entry f() { ret;", Code::INVALID_PTX),
            (".version 8.0 .target sm_70 .entry f( { ) }", Code::INVALID_PTX),
        ] {
            assert_eq!(check(text, 12_080), Err(code), "{text}");
        }
    }

    #[test]
    fn a_driver_refuses_ptx_that_is_newer_than_it() {
        let of = |version: &str| format!(".version {version}\n.target sm_70\n");
        assert_eq!(check(&of("8.7"), 12_080), Ok(()));
        assert_eq!(check(&of("8.8"), 12_080), Err(Code::UNSUPPORTED_PTX_VERSION));
        assert_eq!(check(&of("9.0"), 12_090), Err(Code::UNSUPPORTED_PTX_VERSION));
        assert_eq!(check(&of("9.0"), 13_000), Ok(()));
        assert_eq!(check(&of("8.5"), 12_060), Ok(()), "the version of CUDA 12.5");
        assert_eq!(check(&of("7.0"), 10_020), Err(Code::UNSUPPORTED_PTX_VERSION));
    }
}
