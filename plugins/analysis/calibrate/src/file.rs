//! Writer of a cluster file from fitted channels.

use std::fmt::Write;

use nodescope_config::quantity::{ByteRate, Time};
use nodescope_predict::{Channel, Library, Table};

use crate::check::Checked;
use crate::exchanges::Opening;
use crate::fit::{Fit, Limit};
use crate::piecewise::{Piecewise, Residuals};

/// A fitted communication path, between nodes or within a node, and where its measurements came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// File or folder of the measurements.
    pub source: String,
    /// Fitted channel of the path.
    pub fit: Fit,
}

/// A cluster whose communication paths were fitted to measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterFile {
    /// Name of the cluster.
    pub name: String,
    /// Cores of a node.
    pub cores: u32,
    /// Path between nodes. If `None`, the file gives the costs within a node for messages between nodes too.
    pub network: Option<Path>,
    /// Path within a node. If `None`, the file has no costs within a node, so those between nodes apply.
    pub memory: Option<Path>,
    /// MPI library whose rules choose collective algorithms.
    pub library: Library,
    /// Bytes that a connection between nodes holds for its sender; `None` if unknown.
    pub connection_buffer: Option<u64>,
    /// True if ranks serve one-sided accesses to their memory in their calls of MPI, as libraries do over TCP.
    pub accesses_in_calls: bool,
    /// Errors of predictions with these costs; `None` if none was made.
    pub checked: Option<Checked>,
}

impl ClusterFile {
    /// Returns the text of the cluster file, which `nodescope predict --cluster` reads; `CLUSTER.md` describes the format. Comments in the
    /// text give residuals and ranges.
    pub fn text(&self) -> String {
        let mut out = String::from("# Made by nodescope calibrate (guide: Calibration).\n");
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "name = {}\n\n[nodes]\ncores = {}\n",
            quoted(&self.name),
            self.cores
        );
        if let Some(checked) = &self.checked {
            let _ = writeln!(
                out,
                "# Computation lasted otherwise in a run on another network.\nuncertainty = {:.6}",
                checked.computation
            );
        }
        let within = match &self.network {
            Some(network) => {
                section(&mut out, "network", network);
                shared_wire(&mut out, network);
                if let Some(buffer) = self.connection_buffer {
                    let _ = writeln!(out, "connection_buffer = \"{buffer} B\"");
                }
                if self.accesses_in_calls {
                    out.push_str("accesses_in_calls = true\n");
                }
                if let Some(opening) = opening(network) {
                    let _ = writeln!(
                        out,
                        "connection_poll = {}\nconnection_setup = {}",
                        exact(opening.poll),
                        exact(opening.setup)
                    );
                }
                self.memory.as_ref()
            }
            None => {
                if let Some(memory) = &self.memory {
                    out.push_str("\n# Between nodes nothing was measured: as within a node.");
                    section(&mut out, "network", memory);
                }
                None
            }
        };
        if let Some(checked) = &self.checked {
            let _ = write!(
                out,
                "# Predictions of patterns that were measured, too: {}.\nuncertainty = {:.6}\n",
                checked.summary(),
                checked.messages()
            );
        }
        match within {
            Some(memory) => section(&mut out, "memory", memory),
            None if self.network.is_some() => {
                out.push_str("\n# Within a node nothing was measured: as between nodes.\n");
            }
            None => {}
        }
        let library = match self.library {
            Library::OpenMpi => "openmpi",
            Library::Mpich => "mpich",
        };
        let _ = write!(out, "\n[collectives]\nlibrary = \"{library}\"\n");
        let met = self.network.as_ref().and_then(|path| path.fit.met.as_ref());
        if let Some(met) = met.filter(|met| met.datatype > 0) {
            let _ = writeln!(out, "datatype_overhead = {}", exact(met.datatype));
        }
        if let Some(met) = met.filter(|met| met.reduce_bandwidth > 0) {
            let bandwidth = ByteRate(met.reduce_bandwidth);
            let _ = writeln!(out, "reduce_bandwidth = \"{bandwidth}\"");
        }
        out
    }

    /// Returns a summary of the fits for the user, several lines for each path.
    pub fn summary(&self) -> String {
        let mut out = String::new();
        for (what, path) in [
            ("between nodes", &self.network),
            ("within a node", &self.memory),
        ] {
            let Some(path) = path else { continue };
            let Path { source, fit } = path;
            let _ = writeln!(out, "{what}, from {source}");
            let _ = writeln!(
                out,
                "  latency          {}\n  bandwidth        {}\n  eager limit      {}",
                time(fit.channel.latency),
                ByteRate(fit.bandwidth),
                eager(fit)
            );
            let ends = fit.range;
            for (name, table) in [
                ("send overhead", &fit.channel.send_overhead),
                ("receive overhead", &fit.channel.receive_overhead),
            ] {
                let _ = writeln!(
                    out,
                    "  {name:<16} {} at {} B, {} at {} B",
                    time(table.at(ends.0)),
                    ends.0,
                    time(table.at(ends.1)),
                    ends.1
                );
            }
            let _ = writeln!(out, "  one way          {}", line_up(&fit.one_way));
            if let Some(send) = &fit.send {
                let _ = writeln!(out, "  in sends         {}", line_up(send));
            }
            if let Some(receive) = &fit.receive {
                let _ = writeln!(out, "  late receives    {}", line_up(receive));
            }
            if let Some(met) = &fit.met {
                let _ = writeln!(
                    out,
                    "  among {} ranks    {}; single messages vary by {:.0} %",
                    met.ranks,
                    line_up(&met.ring),
                    100.0 * met.variation
                );
            }
            if let Some(opening) = opening(path) {
                let looks = match opening.poll {
                    0 => "whenever it is in MPI".to_owned(),
                    poll => format!("every {}", time(poll)),
                };
                let _ = writeln!(
                    out,
                    "  first use        a step takes {}; a rank without a connection looks {looks}",
                    time(opening.setup)
                );
            }
            let _ = writeln!(out, "  costs, one way   {}", residuals(&fit.residuals));
            if let Some(late) = &fit.late_residuals {
                let _ = writeln!(out, "  costs, late      {}", residuals(late));
            }
            for note in &fit.notes {
                let _ = writeln!(out, "  note: {note}");
            }
        }
        if let Some(buffer) = self.connection_buffer {
            let _ = writeln!(out, "buffer of a connection, by the patterns: {buffer} B");
        }
        if let Some(checked) = &self.checked {
            let _ = writeln!(out, "predicted patterns\n  {}", checked.summary());
        }
        out
    }
}

