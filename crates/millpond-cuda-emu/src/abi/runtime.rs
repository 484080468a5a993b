//! The private tables of functions that NVIDIA's runtime library gets with `cuGetExportTable`.
//!
//! NVIDIA does not document the tables. Their identifiers, sizes and entries are known from projects that trace the runtime, among them
//! ZLUDA (its crate `dark_api`). Only the entries that the runtime calls for its memory API are implemented. The others return
//! `CUDA_ERROR_NOT_SUPPORTED`.

use super::args::{In, Out};
use super::entries;
use super::{context, device};
use crate::calls::{Address, Call};
use crate::driver::context::Stored;
use crate::driver::perform::EndOfContext;
use crate::error::{Answer, Code};
use crate::handshake::{Question, answer};
use crate::thread;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// The tables, each as it is in memory.
struct Tables {
    modules: Vec<usize>,
    hooks: Vec<usize>,
    storage: Vec<usize>,
    threads: Vec<usize>,
    contexts: Vec<usize>,
    handshake: Vec<usize>,
    checks: Vec<usize>,
}

/// Returns a table with these functions at these positions.
fn table(count: usize, functions: &[(usize, Address)]) -> Vec<usize> {
    let refused = runtime_refused::entry().legacy;
    let mut table = vec![refused.0.expose_provenance(); count];
    for (index, function) in functions {
        table[*index] = function.0.expose_provenance();
    }
    table
}

/// Returns a table that begins with its size in bytes.
fn sized(count: usize, functions: &[(usize, Address)]) -> Vec<usize> {
    let mut table = table(count, functions);
    table[0] = count * size_of::<usize>();
    table
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let nothing = runtime_nothing::entry().legacy;
        Tables {
            modules: sized(
                13,
                &[
                    (1, runtime_load::entry().legacy),
                    (2, runtime_primary_context::entry().legacy),
                    (6, runtime_load::entry().legacy),
                    (7, nothing),
                    (8, runtime_load::entry().legacy),
                    (12, nothing),
                ],
            ),
            hooks: sized(
                7,
                &[
                    (2, runtime_callbacks::entry().legacy),
                    (6, runtime_domains::entry().legacy),
                ],
            ),
            storage: table(
                4,
                &[
                    (0, runtime_put::entry().legacy),
                    (1, runtime_remove::entry().legacy),
                    (2, runtime_get::entry().legacy),
                ],
            ),
            threads: sized(4, &[(2, context::current_context())]),
            contexts: sized(
                95,
                &[
                    (3, runtime_context_device::entry().legacy),
                    (4, context::context_id()),
                ],
            ),
            handshake: sized(3, &[(1, runtime_handshake::entry().legacy)]),
            checks: sized(4, &[(2, runtime_check_context::entry().legacy), (3, nothing)]),
        }
    })
}

/// Returns the address of the table with this identifier, which has 16 bytes.
pub(super) fn find(id: In<u8>) -> Answer<usize> {
    let tables = tables();
    let table = match u128::from_be_bytes(id.cast().get()?) {
        0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9 => &tables.modules,
        0xa094798c_2e74_2e74_93f2_0800200c0a66 => &tables.hooks,
        0xc693336e_1121_df11_a8c3_68f355d89593 => &tables.storage,
        0x42d85a81_23f6_cb47_8298_f6e78a3aecdc => &tables.threads,
        0x21318c60_9714_3248_8ca6_41ff7324c8f2 => &tables.contexts,
        0xd4082055_bde6_704b_8d34_ba123c66e1f2 => &tables.handshake,
        0x263e8860_7cd2_6143_92f6_bbd5006dfa7e => &tables.checks,
        _ => return Err(Code::NOT_FOUND),
    };
    Ok(table.as_ptr().expose_provenance())
}

/// Memory for switches of tools, which the runtime reads. There are no tools, so all of it is zero.
static CALLBACKS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
static DOMAINS: [AtomicU64; 14] = [const { AtomicU64::new(0) }; 14];

fn switches(of: &'static [AtomicU64], at: Out<usize>, count: Out<usize>) -> Answer {
    at.set(of.as_ptr().expose_provenance())?;
    count.set(of.len())
}

/// Returns a context, or the current one for 0. The runtime asks about a primary context before it retains it.
fn find_context(call: &Call, handle: u64) -> Answer<u64> {
    let handle = match handle {
        0 => thread::current().ok_or(Code::INVALID_CONTEXT)?,
        _ => handle,
    };
    let unused = {
        let state = call.driver.state();
        state.is_primary(handle) && state.context(handle).is_err()
    };
    Code::CONTEXT_IS_DESTROYED.when(unused)?;
    call.known_context(handle)
}

entries! {
    runtime_refused private 0 Nothing () |_call| { Err(Code::NOT_SUPPORTED) }
    runtime_nothing private 0 Nothing () |_call| { Ok(()) }
    /// Refuses foreign code. Three entries with different arguments load code.
    runtime_load private 0 Driver () |_call| { Err(Code::NO_BINARY_FOR_GPU) }
    /// Returns the primary context of a device without retaining it.
    runtime_primary_context private 0 Driver (context: Out<u64>, device: i32) |call| {
        context.make(|| {
            let device = call.known_device(device)?;
            Ok(call.driver.state().primary_handles[device as usize])
        })
    }
    runtime_context_device private 0 Driver (context: u64, device: Out<i32>) |call| {
        device.make(|| {
            let context = find_context(call, context)?;
            Ok(call.driver.state().context(context)?.device as i32)
        })
    }
    runtime_callbacks private 0 Nothing (at: Out<usize>, count: Out<usize>) |_call| {
        switches(&CALLBACKS, at, count)
    }
    runtime_domains private 0 Nothing (at: Out<usize>, count: Out<usize>) |_call| {
        switches(&DOMAINS, at, count)
    }
    /// Keeps a value in a context.
    runtime_put private 0 Driver (context: u64, key: usize, value: usize, ends: Option<EndOfContext>) |call| {
        let context = find_context(call, context)?;
        let mut state = call.driver.state();
        let context = state.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?;
        context.storage.insert(key, Stored { value, ends });
        Ok(())
    }
    runtime_remove private 0 Driver (context: u64, key: usize) |call| {
        let context = find_context(call, context)?;
        let mut state = call.driver.state();
        let context = state.contexts.get_mut(&context).ok_or(Code::INVALID_CONTEXT)?;
        context.storage.remove(&key).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }
    runtime_get private 0 Driver (value: Out<usize>, context: u64, key: usize) |call| {
        value.make(|| {
            let context = find_context(call, context)?;
            let state = call.driver.state();
            let stored = state.context(context)?.storage.get(&key);
            stored.map(|stored| stored.value).ok_or(Code::INVALID_HANDLE)
        })
    }
    runtime_handshake private 0 Driver (version: u32, seconds: u64, out: Out<[u8; 16]>) |call| {
        let tables = tables();
        let question = Question {
            version,
            seconds,
            driver: call.options().version as u32,
            modules: tables.modules.as_ptr().addr() as u64,
            handshake: tables.handshake.as_ptr().addr() as u64,
            function: tables.handshake[1] as u64,
            devices: call.devices().iter().copied().map(device::identity).collect(),
        };
        out.set(answer(&question))
    }
    runtime_check_context private 0 Driver (_context: u64, result: Out<u32>, _other: usize) |_call| {
        result.set(0)
    }
}
