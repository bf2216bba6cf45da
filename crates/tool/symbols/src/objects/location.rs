//! Evaluates DWARF location expressions with the registers of a sample.
//!
//! **Not supported**: values at function entry (`DW_OP_entry_value`), which would need the caller's
//! frame.

use addr2line::gimli::{
    self, AttributeValue, Encoding, Evaluation, EvaluationResult, Expression, Format, Location, Value,
};
use fieldstone_rewrite::{ReadableMemory, Registers};

use super::dwarf::{DwarfReader, DwarfUnit, Slice};
use super::unwind::{FrameRule, UnwindTables};

/// Limits: operations of an expression, and its requests for registers and memory.
const MAX_OPERATIONS: u32 = 1000;
const MAX_REQUESTS: usize = 64;

/// The frame of a function at a sample.
pub(super) struct SampledFrame<'a> {
    pub(super) registers: &'a Registers,
    pub(super) memory: &'a dyn ReadableMemory,
    /// Distance from addresses in the file to addresses in memory.
    pub(super) bias: u64,
    /// The canonical frame address.
    canonical: Option<u64>,
    /// The frame base, to which locations of local variables are relative.
    base: Option<u64>,
}

/// The location of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VariableLocation {
    /// An address in memory.
    Address(u64),
    /// The value, for a variable in a register or without storage.
    Value(u64),
}

impl<'a> SampledFrame<'a> {
    /// The frame at `registers`. `tables` give its canonical address.
    pub(super) fn of(
        registers: &'a Registers,
        memory: &'a dyn ReadableMemory,
        bias: u64,
        tables: Option<&UnwindTables>,
    ) -> Self {
        let mut frame = Self { registers, memory, bias, canonical: None, base: None };
        frame.canonical = tables.and_then(|tables| frame.canonical_address(tables));
        frame
    }

    fn canonical_address(&self, tables: &UnwindTables) -> Option<u64> {
        match tables.rule(self.counter())? {
            FrameRule::Register(number, offset) => Some(self.register(number)?.wrapping_add_signed(offset)),
            FrameRule::Expression(expression) => {
                let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
                match self.evaluated(expression.evaluation(encoding), None)? {
                    VariableLocation::Address(address) => Some(address),
                    VariableLocation::Value(_) => None,
                }
            }
        }
    }

    /// The address of the instruction in the file.
    pub(super) const fn counter(&self) -> u64 {
        self.registers.rip.wrapping_sub(self.bias)
    }

    /// Sets the frame base from the function's `DW_AT_frame_base`.
    pub(super) fn set_base<'b>(
        &mut self,
        reader: &DwarfReader<'b>,
        unit: &DwarfUnit<'b>,
        base: Option<AttributeValue<Slice<'b>>>,
    ) {
        self.base = base.and_then(|base| self.locate(reader, unit, base)).map(|location| match location {
            VariableLocation::Address(base) | VariableLocation::Value(base) => base,
        });
    }

    /// Evaluates a `DW_AT_location`; `None` if the variable has no single location at this
    /// instruction.
    pub(super) fn locate<'b>(
        &self,
        reader: &DwarfReader<'b>,
        unit: &DwarfUnit<'b>,
        location: AttributeValue<Slice<'b>>,
    ) -> Option<VariableLocation> {
        let expression = match location {
            AttributeValue::Exprloc(expression) => expression,
            list => self.list_entry(reader, unit, list)?,
        };
        self.evaluated(expression.evaluation(unit.encoding()), Some((reader, unit)))
    }

    /// The entry of a location list for this instruction.
    fn list_entry<'b>(
        &self,
        reader: &DwarfReader<'b>,
        unit: &DwarfUnit<'b>,
        list: AttributeValue<Slice<'b>>,
    ) -> Option<Expression<Slice<'b>>> {
        let counter = self.counter();
        let mut entries = reader.dwarf.attr_locations(unit, list).ok()??;
        while let Some(entry) = entries.next().ok()? {
            if (entry.range.begin..entry.range.end).contains(&counter) {
                return Some(entry.data);
            }
        }
        None
    }

    fn evaluated<'b>(
        &self,
        mut evaluation: Evaluation<Slice<'b>>,
        within: Option<(&DwarfReader<'b>, &DwarfUnit<'b>)>,
    ) -> Option<VariableLocation> {
        evaluation.set_max_iterations(MAX_OPERATIONS);
        let mut state = evaluation.evaluate().ok()?;
        for _ in 0..MAX_REQUESTS {
            state = match state {
                EvaluationResult::Complete => return self.result(&evaluation.result()),
                EvaluationResult::RequiresRegister { register, base_type } if base_type.0 == 0 => {
                    evaluation.resume_with_register(Value::Generic(self.register(register.0)?))
                }
                EvaluationResult::RequiresMemory { address, size, space: None, base_type } if base_type.0 == 0 => {
                    evaluation.resume_with_memory(Value::Generic(self.word(address, size)?))
                }
                EvaluationResult::RequiresFrameBase => evaluation.resume_with_frame_base(self.base?),
                EvaluationResult::RequiresCallFrameCfa => evaluation.resume_with_call_frame_cfa(self.canonical?),
                EvaluationResult::RequiresRelocatedAddress(address) => {
                    evaluation.resume_with_relocated_address(address.wrapping_add(self.bias))
                }
                EvaluationResult::RequiresIndexedAddress { index, relocate } => {
                    let (reader, unit) = within?;
                    let address = reader.dwarf.address(unit, index).ok()?;
                    evaluation.resume_with_indexed_address(address.wrapping_add(if relocate { self.bias } else { 0 }))
                }
                _ => return None,
            }
            .ok()?;
        }
        None
    }

    fn result(&self, pieces: &[gimli::Piece<Slice<'_>>]) -> Option<VariableLocation> {
        // A pointer is never split into pieces.
        let [gimli::Piece { location, size_in_bits: None, .. }] = pieces else { return None };
        match *location {
            Location::Address { address } => Some(VariableLocation::Address(address)),
            Location::Register { register } => self.register(register.0).map(VariableLocation::Value),
            Location::Value { value } => value.to_u64(u64::MAX).ok().map(VariableLocation::Value),
            _ => None,
        }
    }

    /// A register by its DWARF number. DWARF orders the first eight differently.
    fn register(&self, number: u16) -> Option<u64> {
        const FIRST: [usize; 8] = [0, 2, 1, 3, 6, 7, 5, 4];
        let number = usize::from(number);
        self.registers.gpr.get(FIRST.get(number).copied().unwrap_or(number)).copied()
    }

    fn word(&self, address: u64, bytes: u8) -> Option<u64> {
        let mut word = [0; 8];
        let buffer = word.get_mut(..usize::from(bytes))?;
        let count = self.memory.read(address, buffer);
        (count == usize::from(bytes)).then(|| u64::from_le_bytes(word))
    }
}
