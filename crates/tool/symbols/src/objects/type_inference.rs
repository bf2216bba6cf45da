//! Infers the type of memory from the variables in scope at sampled instructions that point to it.
//!
//! ```text
//!   sample          args ──→ ┌ element 1 ┐                      args is a variable; debug info has
//!   other sample    args ────│───────────│──→ ┌ element 2 ┐     its location and its target's type
//!                   block ───┴───────────┴────┴───────────┘     a block of malloc bounds both
//! ```
//! 1. Candidates are the target types of all pointers. Pointer members of structures are followed
//!    one level deep. Variables of the source file count too.
//! 2. A pointer whose target contains the address determines the type. A pointer elsewhere into the
//!    same block is weaker evidence, needed for arrays that are accessed by index.
//! 3. Elements form an array if pointers of one type are whole elements apart, or if the block's
//!    size is a multiple of the element size.
//! 4. A variable that is not yet initialised has a random value. So the candidate with the most
//!    samples wins among equals.
//!
//! **Cost.** A query reads the debug info of each sample's function, and at most [`MAX_READS`]
//! words of the process.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use fieldstone_rewrite::{ReadableMemory, Registers};
use fieldstone_sharing::ObjectLayout;

use super::dwarf::{DebugInfo, DwarfEntry, DwarfReader};
use super::layout::{self, TypeLayout};
use super::location::{SampledFrame, VariableLocation};
use super::modules::LoadedModules;
use super::scope::{self, Variable};
use super::words::read_words;

/// Limits of samples and of memory reads in one query.
const MAX_SAMPLES: usize = 64;
const MAX_READS: usize = 4096;
/// Limit of pointers that are followed in one structure.
const MAX_FOLLOWED: usize = 32;
/// Largest difference between a block's usable and requested size.
const MAX_WASTE_BYTES: u64 = 24;

/// The identity of a candidate type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TypeKey {
    module: usize,
    name: String,
    bytes: u64,
    structure: bool,
}

/// The evidence for a candidate type.
#[derive(Debug)]
struct TypeEvidence<'a> {
    kind: DwarfEntry<'a>,
    variable: String,
    flexible: bool,
    /// Addresses of elements.
    pointers: Vec<u64>,
    samples: usize,
    last_sample: usize,
    /// Whether a local variable points to it directly.
    local: bool,
}

/// A query for the type at an address.
pub(super) struct TypeQuery<'a> {
    modules: &'a LoadedModules,
    memory: &'a dyn ReadableMemory,
    address: u64,
    /// The block of malloc that contains the address.
    block: Option<Range<u64>>,
    left_reads: Cell<usize>,
}

/// The elements around the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ArrayExtent {
    start: u64,
    elements: u64,
    /// The pointer whose target contains the address.
    direct: Option<u64>,
}

type Candidates<'a> = HashMap<TypeKey, TypeEvidence<'a>>;

impl<'a> TypeQuery<'a> {
    pub(super) fn new(
        modules: &'a LoadedModules,
        memory: &'a dyn ReadableMemory,
        address: u64,
        block: Option<Range<u64>>,
    ) -> Self {
        Self { modules, memory, address, block, left_reads: Cell::new(MAX_READS) }
    }

    /// The object of the best candidate; `None` without candidates.
    pub(super) fn answer(&self, samples: &[Registers]) -> Option<ObjectLayout> {
        let mut readers: HashMap<usize, Option<DwarfReader>> = HashMap::new();
        for registers in samples.iter().take(MAX_SAMPLES) {
            if let Some((number, module)) = self.modules.at(registers.rip) {
                readers.entry(number).or_insert_with(|| module.image.debug().map(DebugInfo::reader));
            }
        }
        let mut candidates = Candidates::new();
        for (count, registers) in samples.iter().take(MAX_SAMPLES).enumerate() {
            let Some((number, _)) = self.modules.at(registers.rip) else { continue };
            if let Some(Some(reader)) = readers.get(&number) {
                self.add_sample(reader, number, registers, count, &mut candidates);
            }
        }
        let ranked = candidates.iter().filter_map(|(key, evidence)| {
            let extent = self.extent(key, evidence)?;
            Some((rank(key, evidence, extent), key, extent))
        });
        let (_, key, extent) = ranked.min_by(|one, other| one.0.cmp(&other.0))?;
        let reader = readers.get(&key.module)?.as_ref()?;
        self.object(reader, candidates.get(key)?, extent)
    }

