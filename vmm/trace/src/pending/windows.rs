//! Epochs on RMA windows: accesses of origins, exposures of targets, and locks.
//!
//! The standard leaves open in which call of an epoch an origin waits for its targets: `MPI_Win_start`, a transfer or `MPI_Win_complete`
//! may, or none of them where the data fit a buffer (MPI 4.0, section 12.5.2); and a lock may be taken by `MPI_Win_lock` or later (12.5.3).
//! But whichever of these calls is pending, the call can only wait for the targets or for the lock.

use std::collections::{BTreeMap, BTreeSet};

use nodescope_hypercall::record::Flags;
use nodescope_hypercall::{Class, Function, MpiRecord, Peer};

use super::operation::Need;

/// An access epoch that an origin has begun with `MPI_Win_start`.
#[derive(Debug, Default)]
struct Access {
    targets: BTreeSet<u32>,
    /// Targets from which the origin has requested data. Such a transfer cannot end in a buffer.
    asked: BTreeSet<u32>,
}

/// A lock that an origin may hold or wants: at one target, or at all targets (`None`).
#[derive(Clone, Copy, Debug)]
struct Lock {
    target: Option<u32>,
    exclusive: bool,
}

#[derive(Debug, Default)]
struct Window {
    /// Number of times that a target has posted the window to an origin, by target and origin.
    posted: BTreeMap<(u32, u32), u64>,
    /// Number of times that an origin has begun access to a target, by origin and target. `completed` counts the accesses that the origin
    /// has ended.
    started: BTreeMap<(u32, u32), u64>,
    completed: BTreeMap<(u32, u32), u64>,
    /// Open access epochs, by origin.
    accesses: BTreeMap<u32, Access>,
    /// Open exposure epochs: the origins, by target.
    exposures: BTreeMap<u32, BTreeSet<u32>>,
    /// Locks by origin and target: true if the lock is exclusive.
    locks: BTreeMap<(u32, u32), bool>,
    /// Origins that have locked all targets, which is a shared lock.
    locks_of_all: BTreeSet<u32>,
    /// Origins in pending transfers, flushes or unlocks, with the call's target, if it names one. If several origins have locked a target,
    /// perhaps none of them has the lock yet, so that one of the origins in such calls can continue.
    in_progress: BTreeSet<(u32, Option<u32>)>,
    /// True once a rank has locked the window.
    lockable: bool,
    /// Ranks that have made transfers which no fence, `MPI_Win_complete` or unlock has ended yet.
    dirty: BTreeSet<u32>,
    /// True if a call failed or a record was incomplete, so that needs on this window are not known.
    inexact: bool,
}

/// The windows of a job, by their ids.
#[derive(Debug, Default)]
pub struct Windows(BTreeMap<u64, Window>);

/// Returns the world ranks of a group, in order; `None` if the record is incomplete or a peer has no world rank.
fn group(record: &MpiRecord, peers: &[Peer]) -> Option<BTreeSet<u32>> {
    let told = !record.flags.contains(Flags::TAIL_DROPPED);
    told.then(|| peers.iter().map(|peer| peer.rank()).collect())?
}

/// Returns the target that a call names, if it names one.
fn target(record: &MpiRecord) -> Option<u32> {
    record.destination.rank().or(record.source.rank())
}

fn is_transfer(record: &MpiRecord) -> bool {
    matches!(record.function.class(), Class::Rma | Class::StartRma)
}

impl Windows {
    fn of(&mut self, record: &MpiRecord) -> Option<&mut Window> {
        let is_epoch = record.function.class() == Class::Epoch;
        let followed = record.object != 0 && (is_epoch || is_transfer(record));
        followed.then(|| self.0.entry(record.object).or_default())
    }

