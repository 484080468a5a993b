//! The devices that a process sees, `CUDA_VISIBLE_DEVICES`, and their names in it.
#![forbid(unsafe_code)]

/// The environment variable. The driver reads it when it is initialised.
pub(crate) const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// Returns a device's UUID.
pub(crate) fn uuid_of(device: u32) -> [u8; 16] {
    let mut uuid = *b"millpond-emu----";
    uuid[12..].copy_from_slice(&device.to_be_bytes());
    uuid
}

/// Returns a device's UUID as tools write it.
pub(crate) fn uuid_text(device: u32) -> String {
    let hex: String = uuid_of(device).iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| hex[part].to_owned());
    format!("GPU-{}", parts.join("-"))
}

/// Returns the visible devices in the order of the list. A device is named by its number or by the beginning of its UUID. The result ends
/// before the first name that matches no device, and before the first device that was already listed.
pub(crate) fn visible(list: &str, uuids: &[String]) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    for name in list.split(',').map(str::trim) {
        let index = match name.parse::<usize>() {
            Ok(number) => (number < uuids.len()).then_some(number),
            Err(_) if name.len() > 4 => uuids.iter().position(|uuid| uuid.starts_with(name)),
            Err(_) => None,
        };
        match index.and_then(|index| u32::try_from(index).ok()) {
            Some(device) if !found.contains(&device) => found.push(device),
            _ => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_at_its_first_invalid_name() {
        let uuids = ["GPU-aa01", "GPU-aa02", "GPU-bb03"].map(str::to_owned);
        let seen = |list| visible(list, &uuids);
        assert_eq!(seen("0"), [0]);
        assert_eq!(seen("2, 0"), [2, 0]);
        assert_eq!(seen("1,7,0"), [1]);
        assert_eq!(seen("1,1,0"), [1]);
        assert_eq!(seen("GPU-bb,GPU-aa02"), [2, 1]);
        assert!(seen("").is_empty() && seen("-1").is_empty() && seen("GPU-").is_empty());
    }
}
