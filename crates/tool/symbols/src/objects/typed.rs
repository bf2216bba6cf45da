//! What a piece of memory is, by who points to it: the variables that an instruction sees, and where they lead.
//!
//! ```text
//!   sample        args ──→ ┌ element 1 ┐        a variable's value in memory or a register, by DWARF;
//!   another one   args ────│───────────│──→ ┌   element 2 ┐      its type says what lies there and how large it is
//!                 block ───┴───────────┴────┴─────────────┘      malloc's block, where it is one, bounds both
//! ```
//! A pointer that has the address within what it points to tells the type. Of one that points elsewhere into the same block it is a
//! guess, better than none: arrays are walked by an index. Elements repeat where several pointers of one type lie whole elements apart,
//! or where the block is a multiple of one. One step is taken through pointers in structures and in the source file's own variables.
//!
//! A slot that was not written yet holds what was there before. So of several types that would fit the one that more samples
//! vouch for is told.
//!
//! **Cost.** A question reads the debug information of each sample's function, and at most [`MOST_READS`] words of the process.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use fieldstone_rewrite::{Memory, Registers};
use fieldstone_sharing::Object;

use super::dwarf::{Debug, Entry, Reading};
use super::layout::{self, Layout};
use super::location::{Frame, Place};
use super::modules::Modules;
use super::read::words;
use super::scope::{self, Variable};

/// Samples that are looked at, and words that are read for one question.
const MOST_SAMPLES: usize = 64;
const MOST_READS: usize = 4096;
/// Pointers in one structure that are followed.
const MOST_FOLLOWED: usize = 32;
/// What malloc adds to a block at most.
const MOST_WASTE_BYTES: u64 = 24;

/// A type that something of this name has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    module: usize,
    name: String,
    bytes: u64,
    structure: bool,
}

/// What speaks for a type.
#[derive(Debug)]
struct Evidence<'a> {
    kind: Entry<'a>,
    variable: String,
    flexible: bool,
    /// Where elements of it are.
    pointers: Vec<u64>,
    samples: usize,
    last_sample: usize,
    /// A local variable says so, not something that one leads to.
    local: bool,
}

/// A question.
pub(super) struct Question<'a> {
    modules: &'a Modules,
    memory: &'a dyn Memory,
    address: u64,
    /// The block of malloc's that has the address.
    block: Option<Range<u64>>,
    left_reads: Cell<usize>,
}

/// Elements that lie where the address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    start: u64,
    elements: u64,
    /// The pointer that has the address in what it points to.
    direct: Option<u64>,
}

type Found<'a> = HashMap<Key, Evidence<'a>>;

impl<'a> Question<'a> {
    pub(super) fn new(modules: &'a Modules, memory: &'a dyn Memory, address: u64, block: Option<Range<u64>>) -> Self {
        Self { modules, memory, address, block, left_reads: Cell::new(MOST_READS) }
    }

    /// The object, by what these samples see.
    pub(super) fn answer(&self, samples: &[Registers]) -> Option<Object> {
        let mut readings: HashMap<usize, Option<Reading>> = HashMap::new();
        for registers in samples.iter().take(MOST_SAMPLES) {
            if let Some((number, module)) = self.modules.at(registers.rip) {
                readings.entry(number).or_insert_with(|| module.image.debug().map(Debug::reading));
            }
        }
        let mut found = Found::new();
        for (count, registers) in samples.iter().take(MOST_SAMPLES).enumerate() {
            let Some((number, _)) = self.modules.at(registers.rip) else { continue };
            if let Some(Some(reading)) = readings.get(&number) {
                self.sample(reading, number, registers, count, &mut found);
            }
        }
        let ranked = found.iter().filter_map(|(key, evidence)| {
            let extent = self.extent(key, evidence)?;
            Some((rank(key, evidence, extent), key, extent))
        });
        let (_, key, extent) = ranked.min_by(|one, other| one.0.cmp(&other.0))?;
        let reading = readings.get(&key.module)?.as_ref()?;
        self.object(reading, found.get(key)?, extent)
    }

