//! Tests of the queries and the errors of storages.

use super::*;
use crate::pool::Pool;
use crate::unpooled::Unpooled;
use crate::unpooled::fake;

/// Checks the queries of a storage for every type.
fn six(make: impl Fn(DType, usize) -> Storage, pool: Option<u64>) {
    for dtype in DType::all() {
        for elements in [0, 1, 7, 1000] {
            let mut storage = make(dtype, elements);
            assert!(storage.pointer().addr().get().is_multiple_of(64));
            assert_eq!(storage.bytes(), elements * dtype.size());
            assert_eq!((storage.elements(), storage.dtype()), (elements, dtype));
            assert_eq!(storage.device(), Device::Host);
            assert_eq!(storage.pool().map(PoolRef::id), pool);
            assert!(storage.as_bytes().iter().all(|byte| *byte == 0));
            storage.as_mut_bytes().fill(1);
            assert_eq!(
                storage.as_bools().map(<[bool]>::len),
                (dtype == DType::Bool).then_some(elements)
            );
            let clone = storage.try_clone().expect("room");
            storage.free();
            assert!(clone.dtype() == dtype && clone.as_bytes().iter().all(|byte| *byte == 1));
        }
    }
}

#[test]
fn storage_queries_work_over_a_fake_source() {
    let source = fake::unpooled();
    six(
        |dtype, elements| source.storage(dtype, elements).expect("room"),
        None,
    );
    assert_eq!(source.held_bytes(), 0);
}

#[test]
#[cfg_attr(miri, ignore)]
fn storage_queries_work_over_a_pool() {
    let pool = Pool::host().expect("a pool");
    six(
        |dtype, elements| pool.storage(dtype, elements).expect("room"),
        Some(pool.id()),
    );
    assert_eq!(pool.stats().requested.current, 0);
}

#[test]
#[cfg_attr(miri, ignore)]
fn storage_queries_work_over_an_unpooled_source() {
    let source = Unpooled::host().expect("a source");
    six(
        |dtype, elements| source.storage(dtype, elements).expect("room"),
        None,
    );
    assert_eq!(source.held_bytes(), 0);
}

fn only_as<T: Element>(storage: &mut Storage) -> usize {
    let same = storage.dtype() == T::DTYPE;
    let error = DTypeError {
        expected: T::DTYPE,
        found: storage.dtype(),
    };
    assert_eq!(storage.as_slice::<T>().err(), (!same).then_some(error));
    assert_eq!(
        storage.as_mut_slice::<T>().map(|slice| slice.len()).ok(),
        same.then_some(storage.elements())
    );
    usize::from(same)
}

#[test]
fn elements_are_accessible_only_as_their_own_type() {
    let source = fake::unpooled();
    for dtype in DType::all() {
        let mut storage = source.storage(dtype, 3).expect("room");
        let mut seen = only_as::<f64>(&mut storage) + only_as::<f32>(&mut storage);
        seen += only_as::<i8>(&mut storage) + only_as::<i16>(&mut storage);
        seen += only_as::<i32>(&mut storage) + only_as::<i64>(&mut storage);
        seen += only_as::<u8>(&mut storage) + only_as::<u16>(&mut storage);
        seen += only_as::<u32>(&mut storage) + only_as::<u64>(&mut storage);
        seen += only_as::<[f32; 2]>(&mut storage) + only_as::<[f64; 2]>(&mut storage);
        #[cfg(feature = "half")]
        {
            seen += only_as::<half::f16>(&mut storage) + only_as::<half::bf16>(&mut storage);
        }
        let halves = [DType::F16, DType::BF16].contains(&dtype) && !cfg!(feature = "half");
        assert_eq!(seen, usize::from(dtype != DType::Bool && !halves), "{dtype}");
    }
}

#[test]
fn buffers_and_storages_convert_without_a_copy() {
    let source = fake::unpooled();
    let buffer = source.alloc_from(&[1.5f64, -2.0]).expect("room");
    let place = buffer.as_ptr().addr();
    let storage = Storage::from(buffer);
    assert_eq!((storage.pointer().addr().get(), storage.elements()), (place, 2));
    let storage = storage.try_into_buffer::<i64>().expect_err("they are f64");
    let buffer = storage.try_into_buffer::<f64>().expect("they are f64");
    assert_eq!((buffer.as_ptr().addr(), &buffer[..]), (place, &[1.5, -2.0][..]));
}

#[test]
fn a_byte_that_is_neither_0_nor_1_is_not_a_bool() {
    let source = fake::unpooled();
    let mut storage = source.storage(DType::Bool, 3).expect("room");
    storage.as_mut_bytes()[1] = 1;
    assert_eq!(storage.as_bools(), Some(&[false, true, false][..]));
    storage.as_mut_bytes()[2] = 2;
    assert_eq!(storage.as_bools(), None);
}

#[test]
fn too_many_elements_are_refused() {
    let source = fake::unpooled();
    for elements in [usize::MAX, usize::MAX / 8, isize::MAX as usize / 4] {
        let refused = source.storage(DType::F64, elements);
        assert!(matches!(refused, Err(AllocError::TooLarge { .. })));
    }
}
