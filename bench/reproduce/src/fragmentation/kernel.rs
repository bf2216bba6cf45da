//! What this machine's kernel could serve contiguously at this moment, by `/proc/buddyinfo`: free pieces of each order in
//! each zone. One look at a living system beside the model; it depends on what ran before.

use std::fs;
use std::io;

use super::buddy::FRAME_BYTES;

/// Free memory by the kernel's orders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreePieces {
    /// Free pieces of each order, all zones together.
    pub pieces: Vec<u64>,
}

impl FreePieces {
    /// The kernel's numbers now. Costs a small file.
    ///
    /// # Errors
    /// Where `/proc/buddyinfo` is missing or hidden.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/buddyinfo")?))
    }

    /// Lines such as `Node 0, zone   Normal   4381  1093 …`, a number an order.
    fn parse(text: &str) -> Self {
        let mut pieces = Vec::new();
        for line in text.lines() {
            let counts = line.split_whitespace().skip(4).map_while(|count| count.parse::<u64>().ok());
            for (order, count) in counts.enumerate() {
                if pieces.len() <= order {
                    pieces.push(0);
                }
                pieces[order] += count;
            }
        }
        Self { pieces }
    }

    /// Free bytes in all.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes_from(0)
    }

    /// The part of the free memory that lies in pieces of an order or above: 0 where the kernel has no such order.
    #[must_use]
    pub fn share_from(&self, order: usize) -> f64 {
        self.free_bytes_from(order) as f64 / self.free_bytes().max(1) as f64
    }

    fn free_bytes_from(&self, order: usize) -> u64 {
        self.pieces.iter().enumerate().skip(order).map(|(order, count)| count * (FRAME_BYTES << order)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_added_by_order() {
        let text = "Node 0, zone      DMA      1      0      0\nNode 0, zone   Normal     10      4      2\n";
        let found = FreePieces::parse(text);
        assert_eq!(found.pieces, [11, 4, 2]);
        assert_eq!(found.free_bytes(), (11 + 8 + 8) * 4096);
        let share = |order| (found.share_from(order) * 27.0).round();
        assert_eq!([0, 1, 2, 3].map(share), [27.0, 16.0, 8.0, 0.0]);
    }

    #[test]
    fn this_kernel_has_free_memory() {
        match FreePieces::read() {
            Ok(found) => assert!(found.free_bytes() > 0, "{found:?}"),
            Err(error) => println!("SKIP no /proc/buddyinfo: {error}"),
        }
    }
}