    /// What the variables of one sample say.
    fn sample<'r>(
        &self,
        reading: &Reading<'r>,
        number: usize,
        registers: &Registers,
        count: usize,
        found: &mut Found<'r>,
    ) {
        let Some(module) = self.modules.get(number) else { return };
        let mut frame = Frame::of(registers, self.memory, module.bias, module.image.frames());
        let Some(scope) = scope::at(reading, frame.counter()) else { return };
        frame.set_base(reading, &scope.unit, scope.base);
        for variable in &scope.variables {
            let Some(place) = frame.place(reading, &scope.unit, variable.location) else { continue };
            let mut seen = Seen { question: self, reading, number, count, local: variable.local, found };
            seen.variable(variable, place);
        }
    }

    /// The elements around the address, if pointers of this type say that there are some.
    fn extent(&self, key: &Key, evidence: &Evidence) -> Option<Extent> {
        let bytes = key.bytes;
        let room = self.block.clone();
        let inside = |pointer: u64| room.as_ref().is_none_or(|room| room.contains(&pointer));
        let pointers: Vec<u64> = evidence.pointers.iter().copied().filter(|&pointer| inside(pointer)).collect();
        let has = |&pointer: &u64| pointer <= self.address && self.address - pointer < bytes;
        let direct = pointers.iter().copied().filter(has).max();
        if evidence.flexible
            && let Some(room) = &room
        {
            let start = pointers.iter().copied().filter(|&pointer| pointer <= self.address).max()?;
            let fits = start.checked_add(bytes)? <= room.end;
            return fits.then_some(Extent { start, elements: 1, direct: Some(start) });
        }
        let base = direct.or_else(|| pointers.iter().copied().min_by_key(|pointer| pointer.abs_diff(self.address)))?;
        let own = element_start(base, bytes, self.address)?;
        let in_step = |pointer: &u64| pointer.abs_diff(base).is_multiple_of(bytes);
        let told = || pointers.iter().copied().filter(in_step).chain([own]);
        let (start, end) = (told().min()?, told().max()?.checked_add(bytes)?);
        let Some(room) = room else {
            // Without bounds only what is pointed to is known to be there.
            return direct.map(|_| Extent { start, elements: (end - start) / bytes, direct });
        };
        if start < room.start || end > room.end {
            return None;
        }
        let from_start = (start - room.start).is_multiple_of(bytes);
        let fits = (room.end - room.start) % bytes < MOST_WASTE_BYTES;
        let (start, end) = match (from_start, fits || direct.is_none()) {
            (true, true) => (room.start, room.end),
            (false, _) if direct.is_none() => (start, room.end),
            _ => (start, end),
        };
        Some(Extent { start, elements: (end - start) / bytes, direct })
    }

    fn object<'r>(&self, reading: &Reading<'r>, evidence: &Evidence<'r>, extent: Extent) -> Option<Object> {
        let mut layout = Layout::of(reading, &evidence.kind, &evidence.variable)?;
        if extent.elements > 1 {
            layout.repeat(reading, &evidence.kind);
        }
        let stride = match &self.block {
            // The array at its end has the rest.
            Some(room) if layout.flexible => room.end.checked_sub(extent.start)?.max(layout.stride),
            _ => layout.stride,
        };
        let object = Object {
            name: layout.name,
            address: extent.start,
            elements: extent.elements.max(1),
            stride,
            members: layout.members,
            on_heap: self.block.is_some(),
        };
        object.check().is_ok().then_some(object)
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.left_reads.set(self.left_reads.get().checked_sub(1)?);
        words::<1>(self.memory, address).map(|[word]| word)
    }
}

