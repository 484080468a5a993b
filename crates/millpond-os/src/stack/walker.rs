//! Walks the stack of one thread, using the result of the previous walk.
//!
//! The registers of a caller depend on a code address and on words of the stack. A walk remembers for each frame which
//! words it has read. The next walk of the thread begins with the same registers, or soon reaches a frame with the same
//! registers. If the words from there on are unchanged, the remaining frames are unchanged too. So in a program that
//! allocates in a loop, one or two words per frame are compared, and only new frames are unwound.

use super::code::Code;
use crate::facts::task;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64};
use framehop::{FrameAddress, Unwinder};
use rustix::process::{Resource, getrlimit};
use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::mem;
use std::ops::Range;
use std::sync::Arc;

/// The maximum number of remembered frames.
const MOST: usize = 256;
/// The maximum number of comparisons of the remaining frames in a walk, so that a stack that differs at its outer end
/// does not cost the square of its length.
const TRIES: u32 = 3;
/// The number of walks between two checks for loaded or unloaded code.
const LOOK: u32 = 1 << 12;

/// The bytes that must be free on the thread's stack. A new walker takes most of them, because the tables of its unwinder are made
/// there. With less room no frames are visited, because the program would end if its stack overflowed.
const ROOM: u64 = 48 << 10;

thread_local! {
    static MINE: RefCell<Mine> = const { RefCell::new(Mine::Unknown) };
}

/// What is known of this thread.
enum Mine {
    Unknown,
    /// The whole stack of this thread.
    Stack(Range<u64>),
    Walker(Box<Walker>),
}

/// A frame, and the words from which it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Frame {
    /// The return address, which was in the word below `sp`.
    ip: u64,
    sp: u64,
    bp: u64,
    /// The address of the saved `bp`, or 0 if it equals that of the previous frame.
    bp_at: u64,
}

struct Walker {
    code: Arc<Code>,
    rules: CacheX86_64,
    /// The whole stack of this thread.
    stack: Range<u64>,
    /// The start of the previous walk.
    start: Frame,
    /// The frames of the previous walk, from the innermost.
    last: Vec<Frame>,
    /// True if the frames reach the end of the stack.
    ended: bool,
    fresh: Vec<Frame>,
    /// The range of the code of one of the last frames.
    near: Range<u64>,
    until_look: u32,
}

/// The error of a frame that cannot be unwound.
struct Lost;

/// Visits at most `most` return addresses of the caller, or none if the thread's stack is nearly full. On failure visits none and
/// returns false.
pub(crate) fn walk(most: usize, visit: &mut impl FnMut(usize)) -> bool {
    let walked = MINE.try_with(|mine| {
        let Ok(mut mine) = mine.try_borrow_mut() else {
            // This is a signal handler that interrupted another walk.
            return false;
        };
        if matches!(*mine, Mine::Unknown)
            && let Some(stack) = this_stack()
        {
            *mine = Mine::Stack(stack);
        }
        let stack = match &*mine {
            Mine::Unknown => return false,
            Mine::Stack(stack) => stack.clone(),
            Mine::Walker(walker) => walker.stack.clone(),
        };
        let sp = here().sp;
        if stack.contains(&sp) && sp - stack.start < ROOM {
            return true;
        }
        if let Mine::Stack(stack) = &*mine {
            let Some(walker) = Walker::new(stack.clone()) else {
                return false;
            };
            *mine = Mine::Walker(Box::new(walker));
        }
        let Mine::Walker(walker) = &mut *mine else {
            return false;
        };
        if walker.walk(most.min(MOST)).is_err() {
            walker.forget();
            return false;
        }
        for frame in walker.last.iter().take(most) {
            visit(frame.ip as usize);
        }
        true
    });
    walked.unwrap_or(false)
}

/// Returns the registers at this place.
#[inline(always)]
fn here() -> Frame {
    let (ip, sp, bp): (u64, u64, u64);
    // SAFETY: reads three registers.
    unsafe {
        std::arch::asm!(
            "lea {ip}, [rip]", "mov {sp}, rsp", "mov {bp}, rbp",
            ip = out(reg) ip, sp = out(reg) sp, bp = out(reg) bp,
            options(nomem, nostack, preserves_flags),
        );
    }
    Frame { ip, sp, bp, bp_at: 0 }
}

impl Frame {
    fn registers(&self) -> UnwindRegsX86_64 {
        UnwindRegsX86_64::new(self.ip, self.sp, self.bp)
    }

