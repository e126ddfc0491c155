//! Construction of the models that a window attaches to a node.

use nodescope_plugin_api::{
    Context, CoreModel, Counters, Hits, L0Geometry, L0Update, MemRef, MemoryModel,
    MemoryTimingModel, Outcome, Permission, Privilege, Statistic, VcpuPlace,
};
use nodescope_plugin_cache::{CacheConfigError, CacheModel, FlatMemory};
use nodescope_plugin_numa::{
    HomeRange, Numa, NumaConfig, NumaConfigError, SharedBandwidth, Uncached,
};
use nodescope_plugin_pipeline::{Core, PipelineModel};

use crate::spec::{MemorySpec, ModelSpec};

/// Reason why a model cannot be built. The text begins with the name of the faulty field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The configuration of the caches is invalid.
    #[error("caches.{0}")]
    Caches(#[from] CacheConfigError),
    /// The configuration of the memory is invalid.
    #[error("memory.{0}")]
    Memory(#[from] NumaConfigError),
    /// The description of the core is invalid.
    #[error("core.{0}")]
    Core(String),
}

/// Line size of a window without caches, bytes.
const LINE: u32 = 64;

/// Returns the models for one node whose vCPUs are at `places`, whose memory is in `ranges`, and whose clock has `hertz` cycles per second.
/// With a core, the vCPUs share the stated bandwidth of each socket's memory.
///
/// | caches | memory | model |
/// |---|---|---|
/// | yes | any | [`CacheModel`] in front of that memory; [`FlatMemory`] of 100 cycles if none is given |
/// | no | yes | [`Uncached`]: every reference is timed |
/// | no | no | [`CountingOnly`] |
pub fn build_model(
    spec: &ModelSpec,
    places: &[VcpuPlace],
    ranges: &[HomeRange],
    hertz: u64,
) -> Result<Box<dyn MemoryModel>, ModelError> {
    let numa = |latency: &_, write_back: &_| -> Result<Numa, ModelError> {
        let sockets = places
            .iter()
            .map(|place| place.socket)
            .chain(ranges.iter().map(|range| range.socket))
            .max()
            .map_or(1, |last| last.saturating_add(1));
        let numa = Numa::new(&NumaConfig {
            sockets,
            ranges: ranges.to_vec(),
            latency: Clone::clone(latency),
            write_back: Clone::clone(write_back),
        })?;
        numa.serves(places)?;
        Ok(numa)
    };
    if let Some(caches) = &spec.caches {
        let memory: Box<dyn MemoryTimingModel> = match &spec.memory {
            None => Box::new(FlatMemory::default()),
            Some(MemorySpec::Flat { latency }) => Box::new(FlatMemory { latency: *latency }),
            Some(MemorySpec::Numa {
                latency,
                write_back,
                bandwidth,
            }) => {
                let numa = numa(latency, write_back)?;
                let stated = bandwidth.and_then(|stated| stated.local);
                match stated.filter(|_| spec.core.is_some()) {
                    Some(bandwidth) => {
                        let (sockets, line) = (numa.sockets(), caches.levels[0].line);
                        Box::new(SharedBandwidth::new(numa, sockets, bandwidth, hertz, line))
                    }
                    None => Box::new(numa),
                }
            }
        };
        return Ok(Box::new(CacheModel::new(caches, places, memory)?));
    }
    match &spec.memory {
        None => Ok(Box::new(CountingOnly)),
        Some(MemorySpec::Numa {
            latency,
            write_back,
            ..
        }) => Ok(Box::new(Uncached::new(
            numa(latency, write_back)?,
            places,
            LINE,
        )?)),
        Some(MemorySpec::Flat { latency }) => {
            // The model has one socket, which is the home of every address and has every vCPU.
            let mut config = NumaConfig::contiguous(1, 1 << 52);
            config.latency = nodescope_plugin_numa::Latencies::Uniform {
                local: *latency,
                remote: *latency,
            };
            let places: Vec<VcpuPlace> = places
                .iter()
                .map(|place| VcpuPlace {
                    socket: 0,
                    ..*place
                })
                .collect();
            Ok(Box::new(Uncached::new(Numa::new(&config)?, &places, LINE)?))
        }
    }
}

/// Returns the model of the core for one node; `None` if the window has none, or has no caches. `sampled`: models are attached in intervals.
pub fn build_core_model(
    spec: &ModelSpec,
    sampled: bool,
) -> Result<Option<Box<dyn CoreModel>>, ModelError> {
    let (Some(core), Some(caches)) = (&spec.core, &spec.caches) else {
        return Ok(None);
    };
    let core = Core::from_toml(&core.description).map_err(|e| ModelError::Core(e.to_string()))?;
    let (local, remote) = match &spec.memory {
        None => (FlatMemory::default().latency, FlatMemory::default().latency),
        Some(MemorySpec::Flat { latency }) => (*latency, *latency),
        Some(MemorySpec::Numa { latency, .. }) => latency.local_and_remote(),
    };
    let beyond = caches.beyond_first_level(local, remote);
    let model = PipelineModel::new(&core, beyond);
    Ok(Some(Box::new(match sampled {
        true => model.for_intervals(),
        false => model,
    })))
}

/// Empty model: the engine counts references, none of them causes a stall, and the engine's L0 filter cache may answer all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountingOnly;

impl MemoryModel for CountingOnly {
    fn l0_geometry(&self) -> L0Geometry {
        L0Geometry {
            line_shift: LINE.trailing_zeros() as u8,
            data_slots: 6,
            instruction_slots: 6,
            data_ways: 1,
            instruction_ways: 1,
        }
    }

    fn reference(
        &mut self,
        _hits: Hits<'_>,
        _reference: &MemRef,
        _updates: &mut Vec<L0Update>,
    ) -> Outcome {
        Outcome::new(0, Permission::ReadWrite, None)
    }

    /// Does nothing, because the model holds no lines.
    fn modified(&mut self, _vcpu: u16, _lines: &[u64]) {}

    fn reset_statistics(&mut self) {}

    fn statistics(&self, _counted: &[(u16, Context, Privilege, Counters)]) -> Vec<Statistic> {
        Vec::new()
    }
}
