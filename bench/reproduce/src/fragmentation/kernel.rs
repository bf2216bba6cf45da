//! The free memory of this machine's kernel by order, from `/proc/buddyinfo`, in addition to the
//! model. It depends on the programs that ran before.

use std::fs;
use std::io;

use super::buddy::FRAME_BYTES;

/// Free memory by order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreePieces {
    /// Number of free pieces of each order, in all zones.
    pub pieces: Vec<u64>,
}

impl FreePieces {
    /// Reads the current numbers.
    ///
    /// # Errors
    /// If `/proc/buddyinfo` cannot be read.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/buddyinfo")?))
    }

    /// Parses lines such as `Node 0, zone   Normal   4381  1093 …`, with one number per order.
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

    /// All free bytes.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes_from(0)
    }

    /// The share of the free memory in pieces of at least an order; 0 if the kernel has no such
    /// order.
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