    /// Returns true if the words from which the frame was found are unchanged.
    #[inline]
    fn holds(&self, live: &Range<u64>) -> bool {
        read(self.sp.wrapping_sub(8), live) == Some(self.ip)
            && (self.bp_at == 0 || read(self.bp_at, live) == Some(self.bp))
    }
}

impl Walker {
    fn new(stack: Range<u64>) -> Option<Self> {
        Some(Self {
            code: Code::current()?,
            rules: CacheX86_64::new(),
            stack,
            start: Frame::default(),
            last: Vec::with_capacity(MOST),
            ended: false,
            fresh: Vec::with_capacity(MOST),
            near: 0..0,
            until_look: LOOK,
        })
    }

    /// Finds the given number of frames, or all up to the end of the stack, and stores them in `last`.
    #[inline(never)]
    fn walk(&mut self, most: usize) -> Result<(), Lost> {
        let start = here();
        // This fails on a stack that the program has made itself.
        if !self.stack.contains(&start.sp) {
            return Err(Lost);
        }
        self.until_look = match self.until_look.checked_sub(1) {
            Some(left) => left,
            None => self.look()?,
        };
        let live = start.sp..self.stack.end;
        let begins_as_before = start == self.start;
        self.start = start;
        let mut held = 0;
        if begins_as_before {
            held = self.last.iter().take_while(|frame| frame.holds(&live)).count();
            if held >= most || (self.ended && held == self.last.len()) {
                return Ok(());
            }
        }
        self.unwind_after(held, most, &live)
    }

    /// Finds the frames that follow the first `held` of the last ones.
    fn unwind_after(&mut self, held: usize, most: usize, live: &Range<u64>) -> Result<(), Lost> {
        self.fresh.clear();
        self.fresh.extend_from_slice(self.last.get(..held).ok_or(Lost)?);
        let (mut met, mut tries) = (held, TRIES);
        let mut registers = self.fresh.last().unwrap_or(&self.start).registers();
        while self.fresh.len() < most {
            let address = match self.fresh.last() {
                Some(frame) => FrameAddress::from_return_address(frame.ip).ok_or(Lost)?,
                None => FrameAddress::from_instruction_pointer(self.start.ip),
            };
            let Some(frame) = self.step(address, &mut registers, live)? else {
                return self.keep_fresh(true);
            };
            self.fresh.push(frame);
            while self.last.get(met).is_some_and(|last| last.sp < frame.sp) {
                met += 1;
            }
            if tries > 0 && self.goes_on_as_before(&frame, met, live, &mut tries) {
                self.join(met);
                if self.ended || self.last.len() >= most {
                    return Ok(());
                }
                // The previous walk did not request more frames.
                self.fresh.clear();
                self.fresh.append(&mut self.last);
                tries = 0;
                registers = self.fresh.last().ok_or(Lost)?.registers();
            }
        }
        self.keep_fresh(false)
    }

    /// Unwinds one frame. Returns `None` at the end of the stack.
    fn step(
        &mut self,
        address: FrameAddress,
        registers: &mut UnwindRegsX86_64,
        live: &Range<u64>,
    ) -> Result<Option<Frame>, Lost> {
        let at = address.address_for_lookup();
        if !self.near.contains(&at) {
            self.near = self.code.range_of(at).ok_or(Lost)?;
        }
        let before = registers.bp();
        // The words from which this frame is found. They are few, and of its registers only the frame pointer is needed
        // further.
        let mut reads = [(0, 0); 8];
        let mut count = 0;
        let mut read_word = |at: u64| {
            let word = read(at, live).ok_or(())?;
            if let Some(place) = reads.get_mut(count) {
                *place = (at, word);
            }
            count += 1;
            Ok(word)
        };
        let unwinder = &self.code.unwinder;
        let found = unwinder.unwind_frame(address, registers, &mut self.rules, &mut read_word);
        let Some(ip) = found.map_err(|_| Lost)? else {
            return Ok(None);
        };
        let bp = registers.bp();
        let bp_at = match reads.iter().take(count).find(|(_, word)| *word == bp) {
            Some((at, _)) => *at,
            None if bp == before => 0,
            None => return Err(Lost),
        };
        let sp = registers.sp();
        Ok(Some(Frame { ip, sp, bp, bp_at }))
    }

