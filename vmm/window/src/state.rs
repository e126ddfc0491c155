//! State of the driver of windows, for snapshots. Another run of the study continues from the state. A study with other windows that open
//! later may continue from the state, too.

use nodescope_trace::Event;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::driver::{Phase, Window, WindowDriver};

/// State of a [`WindowDriver`] while no window is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverState {
    windows: Vec<Window>,
    #[serde(rename = "strangers")]
    unknown_names: Vec<String>,
}

/// Reason why windows cannot continue from a state.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StateFault {
    /// A window is open. A state cannot contain the models of an open window.
    #[error("window {0:?} is open; only the state between windows can be kept")]
    Open(String),
    /// A window that was triggered before the snapshot is not in the study, or has another specification there.
    #[error(
        "window {0:?} has opened before the snapshot, and the study has it no more as it was then; only windows that open later may differ"
    )]
    Gone(String),
    /// A new window's trigger would have fired before the snapshot.
    #[error(
        "window {name:?} would have opened before the snapshot, at {} s of virtual time; let it open later, or run the study from its beginning, without --from and with cluster.boot = \"each\"", *.ps as f64 / 1e12
    )]
    Missed {
        /// Name of the window.
        name: String,
        /// Virtual time at which the window's trigger fired, picoseconds.
        ps: u64,
    },
}

impl WindowDriver {
    /// Returns the state for [`WindowDriver::load`].
    ///
    /// # Errors
    ///
    /// Fails if a window is open.
    pub fn state(&self) -> Result<DriverState, StateFault> {
        if let Some(open) = self.open {
            return Err(StateFault::Open(self.spec(open).name.clone()));
        }
        Ok(DriverState {
            windows: self.windows.clone(),
            unknown_names: self.unknown_names.clone(),
        })
    }

    /// Continues from another driver's state. Returns the indices of the windows that the state does not have. These wait for their
    /// triggers, which count from power-on if the caller passes all earlier events to [`WindowDriver::catch_up`].
    ///
    /// # Errors
    ///
    /// Fails if a window that was triggered in the state is not among the driver's windows, or if a window was open.
    pub fn load(&mut self, state: DriverState) -> Result<Vec<usize>, StateFault> {
        let mut other = Vec::new();
        let mut earlier = state.windows;
        for (index, window) in self.windows.iter_mut().enumerate() {
            match earlier.iter().position(|old| old.spec == window.spec) {
                Some(at) => *window = earlier.remove(at),
                None => other.push(index),
            }
            if matches!(window.phase, Phase::WarmingUp | Phase::Measuring) {
                return Err(StateFault::Open(window.spec.name.clone()));
            }
        }
        if let Some(gone) = earlier.iter().find(|old| old.phase != Phase::Waiting) {
            return Err(StateFault::Gone(gone.spec.name.clone()));
        }
        self.unknown_names = state.unknown_names;
        Ok(other)
    }

    /// Processes an event from before the state, for the new windows `windows`. Callers pass all earlier events in their order.
    pub fn catch_up(&mut self, windows: &[usize], event: &Event) {
        for &window in windows {
            self.windows[window].observe(event);
        }
    }

    /// Checks that new windows would not have opened before the time of the state, `now_ps`.
    ///
    /// # Errors
    ///
    /// Fails with the first window that would have opened.
    pub fn check_later(&self, windows: &[usize], now_ps: u64) -> Result<(), StateFault> {
        for &window in windows {
            let Window { spec, times, .. } = &self.windows[window];
            let timed = spec.open.time_ps().filter(|&ps| ps <= now_ps);
            if let Some(ps) = times.triggered_ps.or(timed) {
                let name = spec.name.clone();
                return Err(StateFault::Missed { name, ps });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nodescope_trace::{Body, Stamp};

    use super::*;
    use crate::spec::{Measure, ModelSpec, Trigger, WindowSpec};

    fn marked(name: &str, occurrence: u64) -> WindowSpec {
        WindowSpec {
            name: name.into(),
            open: Trigger::Marker {
                name: "m".into(),
                occurrence,
            },
            warm_up: 0,
            measure: Measure::Instructions(10),
            models: ModelSpec::default(),
            attribution: false,
            sampling: None,
        }
    }

    fn mark(time: u64) -> Event {
        Event {
            node: 0,
            sequence: 0,
            stamp: Stamp {
                time,
                ..Stamp::default()
            },
            body: Body::Mark("m".into()),
        }
    }

    /// Returns a driver after two marks. Between the marks, the first window, which the first mark triggers, has opened and closed.
    fn driver(windows: &[WindowSpec]) -> WindowDriver {
        let mut driver = WindowDriver::new(windows.to_vec()).unwrap();
        driver.observe(&mark(5));
        driver.step(10, 100);
        assert!(matches!(driver.state(), Err(StateFault::Open(_))));
        driver.step(20, 200);
        driver.observe(&mark(25));
        driver
    }

    #[test]
    fn a_driver_goes_on_from_the_state_of_another() {
        let windows = [marked("a", 1), marked("b", 3)];
        let mut first = driver(&windows);
        let text = serde_json::to_string(&first.state().unwrap()).unwrap();
        let mut second = WindowDriver::new(windows.to_vec()).unwrap();
        let others = second.load(serde_json::from_str(&text).unwrap()).unwrap();
        assert!(others.is_empty());
        for driver in [&mut first, &mut second] {
            driver.observe(&mark(35));
        }
        let actions = second.step(40, 300);
        assert_eq!(actions.len(), 2);
        assert_eq!(actions, first.step(40, 300));
        assert_eq!(second.finish(), first.finish());
    }

    #[test]
    fn windows_that_open_later_may_differ() {
        let state = || driver(&[marked("a", 1), marked("b", 3)]).state().unwrap();
        let load = |windows: &[WindowSpec]| {
            let mut driver = WindowDriver::new(windows.to_vec()).unwrap();
            let others = driver.load(state())?;
            for time in [5, 25] {
                driver.catch_up(&others, &mark(time));
            }
            driver.check_later(&others, 30).map(|()| driver)
        };
        let mut other = load(&[marked("a", 1), marked("c", 3)]).unwrap();
        other.observe(&mark(35));
        assert_eq!(other.step(40, 300).len(), 2, "earlier marks count");
        assert_eq!(
            load(&[marked("b", 3)]).unwrap_err(),
            StateFault::Gone("a".into())
        );
        assert_eq!(
            load(&[marked("a", 1), marked("c", 2)]).unwrap_err(),
            StateFault::Missed {
                name: "c".into(),
                ps: 25
            }
        );
        let timed = |ps| WindowSpec {
            open: Trigger::Time { ps },
            ..marked("t", 1)
        };
        assert!(load(&[marked("a", 1), timed(30)]).is_err());
        assert!(load(&[marked("a", 1), timed(31)]).is_ok());
    }
}
