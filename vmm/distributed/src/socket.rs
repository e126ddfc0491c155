//! ZeroMQ sockets: their options, the key check, messages in frames, and waits for messages.

use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zmq::{Context, Socket};

use crate::GroupError;
use crate::key::Key;

/// Time between two heartbeats of a connection. A connection without an answer for `SILENCE` counts as broken.
const HEARTBEAT: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(5);
/// Longest time for which the last messages of a closing socket are still sent.
const LINGER: Duration = Duration::from_secs(2);
/// Longest time of a connection's handshake. A connection without the key holds memory and a descriptor for so long.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// Largest number of bytes of a message in one frame. Longer messages have several frames. libzmq takes the memory for a frame when its size
/// arrives, also from a peer that has not shown the key.
const FRAME: usize = 64 << 10;
/// Bytes that CURVE adds to a frame, rounded up (ZeroMQ RFC 26: command name, nonce, flags and box).
const FRAME_OVERHEAD: usize = 64;
/// Time for which a waiting process polls for messages before it sleeps, about as long as a quantum takes. Waking up takes as long.
const SPIN: Duration = Duration::from_micros(100);

fn ms(duration: Duration) -> i32 {
    duration.as_millis() as i32
}

/// Sets the options that all sockets between processes share.
fn prepare(socket: &Socket, key: &Key) -> Result<(), zmq::Error> {
    socket.set_sndhwm(0)?;
    socket.set_rcvhwm(0)?;
    socket.set_linger(ms(LINGER))?;
    socket.set_heartbeat_ivl(ms(HEARTBEAT))?;
    socket.set_heartbeat_timeout(ms(SILENCE))?;
    socket.set_heartbeat_ttl(ms(SILENCE))?;
    socket.set_handshake_ivl(ms(HANDSHAKE))?;
    socket.set_maxmsgsize((FRAME + FRAME_OVERHEAD) as i64)?;
    socket.set_curve_publickey(&key.public)?;
    socket.set_curve_secretkey(&key.secret)
}

/// Creates the master's socket, which addresses each worker by an identity.
pub fn master(context: &Context, key: &Key) -> Result<Socket, zmq::Error> {
    let socket = context.socket(zmq::ROUTER)?;
    prepare(&socket, key)?;
    socket.set_curve_server(true)?;
    // A message to a worker that is gone must be an error.
    socket.set_router_mandatory(true)?;
    Ok(socket)
}

/// Creates a worker's socket. A monitor of the socket reports a broken connection.
pub fn worker(context: &Context, key: &Key) -> Result<Socket, zmq::Error> {
    let socket = context.socket(zmq::DEALER)?;
    prepare(&socket, key)?;
    socket.set_curve_serverkey(&key.public)?;
    // A run does not continue after its connection broke, so the reconnection interval is as long as possible. If reconnection were
    // switched off, libzmq would drop received messages.
    socket.set_reconnect_ivl(i32::MAX)?;
    Ok(socket)
}

/// Creates a monitor: a socket that receives events of another socket's connections. libzmq waits for the reader of the monitor, with all
/// connections, so somebody has to read the monitor as long as the other socket has connections.
pub fn monitor(
    context: &Context,
    of: &Socket,
    name: &str,
    events: &[zmq::SocketEvent],
) -> Result<Socket, zmq::Error> {
    let address = format!("inproc://{name}");
    let events = events
        .iter()
        .fold(0, |all, event| all | event.to_raw() as i32);
    of.monitor(&address, events)?;
    let socket = context.socket(zmq::PAIR)?;
    socket.set_linger(0)?;
    socket.connect(&address)?;
    Ok(socket)
}

/// Receives the next event of a monitor; none if there is none within this time.
pub fn event(monitor: &Socket, within: Duration) -> Result<Option<zmq::SocketEvent>, zmq::Error> {
    if monitor.poll(zmq::POLLIN, within.as_millis() as i64)? == 0 {
        return Ok(None);
    }
    Ok(next_event(monitor)?.map(|(event, _)| event))
}

/// Waits for the next event of a monitor, with its value; none if the event cannot be read.
pub fn next_event(monitor: &Socket) -> Result<Option<(zmq::SocketEvent, u32)>, zmq::Error> {
    let parts = monitor.recv_multipart(0)?;
    let head = parts.first().and_then(|first| first.first_chunk::<6>());
    Ok(head.map(|&[low, high, ref value @ ..]| {
        let event = u16::from_le_bytes([low, high]);
        let value = u32::from_le_bytes(*value);
        (zmq::SocketEvent::from_raw(event), value)
    }))
}

