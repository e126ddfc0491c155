//! Windows, their epochs, and accesses to other ranks' memory (MPI 4.0, chapter 12).
//!
//! An access is complete when its answer has come. A call that ends an epoch waits for the epoch's accesses. A fence then enters a
//! barrier; `MPI_Win_complete` then notifies the targets, and `MPI_Win_wait` waits for these notifications. Locks and unlocks go to the
//! target and back; waiting for another rank's lock is not interpreted. Accesses with requests of their own complete where the program
//! waits for these requests.

use nodescope_hypercall::{Class, Function, MpiRecord, Peer};

use super::rank::RankState;
use crate::op::{Action, Collective, CollectiveKind, Mode, PeerRef, Source};

/// Value that makes the id of a window's communicator from the window's id, by exclusive or.
const WINDOW_COMMUNICATOR: u64 = 0x7769_6e64_6f77_6564;

/// Tag of a target's notification that its memory may be accessed.
const POSTED: u32 = 0;
/// Tag of an origin's notification that its accesses are over.
const COMPLETE: u32 = 1;

/// Accesses and epochs of a rank in a window.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// Pending accesses: the target and the request number of each.
    accesses: Vec<(u32, u32)>,
    /// Targets of the epoch that `MPI_Win_start` began.
    targets: Vec<u32>,
    /// Origins of the epoch that `MPI_Win_post` began.
    origins: Vec<u32>,
}

/// Adds a call's operations; returns false if the call is not interpreted.
pub(super) fn add(state: &mut RankState, record: &MpiRecord) -> bool {
    use Function::*;
    let known = record.object != 0 && record.communicator_size > 0;
    let record = &on_window_communicator(state, record);
    let window = record.object;
    let actions = match record.function {
        // These calls have no effect on other ranks.
        WinAttach | WinDetach | WinSetInfo | WinSync | WinLockAll => Vec::new(),
        // If a rank does not take part, the window has no id on any rank, so its creation needs no id.
        WinCreate | WinAllocate | WinAllocateShared | WinCreateDynamic => {
            vec![together(CollectiveKind::Create)]
        }
        _ if !known => return false,
        WinFree => {
            let mut actions = finish(state, window, None);
            state.windows.remove(&window);
            actions.push(together(CollectiveKind::Barrier));
            actions
        }
        WinFence => {
            let mut actions = finish(state, window, None);
            actions.push(together(CollectiveKind::Barrier));
            actions
        }
        WinPost => {
            let origins = ranks(&record.sources);
            state.windows.entry(window).or_default().origins = origins.clone();
            origins.into_iter().map(|to| notify(to, POSTED)).collect()
        }
        WinStart => {
            let targets = ranks(&record.destinations);
            state.windows.entry(window).or_default().targets = targets.clone();
            targets
                .into_iter()
                .map(|from| await_notification(from, POSTED))
                .collect()
        }
        WinComplete => {
            let mut actions = finish(state, window, None);
            let own = state.windows.entry(window).or_default();
            let targets = std::mem::take(&mut own.targets);
            actions.extend(targets.into_iter().map(|to| notify(to, COMPLETE)));
            actions
        }
        WinWait | WinTest => {
            let own = state.windows.entry(window).or_default();
            let origins = std::mem::take(&mut own.origins);
            origins
                .into_iter()
                .map(|from| await_notification(from, COMPLETE))
                .collect()
        }
        WinLock => record
            .destination
            .rank()
            .map(|to| access(to, 0, 0, None))
            .into_iter()
            .collect(),
        WinUnlock => {
            let to = record.destination.rank();
            let mut actions = finish(state, window, to);
            actions.extend(to.map(|to| access(to, 0, 0, None)));
            actions
        }
        WinFlush | WinFlushLocal => finish(state, window, record.destination.rank()),
        WinUnlockAll | WinFlushAll | WinFlushLocalAll => finish(state, window, None),
        function if matches!(function.class(), Class::Rma | Class::StartRma) => {
            begin(state, record)
        }
        _ => return false,
    };
    state.push_all(record, actions);
    true
}

/// Returns the record with the window's own communicator.
fn on_window_communicator(state: &mut RankState, record: &MpiRecord) -> MpiRecord {
    let mut record = record.clone();
    if record.object != 0 {
        let copy = record.object ^ WINDOW_COMMUNICATOR;
        state.copies.insert(copy, record.communicator);
        record.communicator = copy;
    }
    record
}

fn ranks(peers: &[Peer]) -> Vec<u32> {
    peers.iter().filter_map(|peer| peer.rank()).collect()
}

fn together(kind: CollectiveKind) -> Action {
    Action::Collective(Box::new(Collective::of(kind)))
}

fn notify(to: u32, tag: u32) -> Action {
    Action::Send {
        to: PeerRef::Absolute(to),
        tag,
        bytes: 0,
        mode: Mode::Buffered,
        request: None,
    }
}

fn await_notification(from: u32, tag: u32) -> Action {
    Action::Receive {
        from: Source::Peer(PeerRef::Absolute(from)),
        tag: Some(tag),
        room: 0,
        request: None,
    }
}

fn access(to: u32, out: u64, back: u64, request: Option<u32>) -> Action {
    Action::OneSided {
        to: PeerRef::Absolute(to),
        out,
        back,
        request,
    }
}

/// Returns the operation that starts a put, a get or an accumulate; nothing for `MPI_PROC_NULL`.
fn begin(state: &mut RankState, record: &MpiRecord) -> Vec<Action> {
    // A get names only a source; a call that writes and reads names both.
    let target = record.destination.rank().or(record.source.rank());
    let Some(target) = target else {
        return Vec::new();
    };
    let slot = state.requests.slot();
    if record.function.class() == Class::StartRma {
        state.begin(record.request, slot, false);
    } else {
        let own = state.windows.entry(record.object).or_default();
        own.accesses.push((target, slot));
    }
    let (out, back) = (record.send_bytes, record.receive_bytes);
    vec![access(target, out, back, Some(slot))]
}

/// Returns a wait for the accesses of a window, or only for those to rank `to`; nothing if there are none.
fn finish(state: &mut RankState, window: u64, to: Option<u32>) -> Vec<Action> {
    let own = state.windows.entry(window).or_default();
    let of = |&(target, _): &(u32, u32)| to.is_none_or(|to| to == target);
    let (over, left): (Vec<_>, Vec<_>) = own.accesses.iter().partition(|access| of(access));
    own.accesses = left;
    let mut requests: Vec<u32> = over.into_iter().map(|(_, slot)| slot).collect();
    if requests.is_empty() {
        return Vec::new();
    }
    requests.sort_unstable();
    state.requests.end_slots(&requests);
    vec![Action::wait(requests)]
}
