//! Real-time clock of a PC, an MC146818A. It starts from a configured date and advances in virtual time.
//!
//! The clock has the time of day and 114 bytes of RAM. It raises no interrupts: alarm and period settings are stored without effect.

use serde::{Deserialize, Serialize};

use crate::bus::BusDevice;
use crate::state::RestoreError;
use crate::time::Hertz;

/// Number of I/O ports of the clock: index and data, usually 0x70 and 0x71.
pub const RTC_SIZE: u64 = 2;

const SECONDS: u8 = 0x00;
const MINUTES: u8 = 0x02;
const HOURS: u8 = 0x04;
const WEEKDAY: u8 = 0x06;
const DAY: u8 = 0x07;
const MONTH: u8 = 0x08;
const YEAR: u8 = 0x09;
const A: u8 = 0x0a;
const B: u8 = 0x0b;
const C: u8 = 0x0c;
const D: u8 = 0x0d;
const CENTURY: u8 = 0x32;

const B_24_HOURS: u8 = 1 << 1;
const B_BINARY: u8 = 1 << 2;
const B_SET: u8 = 1 << 7;
const D_VALID: u8 = 1 << 7;

/// Largest distance of the clock's start from 1970, in seconds. Registers hold years up to 25755, and a node's clock may have run before
/// they were set.
const MOST_EPOCH: u64 = 1 << 40;

/// Complete state of the real-time clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RtcState {
    /// Index of the selected register.
    pub index: u8,
    /// Contents of all 128 registers. The time registers are updated when they are read, unless the guest has stopped the clock to set it.
    pub registers: Vec<u8>,
    /// Time in seconds since 1970-01-01 UTC that the clock shows at cycle 0.
    pub epoch: i64,
}

/// Real-time clock of a node.
#[derive(Clone, Debug)]
pub struct Rtc {
    clock: Hertz,
    state: RtcState,
}

/// Date and time: year, month (1 to 12), day of the month (from 1), hour, minute, second, day of the week (1 is Sunday).
type Civil = [i64; 7];

impl Rtc {
    /// Creates a clock that shows `epoch` seconds since 1970-01-01 UTC at cycle 0 and advances with `clock`.
    pub fn new(clock: Hertz, epoch: i64) -> Self {
        let mut registers = vec![0; 128];
        registers[usize::from(A)] = 0x26; // 32.768 kHz time base, 1024 Hz rate
        registers[usize::from(B)] = B_24_HOURS;
        registers[usize::from(D)] = D_VALID;
        Self {
            clock,
            state: RtcState {
                index: 0,
                registers,
                epoch,
            },
        }
    }

    /// Returns the state.
    pub fn save(&self) -> RtcState {
        self.state.clone()
    }

    /// Loads a state. Refused if it does not have 128 registers, selects a register beyond them, or has a date further from 1970 than any
    /// that a guest can set.
    pub fn restore(&mut self, state: &RtcState) -> Result<(), RestoreError> {
        if state.registers.len() != 128 {
            return Err(RestoreError::new(
                "real-time clock",
                "it has not 128 registers",
            ));
        }
        if usize::from(state.index) >= state.registers.len() {
            return Err(RestoreError::new(
                "real-time clock",
                "it selects a register that does not exist",
            ));
        }
        if state.epoch.unsigned_abs() > MOST_EPOCH {
            return Err(RestoreError::new(
                "real-time clock",
                "it shows a year that has too many digits",
            ));
        }
        self.state = state.clone();
        Ok(())
    }

    fn seconds(&self, now: u64) -> i64 {
        self.state
            .epoch
            .saturating_add((now / self.clock.get()) as i64)
    }

    fn flag(&self, bit: u8) -> bool {
        self.state.registers[usize::from(B)] & bit != 0
    }

    fn encode(&self, value: i64) -> u8 {
        let value = value as u8;
        if self.flag(B_BINARY) {
            value
        } else {
            ((value / 10) << 4) | (value % 10)
        }
    }

    fn decode(&self, register: u8) -> i64 {
        let value = self.state.registers[usize::from(register)];
        let value = if self.flag(B_BINARY) {
            value
        } else {
            (value >> 4) * 10 + (value & 0xf)
        };
        value.into()
    }

