//! Measures copies between the host and a CUDA device with pinned, staged and ordinary memory, in both directions, and compares
//! them with the speed of the link.

mod compressed;

use crate::Table;
use crate::measure::in_turn;
use millpond::Pool;
use millpond::cuda::{
    CudaDevice, CudaError, CudaPinned, CudaStream, CudaTimer, DevicePool, Staging, Transfer,
};
use std::error::Error;
use std::io::Write;

/// Measures copies of these sizes in bytes, `rounds` times each, and prints a table of medians.
///
/// # Errors
/// Returns an error if the device does not exist, if its driver fails, or if the table cannot be written.
pub fn run(device: u32, sizes: &[usize], rounds: usize, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let device = CudaDevice::get(device)?;
    let emulated = device.is_emulated();
    let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
    let pinned = Pool::builder().over(Box::new(CudaPinned::new(&device)))?;
    let staging = Staging::new(&device)?;
    let mut table = Table::new(&[
        "GB/s",
        "pinned up",
        "staged up",
        "ordinary up",
        "pinned down",
        "staged down",
        "ordinary down",
        "on the device",
    ]);
    for &bytes in sizes {
        let there = pool.alloc_zeroed::<u8>(bytes, &stream)?;
        let mut other = pool.alloc_zeroed::<u8>(bytes, &stream)?;
        let mut ordinary = vec![1u8; bytes];
        let mut pair = Some((pinned.alloc_zeroed::<u8>(bytes)?, there));
        let times = in_turn::<7, Box<dyn Error>>(rounds, |way| {
            let (host, mut there) = pair.take().ok_or("an earlier copy failed")?;
            let timer = CudaTimer::start(&stream)?;
            pair = Some(match way {
                0 => stream.upload(host, there).and_then(Transfer::wait)?,
                3 => stream.download(there, host).and_then(Transfer::wait)?,
                _ => {
                    match way {
                        1 => staging.upload(&ordinary, &mut there)?,
                        2 => there.copy_from_host(&ordinary)?,
                        4 => staging.download(&there, &mut ordinary)?,
                        5 => there.copy_to_host(&mut ordinary)?,
                        _ => other.copy_from(&there)?,
                    }
                    (host, there)
                }
            });
            Ok(timer.stop()?.as_nanos() as f64)
        })?;
        let rates = times.iter().map(|times| rate(bytes, times.median()));
        table.row(std::iter::once(size(bytes)).chain(rates));
    }
    let limit = if emulated { emulated_link() } else { link(&device)? };
    writeln!(
        out,
        "{device}, copies to the device (up) and from it (down), medians of {rounds} rounds\n\n{table}"
    )?;
    match limit {
        Some(limit) => writeln!(out, "The link: {limit:.1} GB/s at most in each direction.")?,
        None => writeln!(out, "The link: the system does not report its speed.")?,
    }
    if emulated {
        writeln!(
            out,
            "All times are modelled by the clock of the emulated driver. Copies within the host take no time\non this clock."
        )?;
    }
    let most = sizes.iter().copied().max().unwrap_or_default();
    let packed = most.clamp(1 << 20, 64 << 20);
    let (codecs, copies) = compressed::tables(&pool, &stream, packed, rounds)?;
    writeln!(
        out,
        "\nCompressed copies: one thread packs pieces of 2 MiB, in processor time\n\n{codecs}\n\
         The same copies from end to end, limited by the link or by the host's threads\n\n{copies}"
    )?;
    if !emulated {
        let copies = compressed::on_this_link(&staging, &pool, &stream, packed, rounds)?;
        writeln!(
            out,
            "\nThe same copies, measured on this link from ordinary memory\n\n{copies}"
        )?;
    }
    Ok(())
}

fn rate(bytes: usize, nanoseconds: f64) -> String {
    if nanoseconds == 0.0 {
        return "-".to_owned();
    }
    format!("{:.2}", bytes as f64 / nanoseconds)
}

fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes => format!("{} KiB", bytes >> 10),
    }
}

/// Returns the link speed of the emulated driver: the value of its option or the default.
fn emulated_link() -> Option<f64> {
    let options = std::env::var("MILLPOND_CUDA_EMU").unwrap_or_default();
    let mut told = options
        .split(',')
        .filter_map(|option| option.trim().strip_prefix("link:"));
    told.next_back().map_or(Some(25.0), |speed| speed.parse().ok())
}

/// Returns the speed of the device's bus slot in each direction, in gigabytes per second, as the system reports it.
fn link(device: &CudaDevice) -> Result<Option<f64>, CudaError> {
    let folder = format!("/sys/bus/pci/devices/{}", device.pci_bus()?);
    let read = |name| std::fs::read_to_string(format!("{folder}/{name}")).ok();
    let (speed, width) = (read("current_link_speed"), read("current_link_width"));
    Ok(speed
        .zip(width)
        .and_then(|(speed, width)| bandwidth(&speed, &width)))
}

/// Returns the bandwidth for lines such as `16.0 GT/s PCIe` and `16`.
fn bandwidth(speed: &str, width: &str) -> Option<f64> {
    let transfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let lanes: f64 = width.trim().parse().ok()?;
    // Up to the second generation, eight of ten bits carry data, and from the third on 128 of 130.
    let data = if transfers < 8.0 { 0.8 } else { 128.0 / 130.0 };
    Some(transfers * data / 8.0 * lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_speed_is_computed_from_the_lines_of_the_system() {
        let near = |speed, width, rate: f64| {
            bandwidth(speed, width).is_some_and(|found| (found - rate).abs() < 0.01)
        };
        assert!(near("16.0 GT/s PCIe\n", "16\n", 31.51));
        assert!(near("5.0 GT/s PCIe", "4", 2.0));
        assert_eq!(bandwidth("Unknown", "16"), None);
        assert_eq!(bandwidth("", "x"), None);
    }

    #[test]
    fn rates_are_in_gigabytes_per_second() {
        assert_eq!(rate(1_000_000, 20e6), "0.05");
        assert_eq!(rate(1, 0.0), "-");
        assert_eq!(
            (size(64 << 10), size(16 << 20)),
            ("64 KiB".to_owned(), "16 MiB".to_owned())
        );
    }
}
