//! Starts the monitor that the environment variable `MILLPOND_MONITOR` requests.

use super::{Monitor, MonitorBuilder};
use millpond_os as os;
use millpond_os::reentrancy::inside;
use millpond_os::spawn_hidden;
use millpond_os::time::duration;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use thiserror::Error;

const VARIABLE: &str = "MILLPOND_MONITOR";

/// The error of an invalid value.
#[derive(Debug, PartialEq, Eq, Error)]
#[error(
    "{VARIABLE} cannot be '{text}': {why}; write 1, socket or 127.0.0.1:9464, optionally followed by ,interval=100ms"
)]
struct Unreadable {
    text: String,
    why: String,
}

/// Parses a value. Returns `None` if it requests no monitor.
fn read(text: &str) -> Result<Option<MonitorBuilder>, Unreadable> {
    let unreadable = |why: String| Unreadable {
        text: text.chars().take(200).collect(),
        why,
    };
    let (mut rules, mut any) = (Monitor::builder(), false);
    for part in text.split(',').map(str::trim) {
        if let Some(value) = part.strip_prefix("interval=") {
            let interval = duration("interval", value, false);
            rules = rules.interval(interval.map_err(|error| unreadable(error.to_string()))?);
            continue;
        }
        match part {
            "" | "0" | "off" => continue,
            "1" | "on" | "socket" => rules = rules.socket(),
            address => {
                let address: SocketAddr = address
                    .parse()
                    .map_err(|_| unreadable(format!("'{address}' is not an address with a port")))?;
                rules = rules.listen(address);
            }
        }
        any = true;
    }
    Ok(any.then_some(rules))
}

/// The monitor that the environment requested, with the process that it belongs to.
static STARTED: Mutex<Option<Monitor>> = Mutex::new(None);

/// Starts the monitor that the environment requests, once in a process, when the first pool is made.
///
/// A separate thread starts it, because the pool may be the program's allocator, which is in the middle of a request.
pub fn start() {
    // The process that last checked. A child of a fork has another id and therefore starts its own monitor.
    static LOOKED: AtomicU32 = AtomicU32::new(0);
    let here = std::process::id();
    if LOOKED.swap(here, Ordering::Relaxed) == here {
        return;
    }
    let said = std::env::var_os(VARIABLE).filter(|said| !said.is_empty());
    let Some(said) = said else { return };
    if let Err(error) = spawn_hidden("millpond-monitor", move || start_by(&said.to_string_lossy())) {
        os::say(&format!("millpond: the monitor was not started: {error}\n"));
    }
}

fn start_by(said: &str) {
    // The program may have run out of memory before this thread started.
    let _inside = inside();
    let rules = match read(said) {
        Ok(Some(rules)) => rules,
        Ok(None) => return,
        Err(error) => return os::say(&format!("millpond: the monitor was not started: {error}\n")),
    };
    let chooses = rules.address.is_some_and(|address| address.port() == 0);
    match rules.start() {
        Ok(monitor) => {
            if let Some(address) = monitor.address().filter(|_| chooses) {
                os::say(&format!("millpond: the monitor is at http://{address}\n"));
            }
            os::at_exit(end);
            let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
            let before = started.replace(monitor);
            drop(started);
            // It belongs to the parent of this process.
            drop(before);
        }
        Err(error) => os::say(&format!("millpond: the monitor was not started: {error}\n")),
    }
}

/// Removes the socket at the end of the process. Does not block.
extern "C" fn end() {
    if let Ok(started) = STARTED.try_lock()
        && let Some(monitor) = &*started
    {
        monitor.remove_socket();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::Place;
    use std::time::Duration;

    #[test]
    fn values_of_the_variable_are_parsed() {
        let of = |text: &str| {
            let rules = read(text).expect("readable")?;
            Some((rules.socket, rules.address.map(|a| a.to_string()), rules.interval))
        };
        let (second, usual) = (Duration::from_secs(1), Some(Place::Usual));
        assert_eq!(of("1"), Some((usual.clone(), None, second)));
        assert_eq!(
            of(" socket , interval=100ms"),
            Some((usual.clone(), None, Duration::from_millis(100)))
        );
        let port = Some("127.0.0.1:9464".to_owned());
        assert_eq!(of("127.0.0.1:9464"), Some((None, port, second)));
        assert_eq!(
            of("[::1]:1,1,interval=2min"),
            Some((usual, Some("[::1]:1".to_owned()), Duration::from_secs(120)))
        );
        for none in ["", "0", "off", ",", "interval=1s"] {
            assert_eq!(of(none), None, "{none}");
        }
        for (text, why) in [
            ("yes", "'yes' is not an address with a port"),
            ("127.0.0.1", "'127.0.0.1' is not an address with a port"),
            ("1,interval=5", "500ms"),
            ("localhost:80", "'localhost:80' is not an address"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(
                error.starts_with(&format!("MILLPOND_MONITOR cannot be '{text}': ")),
                "{error}"
            );
            assert!(error.contains(why), "{error}");
        }
    }
}
