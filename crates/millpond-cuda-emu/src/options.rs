//! The options of the emulator: the keys of `MILLPOND_CUDA_EMU`.
#![forbid(unsafe_code)]

use crate::error::Code;
use std::fmt;

/// The environment variable that contains the options.
pub const VARIABLE: &str = "MILLPOND_CUDA_EMU";

/// The time at which queued work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// In the call that queues it.
    InPlace,
    /// On a thread for each stream.
    Threads,
    /// When a call waits for work or queries it, in an order that a seed chooses among all orders that CUDA
    /// allows.
    Seeded,
}

/// A call that should fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The function's name with or without its version. `None` means any function.
    pub name: Option<String>,
    /// The number of the call, from 1. `None` means every call.
    pub nth: Option<u64>,
    /// The code that the call returns.
    pub code: Code,
}

/// The parsed options.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The number of devices.
    pub devices: u32,
    /// The memory of each device in bytes.
    pub memory: u64,
    /// The time at which work runs.
    pub streams: Streams,
    /// The seed for the order of seeded streams.
    pub seed: u64,
    /// Whether the host may not access device memory, and whether misuse is reported.
    pub strict: bool,
    /// Speed between host and device in bytes per second, in each direction.
    pub link: f64,
    /// Modelled nanoseconds before the first byte of a copy.
    pub latency: u64,
    /// Modelled nanoseconds of each call.
    pub call_cost: u64,
    /// Whether work also takes its modelled time in real time.
    pub pace: bool,
    /// The calls that fail.
    pub fail: Vec<Fault>,
    /// The number of the call from which on the device is lost, and the code that calls return from then on.
    pub lost: Option<(u64, Code)>,
    /// Whether the driver has virtual memory management. Otherwise its functions return that they are not
    /// supported, the device's attribute is 0, and `cuGetProcAddress` does not know them. Their symbols
    /// remain, because a library cannot hide its own.
    pub vmm: bool,
    /// Whether the driver has stream-ordered pools. Otherwise the same applies to their functions.
    pub pools: bool,
    /// Whether a call can unmap only one mapping. The driver's documentation does not promise more.
    pub unmap_single: bool,
    /// The version that the driver reports.
    pub version: i32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            devices: 1,
            memory: 80 << 30,
            streams: Streams::InPlace,
            seed: 0,
            strict: false,
            link: 25e9,
            latency: 8_000,
            call_cost: 1_000,
            pace: false,
            fail: Vec::new(),
            lost: None,
            vmm: true,
            pools: true,
            unmap_single: false,
            version: 12_080,
        }
    }
}

/// A text that is not a valid set of options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadOption {
    /// The part that could not be parsed.
    pub part: String,
    /// The reason.
    pub why: &'static str,
}

const KEYS: &str = "\
  devices:N            number of devices, 1 to 64 (1)
  memory:BYTES         of each device; K, M, G and T are powers of 1024 (80G)
  streams:KIND         in-place, threads or seeded (in-place)
  seed:N               the order of seeded streams (0)
  strict:on|off        device memory is closed to the host, misuse is reported, and captures forbid calls that are not
                       documented as safe in a capture (off)
  link:GB/S            modelled speed of copies between host and device (25)
  latency:NS           modelled nanoseconds before a copy's first byte (8000)
  call-cost:NS         modelled nanoseconds of each call (1000)
  pace:on|off          work takes its modelled time in real time too (off)
  fail:CALL            a call fails: NAME, NAME@N or @N for the N-th, =CODE after it (repeatable)
  lost:N               the device is lost from the N-th call on; =CODE after it sets the returned code (700, illegal address)
  without:vmm|pools    a driver that lacks these (repeatable)
  unmap:spans|single   whether one call may unmap several mappings (spans)
  version:N            the version that cuDriverGetVersion returns (12080)";

impl fmt::Display for BadOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{VARIABLE}: '{}': {}; write a list of key:value, separated by commas:\n{KEYS}",
            self.part, self.why
        )
    }
}

impl std::error::Error for BadOption {}

