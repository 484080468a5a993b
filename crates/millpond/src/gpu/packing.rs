//! Words without their zeros: what is sent to a device where much of it is zero, and a kernel puts back (`kernels/expand.cu`).
//!
//! Groups of 1,024 words of four bytes. First there is for each group where its words begin among all that are kept, then for each
//! 32 bits of four bytes that say which of its words are kept, then the words. So each word's place is found from a few bits that lie
//! beside it, by any number of threads at once, and nothing is ever lost: what is not zero is kept as it is.

mod group;
mod speed;
#[cfg(feature = "rayon")]
mod threads;

use group::pack_group;
pub(super) use speed::{HostSpeed, Speeds};

/// Words and bytes of a group.
const WORDS: usize = 1024;
pub(super) const GROUP: usize = 4 * WORDS;
/// Bytes that come with a group whatever it holds.
const HEAD: usize = 4 + WORDS / 8;
/// Groups that are looked at to tell whether it pays.
const SAMPLE: usize = 64;

/// Bytes that were packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) groups: usize,
    /// Words that are kept.
    pub(super) kept: usize,
}

impl Packed {
    pub(super) fn bytes(self) -> usize {
        self.groups * HEAD + 4 * self.kept
    }
}

/// The most bytes that so many bytes of whole groups may come to and still be worth it.
pub(super) fn worth(bytes: usize) -> usize {
    bytes / 8 * 7
}

/// What bytes would come to, as a share of what they are, by a few groups that lie evenly spread; none where there is no whole group.
pub(super) fn share(bytes: &[u8]) -> Option<f64> {
    let groups = bytes.len() / GROUP;
    if groups == 0 {
        return None;
    }
    let looked = groups.min(SAMPLE);
    let sizes = (0..looked).map(|number| {
        // The middle of each part of equal size, so that neither end counts for more.
        let group = (2 * number + 1) * groups / (2 * looked);
        let words = bytes[group * GROUP..][..GROUP].as_chunks::<4>().0;
        HEAD + 4 * words.iter().filter(|word| **word != [0; 4]).count()
    });
    Some(sizes.sum::<usize>() as f64 / (looked * GROUP) as f64)
}

/// Bytes that [`share`] looks at.
pub(super) fn sampled(bytes: usize) -> usize {
    (bytes / GROUP).min(SAMPLE) * GROUP
}

/// Packs whole groups into `to`; none where they come to more than is [worth] it, which is known as soon as it is so. Large ones are
/// packed by as many threads as operations on tensors take.
pub(super) fn pack(from: &[u8], to: &mut [u8]) -> Option<Packed> {
    let groups = from.len() / GROUP;
    let room = Room::new(to.get_mut(..worth(from.len()))?, groups)?;
    #[cfg(feature = "rayon")]
    if from.len() >= threads::LEAST && crate::threads() > 1 {
        let kept = threads::pack(from, room, crate::threads())?;
        return Some(Packed { groups, kept });
    }
    let kept = room.pack(from, 0)?;
    Some(Packed { groups, kept })
}

/// Where groups go.
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

    /// Packs groups, before which so many words are kept; answers how many are kept of these, or none where there is no room.
    fn pack(self, from: &[u8], before: usize) -> Option<usize> {
        let mut kept = 0;
        let parts = from.chunks_exact(GROUP).zip(self.starts);
        for ((group, start), map) in parts.zip(self.maps.chunks_exact_mut(WORDS / 8)) {
            *start = u32::try_from(before + kept).ok()?.to_ne_bytes();
            // A group is written as if all of it were kept: each word where the next one goes that is not zero.
            let room = self.words.get_mut(kept..)?;
            kept += match room.first_chunk_mut::<WORDS>() {
                Some(room) => pack_group(group, map, room),
                // The last ones, for which there may not be as much room.
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

    /// As the kernel does it.
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

    /// Words of which one in so many is not zero, as `pick` says by their number.
    fn words(groups: usize, pick: impl Fn(usize) -> bool) -> Vec<u8> {
        let word = |at: usize| if pick(at) { (at as u32) << 3 | 1 } else { 0 };
        (0..groups * WORDS)
            .flat_map(|at| word(at).to_ne_bytes())
            .collect()
    }

    #[test]
    fn what_is_packed_comes_back() {
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
    fn what_does_not_pay_is_refused() {
        let full = words(9, |_| true);
        let mut to = vec![0; full.len()];
        assert!(share(&full).is_some_and(|share| share > 1.0) && pack(&full, &mut to).is_none());
        // The sample sees what lies everywhere, and not what lies in one place; packing itself finds out.
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
