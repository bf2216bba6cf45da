//! Where a variable is while its function runs: DWARF's expressions, with the registers of a sample.
//!
//! What the function was called with and has forgotten since (`DW_OP_entry_value`) is not looked for in its caller.

use addr2line::gimli::{
    self, AttributeValue, Encoding, Evaluation, EvaluationResult, Expression, Format, Location, Value,
};
use fieldstone_rewrite::{Memory, Registers};

use super::dwarf::{Reading, Slice, Unit};
use super::frames::{Frames, Rule};

/// Operations of an expression, and questions that it may ask.
const MOST_OPERATIONS: u32 = 1000;
const MOST_QUESTIONS: usize = 64;

/// A function's frame at a moment.
pub(super) struct Frame<'a> {
    pub(super) registers: &'a Registers,
    pub(super) memory: &'a dyn Memory,
    /// From addresses in the file to those in memory.
    pub(super) bias: u64,
    /// Where the frame is on the stack.
    frame: Option<u64>,
    /// What variables' places are counted from.
    base: Option<u64>,
}

/// Where a variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In memory.
    Address(u64),
    /// In a register, or nowhere; this is its value.
    Value(u64),
}

impl<'a> Frame<'a> {
    /// The frame at `registers`, as far as `frames` says.
    pub(super) fn of(registers: &'a Registers, memory: &'a dyn Memory, bias: u64, frames: Option<&Frames>) -> Self {
        let mut frame = Self { registers, memory, bias, frame: None, base: None };
        frame.frame = frames.and_then(|frames| frame.canonical(frames));
        frame
    }

    fn canonical(&self, frames: &Frames) -> Option<u64> {
        match frames.rule(self.counter())? {
            Rule::Register(number, more) => Some(self.register(number)?.wrapping_add_signed(more)),
            Rule::Expression(expression) => {
                let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
                match self.evaluated(expression.evaluation(encoding), None)? {
                    Place::Address(address) => Some(address),
                    Place::Value(_) => None,
                }
            }
        }
    }

    /// The instruction, as an address in the file.
    pub(super) const fn counter(&self) -> u64 {
        self.registers.rip.wrapping_sub(self.bias)
    }

    /// Takes what a function says of the base of its frame.
    pub(super) fn set_base<'b>(
        &mut self,
        reading: &Reading<'b>,
        unit: &Unit<'b>,
        base: Option<AttributeValue<Slice<'b>>>,
    ) {
        self.base = base.and_then(|base| self.place(reading, unit, base)).map(|place| match place {
            Place::Address(place) | Place::Value(place) => place,
        });
    }

    /// Where a variable with this location is.
    pub(super) fn place<'b>(
        &self,
        reading: &Reading<'b>,
        unit: &Unit<'b>,
        location: AttributeValue<Slice<'b>>,
    ) -> Option<Place> {
        let expression = match location {
            AttributeValue::Exprloc(expression) => expression,
            list => self.listed(reading, unit, list)?,
        };
        self.evaluated(expression.evaluation(unit.encoding()), Some((reading, unit)))
    }

    /// The entry of a list that holds at this instruction.
    fn listed<'b>(
        &self,
        reading: &Reading<'b>,
        unit: &Unit<'b>,
        list: AttributeValue<Slice<'b>>,
    ) -> Option<Expression<Slice<'b>>> {
        let counter = self.counter();
        let mut entries = reading.dwarf.attr_locations(unit, list).ok()??;
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
        within: Option<(&Reading<'b>, &Unit<'b>)>,
    ) -> Option<Place> {
        evaluation.set_max_iterations(MOST_OPERATIONS);
        let mut asked = evaluation.evaluate().ok()?;
        for _ in 0..MOST_QUESTIONS {
            asked = match asked {
                EvaluationResult::Complete => return self.result(&evaluation.result()),
                EvaluationResult::RequiresRegister { register, base_type } if base_type.0 == 0 => {
                    evaluation.resume_with_register(Value::Generic(self.register(register.0)?))
                }
                EvaluationResult::RequiresMemory { address, size, space: None, base_type } if base_type.0 == 0 => {
                    evaluation.resume_with_memory(Value::Generic(self.word(address, size)?))
                }
                EvaluationResult::RequiresFrameBase => evaluation.resume_with_frame_base(self.base?),
                EvaluationResult::RequiresCallFrameCfa => evaluation.resume_with_call_frame_cfa(self.frame?),
                EvaluationResult::RequiresRelocatedAddress(address) => {
                    evaluation.resume_with_relocated_address(address.wrapping_add(self.bias))
                }
                EvaluationResult::RequiresIndexedAddress { index, relocate } => {
                    let (reading, unit) = within?;
                    let address = reading.dwarf.address(unit, index).ok()?;
                    evaluation.resume_with_indexed_address(address.wrapping_add(if relocate { self.bias } else { 0 }))
                }
                _ => return None,
            }
            .ok()?;
        }
        None
    }

    fn result(&self, pieces: &[gimli::Piece<Slice<'_>>]) -> Option<Place> {
        // What is in several places is no pointer.
        let [gimli::Piece { location, size_in_bits: None, .. }] = pieces else { return None };
        match *location {
            Location::Address { address } => Some(Place::Address(address)),
            Location::Register { register } => self.register(register.0).map(Place::Value),
            Location::Value { value } => value.to_u64(u64::MAX).ok().map(Place::Value),
            _ => None,
        }
    }

    /// A register by DWARF's number, which orders the first eight in its own way.
    fn register(&self, number: u16) -> Option<u64> {
        const FIRST: [usize; 8] = [0, 2, 1, 3, 6, 7, 5, 4];
        let number = usize::from(number);
        self.registers.gpr.get(FIRST.get(number).copied().unwrap_or(number)).copied()
    }

    fn word(&self, address: u64, bytes: u8) -> Option<u64> {
        let mut word = [0; 8];
        let wanted = word.get_mut(..usize::from(bytes))?;
        let got = self.memory.read(address, wanted);
        (got == usize::from(bytes)).then(|| u64::from_le_bytes(word))
    }
}