    /// Records a call that ended.
    pub fn record_ended_call(&mut self, rank: u32, record: &MpiRecord) {
        use Function::*;
        let Some(window) = self.of(record) else {
            return;
        };
        window.begin_call(rank, record);
        match record.function {
            WinComplete => {
                window.accesses.remove(&rank);
            }
            // This test was successful: tests that found nothing are poll runs.
            WinWait | WinTest => {
                window.exposures.remove(&rank);
            }
            WinLock => {
                if let Some(target) = target(record) {
                    window.locks.insert((rank, target), record.detail == 1);
                }
            }
            WinLockAll => {
                window.locks_of_all.insert(rank);
            }
            WinUnlock => {
                if let Some(target) = target(record) {
                    window.locks.remove(&(rank, target));
                }
            }
            WinUnlockAll => {
                window.locks_of_all.remove(&rank);
            }
            _ => {}
        }
        match record.function {
            WinFence | WinComplete | WinUnlock | WinUnlockAll => {
                window.dirty.remove(&rank);
            }
            _ if is_transfer(record) => {
                window.dirty.insert(rank);
            }
            _ => {}
        }
    }

    /// Records the entry of a pending call.
    pub fn record_entered_call(&mut self, rank: u32, record: &MpiRecord) {
        use Function::*;
        let Some(window) = self.of(record) else {
            return;
        };
        window.begin_call(rank, record);
        let in_progress = match record.function {
            WinUnlock | WinUnlockAll | WinFlush | WinFlushAll | WinFlushLocal
            | WinFlushLocalAll => true,
            _ => is_transfer(record),
        };
        if in_progress {
            window.in_progress.insert((rank, target(record)));
        }
    }

    /// Records a call that returned an error.
    pub fn record_failure(&mut self, record: &MpiRecord) {
        if let Some(window) = self.of(record) {
            window.inexact = true;
        }
    }

    pub fn forget(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// Returns whether a collective call on a window waits for all members, and not only perhaps for some.
    pub fn is_barrier(&self, rank: u32, record: &MpiRecord) -> bool {
        let Some(window) = self.0.get(&record.object) else {
            return false;
        };
        match record.function {
            // A fence that ends transfers is a barrier. Without transfers, the program may have asserted that the fence ends no epoch,
            // and then the fence is no barrier (MPI 4.0, section 12.5.1).
            Function::WinFence => window.dirty.contains(&rank),
            // MPI_Win_free is a barrier unless the program has declared that it never locks the window (MPI 4.0, section 12.2.5).
            Function::WinFree => window.lockable,
            _ => false,
        }
    }

    /// Returns the need of a pending call that is not collective; `None` if the need is not known.
    pub fn need(&self, rank: u32, record: &MpiRecord) -> Option<Need> {
        use Function::*;
        let window = self.0.get(&record.object)?;
        match record.function {
            _ if window.inexact => None,
            // These calls do not block (MPI 4.0, sections 12.5.2 and 12.5.4).
            WinPost | WinSync => Some(Need::Nothing),
            WinStart | WinComplete => window.access(rank, record),
            WinWait => window.exposure(rank),
            _ => match (window.accesses.get(&rank), target(record)) {
                (Some(access), Some(target)) if access.targets.contains(&target) => {
                    Some(match window.has_posted(target, rank) {
                        true => Need::Nothing,
                        false => Need::All(vec![target]),
                    })
                }
                _ => window.lock(rank, record),
            },
        }
    }
}

impl Window {
    /// Applies the effects of a call's entry, whether the call has ended or not.
    fn begin_call(&mut self, rank: u32, record: &MpiRecord) {
        use Function::*;
        match record.function {
            WinPost => {
                let Some(origins) = group(record, &record.sources) else {
                    self.inexact = true;
                    return;
                };
                for &origin in &origins {
                    *self.posted.entry((rank, origin)).or_default() += 1;
                }
                self.exposures.insert(rank, origins);
            }
            WinStart => {
                let Some(targets) = group(record, &record.destinations) else {
                    self.inexact = true;
                    return;
                };
                for &target in &targets {
                    *self.started.entry((rank, target)).or_default() += 1;
                }
                let asked = BTreeSet::new();
                self.accesses.insert(rank, Access { targets, asked });
            }
            WinComplete => {
                for &target in self.accesses.get(&rank).iter().flat_map(|a| &a.targets) {
                    *self.completed.entry((rank, target)).or_default() += 1;
                }
            }
            WinLock | WinLockAll => self.lockable = true,
            _ if is_transfer(record) => {
                // A record with a source is a get, whose data come from the target.
                if let (Some(access), Peer::Rank(target)) =
                    (self.accesses.get_mut(&rank), record.source)
                {
                    access.asked.insert(target);
                }
            }
            _ => {}
        }
    }

