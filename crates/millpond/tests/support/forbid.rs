//! Runs code in a thread in which the system refuses a call, to simulate another system.

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter, sock_fprog};

/// A call to refuse.
#[derive(Clone, Copy)]
pub(crate) struct Forbidden {
    pub(crate) call: c_long,
    /// Refuses the call only with this bit pattern as the n-th argument.
    pub(crate) argument: Option<(u32, i32)>,
    /// The error of the refused call.
    pub(crate) code: i32,
}

/// Runs a function in a thread in which a call is refused. Returns `None` if the system does not support that.
pub(crate) fn without<T: Send>(forbidden: Forbidden, run: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if forbid(forbidden) {
                return Some(run());
            }
            eprintln!("skipped: this system refuses no calls on request");
            None
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn forbid(forbidden: Forbidden) -> bool {
    let step = |code, k, jt, jf| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = |offset| step(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0);
    let unless = |value, skip| step(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip);
    let answer = |value| step(BPF_RET | BPF_K, value, 0, 0);
    let refuse = answer(libc::SECCOMP_RET_ERRNO | forbidden.code as u32);
    // The data of a call has its number at 0 and its arguments at 16, the low half first.
    let mut filter = match forbidden.argument {
        None => vec![
            load(0),
            unless(forbidden.call as u32, 1),
            refuse,
            answer(libc::SECCOMP_RET_ALLOW),
        ],
        Some((nth, value)) => vec![
            load(0),
            unless(forbidden.call as u32, 3),
            load(16 + 8 * nth),
            unless(value as u32, 1),
            refuse,
            answer(libc::SECCOMP_RET_ALLOW),
        ],
    };
    let program = sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the call takes plain numbers.
    let bound = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the filter and its program live through the call, which copies them.
    let set = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    bound == 0 && set == 0
}
