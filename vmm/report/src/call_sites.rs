//! Calls by their place in the program.

use nodescope_hypercall::Function;
use nodescope_trace::profile::SiteProfile;
use nodescope_trace::{Place, Site, SiteNames};
use serde::Serialize;

use crate::table::Table;
use crate::units::{bytes, grouped, time};

/// Sums of a function's calls from one place in the program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallSiteRow {
    /// Name of the MPI function.
    pub function: &'static str,
    /// Place of the call as a module and an address, such as `program+0x14f7`; `None` if unknown.
    #[serde(rename = "site")]
    pub address: Option<String>,
    /// Place of the call in the source; `None` if unknown.
    pub place: Option<Place>,
    /// Number of ranks that called from there.
    pub ranks: usize,
    /// Number of calls; every poll counts as a call.
    pub calls: u64,
    /// Number of bytes that the calls passed to MPI.
    pub send_bytes: u64,
    /// Number of bytes that the calls received.
    pub receive_bytes: u64,
    /// Virtual time inside the calls, picoseconds.
    pub time_ps: u64,
    /// Part of `time_ps` in which the calls waited for other ranks.
    pub waited_ps: u64,
    /// Virtual time of the longest call, picoseconds.
    pub max_ps: u64,
    /// Rank with most time in these calls, the first of equal ones.
    pub most_rank: u32,
    /// Virtual time of that rank inside the calls, picoseconds.
    pub most_rank_ps: u64,
    #[serde(skip)]
    pub(crate) site: Site,
    #[serde(skip)]
    text: String,
}

impl CallSiteRow {
    pub(crate) fn new(
        site: Site,
        function: Function,
        profile: &SiteProfile,
        waited_ps: u64,
        names: &SiteNames,
    ) -> CallSiteRow {
        let sums = &profile.sums;
        let most = profile.times.iter().rev().max_by_key(|(_, time)| **time);
        let (&most_rank, &most_rank_ps) = most.unwrap_or((&0, &0));
        let mut row = CallSiteRow {
            function: function.name(),
            address: None,
            place: None,
            ranks: profile.times.len(),
            calls: sums.calls,
            send_bytes: sums.send_bytes,
            receive_bytes: sums.receive_bytes,
            time_ps: sums.time,
            waited_ps: waited_ps.min(sums.time),
            max_ps: sums.max_time,
            most_rank,
            most_rank_ps,
            site,
            text: String::new(),
        };
        row.name(names);
        row
    }

    /// Gives the row the names of its site.
    pub(crate) fn name(&mut self, names: &SiteNames) {
        let call = names.call(self.function, self.site);
        (self.address, self.place) = (call.address, call.place);
        self.text = names.text(self.site);
    }
}

/// Returns the table of calls by their place in the program, longest total first; `None` without a known place.
pub(crate) fn table(rows: &[CallSiteRow]) -> Option<Table> {
    rows.iter().find(|row| row.address.is_some())?;
    let head = [
        "from", "function", "calls", "bytes", "total", "waited", "most",
    ];
    let title = "By call site, longest total first. Calls and bytes counted; times modelled";
    let mut table = Table::new(title, 2, &head).about("run");
    for row in rows {
        let waited = match row.time_ps {
            0 => "-".into(),
            time => format!("{:.0} %", 100.0 * row.waited_ps as f64 / time as f64),
        };
        table.row(vec![
            row.text.clone(),
            row.function.into(),
            grouped(row.calls.into()),
            bytes(row.send_bytes.saturating_add(row.receive_bytes)),
            time(row.time_ps as f64),
            waited,
            format!("{}: {}", row.most_rank, time(row.most_rank_ps as f64)),
        ]);
    }
    table.below.push(
        "bytes: sent and received. waited: share of the total in which calls waited for other ranks. most: the rank with most time in these calls"
            .into(),
    );
    Some(table)
}
