//! Searches for deadlocks of the MPI program.

use std::sync::atomic::{AtomicBool, Ordering};

use nodescope_trace::{Body, Event, PendingCalls, PendingCallsBuilder, Stamp, TraceReader};

use crate::outcome::{Ending, RunError};
use crate::run::{Run, TRACE_FILE};

impl Run<'_> {
    /// Returns the ending if the MPI program is deadlocked, or if an interrupt ends the analysis. The program is analyzed once each time it
    /// has been quiet for as long as the study's limit. The analysis uses the trace, as far as it is written, and the pending calls:
    /// matching messages during the whole run would cost time in every call.
    pub(crate) fn deadlock(
        &mut self,
        interrupted: &AtomicBool,
    ) -> Result<Option<Ending>, RunError> {
        let Some(patience) = self.config.deadlock_ps else {
            return Ok(None);
        };
        let inactive = self.now_ps - self.active_ps >= patience;
        if self.searched_for_deadlock
            || !inactive
            || !self.monitors.iter().any(|w| w.assembler.has_unfinished())
        {
            return Ok(None);
        }
        self.searched_for_deadlock = true;
        let pending = self.pending(interrupted)?;
        if interrupted.load(Ordering::Relaxed) {
            return Ok(Some(Ending::Interrupted));
        }
        Ok(pending.deadlocks.into_iter().next().map(|deadlock| {
            let ranks = deadlock.ranks;
            Ending::Deadlock { ranks }
        }))
    }

    fn pending(&mut self, interrupted: &AtomicBool) -> Result<PendingCalls, RunError> {
        self.trace.flush()?;
        let mut builder = PendingCallsBuilder::default();
        // The analysis needs earlier messages: without them, pending calls may look as if nothing could end them.
        let reader = match TraceReader::open(self.results.folder().path().join(TRACE_FILE)) {
            Ok(reader) => reader,
            Err(error) => {
                tracing::warn!(%error, "deadlocks cannot be looked for: the trace does not read back");
                return Ok(PendingCalls::default());
            }
        };
        // The end of the file looks like a cut, since the run is still writing it.
        for event in reader.events().map_while(Result::ok) {
            if interrupted.load(Ordering::Relaxed) {
                return Ok(PendingCalls::default());
            }
            builder.add(&event);
        }
        for (node, monitor) in (0..).zip(&self.monitors) {
            for call in monitor.assembler.unfinished() {
                builder.add(&Event {
                    node,
                    sequence: 0,
                    stamp: Stamp::default(),
                    body: Body::Unfinished(Box::new(call)),
                });
            }
        }
        Ok(builder.finish())
    }
}
