//! Remembers for which files a long check passed, so that it runs again only when one of them has changed.

use crate::shell::root;
use serde_json::{Map, Value};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The fingerprints of the files with which each long check last passed. The file is part of the repository.
pub(crate) struct Passed(Map<String, Value>);

impl Passed {
    fn path() -> PathBuf {
        root().join("xtask/passed.json")
    }

    pub(crate) fn read() -> Result<Self, String> {
        let path = Self::path();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "{}".to_owned(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let all = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(all))
    }

    /// Returns whether the check last passed with these files.
    pub(crate) fn has(&self, check: &str, fingerprint: &str) -> bool {
        self.0.get(check).is_some_and(|last| last == fingerprint)
    }

    /// Records that the check has passed with these files, and writes the file.
    pub(crate) fn record(&mut self, check: &str, fingerprint: String) -> Result<(), String> {
        self.0.insert(check.to_owned(), fingerprint.into());
        let path = Self::path();
        let text = serde_json::to_string_pretty(&self.0).map_err(|error| error.to_string())?;
        std::fs::write(&path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Returns a hash of the contents of all files under these paths of a repository. Changes that are not committed count. Fails
/// without git, and in a folder that is not a repository.
pub(crate) fn fingerprint(root: &Path, paths: &[&str]) -> Result<String, String> {
    let list = [
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--deduplicate",
        "--",
    ];
    let files = git(root, &[&list[..], paths].concat(), "")?;
    let there = files.lines().filter(|file| root.join(file).is_file());
    let files: String = there.flat_map(|file| [file, "\n"]).collect();
    let contents = git(root, &["hash-object", "--stdin-paths"], &files)?;
    let hash = git(root, &["hash-object", "--stdin"], &(files + &contents))?;
    Ok(hash.trim().to_owned())
}

fn git(root: &Path, args: &[&str], input: &str) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("'git {}' failed: {error}", args.join(" "));
    let mut child = Command::new("git")
        .args(args)
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    let mut stdin = child.stdin.take();
    let input = input.to_owned();
    // Another thread writes, because git prints hashes while it still reads names.
    let writer = std::thread::spawn(move || {
        stdin
            .as_mut()
            .map_or(Ok(()), |stdin| stdin.write_all(input.as_bytes()))
    });
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    let written = writer.join().map_err(|_| failed(&"a thread panicked"))?;
    written.map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_changes_the_fingerprint_of_its_folder_only() {
        let root = std::env::temp_dir().join(format!("millpond-covered-{}", std::process::id()));
        for folder in ["one", "other"] {
            std::fs::create_dir_all(root.join(folder)).expect("room");
            std::fs::write(root.join(folder).join("file"), "first").expect("room");
        }
        git(&root, &["init", "--quiet"], "").expect("git");
        let both = || ["one", "other"].map(|folder| fingerprint(&root, &[folder]).expect("a repository"));
        let before = both();
        std::fs::write(root.join("one/file"), "second").expect("room");
        let changed = both();
        std::fs::write(root.join("one/new"), "third").expect("room");
        let more = both();
        std::fs::remove_dir_all(&root).expect("it is there");
        assert_ne!(before[0], changed[0]);
        assert_ne!(changed[0], more[0]);
        assert_eq!([&changed[1], &more[1]], [&before[1]; 2]);
    }
}
