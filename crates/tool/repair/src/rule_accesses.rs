//! Accesses to bytes that rules watch: the matching rules, the counts per instruction, and the
//! names of instructions.

use std::collections::BTreeMap;

use fieldstone_remap::{PageRequest, Process, WatchedAccess};
use fieldstone_sharing::requests::{Action, RuleRequest};

use crate::error::Result;
use crate::event::RepairEvent;
use crate::instruction_names::InstructionNames;
use crate::memory_objects::MemoryObjects;
use crate::page_requests::PageRequests;

/// The number of accesses that read and that write.
type ReadsAndWrites = (u64, u64);

/// The rules for one process, with the accesses that they count.
#[derive(Debug)]
pub(crate) struct RuleAccesses {
    pid: u32,
    rules: Vec<RuleRequest>,
    requests: PageRequests,
    /// By rule, thread and instruction.
    counts: BTreeMap<(String, u32, u64), ReadsAndWrites>,
    objects: Option<MemoryObjects>,
    names: InstructionNames,
    /// Names by instruction. They are looked up while the code is mapped.
    known_names: BTreeMap<u64, String>,
    is_missing_reported: bool,
}

impl RuleAccesses {
    /// No accesses yet, for these rules and process `pid`.
    ///
    /// # Errors
    /// Where the memory of the process cannot be read.
    pub(crate) fn new(pid: u32, rules: Vec<RuleRequest>) -> Result<Self> {
        Ok(Self {
            pid,
            requests: PageRequests::new(pid, rules.clone())?,
            rules,
            counts: BTreeMap::new(),
            objects: None,
            names: InstructionNames::default(),
            known_names: BTreeMap::new(),
            is_missing_reported: false,
        })
    }

    /// Removes all data of the program that ran before.
    ///
    /// # Errors
    /// Where the memory of the process cannot be read.
    pub(crate) fn restart(&mut self) -> Result<()> {
        *self = Self::new(self.pid, std::mem::take(&mut self.rules))?;
        Ok(())
    }

    /// The requested pages, if they have changed since the last call. `process` is the process
    /// while pages are moved.
    pub(crate) fn changed_pages(
        &mut self,
        now_ns: u64,
        process: Option<&Process>,
    ) -> Option<BTreeMap<u64, PageRequest>> {
        self.requests.update(now_ns, process).then(|| self.requests.pages())
    }

    /// Counts an access or adds an event for it, as the matching rules say.
    pub(crate) fn record(&mut self, access: &WatchedAccess, events: &mut Vec<RepairEvent>) {
        let WatchedAccess { thread, ip, address, bytes, read, write } = *access;
        let rules = self.requests.rules_watching(address, bytes);
        let rules: Vec<(Action, String)> = rules.map(|rule| (rule.action, rule.at.to_string())).collect();
        for (action, rule) in rules {
            if action == Action::Count {
                self.name(ip);
                let (reads, writes) = self.counts.entry((rule, thread, ip)).or_default();
                *reads += u64::from(read);
                *writes += u64::from(write);
                continue;
            }
            let code = if action == Action::Trace { self.name(ip) } else { None };
            events.push(RepairEvent::WatchedAccess { rule, thread, address, bytes, read, write, ip, code });
        }
    }

    /// An event for each count; the counts begin at 0 again.
    pub(crate) fn take_counts(&mut self) -> Vec<RepairEvent> {
        let counts = std::mem::take(&mut self.counts).into_iter();
        counts
            .map(|((rule, thread, ip), (reads, writes))| {
                let code = self.known_names.get(&ip).cloned();
                RepairEvent::AccessCount { rule, thread, ip, code, reads, writes }
            })
            .collect()
    }

    /// An event for each rule whose symbol is missing, at the first call; later calls return none.
    pub(crate) fn take_missing(&mut self) -> Vec<RepairEvent> {
        if std::mem::replace(&mut self.is_missing_reported, true) {
            return Vec::new();
        }
        let event = |rule: &RuleRequest| {
            let (rule, source) = (rule.at.to_string(), rule.source.clone());
            RepairEvent::SymbolMissing { rule, source }
        };
        self.requests.missing().map(event).collect()
    }

    /// Function, file and line of an instruction. `None` if they are unknown.
    fn name(&mut self, ip: u64) -> Option<String> {
        if let Some(name) = self.known_names.get(&ip) {
            return Some(name.clone());
        }
        let objects = self.objects.get_or_insert_with(|| MemoryObjects::new(self.pid));
        let name = self.names.text(ip, objects)?;
        self.known_names.insert(ip, name.clone());
        Some(name)
    }
}
