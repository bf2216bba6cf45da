//! Is this a machine that can be built? Every refusal names the field and says what would be right.

use super::{Level, Machine, RANKS, Rank};
use crate::error::{Error, Result};
use crate::lru::Table;
use crate::page::PageSize;

/// More entries than any TLB has; keeps a slip of the pen from taking all memory.
const MOST_ENTRIES: u32 = 1 << 20;

/// Field, problem, remedy.
type Flaw = (String, String, String);

impl Machine {
    /// Can it be simulated?
    ///
    /// # Errors
    /// [`Error::Machine`], with the field and the remedy.
    pub fn check(&self) -> Result<()> {
        self.flaw().map_or(Ok(()), |(field, problem, remedy)| {
            Err(Error::Machine { machine: self.name.clone(), field, problem, remedy })
        })
    }

    fn flaw(&self) -> Option<Flaw> {
        let fetched = self.instruction.len() + usize::from(self.shared_last);
        if self.name.is_empty() {
            return Some(flaw("name", "is empty", "give the machine a name"));
        }
        if self.shared_last && self.data.len() < 2 {
            let remedy = "only a rank behind the first is shared: give `data` two, or fetches ranks of their own";
            return Some(flaw("shared_last", "is true with one rank of data", remedy));
        }
        for (side, own, ranks) in [("data", &self.data, self.data.len()), ("instruction", &self.instruction, fetched)] {
            if own.is_empty() || ranks > RANKS {
                let remedy = format!("give 1 to {RANKS}, the shared one included, the first unshared");
                return Some((side.to_owned(), format!("has {ranks} ranks"), remedy));
            }
            let found = own.iter().enumerate().find_map(|(number, rank)| rank_flaw(&format!("{side}[{number}]"), rank));
            if found.is_some() {
                return found;
            }
        }
        self.first_rank_flaw().or_else(|| self.walk_cache_flaw())
    }

    /// Small pages are everywhere, and what the first data rank holds a fetch must find a place for too.
    fn first_rank_flaw(&self) -> Option<Flaw> {
        let holds = |rank: &Rank, size| rank.arrays.iter().any(|array| array.holds(size).is_some());
        let fetched = self.instruction_ranks();
        for size in PageSize::ALL {
            let data = self.data.first().is_some_and(|rank| holds(rank, size));
            let lacks = |side: &str| {
                let remedy = "add it to `pages` of an array, or to `pieces` of one that holds it in smaller ones";
                flaw(&format!("{side}[0]"), &format!("has no array for pages of {size}"), remedy)
            };
            if size == PageSize::Small4k && !data {
                return Some(lacks("data"));
            }
            if data && !fetched.first().is_some_and(|rank| holds(rank, size)) {
                return Some(lacks("instruction"));
            }
        }
        None
    }

    fn walk_cache_flaw(&self) -> Option<Flaw> {
        let caches = &self.walk_caches;
        let all = [
            ("pml4e", caches.pml4e),
            ("pdpte", caches.pdpte),
            ("pde", caches.pde),
            ("pte_lines", caches.pte_lines),
            ("nested", caches.nested),
        ];
        let (name, entries) = all.into_iter().find(|&(_, entries)| entries > Table::MOST_FULL)?;
        let remedy = format!("give at most {}; 0 for none", Table::MOST_FULL);
        Some((format!("walk_caches.{name}"), format!("is {entries}"), remedy))
    }
}

fn flaw(field: &str, problem: &str, remedy: &str) -> Flaw {
    (field.to_owned(), problem.to_owned(), remedy.to_owned())
}

fn rank_flaw(place: &str, rank: &Rank) -> Option<Flaw> {
    if rank.arrays.is_empty() {
        return Some(flaw(&format!("{place}.arrays"), "is empty", "give one array, or leave the rank out"));
    }
    for size in PageSize::ALL {
        if rank.arrays.iter().filter(|array| array.holds(size).is_some()).count() > 1 {
            let problem = format!("has two arrays for pages of {size}");
            return Some(flaw(place, &problem, "a page size belongs to one array of a rank"));
        }
    }
    let arrays = rank.arrays.iter().enumerate();
    arrays.into_iter().find_map(|(number, array)| array_flaw(&format!("{place}.arrays[{number}]"), array))
}

fn array_flaw(place: &str, array: &Level) -> Option<Flaw> {
    let (entries, ways) = (array.entries, array.set_ways());
    if entries == 0 || entries > MOST_ENTRIES {
        let remedy = format!("give 1 to {MOST_ENTRIES}");
        return Some((format!("{place}.entries"), format!("is {entries}"), remedy));
    }
    if ways == 1 {
        // Of two pages that are used in turn, a trace tells only the first accesses (`agents/trace/recent.rs`).
        let field = if array.ways == 1 { "ways" } else { "entries" };
        let problem = "is 1, which makes it direct-mapped: a trace leaves out accesses that two ways or more cannot miss, and one could";
        let remedy = "give 2 ways or more; 0 ways of 2 entries or more make it fully associative";
        return Some(flaw(&format!("{place}.{field}"), problem, remedy));
    }
    if !entries.is_multiple_of(ways) {
        let remedy = "ways divide entries; 0 ways make it fully associative".to_owned();
        return Some((format!("{place}.ways"), format!("is {ways} with {entries} entries"), remedy));
    }
    if ways > Table::MOST_FULL {
        let remedy = format!("give at most {}", Table::MOST_FULL);
        return Some((format!("{place}.ways"), format!("is {ways}"), remedy));
    }
    if array.pages.is_empty() {
        return Some(flaw(&format!("{place}.pages"), "is empty", "name at least one of 4K, 2M, 1G"));
    }
    let largest = array.pages.iter().max();
    let smaller = array.pieces.iter().find(|&piece| Some(piece) <= largest)?;
    let remedy = "only pages larger than all of `pages` can be held in pieces";
    Some(flaw(&format!("{place}.pieces"), &format!("has {smaller}"), remedy))
}
