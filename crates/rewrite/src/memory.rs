//! The program's memory: its code and, for the walk, its data.

/// Memory that can be read. It is read in many small pieces: keep copies of pages where a read is a system call.
pub trait Memory {
    /// Reads from `address` on into `into`, as far as there is memory, and returns how many bytes it got: 0 where nothing is
    /// mapped.
    fn read(&self, address: u64, into: &mut [u8]) -> usize;
}

/// Memory that was copied before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// Where it begins.
    pub start: u64,
    /// What is there.
    pub bytes: Vec<u8>,
}

impl Memory for Image {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let from = address.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok());
        let Some(rest) = from.and_then(|from| self.bytes.get(from..)) else { return 0 };
        let got = rest.len().min(into.len());
        into[..got].copy_from_slice(&rest[..got]);
        got
    }
}

#[cfg(test)]
mod tests {
    use super::{Image, Memory};

    #[test]
    fn an_image_ends_where_it_ends() {
        let image = Image { start: 0x1000, bytes: (0..100).collect() };
        let mut into = [0xff; 4];
        assert_eq!((image.read(0x1000 + 98, &mut into), into), (2, [98, 99, 0xff, 0xff]));
        for outside in [0xfff, 0x1000 + 100, u64::MAX] {
            assert_eq!(image.read(outside, &mut into), 0);
        }
    }
}