fn section(out: &mut String, name: &str, path: &Path) {
    let Path { source, fit } = path;
    let Channel {
        latency,
        send_overhead,
        receive_overhead,
        eager_limit,
        ..
    } = &fit.channel;
    let _ = write!(
        out,
        "\n[{name}]\n# From {}.\n",
        source.replace(['\n', '\r'], " ")
    );
    let _ = writeln!(out, "# One way: {}.", line_up(&fit.one_way));
    if let Some(send) = &fit.send {
        let _ = writeln!(out, "# In sends: {}.", line_up(send));
    }
    if let Some(receive) = &fit.receive {
        let _ = writeln!(out, "# In late receives: {}.", line_up(receive));
    }
    let _ = writeln!(
        out,
        "# These costs against the one-way times measured: {}.",
        residuals(&fit.residuals)
    );
    if let Some(late) = &fit.late_residuals {
        let _ = writeln!(
            out,
            "# These costs against the late receives measured: {}.",
            residuals(late)
        );
    }
    for note in &fit.notes {
        let _ = writeln!(out, "# Note: {}.", note.replace(['\n', '\r'], " "));
    }
    let _ = writeln!(out, "latency = {}", exact(*latency));
    let _ = writeln!(out, "bandwidth = \"{}\"", ByteRate(fit.bandwidth));
    let _ = writeln!(out, "# {}", eager(fit));
    let _ = writeln!(out, "eager_limit = \"{eager_limit} B\"");
    table(out, "send_overhead", send_overhead);
    table(out, "receive_overhead", receive_overhead);
    let overheads = [
        ("buffered_overhead", fit.channel.buffered_overhead.as_ref()),
        ("queued_overhead", fit.channel.queued_overhead.as_ref()),
        ("pack_overhead", Some(&fit.channel.pack_overhead)),
        ("unpack_overhead", Some(&fit.channel.unpack_overhead)),
    ];
    for (key, overhead) in overheads {
        if let Some(overhead) = overhead.filter(|overhead| !overhead.points.is_empty()) {
            table(out, key, overhead);
        }
    }
}

