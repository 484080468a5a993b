//! The memory of a graph, which is a separate pool.

use super::kept::Kept;
use super::{DevicePool, Parts, Shared};
use crate::error::CudaError;
use crate::source::CudaSource;
use millpond_account::event::PoolLabel;
use millpond_account::memory::MemoryKind;
use millpond_engine::policies::Millpond;
use millpond_engine::{Engine, MillpondConf, Policy};
use millpond_os::device::Device;
use millpond_pool::pool::{BudgetedSource, next_number};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl DevicePool {
    /// Returns the pool of a graph that this library captures. It has the limit, budgets and watchers of this one, serves only the streams
    /// of the capture, and gives no memory back before it ends.
    pub(crate) fn for_graph(&self) -> Result<Self, CudaError> {
        self.keeping(false)
    }

    /// Returns a pool for memory whose addresses a graph of another library has recorded. It has the limit, budgets and watchers of this
    /// one, serves all streams, and gives no memory back before it ends.
    #[doc(hidden)]
    pub fn for_foreign_graph(&self) -> Result<Self, CudaError> {
        self.keeping(true)
    }

    fn keeping(&self, is_foreign: bool) -> Result<Self, CudaError> {
        let of = &self.0.parts;
        let policy = Box::new(Millpond::new(&MillpondConf::default()));
        let sharing = self.0.core()?.source().sharing().clone();
        let source = CudaSource::shared(&of.device, of.memory, sharing)?;
        let (number, flow) = (next_number(), Arc::default());
        let charged = BudgetedSource::new(source, of.limit.clone(), of.reserved.clone(), Arc::clone(&flow));
        let name = format!("{}, a graph", of.name);
        let label = PoolLabel::new(
            number,
            &name,
            MemoryKind::Device,
            Device::Cuda(of.device.number()),
        );
        let label = label.under(policy.name());
        let made = Shared::new(Parts {
            device: of.device.clone(),
            memory: of.memory,
            number,
            name,
            limit: of.limit.clone(),
            engine: Engine::new(policy, Kept::new(charged, true)),
            flow,
            budget: of.budget.clone(),
            reserved: of.reserved.clone(),
            retain: MillpondConf::default().retain,
            zero_on_reuse: self.0.zero_on_reuse.load(Ordering::Relaxed),
            leak_report: false,
            direct: false,
            of_graph: true,
            is_foreign,
        });
        made.change_watchers(|_| (self.0.watchers().for_pool(label), ()));
        Ok(Self(made))
    }
}
