//! Packs and unpacks any data, and unpacks damaged data.

use millpond_codec::{BLOCK, CodecError, Scheme, Values, bound, pack, sample, unpack, unpacked_len};
use proptest::prelude::*;

/// Returns `len` bytes of data with values of `width` bytes. `kind` selects the distribution of the values.
fn data(kind: u8, width: usize, len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 20
    };
    let mut value = |at: u64| match kind {
        0 => seed,
        1 => next(),
        2 => next() % 16,
        3 => (next() % 11).wrapping_sub(5),
        4 if next() % 20 > 0 => 0,
        4 => next() | 1,
        5 => at.wrapping_mul(3).wrapping_add(seed),
        6 => 0x3F80_0000 + (next() % (1 << 24)),
        // The kind changes in the middle of a block.
        7 if at % 3000 < 1700 => 0,
        7 => next() % (1 << (at / 1000 % 32)),
        // Almost all values are equal.
        _ if next() % 100 > 0 => 77,
        _ => next(),
    };
    let values = (0..).flat_map(|at| {
        value(at)
            .to_le_bytes()
            .into_iter()
            .take(width)
            .collect::<Vec<_>>()
    });
    values.take(len).collect()
}

fn packed(from: &[u8], scheme: Scheme) -> Vec<u8> {
    let mut to = vec![0xEE; bound(from.len())];
    let bytes = pack(from, &mut to, scheme).expect("there is room");
    to.truncate(bytes);
    to
}

/// Unpacks data of this length.
fn unpacked(packed: &[u8], len: usize) -> Result<Vec<u8>, CodecError> {
    let mut to = vec![0xDD; len];
    unpack(packed, &mut to).map(|()| to)
}

fn schemes() -> impl Strategy<Value = Scheme> {
    prop::sample::select(Scheme::all().collect::<Vec<_>>())
}

prop_compose! {
    fn any_data()(
        kind in 0_u8..9,
        width in prop::sample::select(vec![1_usize, 2, 4, 8]),
        len in prop_oneof![0..100_usize, 0..3 * BLOCK],
        seed in any::<u64>(),
    ) -> Vec<u8> {
        data(kind, width, len, seed)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_data_is_unpacked_unchanged(from in any_data(), scheme in schemes()) {
        let packed = packed(&from, scheme);
        prop_assert!(packed.len() <= bound(from.len()));
        prop_assert_eq!(unpacked_len(&packed), Ok(from.len() as u64));
        prop_assert!(unpacked(&packed, from.len()) == Ok(from));
    }

    #[test]
    fn any_bytes_are_unpacked_unchanged(from in prop::collection::vec(any::<u8>(), 0..500), scheme in schemes()) {
        prop_assert!(unpacked(&packed(&from, scheme), from.len()) == Ok(from));
    }

    /// The result is an error or other data, and nothing panics.
    #[test]
    fn damaged_data_causes_no_panic(
        from in any_data(),
        scheme in schemes(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut packed = packed(&from, scheme);
        for (at, byte) in changes {
            let at = at.index(packed.len());
            packed[at] = byte;
        }
        let _ = unpacked(&packed, from.len());
    }

    #[test]
    fn data_that_is_cut_short_is_refused(from in any_data(), scheme in schemes(), cut in any::<prop::sample::Index>()) {
        prop_assume!(!from.is_empty());
        let packed = packed(&from, scheme);
        let cut = cut.index(packed.len());
        prop_assert!(unpacked(&packed[..cut], from.len()).is_err());
    }

    #[test]
    fn packing_fails_if_the_target_is_too_small(from in any_data(), scheme in schemes()) {
        let packed = packed(&from, scheme);
        prop_assert_eq!(pack(&from, &mut vec![0; packed.len()], scheme), Some(packed.len()));
        prop_assert_eq!(pack(&from, &mut vec![0; packed.len() - 1], scheme), None);
    }
}

/// For each kind of data, a scheme achieves the expected compression.
#[test]
fn each_kind_of_data_is_compressed() {
    let share = |kind, width| {
        let from = data(kind, width, 100 * BLOCK, 0x1234_5678_9ABC_DEF1);
        let values = if kind == 6 {
            Values::Floats(width)
        } else {
            Values::Integers(width)
        };
        let sample = sample(&from, values).expect("there are blocks");
        let packed = packed(&from, sample.scheme);
        assert!(unpacked(&packed, from.len()) == Ok(from.clone()));
        let share = packed.len() as f64 / from.len() as f64;
        assert!(
            (sample.share - share).abs() < 0.05,
            "{kind} {width}: {} {share}",
            sample.share
        );
        share
    };
    for width in [1, 2, 4, 8] {
        let bits = 8.0 * width as f64;
        let is_near = |kind, expected: f64| {
            let share = share(kind, width);
            assert!(share < expected / bits + 0.02, "{kind} {width}: {share}");
        };
        is_near(0, 0.0);
        is_near(1, bits);
        is_near(2, 4.0);
        is_near(3, 4.0);
        is_near(4, 1.0 + bits / 20.0);
        is_near(5, if width == 1 { 0.1 } else { 0.0 });
    }
    assert!(share(6, 4) < 0.85);
    // The width of the values is found.
    let bytes = data(5, 8, 100 * BLOCK, 7);
    let found = sample(&bytes, Values::Bytes).expect("there are blocks");
    assert!(found.share < 0.02, "{found:?}");
    assert!(sample(&[0; BLOCK - 1], Values::Bytes).is_none());
}

#[test]
fn errors_say_what_is_wrong() {
    let from = data(2, 4, 3 * BLOCK, 1);
    let scheme = sample(&from, Values::Integers(4))
        .expect("there are blocks")
        .scheme;
    let packed = packed(&from, scheme);
    let damaged = |at: usize, byte| {
        let mut packed = packed.clone();
        packed[at] = byte;
        unpacked(&packed, from.len()).expect_err("it is damaged")
    };
    assert_eq!(unpacked(&packed[..10], from.len()), Err(CodecError::Header));
    assert_eq!(damaged(0, b'X'), CodecError::Header);
    assert_eq!(damaged(4, 3), CodecError::Header);
    assert_eq!(damaged(5, 9), CodecError::Header);
    assert_eq!(damaged(6, 1), CodecError::Header);
    assert_eq!(
        unpacked(&packed, 7),
        Err(CodecError::Length {
            expected: from.len() as u64,
            found: 7
        })
    );
    assert_eq!(
        unpacked(&packed[..packed.len() - 1], from.len()),
        Err(CodecError::Truncated {
            found: packed.len() - 1
        })
    );
    // The kind of the first block, after the header and three ends.
    assert_eq!(damaged(16 + 12 + 2, 9), CodecError::Block { block: 0 });
    // A header with an impossible length is refused.
    let mut huge = packed.clone();
    huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(unpacked_len(&huge), Err(CodecError::Header));
}