fn opening(path: &Path) -> Option<Opening> {
    path.fit.met.as_ref().and_then(|met| met.opening)
}

/// Writes what frames on the wire and ranks that wait among others do to messages between nodes.
fn shared_wire(out: &mut String, path: &Path) {
    let channel = &path.fit.channel;
    if let Some(met) = &path.fit.met {
        let _ = writeln!(
            out,
            "# From {}: {} ranks exchanged messages. Single messages varied by {:.1} %.\ntake_in = true",
            met.source.replace(['\n', '\r'], " "),
            met.ranks,
            100.0 * met.variation
        );
    }
    if channel.send_per_byte > 0.0 {
        let rate = ByteRate((1e12 / channel.send_per_byte).round() as u64);
        let _ = writeln!(out, "send_bandwidth = \"{rate}\"");
    }
    if let Some(frames) = channel.frames {
        let _ = writeln!(
            out,
            "envelope = \"{} B\"\nframe_payload = \"{} B\"\nframe_header = \"{} B\"\nframe_acknowledge = {}\nsharing = \"frames\"",
            channel.envelope, frames.payload, frames.header, frames.acknowledge
        );
        if channel.acknowledgement_overhead > 0 {
            let _ = writeln!(
                out,
                "acknowledgement_overhead = {}",
                exact(channel.acknowledgement_overhead)
            );
        }
    }
}

fn table(out: &mut String, key: &str, table: &Table) {
    match table.points[..] {
        [] => {
            let _ = writeln!(out, "{key} = \"0 ns\"");
        }
        [(_, time)] => {
            let _ = writeln!(out, "{key} = {}", exact(time));
        }
        _ => {
            let _ = writeln!(out, "{key} = [");
            for &(bytes, time) in &table.points {
                let _ = writeln!(
                    out,
                    "    {{ bytes = \"{bytes} B\", time = {} }},",
                    exact(time)
                );
            }
            out.push_str("]\n");
        }
    }
}

/// Returns picoseconds as a quoted text in nanoseconds, which reads back as the same number of picoseconds.
fn exact(picoseconds: u64) -> String {
    format!("\"{}.{:03} ns\"", picoseconds / 1000, picoseconds % 1000)
}

/// Returns `text` as a basic string of TOML, quoted and escaped.
fn quoted(text: &str) -> String {
    let escaped: String = (text.chars())
        .map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            c if c.is_control() => format!("\\u{:04x}", c as u32),
            c => c.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

fn time(picoseconds: u64) -> String {
    Time(picoseconds).rounded(4)
}

fn eager(fit: &Fit) -> String {
    let limit = format!("{} B", fit.channel.eager_limit);
    match fit.limit {
        Limit::Given => format!("{limit}, as given"),
        Limit::Waiting(next) => format!("{limit}: sends of {next} B wait for their receives"),
        Limit::Step(next) => format!("{limit}: the time steps up before {next} B"),
        Limit::Unseen => format!("{limit}, the largest size measured: no step is visible"),
    }
}

fn line_up(fit: &Piecewise) -> String {
    let points: usize = fit.segments.iter().map(|segment| segment.points).sum();
    let ends = (fit.segments.first(), fit.segments.last());
    let range = match ends {
        (Some(first), Some(last)) => format!("{} B to {} B", first.from, last.to),
        _ => String::new(),
    };
    let lines = match fit.segments.len() {
        1 => "1 line".to_owned(),
        count => format!("{count} lines"),
    };
    format!(
        "{points} sizes from {range}, {lines}, {}",
        residuals(&fit.residuals)
    )
}

fn residuals(residuals: &Residuals) -> String {
    format!(
        "off by {:.2} % in the median, {:.1} % at most (at {} B)",
        residuals.median * 100.0,
        residuals.largest * 100.0,
        residuals.largest_at
    )
}
