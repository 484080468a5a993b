//! The system's limit on memory mappings, kept before the system keeps it.

use crate::os;
use millpond_engine::SourceError;

/// How many mappings may still be made.
///
/// Cutting, opening and moving parts makes maps, and a process may have some 65,000. Past that, a library's
/// next thread has no stack. So a share is left to the rest of the process, and growth is refused beyond.
/// The kernel's own count is read, since only it knows which neighbours it has joined and what other
/// libraries have mapped; one reading serves for half of the room it found.
#[derive(Debug)]
pub(super) struct Mappings {
    limit: Option<u64>,
    /// Mappings that may be made before the count is read again.
    slack: u64,
}

impl Mappings {
    /// Keeps to `limit` mappings of the whole process, or to the system's limit less a 32nd.
    pub(super) fn new(limit: Option<u64>) -> Self {
        let limit = limit.or_else(|| os::mappings_limit().map(|most| most - most / 32));
        Self { limit, slack: 0 }
    }

    /// Asks for room for `more` mappings.
    pub(super) fn charge(&mut self, more: u64) -> Result<(), SourceError> {
        if self.slack < more {
            // A system that tells neither count nor limit keeps its limit itself.
            let (Some(limit), Some(mappings)) = (self.limit, os::mappings()) else {
                return Ok(());
            };
            let room = limit.saturating_sub(mappings);
            if room < more {
                return Err(SourceError::Mappings { mappings, limit });
            }
            self.slack = (room / 2).max(more);
        }
        self.slack -= more;
        Ok(())
    }

    /// Notes mappings that a call may make that must not be refused.
    pub(super) fn note(&mut self, more: u64) {
        self.slack = self.slack.saturating_sub(more);
    }

    /// The error to give if the system refused a call for want of mappings.
    pub(super) fn exhausted(&self) -> Option<SourceError> {
        let (limit, mappings) = (os::mappings_limit()?, os::mappings()?);
        (mappings + 2 > limit).then_some(SourceError::Mappings { mappings, limit })
    }
}
