//! Tests with states that no driver can cause, as in a damaged file.

use super::*;
use crate::virtio::net::NetState;
use crate::virtio::{DeviceState, VirtioState};

#[test]
fn states_that_no_device_can_be_in_are_refused() {
    let d = Driver::new(net(Offloads::default()), VERSION_1);
    let state = d.device.save();
    let refuse = |change: &dyn Fn(&mut VirtioState, &mut NetState), expected: &str| {
        let mut state = state.clone();
        let DeviceState::Net(mut of_net) = state.device.clone() else {
            panic!("a network device")
        };
        change(&mut state, &mut of_net);
        state.device = DeviceState::Net(of_net);
        let mut other = VirtioMmio::new(net(Offloads::default()), d.ram.memory().clone());
        let error = other.restore(&state).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refuse(&|_, n| n.outgoing.push(frame(0, 13, 1)), "length");
    refuse(&|_, n| n.incoming.push(frame(0, 1 << 17, 1)), "length");
    refuse(
        &|_, n| n.incoming = vec![frame(1, 60, 1), frame(0, 60, 1)],
        "out of order",
    );
    refuse(
        &|_, n| n.incoming = vec![frame(0, 65_000, 1); 2100],
        "more frames",
    );
    refuse(&|_, n| n.counters.sent = u64::MAX, "more frames");
    refuse(&|_, n| n.features |= 1 << 11, "not offered");
    refuse(
        &|s, _| s.transport.driver_features |= 1 << 11,
        "not offered",
    );
    refuse(
        &|s, _| s.transport.queues[1].available = 16 << 20,
        "does not lie in RAM",
    );
    refuse(&|s, _| s.transport.queues.truncate(1), "queues differ");
    let mut same = VirtioMmio::new(net(Offloads::default()), d.ram.memory().clone());
    same.restore(&state).unwrap();
}

#[test]
fn a_disk_that_can_only_be_read_has_no_changes() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, &[1; 8192]).unwrap();
    let disk = || Disk::read_only(Image::open(file.path()).unwrap());
    let block = |disk| Device::Block(Block::new(disk, "", timing(0, 0)));
    let mut device = block(disk());
    let DeviceState::Block(mut state) = device.save() else {
        panic!("a block device")
    };
    state.disk.written = vec![(0, vec![0; 4096])];
    let state = DeviceState::Block(state);
    let error = device.restore(&state).unwrap_err().to_string();
    assert!(error.contains("can only read"), "{error}");
    let overlay = Disk::overlay(Image::open(file.path()).unwrap());
    block(overlay).restore(&state).unwrap();
}
