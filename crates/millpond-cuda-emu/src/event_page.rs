//! Events between processes: the records and their outcomes, in a page of memory that all processes with the
//! event map.
//!
//! ```text
//!  nonce | latest number | highest number wanted | seats: participating processes | slots: number, seat and state of the last records
//! ```
//!
//! A record takes the next number and its slot in one atomic step, and updates the slot when its work is
//! complete. A waiting process reads the latest number at the call and watches its slot, because two records
//! of one event may end in any order. It also publishes the number that it waits for, because a process that
//! runs work lazily must be notified. If the process that should complete a record has died, the waiting
//! process marks the record as lost for all processes. An open slot is not reused, so there are at most as
//! many open records as slots.
#![forbid(unsafe_code)]

use crate::error::{Answer, Code};
use crate::memory::foreign::{self, Handle, Process, Raw};
use crate::memory::os::Words;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const NONCE: usize = 0;
const LATEST: usize = 2;
const WANTED: usize = 3;
const SEATS: usize = 8;
const SLOTS: usize = 64;
/// The most processes that may have the event at once.
const SEAT_COUNT: usize = SLOTS - SEATS;
const SLOT_COUNT: usize = Words::COUNT - SLOTS;

/// The outcome of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Open,
    Done,
    /// The process died before the record was complete.
    Lost,
}

/// The word of a slot: a record's number, its process, and its outcome. Zero before the first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot(u64);

impl Slot {
    fn new(number: u64, seat: usize, outcome: Outcome) -> Self {
        let state = match outcome {
            Outcome::Open => 1,
            Outcome::Done => 2,
            Outcome::Lost => 3,
        };
        Self(number << 8 | (seat as u64) << 2 | state)
    }

    fn number(self) -> u64 {
        self.0 >> 8
    }

    fn seat(self) -> usize {
        (self.0 >> 2 & 63) as usize
    }

    fn outcome(self) -> Outcome {
        match self.0 & 3 {
            1 => Outcome::Open,
            3 => Outcome::Lost,
            _ => Outcome::Done,
        }
    }
}

/// An event's page, in which this process has a seat. An open record keeps the page alive.
#[derive(Debug)]
pub(crate) struct Page {
    words: Words,
    seat: usize,
}

impl Page {
    pub(crate) fn new() -> Answer<Self> {
        let words = Words::new(foreign::EVENT).map_err(|_| Code::OPERATING_SYSTEM)?;
        let nonce = foreign::nonce()?;
        words.word(NONCE).store(nonce as u64, Relaxed);
        words.word(NONCE + 1).store((nonce >> 64) as u64, Release);
        Self::sit(words)
    }

    /// Opens the page of another process's event.
    pub(crate) fn open(raw: &Raw) -> Answer<Self> {
        let handle = Handle::from_raw(raw).ok_or(Code::INVALID_HANDLE)?;
        Code::INVALID_CONTEXT.when(handle.is_own())?;
        let file = handle.open(foreign::EVENT).ok_or(Code::INVALID_HANDLE)?;
        Self::adopt(file, handle.nonce)
    }

    fn adopt(file: OwnedFd, nonce: u128) -> Answer<Self> {
        let words = Words::adopt(file).map_err(|_| Code::INVALID_HANDLE)?;
        Code::INVALID_HANDLE.when(nonce_of(&words) != nonce)?;
        Self::sit(words)
    }

    /// Takes a free seat, or the seat of a process that has died.
    fn sit(words: Words) -> Answer<Self> {
        let own = Process::own()?;
        for dead_too in [false, true] {
            for seat in 0..SEAT_COUNT {
                let word = words.word(SEATS + seat);
                let before = word.load(Acquire);
                let free = before == 0 || dead_too && !Process(before).lives();
                if !free {
                    continue;
                }
                if before != 0 {
                    lose_all(&words, seat);
                }
                if word.compare_exchange(before, own.0, AcqRel, Relaxed).is_ok() {
                    return Ok(Self { words, seat });
                }
            }
        }
        Err(Code::OUT_OF_MEMORY)
    }