    fn hour(&self, hour: i64) -> u8 {
        if self.flag(B_24_HOURS) {
            return self.encode(hour);
        }
        let afternoon = if hour >= 12 { 0x80 } else { 0 };
        self.encode((hour + 11) % 12 + 1) | afternoon
    }

    fn show(&mut self, now: u64) {
        let [year, month, day, hour, minute, second, weekday] = civil(self.seconds(now));
        let hour = self.hour(hour);
        for (register, value) in [
            (SECONDS, self.encode(second)),
            (MINUTES, self.encode(minute)),
            (HOURS, hour),
            (WEEKDAY, self.encode(weekday)),
            (DAY, self.encode(day)),
            (MONTH, self.encode(month)),
            (YEAR, self.encode(year.rem_euclid(100))),
            (CENTURY, self.encode(year.div_euclid(100))),
        ] {
            self.state.registers[usize::from(register)] = value;
        }
    }

    /// Sets the clock to the time in the registers that the guest has written.
    fn take(&mut self, now: u64) {
        let mut hour = self.decode(HOURS);
        if !self.flag(B_24_HOURS) {
            let raw = self.state.registers[usize::from(HOURS)];
            self.state.registers[usize::from(HOURS)] &= 0x7f;
            hour = self.decode(HOURS) % 12 + if raw & 0x80 != 0 { 12 } else { 0 };
        }
        let year = self.decode(CENTURY) * 100 + self.decode(YEAR);
        let days = days(year, self.decode(MONTH).clamp(1, 12), self.decode(DAY));
        let shown = days * 86_400 + hour * 3600 + self.decode(MINUTES) * 60 + self.decode(SECONDS);
        self.state.epoch = shown - (now / self.clock.get()) as i64;
    }
}

impl BusDevice for Rtc {
    fn read(&mut self, offset: u64, data: &mut [u8], now: u64) {
        data.fill(0xff);
        if let (1, [byte]) = (offset, data) {
            if !self.flag(B_SET) {
                self.show(now);
            }
            *byte = self.state.registers[usize::from(self.state.index)];
        }
    }

    fn write(&mut self, offset: u64, data: &[u8], now: u64) {
        let &[value] = data else { return };
        if offset == 0 {
            self.state.index = value & 0x7f; // bit 7 gates NMI on a PC; nothing here raises one
            return;
        }
        let index = self.state.index;
        let was_set = self.flag(B_SET);
        if !was_set {
            self.show(now);
        }
        match index {
            C | D => return,
            A => self.state.registers[usize::from(A)] = value & 0x7f,
            _ => self.state.registers[usize::from(index)] = value,
        }
        let time = index == CENTURY || index <= YEAR && index != 1 && index != 3 && index != 5;
        if !self.flag(B_SET) && (was_set || time) {
            self.take(now);
        }
    }
}

/// Returns the number of days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years are counted from March, so that the leap day is the last day.
    let y = if month <= 2 { year - 1 } else { year };
    let m = (month + 9) % 12;
    let leaps = y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400);
    y * 365 + leaps + (m * 153 + 2) / 5 + day - 1 - 719_468
}

