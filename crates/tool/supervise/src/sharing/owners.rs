//! Whose memory a line is, for `fieldstone sharing`: the objects of the process, in the words of the report.

use std::ops::Range;
use std::time::{Duration, Instant};

use fieldstone_report::sharing::{MemoryKind as Told, MemoryOwner as ToldPlace};
use fieldstone_rewrite::Registers;
use fieldstone_sharing::{Judged, Object};

use crate::objects::{Kind, Objects, Place};
use crate::symbols::Frame;

/// Mappings and blocks that were looked at this long ago may have changed.
const FRESH: Duration = Duration::from_millis(200);
/// The smallest step from one object of a line to the next.
const STEP: u64 = 8;

/// The objects of one process; none where they cannot be read.
#[derive(Debug)]
pub(super) struct Owners {
    pid: u32,
    objects: Option<Objects>,
    looked: Option<Instant>,
}

impl Owners {
    pub(super) fn of(pid: u32) -> Self {
        Self { pid, objects: Objects::of(pid).ok(), looked: None }
    }

    /// The process.
    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Looks at mappings and blocks again where that was long ago.
    pub(super) fn look(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() <= FRESH) {
            return;
        }
        self.looked = Some(Instant::now());
        if self.objects.as_mut().is_some_and(|objects| objects.look_again().is_err()) {
            self.objects = None;
        }
    }

    /// The file that the instruction at `ip` is of, and where in it.
    pub(super) fn frame(&self, ip: u64) -> Frame {
        let known = self.objects.as_ref().and_then(|objects| objects.code(ip));
        known.unwrap_or(Frame { module: None, offset: ip })
    }

    /// The objects on a line that its threads meet on: what else lies there is none of theirs.
    pub(super) fn places(&mut self, judged: &Judged) -> Vec<ToldPlace> {
        let Some(objects) = &mut self.objects else { return Vec::new() };
        let mut places: Vec<ToldPlace> = Vec::new();
        for bytes in met_on(judged) {
            let mut at = bytes.start;
            while at < bytes.end {
                let mut place = objects.at(at, judged.line.bytes.into());
                // Where malloc does not tell whose it is, nothing is known of what is around.
                if place.untold.is_some() {
                    place.range = at..bytes.end;
                }
                at = place.range.end.max(at + STEP) / STEP * STEP;
                let told = told(place);
                if places.iter().all(|other| (other.address, &other.name) != (told.address, &told.name)) {
                    places.push(told);
                }
            }
        }
        places
    }

    /// The structure that the memory at `address` has, by the variables that were in view when these samples were taken.
    pub(super) fn typed(&mut self, address: u64, samples: &[Registers]) -> Option<Object> {
        self.objects.as_mut()?.typed(address, samples)
    }

    /// A thread was seen with these registers.
    pub(super) fn saw(&mut self, thread: u32, registers: &Registers) {
        if let Some(objects) = &mut self.objects {
            objects.saw(thread, registers);
        }
    }
}

/// The bytes that threads meet on, in order; all of a line of which that is not known.
pub(super) fn met_on(judged: &Judged) -> Vec<Range<u64>> {
    let owners = judged.verdict.movable().iter().chain(judged.verdict.shared());
    let mut bytes: Vec<Range<u64>> = owners.flat_map(|owner| owner.bytes.iter().cloned()).collect();
    bytes.sort_by_key(|range| range.start);
    if bytes.is_empty() {
        let line = &judged.line;
        bytes.push(line.address..line.address.saturating_add(line.bytes.into()));
    }
    bytes
}

fn told(place: Place) -> ToldPlace {
    let kind = match place.kind {
        Kind::Global => Told::Global,
        Kind::Heap => Told::Heap,
        Kind::Mapping => Told::Mapping,
        Kind::Stack | Kind::ThreadLocal => Told::Stack,
        Kind::Nothing => Told::Unknown,
    };
    // What a block is called by its size is told by the size.
    let name = if kind == Told::Heap { String::new() } else { place.name };
    let structure = place.object.filter(|object| kind != Told::Heap || !object.members.is_empty());
    ToldPlace {
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
