//! Pool of frame buffers for reuse.
//!
//! Buffers in the pool keep their lengths. Bytes that a buffer has already need not be zeroed before they are overwritten.

/// Most buffers in the pool. A TCP segment of 64 KiB fills 45 frames of 1500 bytes.
const COUNT: usize = 64;
/// Largest sum of the buffers' capacities, in bytes.
const BYTES: usize = 1 << 20;

/// A device's pool of frame buffers.
#[derive(Debug, Default)]
pub(super) struct Spares {
    /// Buffers sorted by capacity, from the smallest, so that the smallest sufficient one is found.
    buffers: Vec<Vec<u8>>,
    /// Sum of the buffers' capacities, in bytes.
    bytes: usize,
}

impl Spares {
    /// Returns a buffer of `len` bytes, from the pool if a suitable one is there. Its contents are unspecified.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let at = self.buffers.partition_point(|b| b.capacity() < len);
        // A buffer of more than twice the length would waste memory while the frame is under way, and would return to the pool with a short
        // length.
        if self.buffers.get(at).is_none_or(|b| b.capacity() / 2 > len) {
            return vec![0; len];
        }
        let mut buffer = self.buffers.remove(at);
        self.bytes -= buffer.capacity();
        buffer.resize(len, 0);
        buffer
    }

    /// Adds a buffer to the pool. If the pool has too many buffers or bytes, the smallest buffers are freed, since they are cheapest to
    /// allocate.
    pub fn put(&mut self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        let at = self.buffers.partition_point(|b| b.capacity() < capacity);
        self.buffers.insert(at, buffer);
        self.bytes += capacity;
        while self.buffers.len() > COUNT || self.bytes > BYTES {
            self.bytes -= self.buffers.remove(0).capacity();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_that_fits_is_taken_and_gets_the_length() {
        let mut spares = Spares::default();
        for len in [3000, 1000, 2000] {
            spares.put(vec![7; len]);
        }
        for (len, capacity) in [
            (499, 499),
            (1001, 2000),
            (1500, 3000),
            (1001, 1001),
            (500, 1000),
        ] {
            let buffer = spares.take(len);
            assert_eq!(
                (buffer.len(), buffer.capacity()),
                (len, capacity),
                "{len} bytes"
            );
        }
        assert_eq!(spares.bytes, 0);
    }

    #[test]
    fn bytes_that_were_there_are_not_zeroed() {
        let mut spares = Spares::default();
        spares.put(vec![7; 100]);
        let short = spares.take(60);
        assert_eq!(short, [7; 60]);
        spares.put(short);
        assert_eq!(spares.take(100), [vec![7; 60], vec![0; 40]].concat());
    }

    #[test]
    fn count_and_bytes_are_bounded_and_the_longest_stay() {
        let mut spares = Spares::default();
        for len in 1..=2 * COUNT {
            spares.put(vec![0; len]);
        }
        let kept: Vec<usize> = spares.buffers.iter().map(Vec::capacity).collect();
        assert_eq!(kept, (COUNT + 1..=2 * COUNT).collect::<Vec<_>>());
        assert_eq!(spares.bytes, kept.iter().sum::<usize>());
        for _ in 0..COUNT {
            spares.put(vec![0; BYTES / 10]);
        }
        assert!(spares.bytes <= BYTES);
        assert_eq!(spares.take(BYTES / 10).capacity(), BYTES / 10);
        spares.put(vec![0; BYTES + 1]);
        assert_eq!((spares.buffers.len(), spares.bytes), (0, 0));
    }
}
