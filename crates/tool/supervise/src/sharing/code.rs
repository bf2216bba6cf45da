//! Names for the instructions that touch a line.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use fieldstone_report::sharing::SampledCode;
use fieldstone_sharing::Line;

use super::owners::Owners;
use super::watcher::Watcher;
use crate::symbols::Symbols;

/// Instructions that are told of a line: the heaviest.
const MOST: usize = 8;

/// Names of instructions; each is looked up once.
#[derive(Debug, Default)]
pub(super) struct Codes {
    symbols: Symbols,
    known: HashMap<u64, SampledCode>,
}

impl Codes {
    /// The heaviest instructions that touch the line, with who was seen at them: one of each thread at least, as far as there is room.
    pub(super) fn of(&mut self, line: &Line, owners: &Owners, watcher: &Watcher) -> Vec<SampledCode> {
        let mut codes: BTreeMap<u64, SampledCode> = BTreeMap::new();
        for thread in &line.threads {
            for site in &thread.sites {
                let code = codes.entry(site.site).or_insert_with(|| self.name(site.site, owners));
                code.weight += f64::from(site.weight);
                (code.reads, code.writes) = watcher.reads_and_writes(site.site);
                code.threads.push(thread.thread);
            }
        }
        let mut codes: Vec<SampledCode> = codes.into_values().collect();
        heaviest_first(&mut codes);
        // Of each thread the heaviest, before others: so that nobody who fights goes unnamed.
        let mut named = BTreeSet::new();
        let is_first = |code: &SampledCode| code.threads.iter().filter(|&&thread| named.insert(thread)).count() > 0;
        let (mut told, rest): (Vec<SampledCode>, Vec<SampledCode>) = codes.into_iter().partition(is_first);
        told.extend(rest);
        told.truncate(MOST);
        heaviest_first(&mut told);
        told
    }

    /// What the instruction at `ip` is of.
    pub(super) fn name(&mut self, ip: u64, owners: &Owners) -> SampledCode {
        if let Some(known) = self.known.get(&ip) {
            return known.clone();
        }
        let frame = owners.frame(ip);
        let stack = self.symbols.name(std::slice::from_ref(&frame)).stack;
        let own = own_frame(stack.iter().map(|name| name.file.as_deref()));
        let code = stack.into_iter().nth(own).map_or_else(SampledCode::default, |name| SampledCode {
            ip: frame.offset,
            function: name.function,
            file: name.file.map(|file| file.to_string_lossy().into_owned()),
            line: name.line,
            module: name.module,
            ..SampledCode::default()
        });
        self.known.insert(ip, code.clone());
        code
    }
}

/// The inmost of functions inlined into each other, by their files, that is the program's own: that of a library's atomic says nothing. The inmost
/// of all where none is.
fn own_frame<'a>(mut files: impl Iterator<Item = Option<&'a Path>>) -> usize {
    files.position(|file| file.is_some_and(|file| !is_of_library(file))).unwrap_or(0)
}

/// Whether it is source that comes with a compiler.
fn is_of_library(file: &Path) -> bool {
    let folders = ["/usr/include", "/usr/lib", "/rustc"];
    folders.iter().any(|folder| file.starts_with(folder))
        || file.to_string_lossy().contains("/rustlib/src/rust/library/")
}

fn heaviest_first(codes: &mut [SampledCode]) {
    codes.sort_by(|one, other| other.weight.total_cmp(&one.weight));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inlined_code_of_a_library_is_passed_over() {
        let own = |files: &[&str]| own_frame(files.iter().map(|&file| (!file.is_empty()).then(|| Path::new(file))));
        let atomic = "/usr/include/c++/12/bits/atomic_base.h";
        assert_eq!(own(&[atomic, "src/queue.cpp", "src/main.cpp"]), 1);
        assert_eq!(own(&["/rustc/5980/library/core/src/sync/atomic.rs", "/home/me/src/main.rs"]), 1);
        assert_eq!(own(&["src/queue.cpp", atomic]), 0);
        assert_eq!((own(&[atomic, ""]), own(&[])), (0, 0), "nothing better is known");
    }
}
