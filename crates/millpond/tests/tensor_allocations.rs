//! Views, operations in place, and operations with outputs allocate nothing from a pool or from the program's
//! allocator.
#![cfg(target_os = "linux")]

use millpond::{DType, Pool, Tensor, TensorError};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

// SAFETY: all calls are passed to the system's allocator, and the counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the number of allocations of `work` from the program's allocator and from a pool.
fn asked(pool: &Pool, work: impl FnOnce() -> Result<(), TensorError>) -> (u64, u64) {
    let pool_before = pool.stats().allocations;
    let before = ALLOCATIONS.get();
    work().expect("it works");
    let by_program = ALLOCATIONS.get() - before;
    (by_program, pool.stats().allocations - pool_before)
}

#[test]
fn views_and_operations_with_outputs_allocate_nothing() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::host()?;
    let make = |shape: &[usize]| Tensor::full_in(&pool, shape, 2.0f32);
    let (a, b, row, mut out) = (make(&[60, 50])?, make(&[60, 50])?, make(&[50])?, make(&[60, 50])?);
    let (mut sums, mut one) = (make(&[50])?, make(&[])?);
    let mut whole = Tensor::zeros_in(&pool, [50, 60], DType::I32)?;
    let (wide, mut product) = (a.transpose(0, 1)?, Tensor::zeros_in(&pool, [50, 50], DType::F32)?);

    let (integers, mut squares) = (
        Tensor::full_in(&pool, [3, 20, 7], 2i16)?.slice(1, 5..)?,
        Tensor::zeros_in(&pool, [3, 15, 15], DType::I16)?,
    );

    // Threads have queues, which use the program's allocator.
    millpond::set_threads(1);
    let views = asked(&pool, || {
        for batch in a.batches(0, 7)? {
            let view = batch.transpose(0, 1)?.slice(0, 3..20)?.step(0, 2)?.unsqueeze(1)?;
            let view = view.broadcast_to([9, 5, batch.size(0)?])?.permute([2, 0, 1])?;
            assert_eq!(view.select(2, 4)?.shape(), [batch.shape()[0], 9]);
        }
        assert_eq!(a.reshape([30, 2, 50])?.reshape([3000])?.len(), 3000);
        Ok(())
    });
    assert_eq!(views, (0, 0));

    let operations = asked(&pool, || {
        out.add_assign(&a)?;
        out.mul_assign(0.5f32)?;
        out.sub_assign(&row)?;
        out.axpy(3.0, &b)?;
        out.scal(2)?;
        out.view_mut()?.transpose(0, 1)?.step(0, 2)?.div_assign(4)?;
        a.add_into(&b, &mut out)?;
        a.mul_into(&row, &mut out)?;
        row.sub_into(&b, &mut out)?;
        a.div_into(2.0, &mut out)?;
        a.rsub_into(1, &mut out)?;
        out.rdiv_assign(&row)?;
        a.add_scaled_into(0.5, &row, &mut out)?;
        a.transpose(0, 1)?.add_scaled_into(
            0.5,
            &b.transpose(0, 1)?,
            &mut out.view_mut()?.transpose(0, 1)?,
        )?;
        a.sum_into(&mut one)?;
        row.dot_into(&row, &mut one)?;
        out.map_in_place(|x: f32| x + 1.0)?;
        out.par_map_in_place(|x: f32| x - 1.0)?;
        out.par_zip_in_place(&row, |x: f32, y| x.max(y))?;
        a.map_into(&mut out, |x: f32| x.sqrt())?;
        a.par_map_into(&mut whole.view_mut()?.transpose(0, 1)?, |x: f32| x as i32)?;
        a.par_zip_into(&row, &mut out, |x: f32, y: f32| x.hypot(y))?;
        out.par_for_each_batch(0, 7, |_, mut rows| rows.scal(2))?;
        out.par_for_each_chunk(100, |_, some: &mut [f32]| some.reverse())?;
        integers.matmul_into(&integers.transpose(1, 2)?, &mut squares)?;
        a.sum_dim_into(0, &mut sums)?;
        a.transpose(0, 1)?.cast_into(&mut whole)?;
        whole.fill(3)?;
        out.copy_from(&row)?;
        assert_eq!(
            (a.sum()?.to_f64(), sums.dot(&row)?.to_f64()),
            (Some(6000.0), Some(12_000.0))
        );
        for (at, mut part) in out.view_mut()?.batches(0, 9)?.enumerate() {
            part.fill(at as f32)?;
        }
        Ok(())
    });
    assert_eq!(operations, (0, 0));
    assert_eq!(squares.get(&[2, 14, 14])?.to_i64(), Some(28));
    millpond::set_threads(0);
    let shared = asked(&pool, || out.par_for_each_batch(0, 7, |_, mut rows| rows.scal(2)));
    assert_eq!(shared.1, 0);

    // A fast product of matrices uses the program's allocator, and no pool.
    let products = asked(&pool, || wide.matmul_into(&b, &mut product));
    assert_eq!(products.1, 0);
    assert_eq!(product.get(&[49, 49])?.to_f64(), Some(240.0));

    // The count works: a new tensor is one allocation.
    assert_eq!(asked(&pool, || out.deep_copy_in(&pool).map(drop)).1, 1);
    Ok(())
}
