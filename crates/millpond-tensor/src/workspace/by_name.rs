//! A list of named entries.
#![forbid(unsafe_code)]

use super::named::WorkspaceError;

/// Entries of one kind with unique names, in the order in which they were added.
pub(super) struct ByName<V> {
    /// The kind, for errors.
    what: &'static str,
    all: Vec<(String, V)>,
}

impl<V> ByName<V> {
    pub(super) fn new(what: &'static str) -> Self {
        Self {
            what,
            all: Vec::new(),
        }
    }

    /// Adds an entry. The caller has checked that the name is new.
    pub(super) fn push(&mut self, name: String, value: V) {
        self.all.push((name, value));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.all.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    fn unknown(&self, name: &str) -> WorkspaceError {
        let known = self.names().collect::<Vec<_>>();
        WorkspaceError::Unknown {
            what: self.what,
            name: name.to_owned(),
            known: if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            },
        }
    }

    fn place(&self, name: &str) -> Result<usize, WorkspaceError> {
        let found = self.all.iter().position(|(of, _)| of == name);
        found.ok_or_else(|| self.unknown(name))
    }

    pub(super) fn get(&self, name: &str) -> Result<&V, WorkspaceError> {
        Ok(&self.all[self.place(name)?].1)
    }

    /// Returns several entries for writing. Returns an error if a name has no entry or occurs twice.
    pub(super) fn get_disjoint_mut<const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[&mut V; N], WorkspaceError> {
        let mut places = [0; N];
        for (at, name) in names.iter().enumerate() {
            places[at] = self.place(name)?;
        }
        let twice = (0..N).find(|at| places[..*at].contains(&places[*at]));
        let found = self.all.get_disjoint_mut(places);
        // All indices are valid, so this fails only if one occurs twice.
        let found = found.map_err(|_| WorkspaceError::Twice {
            name: names[twice.unwrap_or(0)].to_owned(),
        })?;
        Ok(found.map(|(_, value)| value))
    }
}
