//! Moves pages from one place to another.

use super::{Host, Run, locking};
use millpond_engine::{Range, SourceError};
use millpond_os::{Map, Part};

/// One run to move: its place, and the offset of its target.
#[derive(Clone, Copy)]
struct Step {
    run: Run,
    to: u64,
}

impl Step {
    fn target(self) -> Part {
        Part {
            offset: self.to,
            bytes: self.run.part.bytes,
        }
    }
}

impl Host {
    /// Moves the runs of a part one by one, because the system is not certain to move two mappings in one call. After a
    /// failure, it moves the runs that were already moved back to their old places.
    pub(super) fn move_runs(
        &mut self,
        from: (&Range, u64),
        to: (&Range, u64),
        bytes: u64,
    ) -> Result<u64, SourceError> {
        let not_held = |address: u64, offset: u64| SourceError::NotHeld {
            operation: "move",
            address: address.saturating_add(offset),
            bytes,
        };
        let (origin, target) = (from.0.address(), to.0.address());
        let part = self
            .part(from.0, from.1, bytes)
            .ok_or_else(|| not_held(origin, from.1))?;
        let place = self
            .part(to.0, to.1, bytes)
            .ok_or_else(|| not_held(target, to.1))?;
        if bytes == 0 {
            return Ok(0);
        }
        if self.backing.is_some() {
            return self.remap_runs(from, to, bytes);
        }
        self.close_over(to.0, place);
        let runs = self
            .ranges
            .get(&origin)
            .and_then(|reserved| reserved.runs.whole(part));
        let runs = runs.ok_or_else(|| not_held(origin, from.1))?;
        if !self
            .ranges
            .get(&target)
            .is_some_and(|reserved| reserved.is_vacant(place))
        {
            return Err(not_held(target, to.1));
        }
        let steps: Vec<Step> = runs
            .iter()
            .map(|run| Step {
                run: *run,
                to: run.part.offset - part.offset + place.offset,
            })
            .collect();
        // Each run may be split from a mapping, leave an empty one, and be put into the middle of a third.
        self.mappings.charge(4 * steps.len() as u64)?;
        let (Some(old), Some(new)) = (self.ranges.get(&origin), self.ranges.get(&target)) else {
            return Err(not_held(origin, from.1));
        };
        let moving = self.rules.lock.then(locking::exclusive);
        let mut slipped = Vec::new();
        for (done, step) in steps.iter().enumerate() {
            if let Err(error) = self.shift(&old.map, &new.map, *step, &mut slipped) {
                for step in steps[..done].iter().rev() {
                    self.shift_back(&old.map, &new.map, *step, &mut slipped);
                }
                // The places of the moved runs and of this one may be open. They are empty.
                let bytes = step.target().end() - place.offset;
                if let Some(reserved) = self.ranges.get_mut(&target) {
                    reserved.close(
                        Part {
                            offset: place.offset,
                            bytes,
                        },
                        0,
                    );
                }
                self.slipped
                    .extend(slipped.iter().map(|part| (origin + part.offset, part.bytes)));
                return Err(error);
            }
        }
        drop(moving);
        if let Some(old) = self.ranges.get_mut(&origin) {
            old.runs.remove(&runs);
            self.used -= old.close(part, 0);
        }
        if let Some(new) = self.ranges.get_mut(&target) {
            for step in &steps {
                new.runs.insert(Run {
                    part: step.target(),
                    ..step.run
                });
            }
        }
        Ok(runs.iter().map(|run| run.handles()).sum())
    }

    /// Moves one run. Afterwards both places are open, and the caller closes the old one. After a failure the run is in its
    /// old place, and the new one may be open.
    fn shift(&self, old: &Map, new: &Map, step: Step, slipped: &mut Vec<Part>) -> Result<(), SourceError> {
        let part = step.run.part;
        if self.rules.lock {
            old.unlock(part)
                .map_err(|error| self.refused("munlock", part.bytes, error))?;
        }
        // Linux before 5.7 does not support this move. A kernel that counts the bytes of both places against a limit may
        // refuse it.
        // SAFETY: the parts in `runs` are open by the invariant of `Reserved`. No block is in the pages that a policy moves, so no
        // other thread accesses them.
        let moved = unsafe { old.move_pages(part, new, step.to) };
        match moved {
            Ok(()) if self.rules.lock => new
                .lock(step.target())
                .map_err(|error| self.not_locked(part.bytes, error))
                .inspect_err(|_| self.shift_back(old, new, step, slipped)),
            Ok(()) => Ok(()),
            Err(_) => self
                .shift_by_copy(old, new, step)
                .inspect_err(|_| self.lock_again(old, part, slipped)),
        }
    }

    /// Moves one run like [`shift`](Self::shift), but the bytes of the run are allocated twice during the call.
    fn shift_by_copy(&self, old: &Map, new: &Map, step: Step) -> Result<(), SourceError> {
        let (part, target) = (step.run.part, step.target());
        new.open(target)
            .map_err(|error| self.refused("mremap", part.bytes, error))?;
        self.dress(new, target)?;
        // SAFETY: the target was opened just now, and the parts in `runs` are open by the invariant of `Reserved`. No other thread
        // accesses them, as above.
        let copied = unsafe { old.copy(part, new, step.to) };
        copied.map_err(|error| self.refused("mremap", part.bytes, error))
    }

    /// Undoes a [`shift`](Self::shift). The old place is still open.
    fn shift_back(&self, old: &Map, new: &Map, step: Step, slipped: &mut Vec<Part>) {
        let part = step.run.part;
        let unlocked = !self.rules.lock || new.unlock(step.target()).is_ok();
        // SAFETY: `shift` leaves both places open, and no block is in either of them.
        let back = || unsafe { new.move_pages(step.target(), old, part.offset) };
        if !unlocked || back().is_err() {
            // SAFETY: `shift` leaves both places open, and no block is in either of them.
            let _ = unsafe { new.copy(step.target(), old, part.offset) };
        }
        self.lock_again(old, part, slipped);
    }

    /// Locks memory again that a failed move has unlocked. If the system refuses, because other memory was locked
    /// meanwhile, the part is recorded as no longer locked.
    fn lock_again(&self, map: &Map, part: Part, slipped: &mut Vec<Part>) {
        if self.rules.lock && map.lock(part).is_err() {
            slipped.push(part);
        }
    }
}
