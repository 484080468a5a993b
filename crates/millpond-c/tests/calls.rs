//! The codes, texts and effects of single calls.

use millpond_c::millpond_status::*;
use millpond_c::*;
use std::ffi::{CStr, CString, c_void};
use std::ptr;

fn last_error() -> String {
    // SAFETY: the text is valid until the next error of this thread.
    unsafe { CStr::from_ptr(millpond_last_error()) }
        .to_string_lossy()
        .into_owned()
}

fn options() -> millpond_pool_options {
    millpond_pool_options {
        size: size_of::<millpond_pool_options>(),
        name: ptr::null(),
        settings: ptr::null(),
        limit: 0,
        budget: ptr::null_mut(),
        memory: 0,
        reserved: 0,
    }
}

fn create(options: &millpond_pool_options) -> (millpond_status, *mut millpond_pool) {
    let mut pool = ptr::null_mut();
    // SAFETY: both are locals.
    let status = unsafe { millpond_pool_create(options, &raw mut pool) };
    (status, pool)
}

fn alloc(pool: *mut millpond_pool, bytes: usize) -> (millpond_status, *mut c_void) {
    let mut block = ptr::null_mut();
    // SAFETY: the result is a local.
    let status = unsafe { millpond_alloc(pool, bytes, 0, 0, &raw mut block) };
    (status, block)
}

fn free(pool: *mut millpond_pool, block: *mut c_void) -> millpond_status {
    // SAFETY: the tests do not use what they free.
    unsafe { millpond_free(pool, block) }
}

fn stats(pool: *mut millpond_pool) -> (millpond_status, millpond_pool_stats) {
    let mut stats = millpond_pool_stats {
        size: size_of::<millpond_pool_stats>(),
        ..Default::default()
    };
    // SAFETY: the result is a local with this size.
    let status = unsafe { millpond_pool_get_stats(pool, &raw mut stats) };
    (status, stats)
}

#[test]
fn a_destroyed_pool_ends_with_its_last_block() {
    let (_, pool) = create(&options());
    let (first, second) = (alloc(pool, 100).1, alloc(pool, 200).1);
    assert_eq!(millpond_pool_destroy(pool), MILLPOND_OK);
    assert_eq!(alloc(pool, 100).0, MILLPOND_INVALID_HANDLE);
    assert!(last_error().contains("destroyed"), "{}", last_error());
    assert_eq!(millpond_pool_destroy(pool), MILLPOND_INVALID_HANDLE);
    assert_eq!((stats(pool).0, stats(pool).1.requested), (MILLPOND_OK, 300));
    // SAFETY: the block has 100 bytes.
    unsafe { ptr::write_bytes(first.cast::<u8>(), 1, 100) };
    assert_eq!(free(pool, first), MILLPOND_OK);
    assert_eq!(free(pool, first), MILLPOND_INVALID_POINTER);
    assert_eq!(stats(pool).0, MILLPOND_OK);
    assert_eq!(free(pool, second), MILLPOND_OK);
    assert_eq!(stats(pool).0, MILLPOND_INVALID_HANDLE);
    assert_eq!(free(pool, second), MILLPOND_INVALID_HANDLE);
}

#[test]
fn a_wrong_free_changes_nothing_and_reports_the_reason() {
    let ((_, pool), (_, other)) = (create(&options()), create(&options()));
    let (_, block) = alloc(pool, 1000);
    assert_eq!(free(other, block), MILLPOND_INVALID_POINTER);
    assert_eq!(free(pool, block.wrapping_byte_add(64)), MILLPOND_INVALID_POINTER);
    assert_eq!(stats(pool).1.requested, 1000);
    assert_eq!(free(pool, block), MILLPOND_OK);
    assert_eq!(free(pool, block), MILLPOND_INVALID_POINTER);
    assert!(last_error().contains("double free"), "{}", last_error());
    // A call that succeeds keeps the text.
    assert_eq!(free(pool, ptr::null_mut()), MILLPOND_OK);
    assert!(last_error().contains("double free"), "{}", last_error());
    assert_eq!(millpond_pool_destroy(pool), MILLPOND_OK);
    assert_eq!(millpond_pool_destroy(other), MILLPOND_OK);
}

