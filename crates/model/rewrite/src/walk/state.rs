//! Known values of registers and memory during a walk.

use std::collections::BTreeMap;

use iced_x86::Register;

use crate::memory::ReadableMemory;
use crate::registers::{Registers, number};

/// A number, if it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WalkValue {
    pub(super) known: Option<u64>,
    /// Whether it depends on memory that was read later than the sample.
    pub(super) now: bool,
}

impl WalkValue {
    pub(super) const UNKNOWN: Self = Self { known: None, now: false };

    pub(super) const fn of(value: u64) -> Self {
        Self { known: Some(value), now: false }
    }

    pub(super) fn map(self, change: impl FnOnce(u64) -> u64) -> Self {
        Self { known: self.known.map(change), ..self }
    }

    pub(super) fn with(self, other: Self, combine: impl FnOnce(u64, u64) -> u64) -> Self {
        let known = self.known.zip(other.known).map(|(one, two)| combine(one, two));
        Self { known, now: self.now | other.now }
    }

    /// The lowest `bytes` bytes; the others are zero.
    pub(super) fn low(self, bytes: usize) -> Self {
        self.map(|value| value & mask(bytes))
    }
}

/// A mask of the lowest `bytes` bytes.
pub(super) const fn mask(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 }
}

/// Registers, and the memory that the walk has written.
#[derive(Debug, Clone)]
pub(super) struct WalkState {
    gpr: [WalkValue; 16],
    fs_base: u64,
    gs_base: u64,
    /// Aligned words, by address.
    written: BTreeMap<u64, WrittenWord>,
}

/// A word with written bytes.
#[derive(Debug, Clone, Copy, Default)]
struct WrittenWord {
    bytes: [u8; 8],
    /// Flags, one per byte: it was written; the value is known; the value depends on memory read
    /// later than the sample.
    written: u8,
    known: u8,
    now: u8,
}

/// The word that contains a byte, and the byte's index.
fn in_word(address: u64) -> (u64, usize) {
    (address & !7, usize::from(address.to_le_bytes()[0] % 8))
}

impl WalkState {
    pub(super) fn new(registers: &Registers) -> Self {
        let (fs_base, gs_base) = (registers.fs_base, registers.gs_base);
        Self { gpr: registers.gpr.map(WalkValue::of), fs_base, gs_base, written: BTreeMap::new() }
    }

    /// The value of a register or a part of one; for a segment register its base.
    pub(super) fn register(&self, register: Register) -> WalkValue {
        match register {
            Register::FS => return WalkValue::of(self.fs_base),
            Register::GS => return WalkValue::of(self.gs_base),
            _ => {}
        }
        let Some(number) = number(register) else { return WalkValue::UNKNOWN };
        self.gpr[number].map(|value| value >> shift(register)).low(register.size())
    }

    /// Writes a register or a part of one. Writing the lower half clears the upper half; smaller
    /// parts keep the rest.
    pub(super) fn set_register(&mut self, register: Register, value: WalkValue) {
        let Some(number) = number(register) else { return };
        let bytes = register.size();
        self.gpr[number] = if bytes >= 4 {
            value.low(bytes)
        } else {
            let part = mask(bytes) << shift(register);
            value.with(self.gpr[number], |value, old| old & !part | (value << shift(register)) & part)
        };
    }

    /// The value in memory: what the walk has written, else what is there now.
    pub(super) fn load(&self, memory: &dyn ReadableMemory, address: WalkValue, bytes: usize) -> WalkValue {
        let Some(at) = address.known.filter(|_| (1..=8).contains(&bytes)) else { return WalkValue::UNKNOWN };
        let mut read = [0; 8];
        let there = memory.read(at, &mut read[..bytes]);
        let (mut now, mut known) = (address.now, true);
        let mut written = WrittenWord::default();
        for (offset, byte) in read[..bytes].iter_mut().enumerate() {
            let (word, place) = in_word(at.wrapping_add(offset as u64));
            if offset == 0 || place == 0 {
                written = self.written.get(&word).copied().unwrap_or_default();
            }
            let is = |flags: u8| flags >> place & 1 == 1;
            if is(written.written) {
                *byte = written.bytes[place];
                known &= is(written.known);
                now |= is(written.now);
            } else {
                known &= offset < there;
                now = true;
            }
        }
        WalkValue { known: known.then(|| u64::from_le_bytes(read)), now }
    }

