//! Construction of the models that a window attaches to a node.

use std::sync::Arc;

use nodescope_plugin_api::{
    CacheShape, Context, CoreModel, Counters, Declaration, Failure, Hits, Kind, L0Geometry,
    L0Update, MemRef, MemoryModel, MemoryTimingModel, Model, ModelName, NodeShape, Outcome,
    Permission, Prefetcher, Privilege, Registry, Replacement, Statistic, VcpuPlace,
};
use nodescope_plugin_cache::{CacheConfigError, CacheModel, FlatMemory, RegisteredModels};
use nodescope_plugin_numa::{
    HomeRange, Latencies, Numa, NumaConfig, NumaConfigError, SharedBandwidth, Uncached,
};
use nodescope_plugin_pipeline::{Core, PipelineModel};

use crate::recorder;
use crate::registered::{Registered, RegisteredMemory};
use crate::spec::{MemorySpec, ModelSpec, RegisteredSpec};

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
    /// A registered model cannot be made. The sentence names the model.
    #[error("models: {0}")]
    Registered(String),
}

/// Line size of a window without caches, bytes.
const LINE: u32 = 64;

/// The node to which a window attaches models.
#[derive(Clone, Copy, Debug)]
pub struct NodeDescription<'a> {
    /// Core and socket of each vCPU.
    pub places: &'a [VcpuPlace],
    /// Memory of each socket.
    pub ranges: &'a [HomeRange],
    /// Cycles of the node's clock in a second.
    pub hertz: u64,
}

impl NodeDescription<'_> {
    fn numa(&self, latency: &Latencies, write_back: &Latencies) -> Result<Numa, ModelError> {
        let sockets = (self.places.iter().map(|place| place.socket))
            .chain(self.ranges.iter().map(|range| range.socket))
            .max()
            .map_or(1, |last| last.saturating_add(1));
        let numa = Numa::new(&NumaConfig {
            sockets,
            ranges: self.ranges.to_vec(),
            latency: latency.clone(),
            write_back: write_back.clone(),
        })?;
        numa.serves(self.places)?;
        Ok(numa)
    }
}

/// Returns the models for one node. With a core, the vCPUs share the stated bandwidth of each socket's memory.
///
/// | caches | memory | model |
/// |---|---|---|
/// | yes | any | [`CacheModel`] in front of that memory; [`FlatMemory`] of 100 cycles if none is given |
/// | no | yes | [`Uncached`]: every reference is timed |
/// | no | no | [`CountingOnly`] |
///
/// The registered models of the window, which `registry` makes, are around that model. One of them may be the memory.
pub fn build_model(
    spec: &ModelSpec,
    node: &NodeDescription<'_>,
    registry: &Registry,
) -> Result<Box<dyn MemoryModel>, ModelError> {
    let own = OwnModels {
        spec,
        registry,
        failure: Failure::default(),
    };
    let shape = NodeShape {
        vcpus: node.places.to_vec(),
        hertz: node.hertz,
        line_bytes: spec
            .caches
            .as_ref()
            .map_or(LINE, |caches| caches.levels[0].line),
    };
    let vcpus = node.places.len();
    let found = |spec: &RegisteredSpec| own.find(&spec.name).map_err(ModelError::Registered);
    let models = spec
        .registered
        .iter()
        .map(found)
        .collect::<Result<Vec<_>, _>>()?;
    let of_kind = |kind| {
        let models = models.iter();
        models.filter(move |(model, _)| model.declaration().kind == kind)
    };
    let mut counted = None;
    let mut memory: Option<Box<dyn MemoryTimingModel>> = None;
    for (model, values) in of_kind(Kind::Memory) {
        let name = model.declaration().name;
        if spec.caches.is_none() || memory.is_some() {
            return Err(ModelError::Registered(format!(
                "model {name:?} times memory behind caches, for which the window needs \"cache\" and no other model of memory"
            )));
        }
        let noted = Arc::default();
        counted = Some((*model.declaration(), Arc::clone(&noted)));
        let made = model.make_memory(&shape, values, &own.failure);
        memory = Some(Box::new(RegisteredMemory {
            model: made.map_err(ModelError::Registered)?,
            homes: node.numa(
                &NumaConfig::default_latency(),
                &NumaConfig::default_write_back(),
            )?,
            noted,
        }));
    }
    let inside = own.memory_model(node, memory)?;
    if models.is_empty() {
        return Ok(inside);
    }
    let mut all = Registered::new(inside, own.failure.clone());
    if let Some((declaration, noted)) = counted {
        all.count_memory(declaration, noted, vcpus);
    }
    for (model, values) in of_kind(Kind::References) {
        let timing = model.make_references(&shape, values, &own.failure);
        let timing = timing.map_err(ModelError::Registered)?;
        all.add_cycles_by(*model.declaration(), timing, vcpus);
    }
    for (model, values) in of_kind(Kind::Observer) {
        let observer = model.make_observer(&shape, values, &own.failure);
        let observer = observer.map_err(ModelError::Registered)?;
        all.observe_by(*model.declaration(), observer);
    }
    Ok(Box::new(all))
}