#[test]
fn a_structure_of_a_later_version_is_accepted_if_its_new_fields_are_zero() {
    #[repr(C)]
    struct Later<T>(T, u64);
    let mut later = Later(options(), 0);
    later.0.size = size_of_val(&later);
    let mut pool = ptr::null_mut();
    // SAFETY: the structure has the bytes that its size says.
    let status = unsafe { millpond_pool_create((&raw const later).cast(), &raw mut pool) };
    assert_eq!(status, MILLPOND_OK);
    later.1 = 1;
    // SAFETY: as above.
    let refused = unsafe { millpond_pool_create((&raw const later).cast(), &raw mut pool) };
    assert_eq!(refused, MILLPOND_INVALID_ARGUMENT);
    let mut out = Later(millpond_pool_stats::default(), 7);
    out.0.size = size_of_val(&out);
    // SAFETY: as above.
    let status = unsafe { millpond_pool_get_stats(pool, (&raw mut out).cast()) };
    assert_eq!(status, MILLPOND_OK);
    assert_eq!(
        (out.0.limit, out.1, out.0.size),
        (MILLPOND_NO_LIMIT, 0, size_of_val(&out))
    );
    for size in [0, 8, size_of::<millpond_pool_stats>() - 1, 1 << 40] {
        out.0.size = size;
        // SAFETY: a size that is wrong is refused before anything else is read.
        let refused = unsafe { millpond_pool_get_stats(pool, (&raw mut out).cast()) };
        assert_eq!(refused, MILLPOND_INVALID_ARGUMENT, "size {size}");
    }
    assert_eq!(millpond_pool_destroy(pool), MILLPOND_OK);
}

#[test]
fn wrong_options_are_refused_with_a_text() {
    let (name, wrong) = (c"pool".as_ptr(), CString::new([0xff, b'a']).expect("no zero"));
    let cases = [
        (millpond_pool_options { size: 1, ..options() }, "size"),
        (
            millpond_pool_options {
                memory: 9,
                ..options()
            },
            "memory",
        ),
        (
            millpond_pool_options {
                reserved: 1,
                ..options()
            },
            "reserved",
        ),
        (
            millpond_pool_options {
                name: wrong.as_ptr(),
                ..options()
            },
            "UTF-8",
        ),
        (
            millpond_pool_options {
                name,
                settings: c"no-such-key:1".as_ptr(),
                ..options()
            },
            "no-such-key",
        ),
    ];
    for (options, part) in cases {
        let (status, pool) = create(&options);
        assert_eq!(
            (status, pool),
            (MILLPOND_INVALID_ARGUMENT, ptr::null_mut()),
            "{part}"
        );
        assert!(last_error().contains(part), "no '{part}' in: {}", last_error());
    }
    let budget = ptr::without_provenance_mut(64);
    assert_eq!(
        create(&millpond_pool_options { budget, ..options() }).0,
        MILLPOND_INVALID_HANDLE
    );
    // SAFETY: a null pointer is refused.
    let status = unsafe { millpond_pool_create(ptr::null(), ptr::null_mut()) };
    assert_eq!(status, MILLPOND_INVALID_ARGUMENT);
}

#[test]
fn limits_and_budgets_refuse_with_their_codes() {
    let mut budget = ptr::null_mut();
    let mut settings = millpond_budget_options {
        size: size_of::<millpond_budget_options>(),
        name: c"tenant".as_ptr(),
        limit: 1 << 20,
        parent: ptr::null_mut(),
        measure: MILLPOND_MEASURE_ALLOCATED,
        reserved: 0,
    };
    // SAFETY: both are locals.
    let status = unsafe { millpond_budget_create(&raw const settings, &raw mut budget) };
    assert_eq!(status, MILLPOND_OK);
    let (_, pool) = create(&millpond_pool_options {
        budget,
        limit: 8 << 20,
        ..options()
    });
    assert_eq!(alloc(pool, 16 << 20).0, MILLPOND_TOO_LARGE);
    assert_eq!(alloc(pool, usize::MAX).0, MILLPOND_TOO_LARGE);
    let (_, block) = alloc(pool, 700 << 10);
    assert_eq!(alloc(pool, 700 << 10).0, MILLPOND_OUT_OF_MEMORY);
    assert!(last_error().contains("tenant"), "{}", last_error());
    let mut used = millpond_budget_stats {
        size: size_of::<millpond_budget_stats>(),
        ..Default::default()
    };
    // SAFETY: the result is a local with this size.
    let status = unsafe { millpond_budget_get_stats(budget, &raw mut used) };
    assert_eq!(status, MILLPOND_OK);
    assert_eq!(
        (used.used >= 700 << 10, used.limit, used.refusals > 0),
        (true, 1 << 20, true)
    );
    assert_eq!(millpond_budget_set_limit(budget, MILLPOND_NO_LIMIT), MILLPOND_OK);
    let (status, second) = alloc(pool, 700 << 10);
    assert_eq!(status, MILLPOND_OK);
    // The handle ends, and the budget stays in effect.
    assert_eq!(millpond_budget_set_limit(budget, 1 << 20), MILLPOND_OK);
    assert_eq!(millpond_budget_destroy(budget), MILLPOND_OK);
    assert_eq!(millpond_budget_destroy(budget), MILLPOND_INVALID_HANDLE);
    assert_eq!(alloc(pool, 700 << 10).0, MILLPOND_OUT_OF_MEMORY);
    settings.parent = budget;
    // SAFETY: both are locals.
    let refused = unsafe { millpond_budget_create(&raw const settings, &raw mut budget) };
    assert_eq!(refused, MILLPOND_INVALID_HANDLE);
    assert_eq!(
        (free(pool, block), free(pool, second)),
        (MILLPOND_OK, MILLPOND_OK)
    );
    assert_eq!(millpond_pool_destroy(pool), MILLPOND_OK);
}

