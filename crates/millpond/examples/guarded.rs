//! A program that writes past the end of a block, one that reads freed memory, and one that writes before a block, each
//! with guards. The first two are stopped at the access, and a signal handler reports the owner of the block. The third
//! error is reported when the block is freed. This program runs itself for each case, and exits with code 1 if an
//! expectation fails.

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> Result<std::process::ExitCode, Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use millpond::{Pool, guard::describe_fault, tag};
    use std::error::Error;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitCode};
    use std::{env, mem, ptr};

    /// Reports the owner of the block, then restores the default action of the signal.
    extern "C" fn fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the system passes a valid record to a handler of SIGSEGV.
        let info = unsafe { &*info };
        // SAFETY: the record of a SIGSEGV has an address.
        let address = unsafe { info.si_addr() };
        if let Some(report) = describe_fault(address.addr()) {
            report.say();
        }
        // SAFETY: the access is tried again after this, and ends the process.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    }

    fn handle_faults() {
        // SAFETY: a zeroed record is valid and has no flags.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the record lives through the call, and the handler as long as the program.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) };
    }

    fn wrong(what: &str) -> Result<(), Box<dyn Error>> {
        handle_faults();
        let pool = Pool::builder().guard(true).leak_report(false).host()?;
        let mut activations = {
            let _scope = tag("activations");
            pool.alloc_zeroed::<f32>(1024)?
        };
        let first = activations.as_mut_ptr();
        match what {
            // SAFETY: none: the element is out of bounds, which is the error that this program demonstrates.
            "past" => unsafe { first.wrapping_add(1024).write_volatile(1.0) },
            "freed" => {
                drop(activations);
                // SAFETY: none: the memory is freed, which is the error that this program demonstrates.
                unsafe { first.read_volatile() };
            }
            _ => {
                let mut short = pool.alloc_zeroed::<u8>(100)?;
                // SAFETY: none: the byte is not this program's. The page is accessible, so the error is reported when
                // the block is freed.
                unsafe { short.as_mut_ptr().wrapping_sub(1).write_volatile(1) };
                drop(short);
                return Ok(());
            }
        }
        println!("NO: the access was not stopped");
        Ok(())
    }

    pub(crate) fn main() -> Result<ExitCode, Box<dyn Error>> {
        if let Some(what) = env::args().nth(1) {
            wrong(&what)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut proven = true;
        for (what, signal, says) in [
            ("past", Some(libc::SIGSEGV), "0 B past the end of 4096 B"),
            ("freed", Some(libc::SIGSEGV), "0 B into 4096 B"),
            ("before", None, "underrun: a write 1 B before the start"),
        ] {
            let child = Command::new(env::current_exe()?).arg(what).output()?;
            let said = String::from_utf8_lossy(&child.stderr);
            print!("{what}: {said}");
            proven &= child.status.signal() == signal && said.contains(says);
        }
        let word = if proven { "proven" } else { "NO" };
        println!("every wrong access was found: {word}");
        Ok(if proven {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
