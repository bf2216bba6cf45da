//! Remap rules: which bytes of a page move to which view.
//!
//! A page with rules becomes inaccessible; its bytes live in an underlay, those of each rule in a *view*, a page of its
//! own at the same offset. Bytes of one line that belong to different owners go to different views; owners that meet on no
//! line can share one. So two views do for any number of threads whose structures lie in a row, and loops need no more
//! than two copies:
//!
//! ```text
//!   line          0               1               2               3
//!   owner     .....AAAAAAAA|AAABBBBB|BBBBBBBBCCC|CCCCCCCCCCDD|DDDDDDDDDD....
//!   view           0            1           0            1
//! ```
//! - Only what a verdict calls movable moves. What is truly shared stays in the underlay, as do bytes of lines that are no
//!   findings; of several truly shared things on one line, the heaviest stays.
//! - A range grows over bytes that are nobody's: between two pieces of one owner, to whole aligned words, to the whole of
//!   an object that is the owner's. A rule that is longer than need be costs nothing; two where one would do cost a guard.
//! - An access that was seen is never split. Where a border would split one, the line is refused, with the reason.
//! - A refused line keeps its bytes where they are; the others of the page are planned without it.
//!
//! Source: Cachekata, section 5 and figure 5.1, where each isolated range has a line of its own in a pool.

mod page;
#[cfg(test)]
mod tests;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::line::Line;
use crate::verdict::Judged;
use page::PageMap;

/// Bytes of a page that can be moved.
pub const PAGE_BYTES: u64 = 4096;

/// Views a page, unless told otherwise: owners that meet on a line are rarely more; each is a page that must be near.
pub const MOST_VIEWS: u32 = 8;

/// Bytes that move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Their addresses; inside one page.
    pub bytes: Range<u64>,
    /// The number of the view, from 0 in each page.
    pub view: u32,
    /// The threads whose bytes they are.
    pub threads: Vec<u32>,
}

/// What is to be done to one page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagePlan {
    /// Its address.
    pub page: u64,
    /// How many views it needs.
    pub views: u32,
    /// In order of their addresses; disjoint.
    pub moves: Vec<Move>,
    /// The addresses of the lines that are mended by it.
    pub lines: Vec<u64>,
}

/// Why a line is left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "kebab-case")]
pub enum Refusal {
    /// Inside one aligned word of 8 bytes, the bytes of one owner have another's between them.
    Interleaved {
        /// The address of the word.
        word: u64,
    },
    /// A border would lie inside an access that was seen.
    Splits {
        /// The address of the border.
        border: u64,
    },
    /// A border would lie inside an atomic access.
    AtomicStraddles {
        /// The address of the border.
        border: u64,
    },
    /// More owners meet than there are views.
    TooManyOwners {
        /// So many views would be needed.
        needed: u32,
        /// So many there are.
        views: u32,
    },
    /// Its rules changed too often: see [`crate::History`].
    GivenUp,
}

/// A line that is left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Its address.
    pub line: u64,
    /// Why.
    #[serde(flatten)]
    pub why: Refusal,
}

/// What is to be done to all pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Pages to be moved, in order.
    pub pages: Vec<PagePlan>,
    /// Lines that are left as they are although they are findings.
    pub refused: Vec<Refused>,
}

impl Refusal {
    /// In the words of a report.
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

/// Rules for these lines.
///
/// `lines` are all that is known: findings, and the other lines of their pages, of which those that were touched by one
/// owner only can go along.
/// `given_up` says of a line's address that it is not to be tried.
#[must_use]
pub fn plan(lines: &[Judged], most_views: u32, given_up: impl Fn(u64) -> bool) -> Plan {
    let mut by_page: BTreeMap<u64, Vec<&Judged>> = BTreeMap::new();
    for judged in lines {
        by_page.entry(judged.line.address / PAGE_BYTES * PAGE_BYTES).or_default().push(judged);
    }
    let mut plan = Plan::default();
    by_page.values_mut().for_each(|lines| lines.sort_by_key(|judged| judged.line.address));
    for (&page, lines) in &by_page {
        let before = page.checked_sub(PAGE_BYTES).and_then(|before| by_page.get(&before)?.last());
        let before = before.map(|judged| &judged.line).filter(|line| line.end() == page);
        let page = Page { start: page, lines, before, most_views };
        page.plan(&given_up, &mut plan);
    }
    plan
}

/// What is known of a page.
struct Page<'a> {
    start: u64,
    /// In order of their addresses.
    lines: &'a [&'a Judged],
    /// The line before it.
    before: Option<&'a Line>,
    most_views: u32,
}

impl Page<'_> {
    /// Plans it; each refusal starts it anew without the line.
    fn plan(&self, given_up: &impl Fn(u64) -> bool, plan: &mut Plan) {
        let findings: BTreeSet<u64> =
            self.lines.iter().filter(|judged| judged.verdict.is_finding()).map(|judged| judged.line.address).collect();
        let mut refused: BTreeMap<u64, Refusal> =
            findings.iter().filter(|&&line| given_up(line)).map(|&line| (line, Refusal::GivenUp)).collect();
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
        plan.refused.extend(refused.into_iter().map(|(line, why)| Refused { line, why }));
    }

    fn moves(&self, refused: &BTreeMap<u64, Refusal>) -> Result<Vec<Move>, Refused> {
        let mut map = PageMap::new(self.start, self.lines, self.before, |line| refused.contains_key(&line))?;
        map.grow();
        map.check()?;
        views::moves(&map, self.most_views)
    }
}
