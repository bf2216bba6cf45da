//! Addresses of memory operands, by the known values of registers.

use iced_x86::{Instruction, OpAccess, Register, UsedMemory};

use super::state::{WalkState, WalkValue};
use crate::effect::reads_and_writes;

/// The address of an instruction's memory operand.
pub(super) fn address(memory: &UsedMemory, state: &WalkState) -> WalkValue {
    let mut now = false;
    let known = memory.virtual_address(0, |register, _, _| part(register, state, &mut now));
    WalkValue { known, now }
}

/// The address that an instruction such as `lea` computes.
pub(super) fn calculated(instruction: &Instruction, state: &WalkState) -> WalkValue {
    let mut now = false;
    let known = instruction.virtual_address(1, 0, |register, _, _| part(register, state, &mut now));
    WalkValue { known, now }
}

/// A register's part of an address, or a segment's base.
fn part(register: Register, state: &WalkState, now: &mut bool) -> Option<u64> {
    let value = match register {
        Register::ES | Register::CS | Register::SS | Register::DS => WalkValue::of(0),
        register => state.register(register),
    };
    *now |= value.now;
    value.known
}

/// Whether it writes memory.
pub(super) fn writes_memory(memory: &UsedMemory) -> bool {
    memory.access() != OpAccess::NoMemAccess && reads_and_writes(memory.access()).1
}
