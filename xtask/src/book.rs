//! The book: builds it with mdBook, and checks the links of all pages.

use crate::shell::{root, step, target};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

const MDBOOK: &str = "0.5.4";
/// The folder with the chapters.
const CHAPTERS: &str = "docs";
const CONTENTS: &str = "docs/SUMMARY.md";

/// Checks the links of all pages and builds the book.
pub(crate) fn run() -> Result<(), String> {
    check()?;
    build(&mdbook()?)
}

/// Returns the program, which is installed first if it is missing or has another version.
fn mdbook() -> Result<PathBuf, String> {
    let place = target().join("tools");
    let program = place.join("bin").join("mdbook");
    let version = Command::new(&program).arg("--version").output();
    let is_there = version
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() == format!("mdbook v{MDBOOK}"));
    if !is_there {
        let place = place.to_string_lossy();
        let install = ["install", "--locked", "--no-default-features", "--root", &*place];
        step(
            "cargo",
            &[&install[..], &["--version", MDBOOK, "mdbook"]].concat(),
        )?;
    }
    Ok(program)
}

fn build(program: &Path) -> Result<(), String> {
    let (program, folder) = (program.to_string_lossy(), target().join("book"));
    step(&program, &["build", "--dest-dir", &folder.to_string_lossy()])
}

/// Fails if a link of a page leads nowhere.
pub(crate) fn check() -> Result<(), String> {
    let pages = pages()?;
    let faults = faults(&pages, &|path| root().join(path).exists());
    if faults.is_empty() {
        let links: usize = pages.values().map(|page| page.links.len()).sum();
        println!("book: {links} links on {} pages are valid", pages.len());
        return Ok(());
    }
    Err(faults.join("\n"))
}

/// Reads the pages of the repository, by their paths in it.
fn pages() -> Result<BTreeMap<PathBuf, Page>, String> {
    let mut folders = vec![PathBuf::new(), CHAPTERS.into(), "traces".into()];
    let crates = fs::read_dir(root().join("crates")).map_err(|e| format!("crates: {e}"))?;
    folders.extend(
        crates
            .flatten()
            .map(|entry| Path::new("crates").join(entry.file_name())),
    );
    let mut pages = BTreeMap::new();
    for folder in folders {
        let told = |e| format!("{}: {e}", folder.display());
        for entry in fs::read_dir(root().join(&folder)).map_err(told)? {
            let path = folder.join(entry.map_err(told)?.file_name());
            if path.extension().is_some_and(|ending| ending == "md") {
                let text =
                    fs::read_to_string(root().join(&path)).map_err(|e| format!("{}: {e}", path.display()))?;
                pages.insert(path, Page::read(&text));
            }
        }
    }
    Ok(pages)
}

/// The anchors and links of a page.
#[derive(Debug, Default)]
struct Page {
    /// The anchors of its headings.
    anchors: BTreeSet<String>,
    /// The lines and destinations of its links and pictures.
    links: Vec<(usize, String)>,
}

impl Page {
    fn read(text: &str) -> Self {
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let before = text.get(..range.start).unwrap_or_default();
                    let line = 1 + before.matches('\n').count();
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    page.add_anchor(&anchor(&heading.take().unwrap_or_default()));
                }
                _ => {}
            }
        }
        page
    }

    /// A heading that occurs again gets a number.
    fn add_anchor(&mut self, anchor: &str) {
        let mut name = anchor.to_owned();
        for number in 1.. {
            if self.anchors.insert(name) {
                return;
            }
            name = format!("{anchor}-{number}");
        }
    }
}

/// Returns the anchor that mdBook and GitHub give to a heading.
fn anchor(heading: &str) -> String {
    let of = |c: char| match c {
        c if c.is_whitespace() => Some('-'),
        c if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c),
        _ => None,
    };
    heading.trim().to_lowercase().chars().filter_map(of).collect()
}

