//! Walks of one thread's stack, each with what the last one found.
//!
//! How a caller's registers are found depends on an address of code and on words of the stack. A walk remembers for each frame which words
//! it has read. The next walk of that thread begins with the same registers, or soon comes to a frame where they are the same; as far
//! as the words from there on are as they were, so is the way. So a program that allocates in a loop has one or two words compared for
//! each frame, and only those unwound that are new.

use super::code::Code;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64};
use framehop::{FrameAddress, Unwinder};
use std::cell::RefCell;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

/// Frames that are remembered.
const MOST: usize = 256;
/// How often in a walk the rest is compared, so that a stack which differs at its outer end does not cost its length squared.
const TRIES: u32 = 3;
/// Walks until the next look whether code has come or gone.
const LOOK: u32 = 1 << 12;

thread_local! {
    static MINE: RefCell<Option<Box<Walker>>> = const { RefCell::new(None) };
}

/// A frame, and what was read to come to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Frame {
    /// Its return address, which was in the word below `sp`.
    ip: u64,
    sp: u64,
    bp: u64,
    /// Where `bp` was; 0 where it is that of the frame before.
    bp_at: u64,
}

struct Walker {
    code: Arc<Code>,
    rules: CacheX86_64,
    /// Of this thread, whole.
    stack: Range<u64>,
    /// Where the last walk began.
    start: Frame,
    /// What it came to, from the innermost.
    last: Vec<Frame>,
    /// Whether these go to the stack's end.
    ended: bool,
    fresh: Vec<Frame>,
    /// Where code is that one of the last frames was in.
    near: Range<u64>,
    until_look: u32,
}

/// The way is not known from here.
struct Lost;

/// Shows as many return addresses of the caller; false, and none, where that does not come through.
pub(super) fn walk(most: usize, visit: &mut impl FnMut(usize)) -> bool {
    let walked = MINE.try_with(|mine| {
        let Ok(mut mine) = mine.try_borrow_mut() else {
            // In a signal's handler that came in the middle of another walk.
            return false;
        };
        if mine.is_none() {
            *mine = Walker::new().map(Box::new);
        }
        let Some(walker) = mine.as_mut() else {
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

/// Where this function's caller is.
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

    /// Whether the words by which it was found are as they were.
    #[inline]
    fn holds(&self, live: &Range<u64>) -> bool {
        read(self.sp.wrapping_sub(8), live) == Some(self.ip)
            && (self.bp_at == 0 || read(self.bp_at, live) == Some(self.bp))
    }
}

impl Walker {
    fn new() -> Option<Self> {
        Some(Self {
            code: Code::current()?,
            rules: CacheX86_64::new(),
            stack: this_stack()?,
            start: Frame::default(),
            last: Vec::with_capacity(MOST),
            ended: false,
            fresh: Vec::with_capacity(MOST),
            near: 0..0,
            until_look: LOOK,
        })
    }

    /// Finds so many frames, or all up to the stack's end, into `last`.
    #[inline(never)]
    fn walk(&mut self, most: usize) -> Result<(), Lost> {
        let start = here();
        // Not so on a stack that the program has made for itself.
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

    /// Finds what comes after so many of the last frames.
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
                // The last walk was not asked for more.
                self.fresh.clear();
                self.fresh.append(&mut self.last);
                tries = 0;
                registers = self.fresh.last().ok_or(Lost)?.registers();
            }
        }
        self.keep_fresh(false)
    }

    /// Unwinds one frame. None at the stack's end.
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
        // The words this frame is found by: few, and of its registers only the frame's pointer leads on.
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

    /// Whether the last walk came to this frame, and all words that it read from there on are as they were.
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

    /// Puts the fresh frames in the place of the last walk's up to one.
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

    /// The next walk begins anew.
    fn forget(&mut self) {
        self.last.clear();
        self.ended = false;
    }
}

/// A word of this thread's stack.
#[inline]
fn read(at: u64, live: &Range<u64>) -> Option<u64> {
    if at < live.start || at > live.end - 8 || !at.is_multiple_of(8) {
        return None;
    }
    let word = std::ptr::with_exposed_provenance::<u64>(at as usize);
    // SAFETY: `live` is what this thread has on its stack, which is mapped, and nobody else's to write to but where a frame has
    // lent it. A word that changes meanwhile is read as it was or as it is.
    Some(unsafe { word.read_volatile() })
}

/// From the lowest address that this thread's stack can come to, to its beginning.
fn this_stack() -> Option<Range<u64>> {
    let mut attributes = mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: there is nothing to look out for.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: a thread that runs; it fills them in where it answers 0.
    if unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut lowest, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: filled in.
    let read = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut bytes) };
    // SAFETY: filled in, and not used again.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    let from = lowest.addr() as u64;
    (read == 0 && bytes >= 4096).then_some(from..from.checked_add(bytes as u64)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_is_found_again() {
        let mut walker = super::super::code::patient(Walker::new);
        let mut found = Vec::new();
        for turn in 0..4 {
            assert!(walker.walk(MOST).is_ok());
            assert!(walker.ended && walker.last.len() > 3);
            // All but this function's own place, which is another one in each turn of a loop that was unrolled.
            found.push(walker.last[1..].to_vec());
            if turn % 2 == 1 {
                walker.forget();
            }
        }
        assert!(found.iter().all(|frames| *frames == found[0]));
    }
}
