//! Remapped pages: the location of each byte.
//!
//! ```text
//!   address   start                                                    start + 4096
//!   page      [ home       | rule 0 | home   | rule 1   | home             ]   inaccessible
//!                  │            │                 │
//!   bytes at  start + home   + delta_0        + delta_1      the same offset in another line
//! ```
//! Invariants: distances are multiples of a line's size, that to home of a page's. So alignment and
//! atomicity do not change. They fit into a displacement, so a redirect changes only a
//! displacement.
//!
//! Source: Taylor, *Cachekata*, section 5.1 and figure 5.1: remap rules, underlay page, isolated
//! data. There a rule leads to any address; here to the same offset in another line.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;

/// A range of bytes that are elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemapRule {
    /// The program's addresses of the bytes.
    pub bytes: Range<u64>,
    /// Distance from such an address to the byte.
    pub delta: i64,
}

/// A page whose bytes are elsewhere: by a rule, or in the home copy. [`RemappedPage::new`] checks
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemappedPage {
    /// Its first address.
    pub start: u64,
    /// Distance to the home copy (the thesis' underlay), which has the bytes of no rule.
    pub home: i64,
    /// Its rules: sorted, disjoint, inside the page.
    pub rules: Vec<RemapRule>,
}

/// Adjacent bytes of a page with one distance. The pieces of a page cover it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PagePiece {
    /// The program's addresses of the bytes.
    pub bytes: Range<u64>,
    /// Distance from such an address to the byte.
    pub delta: i64,
}

impl RemappedPage {
    /// A page with these rules, in any order.
    ///
    /// # Errors
    /// [`Error::Page`] if the page is not aligned; if a distance is 0, beyond ±2 GiB, or no
    /// multiple of a line's size (for home: a page's); if a rule is empty, outside of the page, or
    /// overlaps another.
    pub fn new(start: u64, home: i64, mut rules: Vec<RemapRule>) -> Result<Self> {
        rules.sort_by_key(|rule| rule.bytes.start);
        let page = Self { start, home, rules };
        page.check()?;
        Ok(page)
    }

    /// Checks the conditions of [`RemappedPage::new`], for pages that were deserialized.
    ///
    /// # Errors
    /// As for [`RemappedPage::new`].
    pub fn check(&self) -> Result<()> {
        let wrong = |problem: String, remedy| Err(Error::Page { start: self.start, problem, remedy });
        if !self.start.is_multiple_of(PAGE_BYTES) || self.start > u64::MAX - 2 * PAGE_BYTES {
            return wrong("it does not start at a page boundary".to_owned(), "round it down");
        }
        let rules = self.rules.iter().map(|rule| (rule.delta, LINE_BYTES));
        for (delta, step) in rules.chain([(self.home, PAGE_BYTES)]) {
            if delta == 0 || !delta.unsigned_abs().is_multiple_of(step) || i32::try_from(delta).is_err() {
                let problem = format!("its bytes cannot be {delta} bytes away");
                return wrong(problem, "use a multiple of 64, for home of 4096, within 2 GiB, and not 0");
            }
        }
        let mut free = self.start;
        for RemapRule { bytes, .. } in &self.rules {
            if bytes.is_empty() || bytes.start < free || bytes.end > self.start + PAGE_BYTES {
                let problem = format!("the rule for {:#x} to {:#x} is out of place", bytes.start, bytes.end);
                return wrong(problem, "rules must be in the page, not empty and disjoint");
            }
            free = bytes.end;
        }
        Ok(())
    }

    /// The addresses of the page.
    #[must_use]
    pub const fn bytes(&self) -> Range<u64> {
        self.start..self.start + PAGE_BYTES
    }

    /// The pieces of the page, from its start to its end.
    #[must_use]
    pub fn pieces(&self) -> Vec<PagePiece> {
        let mut pieces: Vec<PagePiece> = Vec::new();
        let mut add = |bytes: Range<u64>, delta| match pieces.last_mut() {
            _ if bytes.is_empty() => {}
            Some(last) if last.delta == delta => last.bytes.end = bytes.end,
            _ => pieces.push(PagePiece { bytes, delta }),
        };
        let mut done = self.start;
        for rule in &self.rules {
            add(done..rule.bytes.start, self.home);
            add(rule.bytes.clone(), rule.delta);
            done = rule.bytes.end;
        }
        add(done..self.start + PAGE_BYTES, self.home);
        pieces
    }