    /// Adds the evidence of the variables in scope at one sample.
    fn add_sample<'r>(
        &self,
        reader: &DwarfReader<'r>,
        number: usize,
        registers: &Registers,
        count: usize,
        candidates: &mut Candidates<'r>,
    ) {
        let Some(module) = self.modules.get(number) else { return };
        let mut frame = SampledFrame::of(registers, self.memory, module.bias, module.image.frames());
        let Some(scope) = scope::at(reader, frame.counter()) else { return };
        frame.set_base(reader, &scope.unit, scope.base);
        for variable in &scope.variables {
            let Some(location) = frame.locate(reader, &scope.unit, variable.location) else { continue };
            let mut walk = PointerWalk { query: self, reader, number, count, local: variable.local, candidates };
            walk.variable(variable, location);
        }
    }

    /// The elements around the address; `None` if the evidence does not fit the address or the
    /// block.
    fn extent(&self, key: &TypeKey, evidence: &TypeEvidence) -> Option<ArrayExtent> {
        let bytes = key.bytes;
        let block = self.block.clone();
        let inside = |pointer: u64| block.as_ref().is_none_or(|block| block.contains(&pointer));
        let pointers: Vec<u64> = evidence.pointers.iter().copied().filter(|&pointer| inside(pointer)).collect();
        let contains_address = |&pointer: &u64| pointer <= self.address && self.address - pointer < bytes;
        let direct = pointers.iter().copied().filter(contains_address).max();
        if evidence.flexible
            && let Some(block) = &block
        {
            let start = pointers.iter().copied().filter(|&pointer| pointer <= self.address).max()?;
            let fits = start.checked_add(bytes)? <= block.end;
            return fits.then_some(ArrayExtent { start, elements: 1, direct: Some(start) });
        }
        let base = direct.or_else(|| pointers.iter().copied().min_by_key(|pointer| pointer.abs_diff(self.address)))?;
        let own = element_start(base, bytes, self.address)?;
        let is_whole_elements_away = |pointer: &u64| pointer.abs_diff(base).is_multiple_of(bytes);
        let elements = || pointers.iter().copied().filter(is_whole_elements_away).chain([own]);
        let (start, end) = (elements().min()?, elements().max()?.checked_add(bytes)?);
        let Some(block) = block else {
            // Without a block, only the targets of pointers are certain.
            return direct.map(|_| ArrayExtent { start, elements: (end - start) / bytes, direct });
        };
        if start < block.start || end > block.end {
            return None;
        }
        let from_start = (start - block.start).is_multiple_of(bytes);
        let fits = (block.end - block.start) % bytes < MAX_WASTE_BYTES;
        let (start, end) = match (from_start, fits || direct.is_none()) {
            (true, true) => (block.start, block.end),
            (false, _) if direct.is_none() => (start, block.end),
            _ => (start, end),
        };
        Some(ArrayExtent { start, elements: (end - start) / bytes, direct })
    }

    fn object<'r>(
        &self,
        reader: &DwarfReader<'r>,
        evidence: &TypeEvidence<'r>,
        extent: ArrayExtent,
    ) -> Option<ObjectLayout> {
        let mut layout = TypeLayout::of(reader, &evidence.kind, &evidence.variable)?;
        if extent.elements > 1 {
            layout.repeat(reader, &evidence.kind);
        }
        let stride = match &self.block {
            // A flexible array member extends to the end of the block.
            Some(block) if layout.flexible => block.end.checked_sub(extent.start)?.max(layout.stride),
            _ => layout.stride,
        };
        let object = ObjectLayout {
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

/// The order of candidates: structures first, then direct pointers, then local variables, then by
/// number of samples, then the innermost element, and of two with one start the larger.
fn rank<'k>(key: &'k TypeKey, evidence: &TypeEvidence, extent: ArrayExtent) -> impl Ord + use<'k> {
    let sure = (!key.structure, extent.direct.is_none(), !evidence.local);
    (sure, Reverse(evidence.samples), Reverse(extent.direct.unwrap_or(extent.start)), Reverse(key.bytes), &key.name)
}