/// Sends a message in frames, with these `flags` of libzmq. On the master's socket, `to` is the identity of the worker.
pub fn send(
    socket: &Socket,
    to: Option<&[u8]>,
    message: &[u8],
    flags: i32,
) -> Result<(), zmq::Error> {
    socket.send_multipart(to.into_iter().chain(message.chunks(FRAME)), flags)
}

/// What becomes of packets for new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packets {
    Pass,
    Drop,
}

/// Sets what the kernel does with packets for new connections to a listening socket. Connections that exist keep their packets.
pub fn filter(listening: &impl AsFd, packets: Packets) -> std::io::Result<()> {
    // A classic BPF program of one instruction, which returns the number of bytes to keep of a packet.
    let keep = match packets {
        Packets::Pass => u32::MAX,
        Packets::Drop => 0,
    };
    let code = (libc::BPF_RET | libc::BPF_K) as u16;
    let program = [socket2::SockFilter::new(code, 0, 0, keep)];
    socket2::SockRef::from(listening).attach_filter(&program)
}

/// Receives the next message as its parts; none if there is none within this time.
pub fn receive(socket: &Socket, within: Duration) -> Result<Option<Vec<Vec<u8>>>, zmq::Error> {
    let begin = Instant::now();
    loop {
        match socket.recv_multipart(zmq::DONTWAIT) {
            Ok(parts) => return Ok(Some(parts)),
            Err(zmq::Error::EAGAIN) => {}
            Err(zmq::Error::EINTR) => continue,
            Err(error) => return Err(error),
        }
        if begin.elapsed() > SPIN.min(within) {
            break;
        }
        std::hint::spin_loop();
    }
    match socket.poll(zmq::POLLIN, within.as_millis() as i64) {
        Ok(0) | Err(zmq::Error::EINTR) => Ok(None),
        Ok(_) => socket.recv_multipart(0).map(Some),
        Err(error) => Err(error),
    }
}

/// A worker's connection to the master. Its context has no other sockets, and ends with it.
pub struct Connection {
    pub socket: Socket,
    /// Monitor that reports the end of the connection.
    pub monitor: Socket,
}

impl Connection {
    /// Sends a message. Fails if libzmq cannot queue it at once, as on a broken connection.
    pub fn send(&self, message: &[u8]) -> Result<(), zmq::Error> {
        send(&self.socket, None, message, zmq::DONTWAIT)
    }

    /// Receives the next message; none if there is none within this time.
    ///
    /// # Errors
    ///
    /// A broken connection without further messages, or an error of libzmq.
    pub fn receive(&self, within: Duration) -> Result<Option<Vec<u8>>, zmq::Error> {
        let mut received = receive(&self.socket, within)?;
        if received.is_none() && event(&self.monitor, Duration::ZERO)?.is_some() {
            // Messages may have arrived before the connection broke.
            received = receive(&self.socket, Duration::ZERO)?;
            if received.is_none() {
                return Err(zmq::Error::ENOTCONN);
            }
        }
        Ok(received.map(|parts| parts.concat()))
    }
}

/// Threads that serve a context's sockets until the context ends. They must be dropped after all other sockets of the context.
pub struct Threads {
    context: Context,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Returns no threads yet, for a context.
    pub fn new(context: &Context) -> Threads {
        Threads {
            context: context.clone(),
            threads: Vec::new(),
        }
    }

    /// Starts a thread, which must return when libzmq says that the context ends.
    pub fn start(
        &mut self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Ends the threads' waits.
        let _ = self.context.destroy();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Starts the thread that admits only connections with the key (ZeroMQ RFC 27).
pub fn check_keys(context: &Context, key: &Key, threads: &mut Threads) -> Result<(), GroupError> {
    let socket = context.socket(zmq::REP)?;
    socket.set_linger(0)?;
    socket.bind("inproc://zeromq.zap.01")?;
    let public = key.public.clone();
    let answer = move || {
        // Parts of a request: version, request number, domain, address, identity, mechanism, credentials.
        while let Ok(request) = socket.recv_multipart(0) {
            let part = |index: usize| request.get(index).map_or(&[][..], Vec::as_slice);
            let (status, text) = match part(5) == b"CURVE" && part(6) == public {
                true => (&b"200"[..], &b"OK"[..]),
                false => (&b"400"[..], &b"another key"[..]),
            };
            let reply = [b"1.0", part(1), status, text, b"", b""];
            if socket.send_multipart(reply, 0).is_err() {
                return;
            }
        }
    };
    threads.start("keys", answer)?;
    Ok(())
}
