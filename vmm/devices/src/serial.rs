//! Serial console: a 16550A UART, whose registers vm-superio models. Output collects in a buffer until the machine takes it. Input waits in
//! a buffer until the FIFO has space.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;

use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, SerialState as UartState};
use vm_superio::{Serial as Uart, Trigger};

use crate::bus::BusDevice;
use crate::state::RestoreError;

/// Number of I/O ports that the serial port takes.
pub const SERIAL_SIZE: u64 = 8;

/// Complete state of the serial port. The registers are named as in the 16550 data sheet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SerialState {
    pub baud_divisor_low: u8,
    pub baud_divisor_high: u8,
    pub interrupt_enable: u8,
    pub interrupt_identification: u8,
    pub line_control: u8,
    pub line_status: u8,
    pub modem_control: u8,
    pub modem_status: u8,
    pub scratch: u8,
    /// Bytes of the receive FIFO.
    pub fifo: Vec<u8>,
    /// Input that has not reached the FIFO yet.
    pub input: Vec<u8>,
    /// Output that has not been drained yet.
    pub output: Vec<u8>,
    /// True if the interrupt line has risen and the interrupt router has not been notified yet.
    pub edge: bool,
}

#[derive(Debug, Default)]
struct Edge(Cell<bool>);

impl Trigger for Edge {
    type E = Infallible;
    fn trigger(&self) -> Result<(), Infallible> {
        self.0.set(true);
        Ok(())
    }
}

/// Serial port of a node: a 16550A UART.
#[derive(Debug)]
pub struct Serial {
    uart: Uart<Edge, NoEvents, Vec<u8>>,
    input: VecDeque<u8>,
}

impl Default for Serial {
    fn default() -> Self {
        Self {
            uart: Uart::new(Edge::default(), Vec::new()),
            input: VecDeque::new(),
        }
    }
}

impl Serial {
    /// Queues bytes as input from the console.
    pub fn queue_input(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
        self.refill();
    }

    /// Removes and returns the guest's output since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(self.uart.writer_mut())
    }

    /// Returns whether [`Serial::take_output`] would return anything.
    pub fn has_output(&mut self) -> bool {
        !self.uart.writer_mut().is_empty()
    }

    /// Returns whether the interrupt line has risen since the last call, and clears this mark.
    pub fn take_edge(&mut self) -> bool {
        self.uart.interrupt_evt().0.take()
    }

    fn refill(&mut self) {
        let room = self.uart.fifo_capacity();
        let next: Vec<u8> = self.input.iter().take(room).copied().collect();
        if next.is_empty() {
            return;
        }
        // In loopback mode the UART refuses input. The bytes stay queued, and the next access offers them again.
        if let Ok(taken) = self.uart.enqueue_raw_bytes(&next) {
            self.input.drain(..taken);
        }
    }

    /// Returns the state.
    pub fn save(&self) -> SerialState {
        let s = self.uart.state();
        SerialState {
            baud_divisor_low: s.baud_divisor_low,
            baud_divisor_high: s.baud_divisor_high,
            interrupt_enable: s.interrupt_enable,
            interrupt_identification: s.interrupt_identification,
            line_control: s.line_control,
            line_status: s.line_status,
            modem_control: s.modem_control,
            modem_status: s.modem_status,
            scratch: s.scratch,
            fifo: s.in_buffer,
            input: self.input.iter().copied().collect(),
            output: self.uart.writer().clone(),
            edge: self.uart.interrupt_evt().0.get(),
        }
    }

    /// Loads a state. Refused if it has more bytes in the FIFO than the FIFO can hold.
    pub fn restore(&mut self, state: &SerialState) -> Result<(), RestoreError> {
        let uart = UartState {
            baud_divisor_low: state.baud_divisor_low,
            baud_divisor_high: state.baud_divisor_high,
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            in_buffer: state.fifo.clone(),
        };
        let output = state.output.clone();
        self.uart = Uart::from_state(&uart, Edge::default(), NoEvents, output)
            .map_err(|e| RestoreError::new("serial port", e.to_string()))?;
        // Loading raises the interrupt line again if it was high. The router's state has that edge already, so the saved mark is restored.
        self.uart.interrupt_evt().0.set(state.edge);
        self.input = state.input.iter().copied().collect();
        Ok(())
    }
}

impl BusDevice for Serial {
    fn read(&mut self, offset: u64, data: &mut [u8], _now: u64) {
        data.fill(0xff);
        if let [byte] = data {
            *byte = self.uart.read(offset as u8);
            self.refill();
        }
    }

    fn write(&mut self, offset: u64, data: &[u8], _now: u64) {
        if let [byte] = *data {
            // The writer is a vector and the trigger a flag, so neither fails.
            let _ = self.uart.write(offset as u8, byte);
            self.refill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: u64 = 0;
    const IER: u64 = 1;
    const IIR: u64 = 2;
    const LSR: u64 = 5;

    fn read(s: &mut Serial, offset: u64) -> u8 {
        let mut data = [0];
        s.read(offset, &mut data, 0);
        data[0]
    }

    #[test]
    fn output_collects_and_raises_the_line_when_enabled() {
        let mut s = Serial::default();
        s.write(DATA, b"a", 0);
        assert!(!s.take_edge());
        s.write(IER, &[2], 0);
        assert!(s.take_edge(), "the holding register is empty");
        assert_eq!(read(&mut s, IIR) & 0xf, 2);
        s.write(DATA, b"b", 0);
        assert!(s.take_edge());
        assert_eq!(s.take_output(), b"ab");
        assert_eq!(s.take_output(), b"");
    }

    #[test]
    fn input_longer_than_the_fifo_arrives_whole_and_in_order() {
        let mut s = Serial::default();
        s.write(IER, &[1], 0);
        let text: Vec<u8> = (0..200).collect();
        s.queue_input(&text);
        assert!(s.take_edge());
        let mut got = Vec::new();
        while read(&mut s, LSR) & 1 != 0 {
            got.push(read(&mut s, DATA));
        }
        assert_eq!(got, text);
    }

    #[test]
    fn a_restored_port_goes_on_as_the_saved_one() {
        let mut a = Serial::default();
        a.write(IER, &[3], 0);
        a.write(DATA, b"x", 0);
        a.queue_input(&[7; 100]);
        let state = a.save();
        let mut b = Serial::default();
        b.restore(&state).unwrap();
        assert_eq!(b.save(), state);
        for offset in [IIR, LSR, DATA, DATA, IIR] {
            assert_eq!(read(&mut a, offset), read(&mut b, offset));
        }
        assert_eq!(a.save(), b.save());
        let bad = SerialState {
            fifo: vec![0; 1000],
            ..state
        };
        assert!(
            b.restore(&bad)
                .unwrap_err()
                .to_string()
                .contains("serial port")
        );
    }

    #[test]
    fn wide_accesses_read_as_all_ones() {
        let mut data = [0; 4];
        Serial::default().read(0, &mut data, 0);
        assert_eq!(data, [0xff; 4]);
    }
}
