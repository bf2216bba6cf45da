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
//! **Cost.** A query reads the debug information of each sample's function, and at most [`MOST_READS`] words of the process.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use fieldstone_rewrite::{Memory, Registers};
use fieldstone_sharing::Object;

use super::dwarf::{DebugInfo, DwarfEntry, DwarfReader};
use super::layout::{self, TypeLayout};
use super::location::{SampledFrame, VariableLocation};
use super::modules::LoadedModules;
use super::words::read_words;
use super::scope::{self, Variable};

/// Samples that are looked at, and words that are read for one query.
const MOST_SAMPLES: usize = 64;
const MOST_READS: usize = 4096;
/// Pointers in one structure that are followed.
const MOST_FOLLOWED: usize = 32;
/// What malloc adds to a block at most.
const MOST_WASTE_BYTES: u64 = 24;

/// A type that something of this name has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TypeKey {
    module: usize,
    name: String,
    bytes: u64,
    structure: bool,
}

/// What speaks for a type.
#[derive(Debug)]
struct TypeEvidence<'a> {
    kind: DwarfEntry<'a>,
    variable: String,
    flexible: bool,
    /// Where elements of it are.
    pointers: Vec<u64>,
    samples: usize,
    last_sample: usize,
    /// A local variable says so, not something that one leads to.
    local: bool,
}

/// A query.
pub(super) struct TypeQuery<'a> {
    modules: &'a LoadedModules,
    memory: &'a dyn Memory,
    address: u64,
    /// The block of malloc's that has the address.
    block: Option<Range<u64>>,
    left_reads: Cell<usize>,
}

/// Elements that lie where the address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ArrayExtent {
    start: u64,
    elements: u64,
    /// The pointer that has the address in what it points to.
    direct: Option<u64>,
}

type Candidates<'a> = HashMap<TypeKey, TypeEvidence<'a>>;

impl<'a> TypeQuery<'a> {
    pub(super) fn new(modules: &'a LoadedModules, memory: &'a dyn Memory, address: u64, block: Option<Range<u64>>) -> Self {
        Self { modules, memory, address, block, left_reads: Cell::new(MOST_READS) }
    }

    /// The object, by what these samples see.
    pub(super) fn answer(&self, samples: &[Registers]) -> Option<Object> {
        let mut readers: HashMap<usize, Option<DwarfReader>> = HashMap::new();
        for registers in samples.iter().take(MOST_SAMPLES) {
            if let Some((number, module)) = self.modules.at(registers.rip) {
                readers.entry(number).or_insert_with(|| module.image.debug().map(DebugInfo::reader));
            }
        }
        let mut found = Candidates::new();
        for (count, registers) in samples.iter().take(MOST_SAMPLES).enumerate() {
            let Some((number, _)) = self.modules.at(registers.rip) else { continue };
            if let Some(Some(reader)) = readers.get(&number) {
                self.sample(reader, number, registers, count, &mut found);
            }
        }
        let ranked = found.iter().filter_map(|(key, evidence)| {
            let extent = self.extent(key, evidence)?;
            Some((rank(key, evidence, extent), key, extent))
        });
        let (_, key, extent) = ranked.min_by(|one, other| one.0.cmp(&other.0))?;
        let reader = readers.get(&key.module)?.as_ref()?;
        self.object(reader, found.get(key)?, extent)
    }