    /// Returns whether a target has posted the window for an origin's present access: each start matches a post, in their order.
    fn has_posted(&self, target: u32, origin: u32) -> bool {
        let started = self.started.get(&(origin, target));
        self.posted.get(&(target, origin)) >= started
    }

    /// Returns the need of `MPI_Win_start` and `MPI_Win_complete`.
    fn access(&self, rank: u32, record: &MpiRecord) -> Option<Need> {
        let access = self.accesses.get(&rank)?;
        let targets = access.targets.iter().copied();
        let late: Vec<u32> = targets
            .filter(|&target| !self.has_posted(target, rank))
            .collect();
        let asked = late.iter().filter(|target| access.asked.contains(target));
        let asked: Vec<u32> = asked.copied().collect();
        Some(match record.function {
            _ if late.is_empty() => Need::Nothing,
            // Requested data must have arrived when MPI_Win_complete returns.
            Function::WinComplete if !asked.is_empty() => Need::All(asked),
            _ => Need::Perhaps(late),
        })
    }

    /// Returns the need of `MPI_Win_wait`: the matching calls of `MPI_Win_complete` of all origins (MPI 4.0, section 12.5.2).
    fn exposure(&self, rank: u32) -> Option<Need> {
        let origins = self.exposures.get(&rank)?.iter().copied();
        let late = origins.filter(|&origin| {
            self.completed.get(&(origin, rank)) < self.posted.get(&(rank, origin))
        });
        let late: Vec<u32> = late.collect();
        Some(match late.is_empty() {
            true => Need::Nothing,
            false => Need::All(late),
        })
    }

    /// Returns the need of `MPI_Win_lock`, and of operations under a lock: other origins must release locks that exclude the caller's lock.
    fn lock(&self, rank: u32, record: &MpiRecord) -> Option<Need> {
        let wanted = self.wanted(rank, record);
        if wanted.is_empty() {
            return None;
        }
        let holders: BTreeSet<u32> = wanted
            .iter()
            .flat_map(|wanted| self.holders(rank, *wanted))
            .collect();
        Some(match holders.is_empty() {
            true => Need::Nothing,
            false => Need::Perhaps(holders.into_iter().collect()),
        })
    }

    /// Returns the locks that a call wants or under which it works; empty for a call in another kind of epoch.
    fn wanted(&self, rank: u32, record: &MpiRecord) -> Vec<Lock> {
        let target = target(record);
        let shared = Lock {
            target,
            exclusive: false,
        };
        match (record.function, target) {
            (Function::WinLock, None) => Vec::new(),
            (Function::WinLock, Some(_)) => {
                let exclusive = record.detail == 1;
                vec![Lock { target, exclusive }]
            }
            (Function::WinLockAll, _) => vec![shared],
            _ => {
                let of_all = self.locks_of_all.contains(&rank).then_some(shared);
                let own = self.locks.range((rank, 0)..=(rank, u32::MAX));
                let own = own.map(|(&(_, at), &exclusive)| Lock {
                    target: Some(at),
                    exclusive,
                });
                own.filter(|lock| target.is_none() || lock.target == target)
                    .chain(of_all)
                    .collect()
            }
        }
    }

    /// Returns the other origins that may hold a lock which excludes the wanted lock.
    fn holders(&self, rank: u32, wanted: Lock) -> impl Iterator<Item = u32> {
        let of_one = self
            .locks
            .iter()
            .filter(move |&(&(_, target), &exclusive)| {
                (exclusive || wanted.exclusive) && wanted.target.is_none_or(|at| at == target)
            });
        let of_one = of_one.map(|(&(holder, target), _)| (holder, Some(target)));
        let of_all = self.locks_of_all.iter().filter(move |_| wanted.exclusive);
        let of_all = of_all.map(move |&holder| (holder, wanted.target));
        of_one
            .chain(of_all)
            .filter(move |&(holder, target)| {
                let in_progress =
                    [target, None].map(|target| self.in_progress.contains(&(holder, target)));
                holder != rank && in_progress == [false, false]
            })
            .map(|(holder, _)| holder)
    }
}
