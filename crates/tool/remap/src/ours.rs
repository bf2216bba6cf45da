//! All of ours in a process: pages that are elsewhere, and code that leads there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::heads::Heads;
use crate::memory::Memory;
use crate::page::{Moved, PAGE_BYTES, page_with};
use crate::process::Process;
use crate::protect::Protections;
use crate::redirect::Site;

/// All of ours in a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ours {
    /// Pages that are elsewhere, by address.
    pub(crate) moved: BTreeMap<u64, Moved>,
    /// Room for code.
    pub(crate) code: Code,
    /// Loops that lead into clones.
    pub(crate) heads: Heads,
    /// Rewritelets for single accesses, by their instruction.
    pub(crate) sites: BTreeMap<u64, Site>,
    /// Where it asks the kernel to protect memory.
    pub(crate) protections: Protections,
}

impl Ours {
    /// Forgets heads whose code is not what it was, and rewritelets that go on in their copies. Who is in one finds it as it was.
    pub(crate) fn retire(&mut self, memory: &Memory) {
        let gone = self.heads.retire(memory);
        self.sites.retain(|_, site| !gone.iter().any(|head| head.copy.has(site.next_ip())));
    }
}

/// A process's memory as the program sees it: the bytes of moved pages are where they were.
#[derive(Clone, Copy, Debug)]
pub struct AsSeen<'a> {
    memory: &'a Memory,
    moved: &'a BTreeMap<u64, Moved>,
}

impl Process {
    /// Its memory as it sees it itself.
    #[must_use]
    pub const fn as_seen(&self) -> AsSeen<'_> {
        AsSeen { memory: &self.memory, moved: &self.ours.moved }
    }
}

impl fieldstone_rewrite::Memory for AsSeen<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let mut got = 0;
        while got < into.len() {
            let at = address.wrapping_add(got as u64);
            let offset = usize::try_from(at % PAGE_BYTES).unwrap_or(0);
            let rest = &mut into[got..];
            let bytes = rest.len().min(PAGE - offset);
            let rest = &mut rest[..bytes];
            let now = match self.moved.get(&page_with(at)) {
                Some(moved) => moved.composed(self.memory).map_or(0, |contents| {
                    rest.copy_from_slice(&contents[offset..offset + bytes]);
                    bytes
                }),
                None => self.memory.read(at, rest),
            };
            got += now;
            if now < bytes {
                break;
            }
        }
        got
    }
}

const PAGE: usize = 4096;
