//! Checks an MMU description. Every error names the field and the remedy.

use super::{Mmu, TLB_LEVELS, TlbArray, TlbLevel};
use crate::error::{Error, Result};
use crate::lru::LruTable;
use crate::page::PageSize;

/// The largest number of entries accepted, beyond any real TLB: a typing error must not exhaust
/// memory.
const MAX_ENTRIES: u32 = 1 << 20;

/// Field, problem, remedy.
type Flaw = (String, String, String);

impl Mmu {
    /// Checks that the MMU can be simulated.
    ///
    /// # Errors
    /// [`Error::Mmu`] with the field and the remedy.
    pub fn check(&self) -> Result<()> {
        self.flaw().map_or(Ok(()), |(field, problem, remedy)| {
            Err(Error::Mmu { mmu: self.name.clone(), field, problem, remedy })
        })
    }

    fn flaw(&self) -> Option<Flaw> {
        let fetched = self.instruction.len() + usize::from(self.shared_last);
        if self.name.is_empty() {
            return Some(flaw("name", "is empty", "give the machine a name"));
        }
        if self.shared_last && self.data.len() < 2 {
            let remedy =
                "only a level behind the first can be shared: give `data` two levels, or fetches levels of their own";
            return Some(flaw("shared_last", "is true with one level of data", remedy));
        }
        for (side, own, levels) in [("data", &self.data, self.data.len()), ("instruction", &self.instruction, fetched)]
        {
            if own.is_empty() || levels > TLB_LEVELS {
                let remedy =
                    format!("use 1 to {TLB_LEVELS} levels, including the shared one, and an unshared first level");
                return Some((side.to_owned(), format!("has {levels} levels"), remedy));
            }
            let found =
                own.iter().enumerate().find_map(|(number, level)| level_flaw(&format!("{side}[{number}]"), level));
            if found.is_some() {
                return found;
            }
        }
        self.first_level_flaw().or_else(|| self.walk_cache_flaw())
    }

    /// The first data level supports 4 KiB pages, and the first fetch level supports every size of
    /// the first data level.
    fn first_level_flaw(&self) -> Option<Flaw> {
        let holds = |level: &TlbLevel, size| level.arrays.iter().any(|array| array.holds(size).is_some());
        let fetched = self.instruction_levels();
        for size in PageSize::ALL {
            let data = self.data.first().is_some_and(|level| holds(level, size));
            let lacks = |side: &str| {
                let remedy = "add it to `pages` of an array, or to `pieces` of one that splits it into smaller pages";
                flaw(&format!("{side}[0]"), &format!("has no array for pages of {size}"), remedy)
            };
            if size == PageSize::Small4k && !data {
                return Some(lacks("data"));
            }
            if data && !fetched.first().is_some_and(|level| holds(level, size)) {
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
        let (name, entries) = all.into_iter().find(|&(_, entries)| entries > LruTable::MAX_FULL)?;
        let remedy = format!("use at most {}; 0 for none", LruTable::MAX_FULL);
        Some((format!("walk_caches.{name}"), format!("is {entries}"), remedy))
    }
}

fn flaw(field: &str, problem: &str, remedy: &str) -> Flaw {
    (field.to_owned(), problem.to_owned(), remedy.to_owned())
}

fn level_flaw(place: &str, level: &TlbLevel) -> Option<Flaw> {
    if level.arrays.is_empty() {
        return Some(flaw(&format!("{place}.arrays"), "is empty", "add an array, or remove the level"));
    }
    for size in PageSize::ALL {
        if level.arrays.iter().filter(|array| array.holds(size).is_some()).count() > 1 {
            let problem = format!("has two arrays for pages of {size}");
            return Some(flaw(place, &problem, "a page size belongs to one array of a level"));
        }
    }
    let arrays = level.arrays.iter().enumerate();
    arrays.into_iter().find_map(|(number, array)| array_flaw(&format!("{place}.arrays[{number}]"), array))
}

fn array_flaw(place: &str, array: &TlbArray) -> Option<Flaw> {
    let (entries, ways) = (array.entries, array.set_ways());
    if entries == 0 || entries > MAX_ENTRIES {
        let remedy = format!("use 1 to {MAX_ENTRIES}");
        return Some((format!("{place}.entries"), format!("is {entries}"), remedy));
    }
    if ways == 1 {
        // A trace records only the first accesses to two alternating pages
        // (`agents/trace/recent.rs`).
        let field = if array.ways == 1 { "ways" } else { "entries" };
        let problem = "is 1, which makes it direct-mapped: a trace omits accesses that hit with two ways or more, but can miss with one";
        let remedy = "use 2 ways or more; 0 ways with 2 entries or more mean fully associative";
        return Some(flaw(&format!("{place}.{field}"), problem, remedy));
    }
    if !entries.is_multiple_of(ways) {
        let remedy = "ways divide entries; 0 ways mean fully associative".to_owned();
        return Some((format!("{place}.ways"), format!("is {ways} with {entries} entries"), remedy));
    }
    if ways > LruTable::MAX_FULL {
        let remedy = format!("use at most {}", LruTable::MAX_FULL);
        return Some((format!("{place}.ways"), format!("is {ways}"), remedy));
    }
    if array.pages.is_empty() {
        return Some(flaw(&format!("{place}.pages"), "is empty", "name at least one of 4K, 2M, 1G"));
    }
    let largest = array.pages.iter().max();
    let smaller = array.pieces.iter().find(|&piece| Some(piece) <= largest)?;
    let remedy = "only pages larger than all of `pages` can be split into pieces";
    Some(flaw(&format!("{place}.pieces"), &format!("has {smaller}"), remedy))
}
