//! The objects on a line for the report of `fieldstone sharing`: variables, heap blocks, mappings
//! and stacks.

use std::ops::Range;
use std::time::Instant;

use fieldstone_report::sharing::{MemoryKind, MemoryOwner};
use fieldstone_rewrite::Registers;
use fieldstone_sharing::{JudgedLine, ObjectLayout};

use fieldstone_symbols::CodeLocation;
use fieldstone_symbols::objects::{AddressInfo, AddressKind, Objects};

use crate::tuning::{OBJECT_LIST_AGE, OBJECT_STEP_BYTES};

/// The objects of one process. Without objects where they cannot be read.
#[derive(Debug)]
pub(crate) struct MemoryObjects {
    pid: u32,
    objects: Option<Objects>,
    refreshed: Option<Instant>,
}

impl MemoryObjects {
    /// Reads the objects of process `pid`.
    pub(crate) fn new(pid: u32) -> Self {
        Self { pid, objects: Objects::open(pid).ok(), refreshed: None }
    }

    /// The number of the process.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Reads mappings and heap blocks again if they are older than [`OBJECT_LIST_AGE`].
    pub(crate) fn refresh(&mut self) {
        if self.refreshed.is_some_and(|refreshed| refreshed.elapsed() <= OBJECT_LIST_AGE) {
            return;
        }
        self.refreshed = Some(Instant::now());
        if self.objects.as_mut().is_some_and(|objects| objects.refresh().is_err()) {
            self.objects = None;
        }
    }

    /// Reads the mappings again, since a library may have been loaded; opens the process again if
    /// that fails.
    pub(crate) fn reopen(&mut self) {
        if self.objects.as_mut().is_none_or(|objects| objects.refresh().is_err()) {
            self.objects = Objects::open(self.pid).ok();
        }
    }

    /// The variables on the cache line of `line_bytes` bytes at `address`, by their symbols.
    pub(crate) fn variables_on_line(&self, address: u64, line_bytes: u64) -> Vec<String> {
        self.objects.as_ref().map_or_else(Vec::new, |objects| objects.variables_on_line(address, line_bytes))
    }

    /// The file of the instruction at `ip` and its offset there; without a file where none is
    /// known.
    pub(crate) fn frame(&self, ip: u64) -> CodeLocation {
        let known = self.objects.as_ref().and_then(|objects| objects.code_location(ip));
        known.unwrap_or(CodeLocation { module: None, offset: ip })
    }

    /// The objects in the contended ranges of a line, in the order of addresses.
    pub(crate) fn places(&mut self, judged: &JudgedLine) -> Vec<MemoryOwner> {
        let Some(objects) = &mut self.objects else { return Vec::new() };
        let mut places: Vec<MemoryOwner> = Vec::new();
        for bytes in contended_ranges(judged) {
            let mut at = bytes.start;
            while at < bytes.end {
                let mut place = objects.describe(at, judged.line.bytes.into());
                // Without a known heap block, the range of the place says nothing about its
                // neighbours.
                if place.unknown_reason.is_some() {
                    place.range = at..bytes.end;
                }
                at = place.range.end.max(at + OBJECT_STEP_BYTES) / OBJECT_STEP_BYTES * OBJECT_STEP_BYTES;
                let place = report_place(place);
                if places.iter().all(|other| (other.address, &other.name) != (place.address, &place.name)) {
                    places.push(place);
                }
            }
        }
        places
    }

    /// The structure at `address`, from variables that were in scope in these samples and pointed
    /// there. `None` if there is none.
    pub(crate) fn typed(&mut self, address: u64, samples: &[Registers]) -> Option<ObjectLayout> {
        self.objects.as_mut()?.infer_type(address, samples)
    }

    /// Records the registers of a thread: its stack pointer shows which mapping is its stack.
    pub(crate) fn record_registers(&mut self, thread: u32, registers: &Registers) {
        if let Some(objects) = &mut self.objects {
            objects.record_registers(thread, registers);
        }
    }
}

/// The byte ranges of a line that several threads use, in the order of addresses. The whole line
/// where they are unknown.
pub(crate) fn contended_ranges(judged: &JudgedLine) -> Vec<Range<u64>> {
    let owners = judged.verdict.movable().iter().chain(judged.verdict.shared());
    let mut bytes: Vec<Range<u64>> = owners.flat_map(|owner| owner.bytes.iter().cloned()).collect();
    bytes.sort_by_key(|range| range.start);
    if bytes.is_empty() {
        let line = &judged.line;
        bytes.push(line.address..line.address.saturating_add(line.bytes.into()));
    }
    bytes
}

/// Converts a place to the type of the report.
fn report_place(place: AddressInfo) -> MemoryOwner {
    let kind = match place.kind {
        AddressKind::Global => MemoryKind::Global,
        AddressKind::Heap => MemoryKind::Heap,
        AddressKind::Mapping => MemoryKind::Mapping,
        AddressKind::Stack | AddressKind::ThreadLocal => MemoryKind::Stack,
        AddressKind::Nothing => MemoryKind::Unknown,
    };
    // The name of a heap block contains only its size, which the report has too.
    let name = if kind == MemoryKind::Heap { String::new() } else { place.name };
    let structure = place.object.filter(|object| kind != MemoryKind::Heap || !object.members.is_empty());
    MemoryOwner {
        kind,
        name,
        module: place.module,
        offset: None,
        address: place.range.start,
        bytes: place.range.end - place.range.start,
        allocated_by: Vec::new(),
        object: structure,
    }
}