/// Returns a sentence for each link that leads nowhere, and for each chapter that is not in the table of contents.
fn faults(pages: &BTreeMap<PathBuf, Page>, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    let mut chapters = BTreeSet::new();
    for (path, page) in pages {
        let is_chapter = path.starts_with(CHAPTERS);
        for (line, link) in &page.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = match link.split_once('#') {
                Some((file, anchor)) => (file, Some(anchor)),
                None => (link.as_str(), None),
            };
            let place = match file {
                "" => Some(path.clone()),
                file => resolved(path, file),
            };
            let fault = |what: &str| format!("{}:{line}: {link}: {what}", path.display());
            let Some(place) = place.filter(|place| exists(place)) else {
                faults.push(fault("there is no such file"));
                continue;
            };
            if is_chapter && !place.starts_with(CHAPTERS) {
                faults.push(fault("leads out of the book, which does not contain the file"));
            }
            if let Some(anchor) = anchor {
                let has = pages
                    .get(&place)
                    .is_some_and(|page| page.anchors.contains(anchor));
                if !has {
                    faults.push(fault("the page has no such heading"));
                }
            }
            if path == Path::new(CONTENTS) {
                chapters.insert(place);
            }
        }
    }
    let missing = pages.keys().filter(|path| {
        path.starts_with(CHAPTERS) && *path != Path::new(CONTENTS) && !chapters.contains(*path)
    });
    faults.extend(missing.map(|path| format!("{} is not in {CONTENTS}", path.display())));
    faults
}

/// Returns the path in the repository that a link of a page leads to. None if it leads out of the repository.
fn resolved(page: &Path, link: &str) -> Option<PathBuf> {
    let mut place = page.parent().map(Path::to_path_buf).unwrap_or_default();
    for part in Path::new(link).components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !place.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the faults of pages with these texts. Nothing else exists but one picture.
    fn found(texts: &[(&str, &str)]) -> Vec<String> {
        let pages: BTreeMap<_, _> = texts
            .iter()
            .map(|(path, text)| (PathBuf::from(path), Page::read(text)))
            .collect();
        faults(&pages, &|path| {
            pages.contains_key(path) || path == Path::new("docs/picture.png")
        })
    }

    const SUMMARY: (&str, &str) = (CONTENTS, "- [One](one.md)\n");

    #[test]
    fn links_and_anchors_that_lead_somewhere_pass() {
        let one = "# One\n\n## `top`: a view, & more\n\n## Twice\n\n## Twice\n\n![a picture](picture.png)\n\n\
            [here](#twice-1), [there](#top-a-view--more), [away](https://example.org/#none)\n";
        let readme =
            "| a | b |\n|---|---|\n| [one](docs/one.md#twice) | [itself](#none-yet) |\n\n# None yet\n";
        let texts = [SUMMARY, ("README.md", readme), ("docs/one.md", one)];
        assert_eq!(found(&texts), Vec::<String>::new());
    }

    #[test]
    fn a_link_to_a_missing_file_is_found_with_its_line() {
        let one = "# One\n\ntext\n[gone](gone.md)\n![gone](gone.png)\n";
        let faults = found(&[SUMMARY, ("docs/one.md", one)]);
        assert_eq!(
            faults,
            [
                "docs/one.md:4: gone.md: there is no such file",
                "docs/one.md:5: gone.png: there is no such file"
            ]
        );
    }

    #[test]
    fn a_link_to_a_missing_heading_is_found() {
        let texts = [
            SUMMARY,
            ("README.md", "[one](docs/one.md#two)"),
            ("docs/one.md", "# One\n\n[self](#other)"),
        ];
        assert_eq!(
            found(&texts),
            [
                "README.md:1: docs/one.md#two: the page has no such heading",
                "docs/one.md:3: #other: the page has no such heading"
            ]
        );
    }

    #[test]
    fn a_link_out_of_the_book_is_found() {
        let texts = [
            SUMMARY,
            ("README.md", "# Readme"),
            ("docs/one.md", "[out](../README.md) [far](../../away.md)"),
        ];
        let faults = found(&texts);
        assert!(faults[0].contains("leads out of the book"), "{faults:?}");
        assert!(faults[1].contains("no such file"), "{faults:?}");
    }

    #[test]
    fn a_chapter_that_is_not_in_the_contents_is_found() {
        let texts = [SUMMARY, ("docs/one.md", "# One"), ("docs/two.md", "# Two")];
        assert_eq!(found(&texts), ["docs/two.md is not in docs/SUMMARY.md"]);
    }

    #[test]
    fn links_in_code_are_not_links() {
        let one = "# One\n\n`[code](gone.md)`\n\n```text\n[code](gone.md)\n```\n";
        assert_eq!(found(&[SUMMARY, ("docs/one.md", one)]), Vec::<String>::new());
    }

    #[test]
    fn the_links_of_the_repository_are_valid() {
        assert_eq!(check(), Ok(()));
    }
}