    /// The piece that contains all `bytes` bytes from `address`. `None` if no single piece does.
    #[must_use]
    pub fn piece(&self, address: u64, bytes: u32) -> Option<PagePiece> {
        self.pieces().into_iter().find(|piece| piece.holds(address, bytes))
    }
}

impl PagePiece {
    /// Whether it contains all `bytes` bytes from `address`.
    #[must_use]
    pub fn holds(&self, address: u64, bytes: u32) -> bool {
        holds(&self.bytes, address, bytes)
    }
}

impl RemapRule {
    /// Whether it contains all `bytes` bytes from `address`.
    #[must_use]
    pub fn holds(&self, address: u64, bytes: u32) -> bool {
        holds(&self.bytes, address, bytes)
    }
}

impl From<PagePiece> for RemapRule {
    /// Pieces of the home copy are redirected as rules are.
    fn from(PagePiece { bytes, delta }: PagePiece) -> Self {
        Self { bytes, delta }
    }
}

fn holds(range: &Range<u64>, address: u64, bytes: u32) -> bool {
    range.start <= address && address.checked_add(u64::from(bytes)).is_some_and(|end| end <= range.end)
}

#[cfg(test)]
mod tests {
    use super::{PagePiece, RemapRule, RemappedPage};

    fn rule(from: u64, to: u64, delta: i64) -> RemapRule {
        RemapRule { bytes: from..to, delta }
    }

    #[test]
    fn pieces_cover_the_page_and_merge_equal_distances() {
        let rules = vec![rule(0x1020, 0x1028, 0x3000), rule(0x1010, 0x1020, 0x3000), rule(0x1028, 0x1030, -0x1000)];
        let page = RemappedPage::new(0x1000, 0x2000, rules).unwrap();
        let expected =
            [(0x1000, 0x1010, 0x2000), (0x1010, 0x1028, 0x3000), (0x1028, 0x1030, -0x1000), (0x1030, 0x2000, 0x2000)];
        let expected = expected.map(|(from, to, delta)| PagePiece { bytes: from..to, delta });
        assert_eq!(page.pieces(), expected);
        assert_eq!(page.piece(0x101c, 8), Some(expected[1].clone()), "across two rules with one distance");
        assert_eq!(page.piece(0x1024, 8), None, "straddles");
        assert_eq!(page.piece(0x1ffc, 8), None, "half outside");
        assert_eq!(page.piece(0x2000, 1), None, "outside");
    }

    #[test]
    fn a_rule_can_cover_the_whole_page() {
        let page = RemappedPage::new(0x1000, 0x2000, vec![rule(0x1000, 0x2000, 0x5000)]).unwrap();
        assert_eq!(page.pieces(), [PagePiece { bytes: 0x1000..0x2000, delta: 0x5000 }]);
    }

    #[test]
    fn invalid_pages_are_refused_with_the_reason() {
        let wrong = |start, home, rules| RemappedPage::new(start, home, rules).unwrap_err().to_string();
        assert!(wrong(0x1001, 0x2000, vec![]).contains("boundary"));
        for delta in [0, 8, 1 << 31, -(1 << 31) - 4096] {
            assert!(wrong(0x1000, delta, vec![]).contains("bytes away"), "{delta}");
            assert!(wrong(0x1000, 0x2000, vec![rule(0x1000, 0x1008, delta)]).contains("bytes away"), "{delta}");
        }
        for (from, to) in [(0x1010, 0x1010), (0xff8, 0x1008), (0x1ff8, 0x2008)] {
            assert!(wrong(0x1000, 0x2000, vec![rule(from, to, 0x3000)]).contains("out of place"));
        }
        assert!(
            RemappedPage::new(0x1000, 0x2000, vec![rule(0x1000, 0x1008, 0x3040)]).is_ok(),
            "another line of another page"
        );
        assert!(wrong(0x1000, 0x2040, vec![]).contains("bytes away"), "home has all the page");
        let twice = vec![rule(0x1000, 0x1010, 0x3000), rule(0x100f, 0x1018, 0x4000)];
        assert!(wrong(0x1000, 0x2000, twice).contains("0x100f"));
    }
}
