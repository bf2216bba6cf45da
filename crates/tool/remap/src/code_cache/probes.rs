//! Probes before mprotect(2), mremap(2) and madvise(2): code that reads each moved page that the
//! call concerns, so that the page is restored first.
//!
//! ```text
//!   mov eax, 10 ──> probe: for each moved page or cloned code page in [rdi, rdi + rsi): read it ──┐
//!   syscall     <─────────────────────────────── mov eax, 10 ────────────────────────────────────┘
//! ```
//! The userfaultfd does not report mprotect(2). A clone would continue to write its view of a page
//! that has become read-only, or to run code that is about to be rewritten. mremap(2) fails if a
//! page in the middle is watched. madvise(2) may change what a child gets.
//!
//! The probe ([`fieldstone_rewrite::probe`]) reads a moved page for each such page, for cloned code
//! a page that the clone redirects to. That read faults, and the page and its clones are removed.
//! Without a repairer the thread waits there, as at any access.
//!
//! Algorithm: the call sites are found by their bytes, `mov $10, %eax; syscall`, as C libraries and
//! language run times have them. Limit: calls made through syscall(2) are not found.

use std::collections::BTreeSet;
use std::ops::Range;

use fieldstone_rewrite::probe::{BYTES_PER_PAGE, LOAD_BYTES, PageProbe, probe_code};
use fieldstone_sys::process::ProcessMemory;
use memchr::memmem::find_iter;
use serde::{Deserialize, Serialize};

use crate::code_cache::CodeCache;
use crate::code_cache::heads::{JUMP, jump};
use crate::error::{Error, Result, ignore_gone};
use crate::page_table::moved::PageMap;
use crate::tracer::Tracer;

/// Maximum numbers of moved pages and of cloned code pages, and the bytes of a probe.
pub(crate) const MAX_PAGES: usize = 64;
pub(super) const MAX_CODE_PAGES: usize = 64;
const PROBE_BYTES: u64 = BYTES_PER_PAGE * ((MAX_PAGES + MAX_CODE_PAGES) as u64 + 1);
/// mprotect, pkey_mprotect, mremap, madvise. Each has an address and a length as its first
/// arguments.
const NUMBERS: [u32; 4] = [10, 329, 25, 28];
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes of code that are searched at once.
const PIECE: usize = 1 << 20;

/// The call sites with probes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ProbeSites {
    #[serde(rename = "places")]
    sites: Vec<CallSite>,
    /// Code mappings that were searched.
    #[serde(skip)]
    searched: BTreeSet<(u64, u64, String)>,
}

/// A call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CallSite {
    /// Address of the instruction that loads the number of the call.
    at: u64,
    number: u32,
    /// Address of the memory for the probe.
    #[serde(rename = "lookout")]
    probe: u64,
}

impl CallSite {
    fn range(&self) -> Range<u64> {
        self.probe..self.probe + PROBE_BYTES
    }

    fn original(&self) -> [u8; JUMP] {
        load(self.number)
    }

    /// The jump to the probe, if it is in reach.
    fn jump(&self) -> Option<[u8; JUMP]> {
        jump(self.at, self.probe)
    }

    /// Whether the jump is present. `None` if other code is there.
    fn is_patched(&self, memory: &ProcessMemory) -> Option<bool> {
        let mut there = [0; JUMP];
        memory.read_exact(self.at, &mut there).ok()?;
        if there == self.original() { Some(false) } else { (self.jump() == Some(there)).then_some(true) }
    }
}

impl ProbeSites {
    /// Whether an address is in a probe.
    pub(super) fn contains(&self, address: u64) -> bool {
        self.original(address).is_some()
    }

    /// Where a thread restarts that is in a probe.
    pub(super) fn original(&self, address: u64) -> Option<u64> {
        self.sites.iter().find(|site| site.range().contains(&address)).map(|site| site.at)
    }

    /// Where a thread restarts that is in a probe, or behind it and about to make the call.
    fn restart_address(&self, address: u64) -> Option<u64> {
        let called = |site: &&CallSite| site.at + LOAD_BYTES == address;
        self.original(address).or_else(|| self.sites.iter().find(called).map(|site| site.at))
    }

    /// The jumps that are present in `memory`: their addresses, and the original bytes.
    pub(super) fn jumps(&self, memory: &ProcessMemory) -> Vec<(u64, [u8; JUMP])> {
        let patched = self.sites.iter().filter(|site| site.is_patched(memory) == Some(true));
        patched.map(|site| (site.at, site.original())).collect()
    }
}

impl CodeCache {
    /// Finds call sites in code that was not searched before, and reserves their probes.
    ///
    /// # Errors
    /// If there is no memory for the probes.
    pub(crate) fn find_call_sites(&mut self, tracer: &mut Tracer) -> Result<()> {
        for mapping in tracer.mappings()?.iter().filter(|mapping| mapping.is_lasting_code()) {
            let key = (mapping.start, mapping.end, mapping.name.clone());
            if !self.probes.searched.insert(key) {
                continue;
            }
            for (at, number) in calls(tracer.memory(), &mapping.range()) {
                if self.probes.sites.iter().any(|site| site.at == at) {
                    continue;
                }
                let probe = self.reserve(tracer, at, PROBE_BYTES, None)?;
                self.probes.sites.push(CallSite { at, number, probe });
            }
        }
        Ok(())
    }