impl Options {
    /// Parses options in the format of the environment variable.
    ///
    /// ```
    /// use millpond_cuda_emu::options::{Options, Streams};
    /// let options = Options::parse("streams:seeded,seed:7,memory:1G")?;
    /// assert_eq!(options.streams, Streams::Seeded);
    /// assert_eq!(options.memory, 1 << 30);
    /// # Ok::<(), millpond_cuda_emu::options::BadOption>(())
    /// ```
    ///
    /// # Errors
    /// Returns the first invalid part. The error's text lists the valid options.
    pub fn parse(text: &str) -> Result<Self, BadOption> {
        let mut options = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            options.set(part).map_err(|why| BadOption {
                part: part.to_owned(),
                why,
            })?;
        }
        Ok(options)
    }

    fn set(&mut self, part: &str) -> Result<(), &'static str> {
        let (key, value) = part
            .split_once(':')
            .ok_or("write a key and its value as key:value")?;
        match key {
            "devices" => self.devices = number(value, 1, 64)?,
            "memory" => self.memory = bytes(value)?,
            "streams" => {
                self.streams = match value {
                    "in-place" => Streams::InPlace,
                    "threads" => Streams::Threads,
                    "seeded" => Streams::Seeded,
                    _ => return Err("write in-place, threads or seeded"),
                }
            }
            "seed" => self.seed = number(value, 0, u64::MAX)?,
            "strict" => self.strict = switch(value)?,
            "link" => {
                let speed: f64 = value
                    .parse()
                    .map_err(|_| "write a number of gigabytes per second")?;
                if !(speed.is_finite() && speed > 0.0) {
                    return Err("the speed of the link must be above 0");
                }
                self.link = speed * 1e9;
            }
            "latency" => self.latency = number(value, 0, 1_000_000_000)?,
            "call-cost" => self.call_cost = number(value, 0, 1_000_000_000)?,
            "pace" => self.pace = switch(value)?,
            "fail" => self.fail.push(Fault::parse(value)?),
            "lost" => {
                let (nth, code) = split_code(value.trim_start_matches('@'))?;
                let nth = number(nth, 1, u64::MAX)?;
                self.lost = Some((nth, code.unwrap_or(Code::ILLEGAL_ADDRESS)));
            }
            "without" => match value {
                "vmm" => self.vmm = false,
                "pools" => self.pools = false,
                _ => return Err("write vmm or pools"),
            },
            "unmap" => {
                self.unmap_single = match value {
                    "spans" => false,
                    "single" => true,
                    _ => return Err("write spans or single"),
                }
            }
            "version" => self.version = number(value, 11_000, 13_990)?,
            _ => return Err("the key is unknown"),
        }
        Ok(())
    }
}

impl Fault {
    /// Parses `NAME`, `NAME@N` or `@N`, optionally followed by `=CODE`.
    ///
    /// # Errors
    /// Returns the reason why the text is invalid.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (call, code) = split_code(text)?;
        let (name, nth) = match call.split_once('@') {
            Some((name, nth)) => (name, Some(number(nth, 1, u64::MAX)?)),
            None => (call, None),
        };
        if !name.is_empty() && !name.starts_with("cu") {
            return Err("write the name of a function, such as cuMemCreate");
        }
        if name.is_empty() && nth.is_none() {
            return Err("write the name of a function, or @ and a number");
        }
        // The default code for functions that allocate is out of memory, because this failure is the most
        // useful one to test.
        let memory = ["Alloc", "Create", "Reserve", "Register", "Map"]
            .iter()
            .any(|part| name.contains(part));
        let code = code.unwrap_or(if memory {
            Code::OUT_OF_MEMORY
        } else {
            Code::UNKNOWN
        });
        let name = (!name.is_empty()).then(|| name.to_owned());
        Ok(Self { name, nth, code })
    }
}

/// Splits a text into the part before `=` and the code after it, if there is one.
fn split_code(text: &str) -> Result<(&str, Option<Code>), &'static str> {
    let Some((text, code)) = text.split_once('=') else {
        return Ok((text, None));
    };
    let code = Code::parse(code).filter(|code| code.0 != 0);
    Ok((text, Some(code.ok_or("the code is unknown, or it is success")?)))
}

fn number<T: std::str::FromStr + PartialOrd>(text: &str, least: T, most: T) -> Result<T, &'static str> {
    match text.parse() {
        Ok(value) if value >= least && value <= most => Ok(value),
        Ok(_) => Err("the number is out of range"),
        Err(_) => Err("write a whole number"),
    }
}

fn switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off"),
    }
}

fn bytes(text: &str) -> Result<u64, &'static str> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("the units are K, M, G and T"),
    };
    let count: u64 = number(digits, 1, u64::MAX)?;
    let all = count
        .checked_mul(1 << shift)
        .filter(|all| *all >= 2 << 20 && *all <= 1 << 42);
    all.ok_or("a device must have 2 MiB to 4 TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let options = Options::parse(
            "devices:2, memory:3M,fail:cuMemCreate@2,fail:@9=700,lost:@4,without:vmm,strict:on",
        );
        let options = options.unwrap();
        assert_eq!(
            (options.devices, options.memory, options.lost),
            (2, 3 << 20, Some((4, Code::ILLEGAL_ADDRESS)))
        );
        assert!(options.strict && !options.vmm && options.pools);
        let first = Fault {
            name: Some("cuMemCreate".into()),
            nth: Some(2),
            code: Code::OUT_OF_MEMORY,
        };
        let second = Fault {
            name: None,
            nth: Some(9),
            code: Code::ILLEGAL_ADDRESS,
        };
        assert_eq!(options.fail, [first, second]);
        assert_eq!(Options::parse("").unwrap(), Options::default());
        let lost = Options::parse("lost:7=CUDA_ERROR_ECC_UNCORRECTABLE")
            .unwrap()
            .lost;
        assert_eq!(lost, Some((7, Code::ECC_UNCORRECTABLE)));
    }

    #[test]
    fn errors_name_the_invalid_part_and_list_the_keys() {
        for bad in [
            "devices",
            "devices:0",
            "devices:x",
            "memory:1",
            "memory:9X",
            "memory:99999999999T",
            "streams:later",
            "link:0",
            "link:nan",
            "fail:",
            "fail:memcpy",
            "fail:cuInit=0",
            "fail:cuInit=7777",
            "lost:0",
            "lost:3=0",
            "without:stars",
            "unmap:none",
            "colour:red",
        ] {
            let error = Options::parse(bad).unwrap_err();
            assert_eq!(error.part, bad);
            assert!(error.to_string().contains("streams:KIND"), "{error}");
        }
    }
}
