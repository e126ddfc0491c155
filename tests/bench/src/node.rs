//! The node of the pipeline model: a description that a study names.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use nodescope_plugin_api::{CoreModel, MemoryModel, Registry, SOURCES, VcpuPlace};
use nodescope_plugin_pipeline::{Core, PipelineModel};
use nodescope_study::Study;
use nodescope_window::{HomeRange, MemorySpec, ModelSpec, NodeDescription, build_model};

use crate::Failure;

/// Models of a described node of one core.
pub struct DescribedNode {
    models: ModelSpec,
    hertz: u64,
    pub core: Core,
}

impl DescribedNode {
    /// Reads a description by the name or path that a study would give.
    pub fn named(model: &str) -> Result<Self, Failure> {
        let failed = |what: &dyn std::fmt::Display| Failure::Host(what.to_string());
        let mut text = String::from("[study]\nname = \"bench\"\n[cluster]\nnodes = 1\n");
        let _ = writeln!(text, "[node]\nmodel = {model:?}");
        text += "[job]\ncommand = \"/bin/true\"\n[[window]]\nmeasure = \"until closed\"\n";
        let study = Study::parse(Path::new("bench.toml"), &text).map_err(|e| failed(&e))?;
        let hertz = study.topology.tsc_hz;
        let window = study.windows.into_iter().next();
        let models = window.map(|window| window.models).unwrap_or_default();
        let Some(spec) = &models.core else {
            return Err(failed(&format!("the node {model:?} describes no core")));
        };
        let core = Core::from_toml(&spec.description).map_err(|e| failed(&e))?;
        Ok(Self {
            models,
            hertz,
            core,
        })
    }

    /// Measures this machine, and writes the description into a folder.
    pub fn measured(folder: &Path) -> Result<Self, Failure> {
        let mut progress = |line: &str| eprintln!("measuring this machine: {line}");
        let host = nodescope_measure::measure(&mut progress);
        let host = host.map_err(|e| Failure::Host(e.to_string()))?;
        let path: PathBuf = folder.join("node.toml");
        std::fs::write(&path, host.to_toml()).map_err(Failure::Files)?;
        Self::named(&path.display().to_string())
    }

    /// Makes the memory model.
    pub fn memory(&self) -> Result<Box<dyn MemoryModel>, String> {
        let ranges = [HomeRange {
            start: 0,
            length: 1 << 52,
            socket: 0,
        }];
        let places = VcpuPlace::grid(1, 1, 1);
        let node = NodeDescription {
            places: &places,
            ranges: &ranges,
            hertz: self.hertz,
        };
        build_model(&self.models, &node, &Registry::default()).map_err(|e| e.to_string())
    }

    /// Makes the pipeline model.
    pub fn pipeline(&self) -> PipelineModel {
        PipelineModel::new(&self.core, self.beyond())
    }

    /// Makes the pipeline model, for a node.
    pub fn core_model(&self) -> Box<dyn CoreModel> {
        Box::new(self.pipeline())
    }

    /// Returns the cycles of an answer beyond a hit of the first level, by source.
    pub fn beyond(&self) -> [u32; SOURCES] {
        let latency = match &self.models.memory {
            Some(MemorySpec::Numa { latency, .. }) => latency.local_and_remote(),
            Some(MemorySpec::Flat { latency }) => (*latency, *latency),
            None => (0, 0),
        };
        let caches = self.models.caches.as_ref();
        caches.map_or([0; SOURCES], |caches| {
            caches.beyond_first_level(latency.0, latency.1)
        })
    }
}