    /// Returns true if the previous walk reached this frame, and all words that it read from there on are unchanged.
    fn goes_on_as_before(&self, frame: &Frame, met: usize, live: &Range<u64>, tries: &mut u32) -> bool {
        let Some((same, rest)) = self.last.get(met..).and_then(<[Frame]>::split_first) else {
            return false;
        };
        if (same.ip, same.sp, same.bp) != (frame.ip, frame.sp, frame.bp) {
            return false;
        }
        *tries -= 1;
        rest.iter().all(|frame| frame.holds(live))
    }

    /// Replaces the frames of the previous walk up to index `met` by the fresh ones.
    fn join(&mut self, met: usize) {
        match self.last.get_mut(..=met) {
            Some(inner) if inner.len() == self.fresh.len() => inner.copy_from_slice(&self.fresh),
            _ => drop(self.last.splice(..=met, self.fresh.drain(..))),
        }
    }

    fn keep_fresh(&mut self, ended: bool) -> Result<(), Lost> {
        mem::swap(&mut self.last, &mut self.fresh);
        self.ended = ended;
        Ok(())
    }

    #[cold]
    fn look(&mut self) -> Result<u32, Lost> {
        if self.code.is_old() {
            self.code = Code::current().ok_or(Lost)?;
            self.near = 0..0;
            self.forget();
        }
        Ok(LOOK)
    }

    /// Makes the next walk start from nothing.
    fn forget(&mut self) {
        self.last.clear();
        self.ended = false;
    }
}

/// Reads a word of this thread's stack.
#[inline]
fn read(at: u64, live: &Range<u64>) -> Option<u64> {
    if at < live.start || at > live.end - 8 || !at.is_multiple_of(8) {
        return None;
    }
    let word = std::ptr::with_exposed_provenance::<u64>(at as usize);
    // SAFETY: `live` is the used part of this thread's stack, which is mapped. Another thread writes to it only if a frame has
    // lent it a part. If a word changes meanwhile, the old or the new value is read.
    Some(unsafe { word.read_volatile() })
}

/// Returns the range from the lowest address that this thread's stack can reach to the end of its outermost frame.
///
/// `pthread_getattr_np` cannot be used: it allocates while it holds a lock of the thread, so a program that calls it would wait
/// here for itself. The ranges are those of the system's list of mappings. The main thread's stack has a name there. The
/// stack of any other thread contains the C library's data of the thread, which is above all frames.
fn this_stack() -> Option<Range<u64>> {
    let data: u64;
    // SAFETY: the ABI requires that the first word of a thread's data contains its own address.
    unsafe {
        std::arch::asm!("mov {data}, fs:0", data = out(reg) data, options(nostack, readonly, preserves_flags));
    }
    let sp = here().sp;
    let maps = BufReader::new(File::open("/proc/self/maps").ok()?);
    let mut below = 0;
    let mut main = None;
    for line in maps.split(b'\n') {
        // The path of a file can contain any bytes.
        let line = line.ok()?;
        let line = String::from_utf8_lossy(&line);
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (
            u64::from_str_radix(start, 16).ok()?,
            u64::from_str_radix(end, 16).ok()?,
        );
        let is_main = fields.next_back() == Some("[stack]");
        if (start..end).contains(&data) {
            // A program that was forked from another thread has that thread's stack as its main stack.
            if task() != std::process::id() || (start..data).contains(&sp) {
                return Some(start..data);
            }
        } else if is_main {
            // The stack grows down to its limit, or to the mapping below it.
            let limit = getrlimit(Resource::Stack).current.unwrap_or(u64::MAX);
            main = Some(end.saturating_sub(limit).max(below)..end);
        }
        below = end;
    }
    main
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_of_each_thread_contains_its_frames() {
        let check = || {
            let here = here().sp;
            let stack = this_stack().expect("the list of mappings");
            assert!(stack.contains(&here), "{here:#x} in {stack:x?}");
            stack
        };
        let this = check();
        let other = std::thread::spawn(check).join().expect("no panic");
        assert!(
            this.end <= other.start || other.end <= this.start,
            "{this:x?}, {other:x?}"
        );
    }

    #[test]
    fn a_walk_finds_the_same_frames_after_its_cache_is_cleared() {
        let mut walker = super::super::code::patient(|| Walker::new(this_stack()?));
        let mut found = Vec::new();
        for turn in 0..4 {
            assert!(walker.walk(MOST).is_ok());
            assert!(walker.ended && walker.last.len() > 3);
            // The first frame is omitted, because the function's own place differs in each iteration of an unrolled
            // loop.
            found.push(walker.last[1..].to_vec());
            if turn % 2 == 1 {
                walker.forget();
            }
        }
        assert!(found.iter().all(|frames| *frames == found[0]));
    }
}