#[test]
fn a_report_names_tags_and_is_cut_between_characters() {
    let settings = c"track:all,stacks:off".as_ptr();
    let (_, pool) = create(&millpond_pool_options {
        name: c"é".as_ptr(),
        settings,
        ..options()
    });
    // SAFETY: the name ends with a zero byte.
    let status = unsafe { millpond_tag_push(c"weights".as_ptr()) };
    assert_eq!(status, MILLPOND_OK);
    let (_, block) = alloc(pool, 100);
    assert_eq!(
        (millpond_tag_pop(), millpond_tag_pop()),
        (MILLPOND_OK, MILLPOND_INVALID_ARGUMENT)
    );
    let (_, untagged) = alloc(pool, 300);
    let (mut buffer, mut length) = ([0u8; 4096], 0);
    for capacity in [0, 1, 8, buffer.len()] {
        // SAFETY: the buffer has the capacity.
        let status =
            unsafe { millpond_pool_report(pool, buffer.as_mut_ptr().cast(), capacity, &raw mut length) };
        let expected = if capacity == 0 || capacity > length {
            MILLPOND_OK
        } else {
            MILLPOND_TRUNCATED
        };
        assert_eq!(status, expected, "capacity {capacity}");
        let text = CStr::from_bytes_until_nul(&buffer).expect("a zero byte");
        let text = text.to_str().expect("whole characters");
        match capacity {
            // There is no room for the second byte of the name.
            8 => assert_eq!(text, "pool '"),
            4096 => assert!(
                text.contains("weights") && text.contains("untagged") && text.len() == length,
                "{text}"
            ),
            _ => assert_eq!(text, ""),
        }
    }
    assert_eq!(free(pool, untagged), MILLPOND_OK);
    assert_eq!(
        (free(pool, block), millpond_pool_destroy(pool)),
        (MILLPOND_OK, MILLPOND_OK)
    );
}

#[test]
fn a_process_has_one_recording() {
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("calls-{}.mpr", std::process::id()));
    let path = CString::new(path.to_str().expect("UTF-8")).expect("no zero");
    let (mut recording, mut second) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the path ends with a zero byte, and the result is a local.
    let status = unsafe { millpond_recording_start(path.as_ptr(), &raw mut recording) };
    assert_eq!(status, MILLPOND_OK);
    // SAFETY: as above.
    let again = unsafe { millpond_recording_start(path.as_ptr(), &raw mut second) };
    assert_eq!((again, second), (MILLPOND_IN_USE, ptr::null_mut()));
    let (_, pool) = create(&options());
    let (_, block) = alloc(pool, 100);
    assert_eq!(
        (free(pool, block), millpond_pool_destroy(pool)),
        (MILLPOND_OK, MILLPOND_OK)
    );
    let mut report = millpond_recording_report {
        size: size_of::<millpond_recording_report>(),
        ..Default::default()
    };
    // SAFETY: the report is a local with this size.
    let status = unsafe { millpond_recording_stop(recording, &raw mut report) };
    assert_eq!(status, MILLPOND_OK);
    assert!(report.events >= 2 && report.bytes > 0, "{report:?}");
    // SAFETY: a handle that has ended is refused.
    let status = unsafe { millpond_recording_stop(recording, ptr::null_mut()) };
    assert_eq!(status, MILLPOND_INVALID_HANDLE);
    // SAFETY: as above.
    let missing = unsafe { millpond_recording_start(c"/no/such/folder/run.mpr".as_ptr(), &raw mut second) };
    assert_eq!(missing, MILLPOND_SYSTEM_ERROR);
    assert!(
        last_error().contains("/no/such/folder/run.mpr"),
        "{}",
        last_error()
    );
    let _ = std::fs::remove_file(path.to_str().expect("UTF-8"));
}

#[test]
fn a_block_that_is_allocated_while_its_pool_is_destroyed_can_be_freed() {
    for round in 0..1000 {
        let pool = create(&options()).1.addr();
        let ready = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let pool = ptr::without_provenance_mut(pool);
                ready.wait();
                loop {
                    let mut block = ptr::null_mut();
                    // SAFETY: the result is a local.
                    let status = unsafe { millpond_alloc_sized(pool, 100, 0, 0, &raw mut block) };
                    if status != MILLPOND_OK {
                        break;
                    }
                    // SAFETY: the block is one of this pool with this size, and is not used any more.
                    let freed = unsafe { millpond_free_sized(pool, block, 100, 0) };
                    assert_eq!(freed, MILLPOND_OK, "round {round}: {}", last_error());
                }
            });
            ready.wait();
            (0..round % 50).for_each(|_| std::hint::spin_loop());
            assert_eq!(
                millpond_pool_destroy(ptr::without_provenance_mut(pool)),
                MILLPOND_OK
            );
        });
        // The pool has ended with its last block.
        assert_eq!(
            stats(ptr::without_provenance_mut(pool)).0,
            MILLPOND_INVALID_HANDLE
        );
    }
}
