//! ZeroMQ sockets: their options, the key check, and waits for messages.

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

/// Creates a monitor: a socket that receives events of another socket's connections.
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
    let parts = monitor.recv_multipart(0)?;
    let number = parts.first().and_then(|first| first.first_chunk::<2>());
    Ok(number.map(|bytes| zmq::SocketEvent::from_raw(u16::from_le_bytes(*bytes))))
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

/// A worker's connection to the master.
pub struct Connection {
    pub socket: Socket,
    /// Monitor that reports the end of the connection.
    pub monitor: Socket,
}

impl Connection {
    /// Sends a message. Fails if libzmq cannot queue it at once, as on a broken connection.
    pub fn send(&self, message: &[u8]) -> Result<(), zmq::Error> {
        self.socket.send(message, zmq::DONTWAIT)
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

/// A thread that admits only connections with the key (ZeroMQ RFC 27). The key check must be dropped after all other sockets of its
/// context.
pub struct KeyCheck {
    context: Context,
    thread: Option<JoinHandle<()>>,
}

impl Drop for KeyCheck {
    fn drop(&mut self) {
        // Ends the thread's wait for requests.
        let _ = self.context.destroy();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts the thread that checks keys.
pub fn check_keys(context: &Context, key: &Key) -> Result<KeyCheck, GroupError> {
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
    let thread = std::thread::Builder::new()
        .name("keys".into())
        .spawn(answer)?;
    Ok(KeyCheck {
        context: context.clone(),
        thread: Some(thread),
    })
}