    /// What the variables of one sample say.
    fn sample<'r>(
        &self,
        reader: &DwarfReader<'r>,
        number: usize,
        registers: &Registers,
        count: usize,
        found: &mut Candidates<'r>,
    ) {
        let Some(module) = self.modules.get(number) else { return };
        let mut frame = SampledFrame::of(registers, self.memory, module.bias, module.image.frames());
        let Some(scope) = scope::at(reader, frame.counter()) else { return };
        frame.set_base(reader, &scope.unit, scope.base);
        for variable in &scope.variables {
            let Some(place) = frame.place(reader, &scope.unit, variable.location) else { continue };
            let mut seen = PointerWalk { query: self, reader, number, count, local: variable.local, found };
            seen.variable(variable, place);
        }
    }

    /// The elements around the address, if pointers of this type say that there are some.
    fn extent(&self, key: &TypeKey, evidence: &TypeEvidence) -> Option<ArrayExtent> {
        let bytes = key.bytes;
        let block = self.block.clone();
        let inside = |pointer: u64| block.as_ref().is_none_or(|block| block.contains(&pointer));
        let pointers: Vec<u64> = evidence.pointers.iter().copied().filter(|&pointer| inside(pointer)).collect();
        let has = |&pointer: &u64| pointer <= self.address && self.address - pointer < bytes;
        let direct = pointers.iter().copied().filter(has).max();
        if evidence.flexible
            && let Some(block) = &block
        {
            let start = pointers.iter().copied().filter(|&pointer| pointer <= self.address).max()?;
            let fits = start.checked_add(bytes)? <= block.end;
            return fits.then_some(ArrayExtent { start, elements: 1, direct: Some(start) });
        }
        let base = direct.or_else(|| pointers.iter().copied().min_by_key(|pointer| pointer.abs_diff(self.address)))?;
        let own = element_start(base, bytes, self.address)?;
        let in_step = |pointer: &u64| pointer.abs_diff(base).is_multiple_of(bytes);
        let told = || pointers.iter().copied().filter(in_step).chain([own]);
        let (start, end) = (told().min()?, told().max()?.checked_add(bytes)?);
        let Some(block) = block else {
            // Without bounds only what is pointed to is known to be there.
            return direct.map(|_| ArrayExtent { start, elements: (end - start) / bytes, direct });
        };
        if start < block.start || end > block.end {
            return None;
        }
        let from_start = (start - block.start).is_multiple_of(bytes);
        let fits = (block.end - block.start) % bytes < MOST_WASTE_BYTES;
        let (start, end) = match (from_start, fits || direct.is_none()) {
            (true, true) => (block.start, block.end),
            (false, _) if direct.is_none() => (start, block.end),
            _ => (start, end),
        };
        Some(ArrayExtent { start, elements: (end - start) / bytes, direct })
    }

    fn object<'r>(&self, reader: &DwarfReader<'r>, evidence: &TypeEvidence<'r>, extent: ArrayExtent) -> Option<Object> {
        let mut layout = TypeLayout::of(reader, &evidence.kind, &evidence.variable)?;
        if extent.elements > 1 {
            layout.repeat(reader, &evidence.kind);
        }
        let stride = match &self.block {
            // The array at its end has the rest.
            Some(block) if layout.flexible => block.end.checked_sub(extent.start)?.max(layout.stride),
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
        read_words::<1>(self.memory, address).map(|[word]| word)
    }
}

/// What is told before what: structures, those pointed to, by the function's own variables; then what more samples vouch for, what is
/// within another one, and of two that begin at one place the larger.
fn rank<'k>(key: &'k TypeKey, evidence: &TypeEvidence, extent: ArrayExtent) -> impl Ord + use<'k> {
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
struct PointerWalk<'q, 'a, 'r, 'f> {
    query: &'q TypeQuery<'a>,
    reader: &'f DwarfReader<'r>,
    number: usize,
    count: usize,
    local: bool,
    found: &'f mut Candidates<'r>,
}

impl<'r> PointerWalk<'_, '_, 'r, '_> {
    fn variable(&mut self, variable: &Variable<'r>, place: VariableLocation) {
        let Some((plain, _)) = layout::stripped(self.reader, &variable.kind) else { return };
        if layout::is_pointer(&plain) {
            let value = match place {
                VariableLocation::Address(at) => self.query.word(at),
                VariableLocation::Value(value) => Some(value),
            };
            if let (Some(value), Some(kind)) = (value, layout::target(self.reader, &plain)) {
                self.elements(&kind, value, &variable.name, true);
            }
        } else if let VariableLocation::Address(at) = place {
            self.elements(&variable.kind, at, &variable.name, true);
        }
    }

    /// Elements of a type lie at `pointer`: do they have the address, and what do they lead to?
    fn elements(&mut self, kind: &DwarfEntry<'r>, pointer: u64, name: &str, follow: bool) {
        let Some((element, count, alias)) = layout::element(self.reader, kind) else { return };
        // What points to single bytes may point to anything.
        let Some(bytes) = layout::bytes(self.reader, &element).filter(|&bytes| bytes > 1) else { return };
        let address = self.query.address;
        let all = bytes.saturating_mul(count.max(1));
        let has = pointer <= address && address - pointer < all;
        let near = self.query.block.as_ref().is_some_and(|block| block.contains(&pointer));
        let structure = layout::is_structure(&element);
        if has || near {
            // Of an array that is known to be one, the element that counts.
            let own = if has { address - (address - pointer) % bytes } else { pointer };
            let known = if structure { self.reader.name(&element).or(alias) } else { None };
            let name = known.unwrap_or_else(|| name.to_owned());
            let key = TypeKey { module: self.number, name: name.clone(), bytes, structure };
            let declared = layout::declared_element(self.reader, kind).unwrap_or_else(|| element.clone());
            self.note(key, declared, &name, own);
        }
        if follow && structure {
            self.lead(&element, pointer);
        }
    }

    fn note(&mut self, key: TypeKey, kind: DwarfEntry<'r>, variable: &str, pointer: u64) {
        let reader = self.reader;
        let evidence = self.found.entry(key).or_insert_with(|| TypeEvidence {
            flexible: layout::is_flexible(reader, &kind),
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
    fn lead(&mut self, structure: &DwarfEntry<'r>, start: u64) {
        let local = std::mem::replace(&mut self.local, false);
        for (name, offset, kind) in layout::pointers(self.reader, structure).into_iter().take(MOST_FOLLOWED) {
            let value = start.checked_add(offset).and_then(|at| self.query.word(at));
            if let Some(value) = value {
                self.elements(&kind, value, &name, false);
            }
        }
        self.local = local;
    }
}
