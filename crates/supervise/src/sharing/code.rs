//! Names for the instructions that touch a line.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fieldstone_report::sharing::Code;
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
    known: HashMap<u64, Code>,
}

impl Codes {
    /// The heaviest instructions that touch the line, with who was seen at them: one of each thread at least, as far as there is room.
    pub(super) fn of(&mut self, line: &Line, owners: &Owners, watcher: &Watcher) -> Vec<Code> {
        let mut codes: BTreeMap<u64, Code> = BTreeMap::new();
        for thread in &line.threads {
            for site in &thread.sites {
                let code = codes.entry(site.site).or_insert_with(|| self.name(site.site, owners));
                code.weight += f64::from(site.weight);
                (code.reads, code.writes) = watcher.reads_and_writes(site.site);
                code.threads.push(thread.thread);
            }
        }
        let mut codes: Vec<Code> = codes.into_values().collect();
        heaviest_first(&mut codes);
        // Of each thread the heaviest, before others: so that nobody who fights goes unnamed.
        let mut named = BTreeSet::new();
        let is_first = |code: &Code| code.threads.iter().filter(|&&thread| named.insert(thread)).count() > 0;
        let (mut told, rest): (Vec<Code>, Vec<Code>) = codes.into_iter().partition(is_first);
        told.extend(rest);
        told.truncate(MOST);
        heaviest_first(&mut told);
        told
    }

    /// What the instruction at `ip` is of.
    pub(super) fn name(&mut self, ip: u64, owners: &Owners) -> Code {
        if let Some(known) = self.known.get(&ip) {
            return known.clone();
        }
        let frame = owners.frame(ip);
        let inmost = self.symbols.name(std::slice::from_ref(&frame)).stack.into_iter().next();
        let code = inmost.map_or_else(Code::default, |name| Code {
            ip: frame.offset,
            function: name.function,
            file: name.file.map(|file| file.to_string_lossy().into_owned()),
            line: name.line,
            module: name.module,
            ..Code::default()
        });
        self.known.insert(ip, code.clone());
        code
    }
}

fn heaviest_first(codes: &mut [Code]) {
    codes.sort_by(|one, other| other.weight.total_cmp(&one.weight));
}