    pub(crate) fn handle(&self) -> Raw {
        Handle::new(self.words.file(), nonce_of(&self.words)).to_raw()
    }

    /// Returns the number of the last record, or 0 before the first.
    pub(crate) fn latest(&self) -> u64 {
        self.words.word(LATEST).load(Acquire)
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        self.words.word(SLOTS + (number % SLOT_COUNT as u64) as usize)
    }

    /// Claims a number for a record. If its slot is still open, returns the number of the open record
    /// instead.
    pub(crate) fn claim(self: &Arc<Self>) -> Result<Ticket, u64> {
        loop {
            let number = self.latest() + 1;
            let slot = self.slot(number);
            let before = Slot(slot.load(Acquire));
            if before.number() < number {
                if before.outcome() == Outcome::Open {
                    return Err(before.number());
                }
                let open = Slot::new(number, self.seat, Outcome::Open);
                if slot.compare_exchange(before.0, open.0, AcqRel, Relaxed).is_err() {
                    continue;
                }
                self.words.word(LATEST).fetch_max(number, AcqRel);
                let page = Arc::clone(self);
                return Ok(Ticket(Record { page, number }));
            }
            // Another process has taken this number and has not published it yet.
            self.words.word(LATEST).fetch_max(number, AcqRel);
        }
    }

    /// Returns the outcome of a record. A slot is reused only after its record is closed.
    pub(crate) fn outcome(&self, number: u64) -> Outcome {
        let slot = Slot(self.slot(number).load(Acquire));
        if slot.number() == number {
            slot.outcome()
        } else {
            Outcome::Done
        }
    }

    fn close(&self, number: u64, outcome: Outcome) {
        close(self.slot(number), outcome, |slot| slot.number() == number);
    }

    /// Asks the owner of a record to complete it. If the owner has died, the record becomes lost.
    pub(crate) fn want(&self, number: u64) {
        self.words.word(WANTED).fetch_max(number, AcqRel);
        let slot = Slot(self.slot(number).load(Acquire));
        if slot.number() == number && slot.outcome() == Outcome::Open {
            let owner = self.words.word(SEATS + slot.seat()).load(Acquire);
            if owner == 0 || !Process(owner).lives() {
                self.close(number, Outcome::Lost);
            }
        }
    }

    /// Returns whether any process waits for a record.
    pub(crate) fn is_wanted(&self, number: u64) -> bool {
        self.words.word(WANTED).load(Acquire) >= number
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.words.word(SEATS + self.seat).store(0, Release);
    }
}

fn nonce_of(words: &Words) -> u128 {
    let high = words.word(NONCE + 1).load(Acquire);
    u128::from(high) << 64 | u128::from(words.word(NONCE).load(Relaxed))
}

/// Sets the outcome of a slot's record if the record is open and `meant`. A late update finds that the outcome is already set.
fn close(word: &AtomicU64, outcome: Outcome, meant: impl Fn(Slot) -> bool) {
    let before = Slot(word.load(Acquire));
    if before.outcome() == Outcome::Open && meant(before) {
        let after = Slot::new(before.number(), before.seat(), outcome);
        let _ = word.compare_exchange(before.0, after.0, AcqRel, Relaxed);
    }
}

/// Marks the open records of a seat as lost, because its process has died.
fn lose_all(words: &Words, seat: usize) {
    for index in 0..SLOT_COUNT {
        let word = words.word(SLOTS + index);
        close(word, Outcome::Lost, |slot| slot.seat() == seat);
    }
}

/// A record that its process has to complete or another process waits for.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) page: Arc<Page>,
    pub(crate) number: u64,
}

impl Record {
    pub(crate) fn outcome(&self) -> Outcome {
        self.page.outcome(self.number)
    }

