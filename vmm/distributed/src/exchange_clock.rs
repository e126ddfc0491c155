//! Host's time of exchanges: how long a process waited for others, and how long the messages themselves took.
//!
//! The clocks of hosts differ, so that processes compare durations. Each message of an exchange ends with the time that its sender's last
//! exchange took. The process that came last waited for nobody: its time is that of the messages, and the rest of the others' is their wait.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Host's time that a process has spent at the ends of quanta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExchangeTimes {
    /// Number of exchanges.
    pub exchanges: u64,
    /// Exchanges in which this process had nothing to send, so that no other process waited for it.
    pub quiet: u64,
    /// Seconds in which messages were sent and received.
    pub exchanging: f64,
    /// Further seconds, in which this process waited for others.
    pub waiting: f64,
}

/// Bytes of a stamp, the time at the end of a message in units of [`TICK`].
const STAMP: usize = size_of::<u32>();
/// Ten nanoseconds, in seconds.
const TICK: f64 = 1e-8;

/// The clock of a process's exchanges.
#[derive(Default)]
pub struct ExchangeClock {
    times: ExchangeTimes,
    /// Seconds of the last exchange, and the processes that sent in it.
    last: Option<(f64, Vec<bool>)>,
}

impl ExchangeClock {
    /// Returns the times of all exchanges but the last.
    pub fn times(&self) -> ExchangeTimes {
        self.times
    }

    /// Returns a message with the stamp of this process.
    pub fn stamped(&self, message: &[u8]) -> Vec<u8> {
        let seconds = self.last.as_ref().map_or(0.0, |(seconds, _)| *seconds);
        let ticks = (seconds / TICK) as u32;
        [message, &ticks.to_le_bytes()].concat()
    }

    /// Takes the stamps from the messages of an exchange, and adds the times of the exchange before.
    ///
    /// # Errors
    ///
    /// The process whose message has no stamp.
    pub fn take_stamps(
        &mut self,
        rank: usize,
        senders: &[bool],
        messages: &mut [Vec<u8>],
    ) -> Result<(), usize> {
        let last = self.last.take();
        let (own, sent) = last.unwrap_or_else(|| (0.0, vec![false; messages.len()]));
        let mut shortest = own;
        for (from, message) in messages.iter_mut().enumerate() {
            if from == rank || !senders[from] {
                continue;
            }
            let (_, stamp) = message.split_last_chunk::<STAMP>().ok_or(from)?;
            if sent[from] {
                shortest = shortest.min(f64::from(u32::from_le_bytes(*stamp)) * TICK);
            }
            message.truncate(message.len() - STAMP);
        }
        self.times.exchanging += shortest;
        self.times.waiting += own - shortest;
        Ok(())
    }

    /// Ends an exchange, which took this long.
    pub fn end(&mut self, took: Duration, rank: usize, senders: &[bool]) {
        self.times.exchanges += 1;
        self.times.quiet += u64::from(!senders[rank]);
        self.last = Some((took.as_secs_f64(), senders.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exchanges empty messages between clocks that need these milliseconds.
    fn exchange(clocks: &mut [ExchangeClock], ms: &[u64], senders: &[bool]) {
        let stamped: Vec<_> = clocks.iter().map(|clock| clock.stamped(b"x")).collect();
        for (rank, clock) in clocks.iter_mut().enumerate() {
            let mut messages = stamped.clone();
            clock.take_stamps(rank, senders, &mut messages).unwrap();
            let others = (0..ms.len()).filter(|&from| from != rank && senders[from]);
            others.for_each(|from| assert_eq!(messages[from], b"x"));
            clock.end(Duration::from_millis(ms[rank]), rank, senders);
        }
    }

    #[test]
    fn the_process_that_comes_last_waits_for_nobody() {
        let mut clocks = [(); 3].map(|()| ExchangeClock::default());
        exchange(&mut clocks, &[10, 2, 7], &[true; 3]);
        // Process 1 sleeps: its short time says nothing about the messages of the others.
        exchange(&mut clocks, &[5, 1, 3], &[true, false, true]);
        exchange(&mut clocks, &[0, 0, 0], &[true; 3]);
        let near = |found: f64, ms: f64| assert!((found - ms / 1000.0).abs() < 1e-6, "{found}");
        let times: Vec<_> = clocks.iter().map(ExchangeClock::times).collect();
        // Only senders of both exchanges are compared, and each process compares itself.
        near(times[0].exchanging, 7.0 + 3.0);
        near(times[0].waiting, 3.0 + 2.0);
        near(times[2].exchanging, 7.0 + 3.0);
        near(times[2].waiting, 0.0);
        assert_eq!((times[1].exchanges, times[1].quiet), (3, 1));
        let short = clocks[0].take_stamps(0, &[true; 3], &mut [vec![], vec![1], vec![]]);
        assert_eq!(short, Err(1));
    }
}
