//! The user's specification of a window.

use std::collections::BTreeMap;
use std::fmt;

use crate::sampling::Sampling;
use nodescope_hypercall::Function;
use nodescope_plugin_cache::CacheConfig;
use nodescope_plugin_numa::{Latencies, NumaConfig};
use serde::{Deserialize, Serialize};

/// Specification of a measurement window. A window opens at most once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowSpec {
    /// Name of the window, unique in the study.
    pub name: String,
    /// Event at which the window opens.
    pub open: Trigger,
    /// Instructions of all nodes together that run with models attached before measuring starts, to fill the caches.
    #[serde(default)]
    pub warm_up: u64,
    /// Length of the measurement.
    pub measure: Measure,
    /// Intervals in which the models are attached; `None` if they are attached all the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// Models that are attached.
    #[serde(default)]
    pub models: ModelSpec,
    /// True if counts are attributed to functions, source lines and basic blocks.
    #[serde(default = "attributed")]
    pub attribution: bool,
}

fn attributed() -> bool {
    true
}

/// Event at which a window opens. The window opens at the end of the quantum in which the event happened, or later
/// if another window is open then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Trigger {
    /// Power-on.
    Immediately,
    /// A virtual time.
    Time {
        /// Virtual time since power-on, picoseconds.
        ps: u64,
    },
    /// The return of a rank's `call`-th call of an MPI function. Polls that found nothing count as calls.
    MpiCall {
        /// MPI function of the call.
        function: Function,
        /// Number of the call of this function on the rank, from 1.
        call: u64,
        /// The caller's rank in `MPI_COMM_WORLD`.
        rank: u32,
    },
    /// The `occurrence`-th time that any guest process puts a marker.
    Marker {
        /// Name of the marker.
        name: String,
        /// Number of the marker's occurrence, from 1.
        occurrence: u64,
    },
    /// The start of the job on the first node ([`crate::WindowDriver::job_started`]).
    Job,
    /// The request of any guest process to open the window, by the window's name.
    Guest,
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trigger::Immediately => f.write_str("immediately"),
            Trigger::Time { ps } => write!(f, "virtual time {} s", *ps as f64 / 1e12),
            Trigger::MpiCall {
                function,
                call,
                rank,
            } => write!(f, "call {call} of {function} on rank {rank}"),
            Trigger::Marker { name, occurrence } => {
                write!(f, "occurrence {occurrence} of marker \"{name}\"")
            }
            Trigger::Job => f.write_str("the start of the job"),
            Trigger::Guest => f.write_str("opened by the guest"),
        }
    }
}

/// Length of a window's measurement, after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Measure {
    /// Instructions of all nodes together.
    Instructions(u64),
    /// Picoseconds of virtual time.
    Time {
        /// Picoseconds of virtual time.
        ps: u64,
    },
    /// Until any guest process closes the window by its name.
    Guest,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Measure::Instructions(count) => write!(f, "{count} instructions"),
            Measure::Time { ps } => write!(f, "{} s of virtual time", *ps as f64 / 1e12),
            Measure::Guest => f.write_str("until the guest closes it"),
        }
    }
}

/// Models that a window attaches to every node. A window without models still counts instructions, references and FLOPs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSpec {
    /// Model of the caches; `None` for a window without caches.
    pub caches: Option<CacheConfig>,
    /// Model of main memory. With caches, `None` means [`MemorySpec::flat`]; without caches, `None` means that references are not timed.
    pub memory: Option<MemorySpec>,
    /// Model of the core, which needs caches and attribution; `None` for a window without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreSpec>,
    /// Registered models: those that the window attaches, and the policies and prefetchers that its caches name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub registered: Vec<RegisteredSpec>,
}

/// A registered model with the values of its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredSpec {
    /// Name of the model.
    pub name: String,
    /// Values by the parameter's name. Others have their default.
    #[serde(default)]
    pub parameters: BTreeMap<String, u64>,
}

impl ModelSpec {
    /// Returns whether the window has a model of the core, and the caches that it needs.
    pub fn can_model_core(&self) -> bool {
        self.core.is_some() && self.caches.is_some()
    }
}

