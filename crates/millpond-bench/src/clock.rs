//! x
/// x
#[derive(Debug)]
pub struct CpuClock(std::time::Instant);
impl CpuClock {
    /// x
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }
    /// x
    pub fn nanoseconds(&self) -> f64 {
        self.0.elapsed().as_nanos() as f64
    }
}