    /// Writes memory. A write to an unknown address is ignored.
    pub(super) fn store(&mut self, address: WalkValue, bytes: usize, value: WalkValue) {
        let Some(at) = address.known.filter(|_| bytes <= 64) else { return };
        let digits = value.known.filter(|_| bytes <= 8).map(u64::to_le_bytes);
        for offset in 0..bytes {
            let (word, place) = in_word(at.wrapping_add(offset as u64));
            let written = self.written.entry(word).or_default();
            let set = |flags: &mut u8, to: bool| *flags = *flags & !(1 << place) | u8::from(to) << place;
            set(&mut written.written, true);
            set(&mut written.known, digits.is_some());
            set(&mut written.now, digits.is_some() && value.now);
            written.bytes[place] = digits.map_or(0, |digits| digits[offset]);
        }
    }
}

/// The bit at which a part of a register begins: 8 for `ah` and its like.
fn shift(register: Register) -> u32 {
    u32::from(matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)) * 8
}

#[cfg(test)]
mod tests {
    use super::{WalkState, WalkValue};
    use crate::memory::MemoryImage;
    use crate::registers::Registers;
    use iced_x86::Register;

    fn state(rax: u64) -> WalkState {
        let mut registers = Registers { fs_base: 0x7000, ..Registers::default() };
        registers.gpr[0] = rax;
        WalkState::new(&registers)
    }

    #[test]
    fn parts_of_registers_are_parts() {
        let mut now = state(0x1122_3344_5566_7788);
        let all = [Register::AL, Register::AH, Register::AX, Register::EAX];
        assert_eq!(all.map(|part| now.register(part).known.unwrap()), [0x88, 0x77, 0x7788, 0x5566_7788]);
        now.set_register(Register::AH, WalkValue::of(0xff));
        assert_eq!(now.register(Register::RAX), WalkValue::of(0x1122_3344_5566_ff88));
        now.set_register(Register::EAX, WalkValue::of(1));
        assert_eq!(now.register(Register::RAX), WalkValue::of(1));
        now.set_register(Register::AL, WalkValue::UNKNOWN);
        assert_eq!(now.register(Register::RAX).known, None);
        assert_eq!(
            (now.register(Register::FS), now.register(Register::XMM0)),
            (WalkValue::of(0x7000), WalkValue::UNKNOWN)
        );
    }

    #[test]
    fn memory_is_what_was_written_and_then_what_is_there() {
        let image = MemoryImage { start: 0x1000, bytes: (0..16).collect() };
        let mut now = state(0);
        let at = WalkValue::of;
        assert_eq!(now.load(&image, at(0x1000), 4), WalkValue { known: Some(0x0302_0100), now: true });
        now.store(at(0x1002), 2, at(0xaabb));
        assert_eq!(now.load(&image, at(0x1002), 2), at(0xaabb));
        assert_eq!(now.load(&image, at(0x1000), 4), WalkValue { known: Some(0xaabb_0100), now: true });
        now.store(at(0x1008), 8, WalkValue { known: Some(5), now: true });
        assert_eq!(
            now.load(&image, at(0x1008), 4),
            WalkValue { known: Some(5), now: true },
            "as sure as what was written"
        );
        now.store(at(0x1003), 1, WalkValue::UNKNOWN);
        assert_eq!(now.load(&image, at(0x1000), 4).known, None);
        assert_eq!(now.load(&image, at(0x1012), 4).known, None, "it is not there");
    }
}
