//! Stack of return addresses.

/// The last return addresses. Calls beyond its depth overwrite the oldest ones, and returns beyond it find what the places last held: so a
/// deep recursion from one call site is still predicted, as in hardware that keeps a ring.
#[derive(Clone, Debug)]
pub struct Returns {
    addresses: Box<[u64]>,
    /// Place of the next call.
    top: usize,
}

impl Returns {
    /// Makes an empty stack for so many addresses.
    pub fn new(entries: u32) -> Self {
        Self {
            addresses: vec![0; entries as usize].into(),
            top: 0,
        }
    }

    /// Notes a call, which will return to `next`, the address behind the call.
    #[inline]
    pub fn call(&mut self, next: u64) {
        if self.addresses.is_empty() {
            return;
        }
        self.addresses[self.top] = next;
        self.top += 1;
        if self.top == self.addresses.len() {
            self.top = 0;
        }
    }

    /// Notes a return to `target`, and returns whether it was predicted.
    #[inline]
    pub fn is_right(&mut self, target: u64) -> bool {
        if self.addresses.is_empty() {
            return false;
        }
        self.top = self.top.checked_sub(1).unwrap_or(self.addresses.len() - 1);
        self.addresses[self.top] == target
    }
}
