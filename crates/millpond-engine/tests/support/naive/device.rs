//! A device with ascending addresses, as the documentation of the simulated device describes.

pub(crate) struct Device {
    pub(crate) capacity: Option<u64>,
    pub(crate) used: u64,
    next: u64,
}

impl Device {
    pub(crate) fn new(capacity: Option<u64>) -> Self {
        Self {
            capacity,
            used: 0,
            next: 0x10_0000_0000,
        }
    }

    /// Charges memory if there is enough. Returns whether there was.
    pub(crate) fn charge(&mut self, bytes: u64) -> bool {
        let fits = self.capacity.is_none_or(|c| self.used + bytes <= c);
        if fits {
            self.used += bytes;
        }
        fits
    }

    /// Returns new addresses.
    pub(crate) fn addresses(&mut self, bytes: u64) -> u64 {
        let unit = if bytes >= 2 << 20 { 2 << 20 } else { 512 };
        let start = self.next.div_ceil(unit) * unit;
        self.next = start + bytes;
        start
    }

    /// Returns a segment backed by memory.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        self.charge(bytes).then(|| self.addresses(bytes))
    }
}