/// Returns the date and time of a number of seconds since 1970-01-01.
fn civil(seconds: i64) -> Civil {
    let (date, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Start from an estimate in years of 365 days, which can be some years too late or too early.
    let mut year = 1970 + date.div_euclid(365);
    while days(year, 1, 1) > date {
        year -= 1;
    }
    while days(year + 1, 1, 1) <= date {
        year += 1;
    }
    let mut month = 12;
    while days(year, month, 1) > date {
        month -= 1;
    }
    let day = date - days(year, month, 1) + 1;
    let weekday = (date + 4).rem_euclid(7) + 1;
    [
        year,
        month,
        day,
        time / 3600,
        time / 60 % 60,
        time % 60,
        weekday,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rtc: &mut Rtc, register: u8, now: u64) -> u8 {
        rtc.write(0, &[register], now);
        let mut data = [0];
        rtc.read(1, &mut data, now);
        data[0]
    }

    fn write(rtc: &mut Rtc, register: u8, value: u8) {
        rtc.write(0, &[register], 0);
        rtc.write(1, &[value], 0);
    }

    const REGISTERS: [u8; 8] = [CENTURY, YEAR, MONTH, DAY, HOURS, MINUTES, SECONDS, WEEKDAY];

    #[test]
    fn dates() {
        for (seconds, expect) in [
            (0, [1970, 1, 1, 0, 0, 0, 5]),
            (951_782_399, [2000, 2, 28, 23, 59, 59, 2]),
            (951_782_400, [2000, 2, 29, 0, 0, 0, 3]),
            (1_735_689_599, [2024, 12, 31, 23, 59, 59, 3]),
            (4_107_542_400, [2100, 3, 1, 0, 0, 0, 2]),
            (-1, [1969, 12, 31, 23, 59, 59, 4]),
            (-731 * 86_400, [1968, 1, 1, 0, 0, 0, 2]),
            (-719_528 * 86_400, [0, 1, 1, 0, 0, 0, 7]),
        ] {
            assert_eq!(civil(seconds), expect);
            assert_eq!(
                days(expect[0], expect[1], expect[2]),
                i64::div_euclid(seconds, 86_400)
            );
        }
    }

    #[test]
    fn the_time_advances_with_the_clock() {
        let mut rtc = Rtc::new(Hertz::new(1000).unwrap(), 951_782_399);
        let at = |rtc: &mut Rtc, now| REGISTERS.map(|r| read(rtc, r, now));
        assert_eq!(at(&mut rtc, 999), [0x20, 0, 2, 0x28, 0x23, 0x59, 0x59, 2]);
        assert_eq!(at(&mut rtc, 1000), [0x20, 0, 2, 0x29, 0, 0, 0, 3]);
        write(&mut rtc, B, B_BINARY);
        assert_eq!(at(&mut rtc, 999)[4..7], [0x80 | 11, 59, 59]);
        assert_eq!(read(&mut rtc, A, 0) & 0x80, 0, "never in an update");
        assert_eq!(read(&mut rtc, D, 0), D_VALID);
    }

    #[test]
    fn states_that_no_guest_can_make_are_refused() {
        let mut rtc = Rtc::new(Hertz::new(1000).unwrap(), 0);
        let state = rtc.save();
        let refuse = |state: RtcState, why: &str| {
            let error = rtc.clone().restore(&state).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let index = RtcState {
            index: 128,
            ..state.clone()
        };
        refuse(index, "does not exist");
        for epoch in [i64::MIN, -(1 << 41), 1 << 41, i64::MAX] {
            refuse(
                RtcState {
                    epoch,
                    ..state.clone()
                },
                "too many digits",
            );
        }
        let registers = vec![0; 127];
        refuse(
            RtcState {
                registers,
                ..state.clone()
            },
            "128 registers",
        );
        // The latest date that the registers can be set to.
        write(&mut rtc, B, B_SET | B_24_HOURS | B_BINARY);
        for register in REGISTERS {
            write(&mut rtc, register, 0xff);
        }
        write(&mut rtc, B, B_24_HOURS | B_BINARY);
        let latest = rtc.save();
        assert!(latest.epoch > 0);
        rtc.restore(&latest).unwrap();
    }

    #[test]
    fn a_time_that_was_set_goes_on_from_there() {
        let mut rtc = Rtc::new(Hertz::new(1000).unwrap(), 0);
        write(&mut rtc, B, B_SET | B_24_HOURS);
        for (register, value) in REGISTERS
            .into_iter()
            .zip([0x20, 0x24, 0x12, 0x31, 0x23, 0x59, 0x58])
        {
            write(&mut rtc, register, value);
        }
        write(&mut rtc, B, B_24_HOURS);
        let mut copy = Rtc::new(Hertz::new(1000).unwrap(), 7);
        copy.restore(&rtc.save()).unwrap();
        assert_eq!(copy.save(), rtc.save());
        for rtc in [&mut rtc, &mut copy] {
            assert_eq!(
                REGISTERS.map(|r| read(rtc, r, 2000)),
                [0x20, 0x25, 1, 1, 0, 0, 0, 4]
            );
        }
    }
}
