//! Names for the events of a repair: the variables on contended lines, and the code of redirected
//! accesses.
//!
//! Names come from `/proc/PID/maps` and from files. The memory of the process is not read: a read of
//! a moved page waits until the page is restored. So heap blocks have no names here.

use std::collections::BTreeMap;
use std::ops::Range;

use fieldstone_rewrite::page::{LINE_BYTES, PAGE_BYTES};

use crate::event::{RepairEvent, TimedEvent};
use crate::instruction_names::InstructionNames;
use crate::memory_objects::MemoryObjects;

/// The most names in one event.
const MAX_NAMES: usize = 4;

/// Names variables and code of one process. An event on a page has the names of the lines that were
/// found there before.
#[derive(Debug)]
pub struct EventNames {
    pid: u32,
    objects: Option<MemoryObjects>,
    by_line: BTreeMap<u64, Vec<String>>,
    code: InstructionNames,
}

impl EventNames {
    /// No names yet. The symbols of process `pid` are read at the first found line.
    #[must_use]
    pub fn new(pid: u32) -> Self {
        Self { pid, objects: None, by_line: BTreeMap::new(), code: InstructionNames::default() }
    }

    /// Adds the names to an event. Call it for each event, in the order of time.
    pub fn add_to(&mut self, event: &mut TimedEvent) {
        match &mut event.kind {
            RepairEvent::LineFound { line, .. } => {
                let names = self.read(*line);
                self.by_line.insert(*line, names);
                event.variables = self.known(*line..*line + 1);
            }
            RepairEvent::LineLeft { line, .. } => event.variables = self.known(*line..*line + 1),
            RepairEvent::PageMoved { page, .. }
            | RepairEvent::PageRefused { page, .. }
            | RepairEvent::PageRestored { page, .. } => {
                event.variables = self.known(*page..*page + PAGE_BYTES);
            }
            RepairEvent::AccessRedirected { ip, code, .. } => {
                let objects = self.objects.get_or_insert_with(|| MemoryObjects::new(self.pid));
                *code = self.code.text(*ip, objects);
            }
            RepairEvent::Exec => *self = Self::new(self.pid),
            _ => {}
        }
    }

    /// The variables on a line; none if the process has ended.
    fn read(&mut self, line: u64) -> Vec<String> {
        let objects = self.objects.get_or_insert_with(|| MemoryObjects::new(self.pid));
        // A library with the variable may have been loaded since.
        objects.reopen();
        let mut names = objects.variables_on_line(line, LINE_BYTES);
        names.truncate(MAX_NAMES);
        names
    }

    /// The variables on the found lines in a range of addresses, each once.
    fn known(&self, addresses: Range<u64>) -> Vec<String> {
        let mut names: Vec<String> = self.by_line.range(addresses).flat_map(|(_, names)| names.clone()).collect();
        names.dedup();
        names.truncate(MAX_NAMES);
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable that begins on one line and ends on another.
    #[repr(align(64))]
    struct TwoLines([u8; 128]);

    static FOUND_LINES: TwoLines = TwoLines([1; 128]);

    #[test]
    fn events_on_a_line_and_on_its_page_name_its_variables() {
        let line = FOUND_LINES.0.as_ptr().addr() as u64 + LINE_BYTES;
        let page = line / PAGE_BYTES * PAGE_BYTES;
        let mut names = EventNames::new(std::process::id());
        let mut named = |kind| {
            let mut event = TimedEvent::new(0.0, kind);
            names.add_to(&mut event);
            event.variables.concat()
        };
        let moved = || RepairEvent::PageMoved { page, views: 2, lines: vec![line] };
        assert_eq!(named(moved()), "", "no line was found on this page");
        let expected = format!("{}::FOUND_LINES+0x40", module_path!());
        assert_eq!(named(RepairEvent::LineFound { line, share: 0.5 }), expected);
        assert_eq!(named(moved()), expected);
        assert_eq!(named(RepairEvent::Exec), "");
        assert_eq!(named(moved()), "", "another program has other variables");
    }

    #[test]
    fn a_redirected_access_names_its_function_file_and_line() {
        let ip = a_redirected_access_names_its_function_file_and_line as fn() as usize as u64;
        let mut event = TimedEvent::new(0.0, RepairEvent::AccessRedirected { ip, thread: 1, code: None });
        EventNames::new(std::process::id()).add_to(&mut event);
        let RepairEvent::AccessRedirected { code: Some(code), .. } = event.kind else { panic!("{event:?}") };
        assert!(code.contains("a_redirected_access_names") && code.contains("event_names.rs:"), "{code}");
    }
}
