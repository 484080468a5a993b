//! Enforces a limit on memory mappings, before the process reaches the system's limit.

use millpond_engine::SourceError;
use millpond_os as os;

/// The number of mappings that may still be made.
///
/// Splitting, opening and moving parts creates mappings, and a process may have about 65,000. At that number, even a new
/// thread of another library gets no stack. Therefore the source leaves a share of them to the rest of the process and
/// refuses to grow further. It reads the kernel's own count, because only the kernel knows which neighbours it has merged
/// and what other libraries have mapped. After each reading, half of the remaining mappings are made before the next one.
#[derive(Debug)]
pub(super) struct Mappings {
    limit: Option<u64>,
    /// The number of mappings that may be made before the count is read again.
    slack: u64,
}

impl Mappings {
    /// Limits the mappings of the whole process to `limit`, or to the system's limit minus a 32nd.
    pub(super) fn new(limit: Option<u64>) -> Self {
        let limit = limit.or_else(|| os::mappings_limit().map(|most| most - most / 32));
        Self { limit, slack: 0 }
    }

    /// Checks that `more` mappings may be made, and counts them.
    pub(super) fn charge(&mut self, more: u64) -> Result<(), SourceError> {
        if self.slack < more {
            // If the system reports no count or no limit, it enforces its limit itself.
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

    /// Counts mappings of a call that must not be refused.
    pub(super) fn note(&mut self, more: u64) {
        self.slack = self.slack.saturating_sub(more);
    }

    /// Returns the error for a call that the system refused because there are too many mappings.
    pub(super) fn exhausted(&self) -> Option<SourceError> {
        let (limit, mappings) = (os::mappings_limit()?, os::mappings()?);
        (mappings + 2 > limit).then_some(SourceError::Mappings { mappings, limit })
    }
}
