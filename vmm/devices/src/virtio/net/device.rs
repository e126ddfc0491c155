//! Life cycle of a network device.

use std::collections::VecDeque;

use virtio_bindings::virtio_config::VIRTIO_TRANSPORT_F_START;
use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::*;

use super::link::Link;
use super::queue::{LONGEST, SHORTEST};
use super::spares::Spares;
use super::state::{Frame, NetCounters, NetState};
use crate::state::RestoreError;
use crate::virtio::ahead::Ahead;
use crate::virtio::{QueueFault, Queues, VirtioDevice};

pub(super) const RECEIVE: usize = 0;
pub(super) const TRANSMIT: usize = 1;

/// Cycles that a sent frame counts against the limit of work ahead if the device has no link. The frame itself is not delayed.
const FRAME: u64 = 100;
/// Cycles to check a descriptor of a receive buffer. A driver spends far more on each frame.
pub(super) const DESCRIPTOR: u64 = 20;
/// Limit of the checks of receive buffers ahead of virtual time, in cycles: enough for the buffers of 200 full queues as drivers fill them.
const RECEIVE_AHEAD: u64 = 1 << 20;
/// Most bytes of frames that have yet to arrive or wait for the guest's buffers. The switch stores half as much for a node (`vmm/fabric`).
/// A driver that receives frames promptly has few waiting.
const MOST_INCOMING: usize = 128 << 20;

/// Offloads: work that the device does for the guest's network stack, as network cards do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// True if the device fills in TCP and UDP checksums of sent frames, and verifies those of received frames.
    pub checksum: bool,
    /// True if the device splits TCP segments of up to 64 KiB into frames (TSO over IPv4). Requires `checksum`.
    pub segmentation: bool,
}

/// Configuration of a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetConfig {
    /// MAC address of the device.
    pub mac: [u8; 6],
    /// Largest payload of a frame in bytes, 68 to 65521.
    pub mtu: u16,
    /// Offloads that the device offers to the driver.
    pub offloads: Offloads,
    /// Most frames that may wait while the guest has no buffers. Further frames are dropped.
    pub backlog: usize,
}

/// A virtio network device.
#[derive(Debug)]
pub struct Net {
    pub(super) config: NetConfig,
    pub(super) features: u64,
    pub(super) outgoing: Vec<Frame>,
    pub(super) incoming: VecDeque<Frame>,
    pub(super) blocked: bool,
    pub(super) counters: NetCounters,
    /// Bytes of memory that the frames in `incoming` take, with an overhead for each frame.
    pub(super) incoming_bytes: usize,
    /// The link on which the device sends; none if sending takes no time in the model.
    pub(super) link: Option<Link>,
    /// Limit of the frames that are taken from the queue before the link has sent the earlier ones.
    pub(super) sending: Ahead,
    /// Limit of the checks of receive buffers. The checks delay frames only if a guest makes the device check many buffers that cannot
    /// receive a frame.
    pub(super) receiving: Ahead,
    /// Reusable frame buffers. They are not part of the state, since no frame depends on them.
    pub(super) spares: Spares,
}

impl Net {
    /// Creates a device whose link status is up.
    pub fn new(config: NetConfig) -> Self {
        Self {
            config,
            features: 0,
            outgoing: Vec::new(),
            incoming: VecDeque::new(),
            blocked: false,
            counters: NetCounters::default(),
            incoming_bytes: 0,
            link: None,
            sending: Ahead::new(1000 * FRAME),
            receiving: Ahead::new(RECEIVE_AHEAD),
            spares: Spares::default(),
        }
    }

    /// Connects the device to a link with a bandwidth. If the link has more to send than a network card would buffer, further frames stay
    /// in the driver's queue.
    pub fn on(self, link: Link) -> Self {
        Self {
            link: Some(link),
            sending: Ahead::new(link.most_ahead()),
            ..self
        }
    }

    /// Adds the time in which the link sends a frame of `bytes`.
    pub(super) fn spend(&mut self, now: u64, bytes: usize) {
        let cycles = self.link.map_or(FRAME, |link| link.cycles(bytes));
        self.sending.spend(now, cycles);
    }

    /// Returns the device's configuration.
    pub fn settings(&self) -> &NetConfig {
        &self.config
    }

    /// Returns whether a driver has activated the device. Frames that arrive before activation are dropped.
    pub fn is_active(&self) -> bool {
        self.features != 0
    }