/// The start of the element that contains `address`, in an array with an element at `base`.
fn element_start(base: u64, bytes: u64, address: u64) -> Option<u64> {
    if address >= base {
        return Some(address - (address - base) % bytes);
    }
    base.checked_sub((base - address).div_ceil(bytes).checked_mul(bytes)?)
}

/// Follows the pointers of one variable and adds the evidence to `candidates`.
struct PointerWalk<'q, 'a, 'r, 'f> {
    query: &'q TypeQuery<'a>,
    reader: &'f DwarfReader<'r>,
    number: usize,
    count: usize,
    local: bool,
    candidates: &'f mut Candidates<'r>,
}

impl<'r> PointerWalk<'_, '_, 'r, '_> {
    fn variable(&mut self, variable: &Variable<'r>, location: VariableLocation) {
        let Some((plain, _)) = layout::stripped(self.reader, &variable.kind) else { return };
        if layout::is_pointer(&plain) {
            let value = match location {
                VariableLocation::Address(at) => self.query.word(at),
                VariableLocation::Value(value) => Some(value),
            };
            if let (Some(value), Some(kind)) = (value, layout::target(self.reader, &plain)) {
                self.elements(&kind, value, &variable.name, true);
            }
        } else if let VariableLocation::Address(at) = location {
            self.elements(&variable.kind, at, &variable.name, true);
        }
    }

    /// Adds the evidence that elements of a type are at `pointer`. With `follow`, also follows
    /// their pointer members.
    fn elements(&mut self, kind: &DwarfEntry<'r>, pointer: u64, name: &str, follow: bool) {
        let Some((element, count, alias)) = layout::element(self.reader, kind) else { return };
        // A pointer to single bytes may point to any type.
        let Some(bytes) = layout::bytes(self.reader, &element).filter(|&bytes| bytes > 1) else { return };
        let address = self.query.address;
        let all = bytes.saturating_mul(count.max(1));
        let contains_address = pointer <= address && address - pointer < all;
        let is_in_block = self.query.block.as_ref().is_some_and(|block| block.contains(&pointer));
        let structure = layout::is_structure(&element);
        if contains_address || is_in_block {
            // In an array, the element that contains the address.
            let own = if contains_address { address - (address - pointer) % bytes } else { pointer };
            let type_name = if structure { self.reader.name(&element).or(alias) } else { None };
            let name = type_name.unwrap_or_else(|| name.to_owned());
            let key = TypeKey { module: self.number, name: name.clone(), bytes, structure };
            let declared = layout::declared_element(self.reader, kind).unwrap_or_else(|| element.clone());
            self.add_evidence(key, declared, &name, own);
        }
        if follow && structure {
            self.follow_members(&element, pointer);
        }
    }

    fn add_evidence(&mut self, key: TypeKey, kind: DwarfEntry<'r>, variable: &str, pointer: u64) {
        let reader = self.reader;
        let evidence = self.candidates.entry(key).or_insert_with(|| TypeEvidence {
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

    /// Follows the pointer members of a structure.
    fn follow_members(&mut self, structure: &DwarfEntry<'r>, start: u64) {
        let local = std::mem::replace(&mut self.local, false);
        for (name, offset, kind) in layout::pointers(self.reader, structure).into_iter().take(MAX_FOLLOWED) {
            let value = start.checked_add(offset).and_then(|at| self.query.word(at));
            if let Some(value) = value {
                self.elements(&kind, value, &name, false);
            }
        }
        self.local = local;
    }
}