/// What is told before what: structures, those pointed to, by the function's own variables; then what more samples vouch for, what is
/// within another one, and of two that begin at one place the larger.
fn rank<'k>(key: &'k Key, evidence: &Evidence, extent: Extent) -> impl Ord + use<'k> {
    let sure = (!key.structure, extent.direct.is_none(), !evidence.local);
    (sure, Reverse(evidence.samples), Reverse(extent.direct.unwrap_or(extent.start)), Reverse(key.bytes), &key.name)
}

/// Where the element with `address` starts, if one starts at `base`.
fn element_start(base: u64, bytes: u64, address: u64) -> Option<u64> {
    if address >= base {
        return Some(address - (address - base) % bytes);
    }
    base.checked_sub((base - address).div_ceil(bytes).checked_mul(bytes)?)
}

/// A variable of a sample, followed.
struct Seen<'q, 'a, 'r, 'f> {
    question: &'q Question<'a>,
    reading: &'f Reading<'r>,
    number: usize,
    count: usize,
    local: bool,
    found: &'f mut Found<'r>,
}

impl<'r> Seen<'_, '_, 'r, '_> {
    fn variable(&mut self, variable: &Variable<'r>, place: Place) {
        let Some((plain, _)) = layout::stripped(self.reading, &variable.kind) else { return };
        if layout::is_pointer(&plain) {
            let value = match place {
                Place::Address(at) => self.question.word(at),
                Place::Value(value) => Some(value),
            };
            if let (Some(value), Some(kind)) = (value, layout::target(self.reading, &plain)) {
                self.elements(&kind, value, &variable.name, true);
            }
        } else if let Place::Address(at) = place {
            self.elements(&variable.kind, at, &variable.name, true);
        }
    }

    /// Elements of a type lie at `pointer`: do they have the address, and what do they lead to?
    fn elements(&mut self, kind: &Entry<'r>, pointer: u64, name: &str, follow: bool) {
        let Some((element, count, alias)) = layout::element(self.reading, kind) else { return };
        // What points to single bytes may point to anything.
        let Some(bytes) = layout::bytes(self.reading, &element).filter(|&bytes| bytes > 1) else { return };
        let address = self.question.address;
        let all = bytes.saturating_mul(count.max(1));
        let has = pointer <= address && address - pointer < all;
        let near = self.question.block.as_ref().is_some_and(|block| block.contains(&pointer));
        let structure = layout::is_structure(&element);
        if has || near {
            // Of an array that is known to be one, the element that counts.
            let own = if has { address - (address - pointer) % bytes } else { pointer };
            let known = if structure { self.reading.name(&element).or(alias) } else { None };
            let name = known.unwrap_or_else(|| name.to_owned());
            let key = Key { module: self.number, name: name.clone(), bytes, structure };
            let declared = layout::declared_element(self.reading, kind).unwrap_or_else(|| element.clone());
            self.note(key, declared, &name, own);
        }
        if follow && structure {
            self.lead(&element, pointer);
        }
    }

    fn note(&mut self, key: Key, kind: Entry<'r>, variable: &str, pointer: u64) {
        let reading = self.reading;
        let evidence = self.found.entry(key).or_insert_with(|| Evidence {
            flexible: layout::is_flexible(reading, &kind),
            kind,
            variable: variable.to_owned(),
            pointers: Vec::new(),
            samples: 0,
            last_sample: usize::MAX,
            local: false,
        });
        if !evidence.pointers.contains(&pointer) {
            evidence.pointers.push(pointer);
        }
        if evidence.last_sample != self.count {
            evidence.last_sample = self.count;
            evidence.samples += 1;
        }
        evidence.local |= self.local;
    }

    /// Where the pointers in a structure lead.
    fn lead(&mut self, structure: &Entry<'r>, start: u64) {
        let local = std::mem::replace(&mut self.local, false);
        for (name, offset, kind) in layout::pointers(self.reading, structure).into_iter().take(MOST_FOLLOWED) {
            let value = start.checked_add(offset).and_then(|at| self.question.word(at));
            if let Some(value) = value {
                self.elements(&kind, value, &name, false);
            }
        }
        self.local = local;
    }
}