    /// Removes and returns the frames that the guest has sent since the last call, in the order of sending. Their times may be out of
    /// order, since vCPUs send at different times.
    pub fn take_frames(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.outgoing)
    }

    /// Returns whether [`Net::take_frames`] would return any frames.
    pub fn has_frames(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Queues a frame that arrives at its time. Frames with equal times arrive in the order of injection. The frame is dropped if it and
    /// the frames that were not delivered yet would take more than 128 MiB.
    pub fn inject(&mut self, frame: Frame) {
        let bytes = self.incoming_bytes + frame.memory();
        if bytes > MOST_INCOMING {
            self.counters.dropped_backlog += 1;
            return;
        }
        self.incoming_bytes = bytes;
        let at = self.incoming.partition_point(|f| f.time <= frame.time);
        self.incoming.insert(at, frame);
    }

    /// Returns the counters.
    pub fn counters(&self) -> &NetCounters {
        &self.counters
    }

    /// Drops a range of `incoming` without delivering its frames.
    pub(super) fn drop_incoming(&mut self, range: std::ops::Range<usize>) {
        let bytes: usize = self.incoming.drain(range).map(|f| f.memory()).sum();
        self.incoming_bytes -= bytes;
    }

    pub(super) fn negotiated(&self, feature: u32) -> bool {
        self.features >> feature & 1 != 0
    }

    /// Returns the state.
    pub fn save(&self) -> NetState {
        NetState {
            features: self.features,
            outgoing: self.outgoing.iter().map(Frame::saved).collect(),
            incoming: self.incoming.iter().map(Frame::saved).collect(),
            blocked: self.blocked,
            counters: self.counters,
            sending_until: self.sending.until,
            waiting: self.sending.waiting,
            receiving_until: self.receiving.until,
            receiving_waits: self.receiving.waiting,
        }
    }

    /// Loads a state. Refused if its frames, counters or features are impossible.
    pub fn restore(&mut self, state: &NetState) -> Result<(), RestoreError> {
        if !state.incoming.is_sorted_by_key(|f| f.time) {
            return Err(RestoreError::new(
                "network device",
                "its frames are out of order",
            ));
        }
        let mut frames = state.outgoing.iter().chain(&state.incoming);
        if !frames.all(|f| (SHORTEST..=LONGEST).contains(&f.bytes.len())) {
            let reason = "a frame has a length that frames do not have";
            return Err(RestoreError::new("network device", reason));
        }
        let incoming_bytes = state.incoming.iter().map(Frame::memory).sum();
        if incoming_bytes > MOST_INCOMING || !state.counters.are_possible() {
            let reason = "it has more frames than it can have";
            return Err(RestoreError::new("network device", reason));
        }
        // Feature bits of the transport are not checked here.
        let own = (1 << VIRTIO_TRANSPORT_F_START) - 1;
        if state.features & own & !self.features() != 0 {
            let reason = "features are in use that are not offered";
            return Err(RestoreError::new("network device", reason));
        }
        self.features = state.features;
        self.outgoing = state.outgoing.clone();
        self.incoming = state.incoming.iter().cloned().collect();
        self.incoming_bytes = incoming_bytes;
        self.sending.until = state.sending_until;
        self.sending.waiting = state.waiting;
        self.receiving.until = state.receiving_until;
        self.receiving.waiting = state.receiving_waits;
        self.blocked = state.blocked;
        self.counters = state.counters;
        Ok(())
    }
}

impl VirtioDevice for Net {
    fn id(&self) -> u32 {
        VIRTIO_ID_NET
    }

    fn features(&self) -> u64 {
        let mut features = 1 << VIRTIO_NET_F_MAC
            | 1 << VIRTIO_NET_F_MTU
            | 1 << VIRTIO_NET_F_STATUS
            | 1 << VIRTIO_NET_F_MRG_RXBUF;
        if self.config.offloads.checksum {
            features |= 1 << VIRTIO_NET_F_CSUM | 1 << VIRTIO_NET_F_GUEST_CSUM;
            if self.config.offloads.segmentation {
                features |= 1 << VIRTIO_NET_F_HOST_TSO4;
            }
        }
        features
    }

    fn queue_sizes(&self) -> &'static [u16] {
        &[256, 256]
    }

    /// Returns the bytes of struct virtio_net_config: mac, status, max_virtqueue_pairs, mtu (virtio 1.2 §5.1.4).
    fn config(&self) -> Vec<u8> {
        let mut config = vec![0; 12];
        config[..6].copy_from_slice(&self.config.mac);
        config[6..8].copy_from_slice(&(VIRTIO_NET_S_LINK_UP as u16).to_le_bytes());
        config[8..10].copy_from_slice(&1u16.to_le_bytes());
        config[10..12].copy_from_slice(&self.config.mtu.to_le_bytes());
        config
    }

    fn activate(&mut self, features: u64, now: u64) {
        self.features = features;
        let past = self.incoming.partition_point(|f| f.time < now);
        self.drop_incoming(0..past);
        self.counters.dropped_inactive += past as u64;
    }

    fn reset(&mut self) {
        self.features = 0;
        self.blocked = false;
        // Frames that were taken are still sent, and the time of checked buffers remains spent.
        self.sending.waiting = false;
        self.receiving.waiting = false;
    }

    fn reset_queue(&mut self, queue: usize) {
        match queue {
            RECEIVE => {
                self.blocked = false;
                self.receiving.waiting = false;
            }
            _ => self.sending.waiting = false,
        }
    }

    fn notify(
        &mut self,
        queue: usize,
        queues: &mut Queues<'_>,
        now: u64,
    ) -> Result<(), QueueFault> {
        match queue {
            RECEIVE => self.receive(queues, now),
            _ => self.transmit(queues, now),
        }
    }

    fn advance(&mut self, queues: &mut Queues<'_>, now: u64) -> Result<(), QueueFault> {
        if !self.blocked {
            self.receive(queues, now)?;
        }
        if self.sending.resume(now) && queues.is_ready(TRANSMIT) {
            self.transmit(queues, now)?;
        }
        Ok(())
    }

    fn next_event(&self) -> u64 {
        let arrival = match self.incoming.front() {
            Some(_) if self.blocked => u64::MAX,
            Some(_) if self.receiving.waiting => self.receiving.next_event(),
            Some(frame) => frame.time,
            None => u64::MAX,
        };
        arrival.min(self.sending.next_event())
    }
}
