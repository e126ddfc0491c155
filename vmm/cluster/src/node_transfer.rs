//! Moves the state of a node to the process that writes the snapshot.
//!
//! The first message has the node's state, and each further one a piece of the node's RAM: the address of the first byte, then the bytes.
//! Pieces of zeros are left out. An empty message is the last one.

use nodescope_machine::node::Node;
use nodescope_machine::state::NodeState;
use nodescope_memory::Ram;

use crate::build::BuildError;
use crate::distribution::{Distribution, PeerError};
use crate::executor::Executor;
use crate::outcome::RunError;
use crate::snapshot::SnapshotFault;

/// Bytes of RAM in a message.
const PIECE: u64 = 256 << 10;
const ADDRESS: usize = size_of::<u64>();

static ZERO: [u8; PIECE as usize] = [0; PIECE as usize];

fn distribution(executor: &Executor) -> &Distribution {
    let distribution = executor.distribution();
    distribution.expect("a run in one process has all nodes")
}

/// Sends the state and the RAM of a node of this process to the master.
///
/// # Errors
///
/// A node that cannot be saved, or a process that is lost.
pub fn send(executor: &Executor, index: usize, node: &mut Node) -> Result<(), RunError> {
    let state = node.save_state();
    let state = state.map_err(|source| SnapshotFault::Save {
        node: index,
        source,
    })?;
    let state = postcard::to_stdvec(&state).map_err(|error| unreadable(index, &error))?;
    let send = |message: &[u8]| distribution(executor).send_to_master(message);
    send(&state)?;
    let mut buffer = vec![0; ADDRESS + PIECE as usize];
    for region in node.ram().regions() {
        for within in (0..region.len).step_by(PIECE as usize) {
            let start = region.start + within;
            let length = ADDRESS + PIECE.min(region.len - within) as usize;
            let (address, bytes) = buffer[..length].split_at_mut(ADDRESS);
            address.copy_from_slice(&start.to_le_bytes());
            if !node.ram().read(start, bytes) {
                return Err(unreadable(index, &"a region of its RAM cannot be read").into());
            }
            if *bytes != ZERO[..bytes.len()] {
                send(&buffer[..length])?;
            }
        }
    }
    Ok(send(&[])?)
}

/// Receives the state and the RAM of a node from its process. `layout` has the bytes of memory of each socket.
///
/// # Errors
///
/// A process that is lost, a message that is not what it should be, or a host without memory.
pub fn receive(
    executor: &Executor,
    index: usize,
    layout: &[u64],
) -> Result<(NodeState, Ram), RunError> {
    let distribution = distribution(executor);
    let receive = || distribution.receive_from_node(index);
    let state = receive()?;
    let state = postcard::from_bytes(&state).map_err(|error| unreadable(index, &error))?;
    let ram = Ram::new(layout).map_err(BuildError::from)?;
    loop {
        let piece = receive()?;
        if piece.is_empty() {
            return Ok((state, ram));
        }
        let written = piece
            .split_first_chunk::<ADDRESS>()
            .is_some_and(|(start, bytes)| ram.write(u64::from_le_bytes(*start), bytes));
        if !written {
            return Err(unreadable(index, &"its memory is not the study's").into());
        }
    }
}

fn unreadable(index: usize, why: &dyn std::fmt::Display) -> PeerError {
    PeerError::Message {
        peer: format!("the process of node {index}"),
        why: why.to_string(),
    }
}
