//! Collective operations as SimGrid's own actions.

use std::fmt::Write;

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Function, MpiRecord};

use crate::collectives::{Group, from, root, to, vector};

/// Returns SimGrid's own action for a blocking operation on the world; `None` if there is none that fits.
pub(super) fn native(record: &MpiRecord, group: &Group<'_>) -> Option<String> {
    use Function::*;
    let size = group.size();
    let fits = |bytes: u64| (bytes <= 0x7FFF_FFFF).then_some(bytes);
    let mut text = String::new();
    match record.function.blocking() {
        Barrier => text.push_str("barrier"),
        Bcast => {
            let bytes = fits(vector(record))?;
            let _ = write!(text, "bcast {bytes} {} 6", root(record)?);
        }
        Reduce => {
            let bytes = fits(vector(record))?;
            let _ = write!(text, "reduce {bytes} 0 {} 6", root(record)?);
        }
        Allreduce => {
            let _ = write!(text, "allreduce {} 0 6", fits(vector(record))?);
        }
        Alltoall => {
            let bytes = fits(to(record, 0, size).max(from(record, 0, size)))?;
            let _ = write!(text, "alltoall {bytes} {bytes} 6 6");
        }
        Gather => {
            let (send, root) = (record.send_bytes, root(record)?);
            let bytes = fits(send.max(record.receive_bytes / size.max(1) as u64))?;
            let _ = write!(text, "gather {bytes} {bytes} {root} 6 6");
        }
        Allgather => {
            let bytes = fits(from(record, group.own, size))?;
            let _ = write!(text, "allgather {bytes} {bytes} 6 6");
        }
        Allgatherv if record.receive_bytes_from.len() == size => {
            fits(record.receive_bytes_from.iter().sum())?;
            let _ = write!(text, "allgatherv {}", from(record, group.own, size));
            for bytes in &record.receive_bytes_from {
                let _ = write!(text, " {bytes}");
            }
            text.push_str(" 6 6");
        }
        ReduceScatterBlock => {
            let bytes = fits(record.receive_bytes)?;
            fits(bytes.checked_mul(size as u64)?)?;
            text.push_str("reducescatter");
            for _ in 0..size {
                let _ = write!(text, " {bytes}");
            }
            text.push_str(" 0 6");
        }
        ReduceScatter if record.send_bytes_to.len() == size => {
            fits(record.send_bytes_to.iter().sum())?;
            text.push_str("reducescatter");
            for bytes in &record.send_bytes_to {
                let _ = write!(text, " {bytes}");
            }
            text.push_str(" 0 6");
        }
        Alltoallv | Alltoallw
            if record.receive_bytes_from.len() == size
                && (record.send_bytes_to.len() == size
                    || record.flags.contains(Flags::IN_PLACE)) =>
        {
            text.push_str("alltoallv");
            let lists: [Vec<u64>; 2] = [
                (0..size).map(|rank| to(record, rank, size)).collect(),
                record.receive_bytes_from.clone(),
            ];
            for list in lists {
                let _ = write!(text, " {}", fits(list.iter().sum())?.max(1));
                for bytes in list {
                    let _ = write!(text, " {bytes}");
                }
            }
            text.push_str(" 6 6");
        }
        _ => return None,
    }
    Some(text)
}
