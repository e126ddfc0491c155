//! Non-temporal stores that go past the caches.

use super::Plain;
use super::charges::Reason;

/// Number of write-combining buffers of a vCPU.
const BUFFERS: usize = 8;

impl Plain {
    /// Performs a store that goes past the caches.
    pub(super) fn bypass(&mut self, line: u64) {
        self.event("L1D.non_temporal_store".to_owned(), 0);
        let (data, _) = self.first[usize::from(self.requester.vcpu)];
        let path = self.path_from(data);
        for &own in &path {
            self.give_up(own, line);
        }
        for around in path.windows(2) {
            self.clear_siblings(around[1], around[0], line);
        }
        let root = *path.last().expect("the first level");
        for peer in self.peers(root) {
            if self.remove(peer, line, false).is_some() {
                self.between("invalidate", peer, "");
            }
        }
        let buffers = &mut self.buffers[usize::from(self.requester.vcpu)];
        if buffers.contains(&line) {
            return;
        }
        buffers.push_back(line);
        if buffers.len() > BUFFERS {
            buffers.pop_front();
        }
        self.memory(self.place_of_requester().socket, line, Reason::NonTemporal);
    }
}