    pub(crate) fn want(&self) {
        self.page.want(self.number);
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.page.is_wanted(self.number)
    }
}

/// A record whose completion must be published. If it is dropped before that, the record is lost.
#[derive(Debug)]
pub(crate) struct Ticket(pub(crate) Record);

impl Ticket {
    pub(crate) fn tell(&self) {
        self.0.page.close(self.0.number, Outcome::Done);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.page.close(self.0.number, Outcome::Lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the page as a second process would open it.
    fn second(page: &Page) -> Arc<Page> {
        let file = page.words.file().try_clone_to_owned().unwrap();
        Arc::new(Page::adopt(file, nonce_of(&page.words)).unwrap())
    }

    #[test]
    fn records_are_completed_independently_of_each_other() {
        let here = Arc::new(Page::new().unwrap());
        let there = second(&here);
        assert_eq!(there.latest(), 0);
        let (one, two) = (here.claim().unwrap(), there.claim().unwrap());
        assert_eq!((one.0.number, two.0.number, here.latest()), (1, 2, 2));
        two.tell();
        assert_eq!(
            (here.outcome(2), there.outcome(1)),
            (Outcome::Done, Outcome::Open)
        );
        assert!(!here.is_wanted(1));
        there.want(1);
        assert!(here.is_wanted(1) && !here.is_wanted(2));
        drop(one);
        drop(two);
        assert_eq!(
            (there.outcome(1), there.outcome(2)),
            (Outcome::Lost, Outcome::Done)
        );
    }

    #[test]
    fn an_open_record_keeps_its_slot() {
        let page = Arc::new(Page::new().unwrap());
        let oldest = page.claim().unwrap();
        for _ in 1..SLOT_COUNT {
            page.claim().unwrap().tell();
        }
        assert_eq!(page.claim().err(), Some(1));
        oldest.tell();
        let next = page.claim().unwrap();
        assert_eq!(next.0.number, SLOT_COUNT as u64 + 1);
        assert_eq!(
            page.outcome(1),
            Outcome::Done,
            "another has its slot, so it was told"
        );
    }

    #[test]
    fn open_records_of_a_dead_process_are_lost_and_its_seat_is_free() {
        let page = Arc::new(Page::new().unwrap());
        let other = second(&page);
        let open = other.claim().unwrap();
        // The process ended, and its number belongs to another one.
        let dead = Process::own().unwrap().0 + (1 << 22);
        page.words.word(SEATS + other.seat).store(dead, Release);
        for seat in 0..SEAT_COUNT {
            let word = page.words.word(SEATS + seat);
            let _ = word.compare_exchange(0, Process::own().unwrap().0, AcqRel, Relaxed);
        }
        assert_eq!(page.outcome(1), Outcome::Open);
        let third = second(&page);
        assert_eq!(third.seat, other.seat);
        assert_eq!(page.outcome(open.0.number), Outcome::Lost);
        assert_eq!(
            Page::adopt(
                page.words.file().try_clone_to_owned().unwrap(),
                nonce_of(&page.words)
            )
            .err(),
            Some(Code::OUT_OF_MEMORY),
            "every seat is taken by the living"
        );
    }

    #[test]
    fn each_record_number_is_claimed_once() {
        let page = Arc::new(Page::new().unwrap());
        let take = |page: Arc<Page>| {
            move || {
                let told = (0..150).map(|_| {
                    let ticket = page.claim().unwrap();
                    ticket.tell();
                    ticket.0.number
                });
                told.collect::<Vec<_>>()
            }
        };
        let threads = [&page, &second(&page)].map(|page| std::thread::spawn(take(Arc::clone(page))));
        let mut all: Vec<u64> = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        all.sort_unstable();
        assert_eq!(all, (1..=300).collect::<Vec<_>>());
        assert_eq!(page.latest(), 300);
    }
}