/// Model of an out-of-order core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreSpec {
    /// Description of the core as TOML ([`nodescope_plugin_pipeline::Core::from_toml`]).
    pub description: String,
}

/// Model of main memory. The home socket of an address follows from the node's memory layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MemorySpec {
    /// Every access has the same latency; write-backs take no time.
    Flat {
        /// Cycles of a fill.
        latency: u32,
    },
    /// Latencies by requesting and home socket.
    Numa {
        /// Cycles of a fill.
        #[serde(default = "NumaConfig::default_latency")]
        latency: Latencies,
        /// Cycles of the write-back of a dirty line.
        #[serde(default = "NumaConfig::default_write_back")]
        write_back: Latencies,
        /// Bandwidths that the study states; `None` if the study states none. In windows with a core, vCPUs share the local one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bandwidth: Option<Bandwidth>,
    },
}

/// Stated bandwidths of a socket's memory, bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    /// Bandwidth for the cores of the own socket; `None` if not stated.
    pub local: Option<u64>,
    /// Bandwidth for the cores of another socket; `None` if not stated.
    pub remote: Option<u64>,
}

impl MemorySpec {
    /// Returns flat memory with the latency of local DDR3 of the reference clusters: 100 cycles.
    pub fn flat() -> MemorySpec {
        MemorySpec::Flat { latency: 100 }
    }

    /// Returns NUMA memory with the latencies of DDR3 of the reference clusters: local 100, remote 220 cycles.
    pub fn numa() -> MemorySpec {
        MemorySpec::Numa {
            latency: NumaConfig::default_latency(),
            write_back: NumaConfig::default_write_back(),
            bandwidth: None,
        }
    }
}

/// Reason why a list of windows is refused. The text begins with the name of the faulty field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecFault {
    /// A window has no name.
    #[error("windows[{window}].name: is empty; results are listed by it")]
    NoName {
        /// Index of the window in the list, from 0.
        window: usize,
    },
    /// Two windows have the same name.
    #[error(
        "windows[{window}].name: \"{name}\" is also the name of windows[{other}]; give each its own"
    )]
    SameName {
        /// Index of the window in the list, from 0.
        window: usize,
        /// Name of both windows.
        name: String,
        /// Index of the earlier window in the list, from 0.
        other: usize,
    },
    /// A trigger's `call` or `occurrence` is 0, but counting starts at 1.
    #[error("windows[{window}].open.{field}: is 0; the first is 1")]
    CountFromOne {
        /// Index of the window in the list, from 0.
        window: usize,
        /// Name of the field: `call` or `occurrence`.
        field: &'static str,
    },
    /// A window's length is 0 instructions or 0 picoseconds.
    #[error("windows[{window}].measure: is 0; a window measures at least something")]
    Nothing {
        /// Index of the window in the list, from 0.
        window: usize,
    },
}

impl WindowSpec {
    /// Returns every fault of a list of windows, in the order of the list; empty if there is none. Does not check models, which
    /// are checked when they are built.
    pub fn faults(specs: &[WindowSpec]) -> Vec<SpecFault> {
        let mut faults = Vec::new();
        for (window, spec) in specs.iter().enumerate() {
            if spec.name.is_empty() {
                faults.push(SpecFault::NoName { window });
            } else if let Some(other) = specs[..window].iter().position(|o| o.name == spec.name) {
                faults.push(SpecFault::SameName {
                    window,
                    name: spec.name.clone(),
                    other,
                });
            }
            let field = match spec.open {
                Trigger::MpiCall { call: 0, .. } => Some("call"),
                Trigger::Marker { occurrence: 0, .. } => Some("occurrence"),
                _ => None,
            };
            if let Some(field) = field {
                faults.push(SpecFault::CountFromOne { window, field });
            }
            if matches!(
                spec.measure,
                Measure::Instructions(0) | Measure::Time { ps: 0 }
            ) {
                faults.push(SpecFault::Nothing { window });
            }
        }
        faults
    }
}