    /// Writes the probes for the present moved pages and the code pages with clones. All threads
    /// are stopped. Threads in a probe, or about to make the call, restart it.
    ///
    /// # Errors
    /// If a probe cannot be written.
    pub(crate) fn update_probes(&self, tracer: &mut Tracer, pages: &PageMap) -> Result<()> {
        let moved = pages.addresses().map(|page| PageProbe { page, moved: page });
        let code = self.heads.code_pages().into_iter().filter(|&(_, moved)| pages.contains(moved));
        let probed: Vec<PageProbe> = moved.chain(code.map(|(page, moved)| PageProbe { page, moved })).collect();
        if self.probes.sites.is_empty() {
            return Ok(());
        }
        self.restart_probes(tracer)?;
        let (pid, memory) = (tracer.pid(), tracer.memory());
        for site in &self.probes.sites {
            let Some((is_patched, jump)) = site.is_patched(memory).zip(site.jump()) else { continue };
            if probed.is_empty() {
                if is_patched {
                    memory.write(site.at, &site.original())?;
                }
                continue;
            }
            let refused = |error: fieldstone_rewrite::Error| Error::Refused { pid, why: error.to_string() };
            let code = probe_code(&probed, site.number, site.probe, site.at).map_err(refused)?;
            memory.write(site.probe, &code)?;
            memory.write(site.at, &jump)?;
        }
        Ok(())
    }

    fn restart_probes(&self, tracer: &mut Tracer) -> Result<()> {
        for thread in tracer.threads() {
            let Some((traced, _)) = tracer.stopped(thread) else { continue };
            let Ok(mut registers) = traced.tracee.registers() else { continue };
            if let Some(start) = self.probes.restart_address(registers.rip) {
                registers.rip = start;
                ignore_gone(traced.tracee.set_registers(&registers))?;
            }
        }
        Ok(())
    }
}

/// `mov $number, %eax`.
fn load(number: u32) -> [u8; JUMP] {
    let mut load = [0xb8; JUMP];
    load[1..].copy_from_slice(&number.to_le_bytes());
    load
}

/// Addresses in `range` that load one of [`NUMBERS`] and make the call, with the number.
fn calls(memory: &ProcessMemory, range: &Range<u64>) -> Vec<(u64, u32)> {
    let patterns = NUMBERS.map(|number| (number, [&load(number)[..], &SYSCALL].concat()));
    let overlap = JUMP + SYSCALL.len() - 1;
    let mut found = Vec::new();
    for start in range.clone().step_by(PIECE) {
        let bytes = usize::try_from(range.end - start).unwrap_or(usize::MAX).min(PIECE + overlap);
        let mut piece = vec![0; bytes];
        let got = memory.read(start, &mut piece);
        for (number, pattern) in &patterns {
            // Behind a prefix, the instruction loads another register.
            let is_alone =
                |offset: &usize| offset.checked_sub(1).is_none_or(|before| !matches!(piece[before], 0x40..=0x4f));
            let places = find_iter(&piece[..got], pattern).filter(is_alone);
            found.extend(places.map(|offset| (start + offset as u64, *number)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_site_of_the_c_library_is_found() {
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let own = libc::mprotect as *const () as u64;
        let table = crate::space::mappings(std::process::id()).unwrap();
        let code = table.iter().find(|mapping| mapping.range().contains(&own)).unwrap();
        let found = calls(&memory, &code.range());
        let is_own = |&(at, number): &(u64, u32)| number == NUMBERS[0] && (own..own + 16).contains(&at);
        assert!(found.iter().any(is_own), "{own:#x}: {found:x?}");
    }

    #[test]
    fn a_call_site_across_two_pieces_is_found_once() {
        let mut code = vec![0x90_u8; 2 * PIECE];
        let at = PIECE - 3;
        code[at..at + JUMP].copy_from_slice(&load(NUMBERS[1]));
        code[at + JUMP..at + JUMP + 2].copy_from_slice(&SYSCALL);
        let start = code.as_ptr().addr() as u64;
        let found = calls(&ProcessMemory::open(std::process::id()).unwrap(), &(start..start + code.len() as u64));
        assert_eq!(found, [(start + at as u64, NUMBERS[1])]);
    }

    #[test]
    fn a_thread_in_or_behind_a_probe_restarts() {
        let site = CallSite { at: 0x1000, number: 10, probe: 0x9000 };
        let probes = ProbeSites { sites: vec![site], searched: BTreeSet::new() };
        let last = 0x9000 + PROBE_BYTES - 1;
        for (address, inside, restart) in [
            (0x1000, None, None),
            (0x1005, None, Some(0x1000)),
            (0x9000, Some(0x1000), Some(0x1000)),
            (last + 1, None, None),
        ] {
            assert_eq!((probes.original(address), probes.restart_address(address)), (inside, restart), "{address:#x}");
        }
        assert!(probes.contains(last) && !probes.contains(0x1000));
    }
}
