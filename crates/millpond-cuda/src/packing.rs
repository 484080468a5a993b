//! Data without its zero words, which is sent to a device and expanded by a kernel (`kernels/expand.cu`).
//!
//! The data consists of groups of 1,024 words of four bytes. The packed form first has, for each group, the index of its first word among
//! all words that are kept. Then come, for each 32 words, four bytes with one bit for each word that is kept, and then the kept words. Any
//! number of threads can therefore find the place of a word from a few neighbouring bits. Nothing is lost: words that are not zero are kept
//! unchanged.

mod group;
mod speed;

use group::pack_group;
pub(super) use speed::{HostSpeed, Speeds};

/// The words and the bytes of a group.
const WORDS: usize = 1024;
pub(super) const GROUP: usize = 4 * WORDS;
/// The bytes of the header of a group, whatever it contains.
const HEAD: usize = 4 + WORDS / 8;
/// The number of groups in a sample.
const SAMPLE: usize = 64;

/// The size of packed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) groups: usize,
    /// The number of words that are kept.
    pub(super) kept: usize,
}

impl Packed {
    pub(super) fn bytes(self) -> usize {
        self.groups * HEAD + 4 * self.kept
    }
}

/// Returns the most bytes that data of whole groups may be packed to for packing to be worth it.
pub(super) fn worth(bytes: usize) -> usize {
    bytes / 8 * 7
}

/// Estimates the packed size as a share of the original size, from a few groups at equal distances. Returns `None` if there is no whole
/// group.
pub(super) fn share(bytes: &[u8]) -> Option<f64> {
    let groups = bytes.len() / GROUP;
    if groups == 0 {
        return None;
    }
    let looked = groups.min(SAMPLE);
    let sizes = (0..looked).map(|number| {
        // This is the middle of each part of equal size, so that neither end has more weight.
        let group = (2 * number + 1) * groups / (2 * looked);
        let words = bytes[group * GROUP..][..GROUP].as_chunks::<4>().0;
        HEAD + 4 * words.iter().filter(|word| **word != [0; 4]).count()
    });
    Some(sizes.sum::<usize>() as f64 / (looked * GROUP) as f64)
}

/// Returns the bytes that [`share`] reads.
pub(super) fn sampled(bytes: usize) -> usize {
    (bytes / GROUP).min(SAMPLE) * GROUP
}

/// Packs whole groups into `to`. Returns `None` as soon as they take more than is [worth] it.
pub(super) fn pack(from: &[u8], to: &mut [u8]) -> Option<Packed> {
    let groups = from.len() / GROUP;
    let room = Room::new(to.get_mut(..worth(from.len()))?, groups)?;
    let kept = room.pack(from)?;
    Some(Packed { groups, kept })
}

/// The destination of groups.
struct Room<'a> {
    starts: &'a mut [[u8; 4]],
    maps: &'a mut [u8],
    words: &'a mut [[u8; 4]],
}

impl<'a> Room<'a> {
    fn new(to: &'a mut [u8], groups: usize) -> Option<Self> {
        let (starts, rest) = to.split_at_mut_checked(4 * groups)?;
        let (maps, words) = rest.split_at_mut_checked(WORDS / 8 * groups)?;
        Some(Self {
            starts: starts.as_chunks_mut::<4>().0,
            maps,
            words: words.as_chunks_mut::<4>().0,
        })
    }

    /// Returns how many words are kept, or `None` if there is not enough room.
    fn pack(self, from: &[u8]) -> Option<usize> {
        let mut kept = 0;
        let parts = from.chunks_exact(GROUP).zip(self.starts);
        for ((group, start), map) in parts.zip(self.maps.chunks_exact_mut(WORDS / 8)) {
            *start = u32::try_from(kept).ok()?.to_ne_bytes();
            // A group is written as if all of it were kept: each word goes to the place after the last word that is not zero.
            let room = self.words.get_mut(kept..)?;
            kept += match room.first_chunk_mut::<WORDS>() {
                Some(room) => pack_group(group, map, room),
                // These are the last words, for which there may be less room than a whole group.
                None => {
                    let mut apart = [[0; 4]; WORDS];
                    let more = pack_group(group, map, &mut apart);
                    room.get_mut(..more)?.copy_from_slice(&apart[..more]);
                    more
                }
            };
        }
        Some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expands the data like the kernel.
    fn expand(from: &[u8], packed: Packed) -> Vec<u8> {
        let word = |at: usize| u32::from_ne_bytes(*from.as_chunks::<4>().0.get(at).expect("inside"));
        let words = packed.groups * (1 + WORDS / 32);
        let mut to = Vec::new();
        for number in 0..packed.groups * WORDS {
            let (group, at) = (number / WORDS, number % WORDS);
            let map = |part: usize| word(packed.groups + group * (WORDS / 32) + part);
            let before: u32 = (0..at / 32).map(|part| map(part).count_ones()).sum();
            let bits = map(at / 32);
            let place = word(group) + before + (bits & ((1 << (at % 32)) - 1)).count_ones();
            let value = if bits >> (at % 32) & 1 == 1 {
                word(words + place as usize)
            } else {
                0
            };
            to.extend(value.to_ne_bytes());
        }
        to
    }

    /// Returns words of which those selected by `pick` are not zero.
    fn words(groups: usize, pick: impl Fn(usize) -> bool) -> Vec<u8> {
        let word = |at: usize| if pick(at) { (at as u32) << 3 | 1 } else { 0 };
        (0..groups * WORDS)
            .flat_map(|at| word(at).to_ne_bytes())
            .collect()
    }

    #[test]
    fn packed_elements_are_unpacked_unchanged() {
        let mixed = |at: usize| at.wrapping_mul(2_654_435_761) >> 7 & 1 == 1;
        let cases: [(&str, Vec<u8>); 6] = [
            ("zeros", words(3, |_| false)),
            ("half", words(5, mixed)),
            ("runs", words(4, |at| at / 1500 % 2 == 0)),
            ("one", words(2, |at| at == 2047)),
            ("the first group whole", words(8, |at| at < WORDS)),
            ("the last group whole", words(8, |at| at >= 7 * WORDS)),
        ];
        for (name, from) in cases {
            assert!(share(&from).is_some_and(|share| share < 7.0 / 8.0), "{name}");
            let mut to = vec![0xEE; from.len()];
            let packed = pack(&from, &mut to).expect(name);
            assert!(packed.bytes() <= worth(from.len()), "{name}");
            assert_eq!(expand(&to[..packed.bytes()], packed), from, "{name}");
        }
    }

    #[test]
    fn elements_that_do_not_shrink_are_refused() {
        let full = words(9, |_| true);
        let mut to = vec![0; full.len()];
        assert!(share(&full).is_some_and(|share| share > 1.0) && pack(&full, &mut to).is_none());
        // The sample misses zeros that are unevenly spread. Packing itself detects that it is not worth it.
        let late = words(1000, |at| at % (WORDS * 15) >= WORDS);
        let seen = share(&late).is_some_and(|share| share < 7.0 / 8.0);
        assert!(pack(&late, &mut vec![0; late.len()]).is_none() || seen);
        assert_eq!(share(&[0; 100]), None, "there is no whole group");
        assert!(pack(&full, &mut []).is_none());
        assert_eq!(
            (sampled(100), sampled(10 * GROUP), sampled(GROUP << 10)),
            (0, 10 * GROUP, SAMPLE * GROUP)
        );
    }
}