/// The registered policies and prefetchers of a window's caches.
struct OwnModels<'a> {
    spec: &'a ModelSpec,
    registry: &'a Registry,
    failure: Failure,
}

impl OwnModels<'_> {
    /// Returns a registered model, and the values of its parameters.
    fn find(&self, name: &str) -> Result<(&Model, Vec<u64>), String> {
        let unknown = || ModelName::new(name).unknown();
        let model = self.registry.find(name).ok_or_else(unknown)?;
        let spec = self.spec.registered.iter().find(|spec| spec.name == name);
        let parameters = model.declaration().parameters.iter();
        let values = parameters.map(|parameter| {
            let given = spec.and_then(|spec| spec.parameters.get(parameter.name));
            given.copied().unwrap_or(parameter.default)
        });
        Ok((model, values.collect()))
    }

    /// Makes the model of caches and memory, without the models around it.
    fn memory_model(
        &self,
        node: &NodeDescription<'_>,
        memory: Option<Box<dyn MemoryTimingModel>>,
    ) -> Result<Box<dyn MemoryModel>, ModelError> {
        let OwnModels { spec, .. } = self;
        let NodeDescription { places, hertz, .. } = *node;
        if let Some(caches) = &spec.caches {
            let memory: Box<dyn MemoryTimingModel> = match (memory, &spec.memory) {
                (Some(memory), _) => memory,
                (None, None) => Box::new(FlatMemory::default()),
                (None, Some(MemorySpec::Flat { latency })) => {
                    Box::new(FlatMemory { latency: *latency })
                }
                (
                    None,
                    Some(MemorySpec::Numa {
                        latency,
                        write_back,
                        bandwidth,
                    }),
                ) => {
                    let numa = node.numa(latency, write_back)?;
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
            let caches = CacheModel::with_models(caches, places, memory, self)?;
            return Ok(Box::new(caches));
        }
        match &spec.memory {
            None => Ok(Box::new(CountingOnly)),
            Some(MemorySpec::Numa {
                latency,
                write_back,
                ..
            }) => Ok(Box::new(Uncached::new(
                node.numa(latency, write_back)?,
                places,
                LINE,
            )?)),
            Some(MemorySpec::Flat { latency }) => {
                // The model has one socket, which is the home of every address and has every vCPU.
                let mut config = NumaConfig::contiguous(1, 1 << 52);
                config.latency = Latencies::Uniform {
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
}

impl RegisteredModels for OwnModels<'_> {
    fn replacement(
        &self,
        name: ModelName,
        cache: &CacheShape,
    ) -> Result<Box<dyn Replacement>, String> {
        let (model, values) = self.find(name.name())?;
        model.make_replacement(cache, &values, &self.failure)
    }

    fn prefetcher(
        &self,
        name: ModelName,
        cache: &CacheShape,
    ) -> Result<Box<dyn Prefetcher>, String> {
        let (model, values) = self.find(name.name())?;
        model.make_prefetcher(cache, &values, &self.failure)
    }
}

/// Returns the models that come with nodescope.
pub fn built_in() -> impl Iterator<Item = Model> {
    let model = |name, line, kind, place| {
        let declaration = Declaration {
            name,
            line,
            kind,
            ..Declaration::DEFAULT
        };
        Model::built_in(declaration, place)
    };
    let windows = [
        model(
            "cache",
            "Caches with coherence: each reference is a hit of a level, or goes to another cache or to memory.",
            Kind::References,
            "[caches]",
        ),
        model(
            "numa",
            "Main memory whose latency depends on the socket.",
            Kind::Memory,
            "[memory]",
        ),
        model(
            "pipeline",
            "An out-of-order core, which decides how many cycles of a stall are exposed.",
            Kind::Core,
            "[core]",
        ),
    ];
    let of_caches = nodescope_plugin_cache::declarations().map(|declaration| {
        let place = match declaration.kind {
            Kind::Prefetcher => "caches.level.prefetch",
            _ => "caches.level.policy",
        };
        Model::built_in(declaration, place)
    });
    let recorders = recorder::models();
    windows.into_iter().chain(of_caches).chain(recorders)
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
            page_sizes: false,
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
