//! Remap rules: the bytes of a page that move, and their views.
//!
//! A page with rules becomes inaccessible. Its bytes are in a home copy, those of each rule in a
//! *view*, a page of its own at the same offset. Bytes of one line with different owners go to
//! different views. Owners that share no line can share a view. So two views serve any number of
//! threads with consecutive structures, and loops need only two clones:
//!
//! ```text
//!   line          0               1               2               3
//!   owner     .....AAAAAAAA|AAABBBBB|BBBBBBBBCCC|CCCCCCCCCCDD|DDDDDDDDDD....
//!   view           0            1           0            1
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `page` | the owner of each byte |
//! | `views` | the view of each owner |
//!
//! Algorithm and invariants:
//! - Only bytes that a verdict calls movable move. Truly shared bytes stay in the home copy, as do bytes of
//!   lines without a finding. Of several truly shared groups on one line, the heaviest stays.
//! - A range grows over unused bytes: between two ranges of one owner, to whole aligned words, and to a
//!   whole object of the owner. A longer rule costs nothing; a second rule costs a check.
//! - A sampled access is never split. A line whose ranges would split one is refused with the reason.
//! - A refused line keeps its bytes in place; the others of the page are planned without it.
//!
//! Source: Cachekata, section 5 and figure 5.1. There each isolated range has a line of its own in
//! a pool.

mod page;
#[cfg(test)]
mod tests;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::line_use::LineUse;
use crate::verdict::JudgedLine;
use page::PageLabels;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// Default maximum number of views per page. Rarely more owners share a line, and each view is a
/// page that must be in reach.
pub const MOST_VIEWS: u32 = 8;

/// A range of bytes that moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteMove {
    /// Its addresses, inside one page.
    pub bytes: Range<u64>,
    /// Number of its view, from 0 in each page.
    pub view: u32,
    /// The threads that own the bytes.
    pub threads: Vec<u32>,
}

/// The moves of one page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagePlan {
    /// Address of the page.
    pub page: u64,
    /// Number of views that it needs.
    pub views: u32,
    /// The moves, by address and disjoint.
    pub moves: Vec<ByteMove>,
    /// Addresses of the lines that it repairs.
    pub lines: Vec<u64>,
}

/// Why a line is not repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "kebab-case")]
pub enum PlanRefusal {
    /// In one aligned word of 8 bytes, bytes of one owner enclose those of another.
    Interleaved {
        /// Address of the word.
        word: u64,
    },
    /// A boundary of a range would split a sampled access.
    Splits {
        /// Address of the boundary.
        border: u64,
    },
    /// A boundary of a range would split an atomic access.
    AtomicStraddles {
        /// Address of the boundary.
        border: u64,
    },
    /// More owners share a line than there are views.
    TooManyOwners {
        /// Number of views needed.
        needed: u32,
        /// Number of views available.
        views: u32,
    },
    /// Its rules changed too often: see [`crate::RuleHistory`].
    GivenUp,
}

/// A line that is not repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedLine {
    /// Its address.
    pub line: u64,
    /// The reason.
    #[serde(flatten)]
    pub why: PlanRefusal,
}

/// The moves of all pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemapPlan {
    /// The pages to move, by address.
    pub pages: Vec<PagePlan>,
    /// Findings that are not repaired.
    pub refused: Vec<RefusedLine>,
}

impl PlanRefusal {
    /// Text for reports.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Interleaved { word } => format!("bytes of several threads alternate inside the word at {word:#x}"),
            Self::Splits { border } => format!("an access goes across the border at {border:#x}"),
            Self::AtomicStraddles { border } => format!("an atomic access goes across the border at {border:#x}"),
            Self::TooManyOwners { needed, views } => format!("{needed} owners meet where there are {views} views"),
            Self::GivenUp => "its rules changed too often".to_owned(),
        }
    }
}

/// Plans the rules for these lines. `lines` has the findings and all other known lines of their
/// pages; bytes of the latter with only one owner can move with it. `given_up` returns whether the
/// line at an address must not be repaired.
#[must_use]
pub fn plan(lines: &[JudgedLine], most_views: u32, given_up: impl Fn(u64) -> bool) -> RemapPlan {
    let mut by_page: BTreeMap<u64, Vec<&JudgedLine>> = BTreeMap::new();
    for judged in lines {
        by_page.entry(judged.line.address / PAGE_BYTES * PAGE_BYTES).or_default().push(judged);
    }
    let mut plan = RemapPlan::default();
    by_page.values_mut().for_each(|lines| lines.sort_by_key(|judged| judged.line.address));
    for (&page, lines) in &by_page {
        let before = page.checked_sub(PAGE_BYTES).and_then(|before| by_page.get(&before)?.last());
        let before = before.map(|judged| &judged.line).filter(|line| line.end() == page);
        let page = PagePlanner { start: page, lines, before, most_views };
        page.plan(&given_up, &mut plan);
    }
    plan
}

/// The known lines of a page.
struct PagePlanner<'a> {
    start: u64,
    /// By address.
    lines: &'a [&'a JudgedLine],
    /// The line before the page.
    before: Option<&'a LineUse>,
    most_views: u32,
}

impl PagePlanner<'_> {
    /// Plans the page. After each refusal, it restarts without the refused line.
    fn plan(&self, given_up: &impl Fn(u64) -> bool, plan: &mut RemapPlan) {
        let findings: BTreeSet<u64> =
            self.lines.iter().filter(|judged| judged.verdict.is_finding()).map(|judged| judged.line.address).collect();
        let mut refused: BTreeMap<u64, PlanRefusal> =
            findings.iter().filter(|&&line| given_up(line)).map(|&line| (line, PlanRefusal::GivenUp)).collect();
        while refused.len() < findings.len() {
            match self.moves(&refused) {
                Ok(moves) => {
                    let lines = findings.iter().copied().filter(|line| !refused.contains_key(line)).collect();
                    let views = moves.iter().map(|one| one.view + 1).max().unwrap_or(0);
                    plan.pages.push(PagePlan { page: self.start, views, moves, lines });
                    break;
                }
                Err(one) => {
                    refused.insert(one.line, one.why);
                }
            }
        }
        plan.refused.extend(refused.into_iter().map(|(line, why)| RefusedLine { line, why }));
    }

    fn moves(&self, refused: &BTreeMap<u64, PlanRefusal>) -> Result<Vec<ByteMove>, RefusedLine> {
        let mut map = PageLabels::new(self.start, self.lines, self.before, |line| refused.contains_key(&line))?;
        map.grow();
        map.check()?;
        views::moves(&map, self.most_views)
    }
}
