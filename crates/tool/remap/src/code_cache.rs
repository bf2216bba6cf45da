//! The code cache: clones of loops, rewritelets for single accesses, and probes, written into the
//! process.
//!
//! ```text
//!   arena     executable memory near the program's code          sites    rewritelets, by instruction
//!   heads     patched loop heads and their clones                probes   patched mprotect(2) call sites
//!   clones    a clone for the loop around an access              ladders  checks without the loop
//!   leave     a thread moved back to the program's code          frames   the same for signal frames
//!   removal   code taken out again
//! ```
//! Invariants: the cache is not writable for the process. Code stays in place while a thread may be
//! in it. A caller records the cache (see `record`) before a thread can meet new code.

mod arena;
mod clones;
mod frames;
mod heads;
mod ladders;
pub(crate) mod leave;
mod probes;
mod removal;
mod sites;

use std::collections::BTreeMap;
use std::ops::Range;

use fieldstone_sys::process::ProcessMemory;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::tracer::InsertedCode;
use crate::tracer::traced_thread::TracedThread;
use arena::CodeArena;
pub(crate) use clones::PendingClone;
use heads::HeadTable;
pub(crate) use probes::MAX_PAGES;
use probes::ProbeSites;
use sites::RewriteletSite;

/// All code inserted into a process. The serialized names are those of the record.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CodeCache {
    #[serde(rename = "code")]
    arena: CodeArena,
    heads: HeadTable,
    /// Rewritelets, by the instruction they stand for.
    sites: BTreeMap<u64, RewriteletSite>,
    #[serde(rename = "protections")]
    probes: ProbeSites,
    /// Whether accesses get ladders instead of clones.
    #[serde(skip)]
    uses_ladders: bool,
    /// For each instruction, how many times no clone could be made for it since a page moved last.
    #[serde(skip)]
    failures: BTreeMap<u64, u32>,
}

impl CodeCache {
    /// Address ranges of the cache.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        self.arena.ranges()
    }

    /// Number of clones.
    pub(crate) fn clone_count(&self) -> usize {
        self.heads.clones()
    }

    /// Whether a clone redirects this access by `delta`.
    pub(crate) fn redirects(&self, ip: u64, address: u64, bytes: u32, delta: i64) -> bool {
        self.heads.redirects(ip, address, bytes, delta)
    }

    /// A moved page that the clones of the loop around `ip` redirect to.
    pub(crate) fn page_of_loop(&self, ip: u64) -> Option<u64> {
        self.heads.page_of(ip)
    }

    /// Whether an address is in a probe.
    pub(crate) fn is_in_probe(&self, address: u64) -> bool {
        self.probes.contains(address)
    }

    /// The program's instruction for one in a clone or in the copy of a loop head.
    pub(crate) fn original_in_clones(&self, ip: u64) -> Option<u64> {
        self.heads.original(ip)
    }

    /// The program's instruction for any inserted one.
    pub(crate) fn original(&self, ip: u64) -> Option<u64> {
        let of_sites = || {
            let maps = self.sites.values().flat_map(|site| &site.rewritelets).flat_map(|(_, made)| &made.map);
            maps.copied().find(|&(at, _)| at == ip).map(|(_, original)| original)
        };
        self.heads.original(ip).or_else(of_sites).or_else(|| self.probes.original(ip))
    }

    /// The inserted jumps that are present in `memory`: their addresses, and the original bytes.
    pub(crate) fn jumps(&self, memory: &ProcessMemory) -> Vec<(u64, [u8; heads::JUMP])> {
        let mut jumps = self.heads.jumps(memory);
        jumps.extend(self.probes.jumps(memory));
        jumps
    }

    /// Retires loop heads whose code has changed, and drops the rewritelets that continue in their
    /// copies. A thread inside finds the code unchanged.
    pub(crate) fn retire(&mut self, memory: &ProcessMemory) {
        let gone = self.heads.retire(memory);
        self.sites.retain(|_, site| !gone.iter().any(|head| head.copy.has(site.next_ip())));
    }

    /// Whether accesses get ladders instead of clones.
    pub(crate) const fn uses_ladders(&self) -> bool {
        self.uses_ladders
    }

    /// Gives accesses ladders instead of clones from now on.
    pub(crate) const fn use_ladders(&mut self) {
        self.uses_ladders = true;
    }

    /// How many times no clone could be made for an instruction.
    pub(crate) fn failures(&self, ip: u64) -> u32 {
        self.failures.get(&ip).copied().unwrap_or(0)
    }

    /// Counts a failure to make a clone.
    pub(crate) fn add_failure(&mut self, ip: u64) {
        *self.failures.entry(ip).or_default() += 1;
    }

    /// Forgets the failures: another page is about to move.
    pub(crate) fn clear_failures(&mut self) {
        self.failures.clear();
    }
}

impl InsertedCode for CodeCache {
    fn is_behind_trap(&self, ip: u64) -> bool {
        self.heads.is_behind_trap(ip)
    }

    fn prepare_for_signal(&self, memory: &ProcessMemory, traced: &mut TracedThread) -> Result<Option<u64>> {
        self.leave_for_signal(memory, traced)
    }
}
