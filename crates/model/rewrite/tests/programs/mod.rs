//! Random loops: their parts and their code.
//!
//! ```text
//!   rdi  constant, in rule 0's bytes   r11  sometimes loaded from the slot [rbp - 8]
//!   rsi  constant, in plain memory     r10  an index, masked before each use
//!   r15  counts down                   rax rcx rdx rbx r8 r9  data
//! ```
//! Some loops have a second path around their head, as from an `if` with an `else`: it precedes the
//! head and is taken each second time.

use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister32, AsmRegister64, CodeAssembler, CodeLabel, al, byte_ptr, cl, cx, dl, dword_ptr, eax,
    ebx, ecx, edx, qword_ptr, r8, r8d, r9, r9d, r10, r10d, r11, r15, r15b, rax, rbp, rbx, rcx, rdi, rdx, rsi, word_ptr,
    xmm0, xmmword_ptr,
};
use iced_x86::{BlockEncoderOptions, Code, IcedError, Instruction, MemoryOperand, Register};
use proptest::prelude::*;

use crate::RULES;
use crate::machine::{CODE, PAGE};

/// The target of an access, in cells of eight bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// Relative to rdi.
    Stays(u8),
    /// Relative to rdi, with the index.
    Indexed(u8),
    /// Relative to r11.
    Loaded(u8),
    /// Relative to rsi.
    Plain(u8),
    /// On the stack.
    Stack(u8),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum AccessForm {
    Load,
    LoadWhatPoints,
    Store,
    StoreNumber,
    AddTo,
    AddFrom,
    SubFrom,
    XorTo,
    Increment,
    Compare,
    CompareAndMove,
    AddWithCarry,
    LockAdd,
    LockExchangeAdd,
    Exchange,
    PushPop,
    MoveByte,
    Vector,
    LoadSigned,
    StoreByte,
    StoreWord,
    ShiftMemory,
    RotateThroughCarry,
    SetCondition,
    Negate,
    MultiplyFrom,
    BitOfMemory,
    CompareExchange,
    CompareExchangeWide,
    ScalarVector,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum LoopStep {
    Memory {
        kind: AccessForm,
        place: Place,
        data: u8,
        wide: bool,
    },
    Add(u8, u8),
    Compare(u8, u8),
    Carry(u8, u8),
    Shift(u8, u8),
    /// A cell of rule 0, relative to rip: loaded, or added to atomically.
    Global {
        cell: u8,
        data: u8,
        load: bool,
    },
    Reload,
    /// Stores r11 in the slot, by rbp or by another register.
    Keep {
        by_frame: bool,
    },
    /// Moves r11 from a rule to the home copy, or back.
    Turn,
    SkipNext,
    /// A string instruction in plain memory, with its registers saved on the stack: move, store,
    /// compare or scan of this many bytes or words.
    String {
        kind: u8,
        count: u8,
        repeated: bool,
    },
    /// Skips the next step by a flag of an earlier step.
    SkipByFlag(u8),
    /// Moves flags to a register and back.
    FlagsThrough(u8),
}

/// A loop with its initial values.
#[derive(Debug, Clone)]
pub(crate) struct LoopProgram {
    /// Code before the head; often none.
    pub(crate) other: Vec<LoopStep>,
    pub(crate) steps: Vec<LoopStep>,
    pub(crate) iterations: u64,
    /// Cells from the rule's start to rdi.
    pub(crate) cell: u64,
    /// The target of the slot: rule 1's bytes, rule 0's, the home copy, or plain memory.
    pub(crate) slot: u8,
    pub(crate) data: [u64; 6],
    /// Accesses that the clone redirects, one bit each; the others fault.
    pub(crate) redirected: u32,
}

#[expect(clippy::too_many_lines, reason = "a list")]
pub(crate) fn program() -> impl Strategy<Value = LoopProgram> {
    let place = prop_oneof![
        4 => (0_u8..4).prop_map(Place::Stays),
        2 => (0_u8..4).prop_map(Place::Indexed),
        3 => (0_u8..4).prop_map(Place::Loaded),
        1 => (0_u8..4).prop_map(Place::Plain),
        1 => (2_u8..6).prop_map(Place::Stack),
    ];
    let kind = prop::sample::select(vec![
        AccessForm::Load,
        AccessForm::LoadWhatPoints,
        AccessForm::Store,
        AccessForm::StoreNumber,
        AccessForm::AddTo,
        AccessForm::AddFrom,
        AccessForm::SubFrom,
        AccessForm::XorTo,
        AccessForm::Increment,
        AccessForm::Compare,
        AccessForm::CompareAndMove,
        AccessForm::AddWithCarry,
        AccessForm::LockAdd,
        AccessForm::LockExchangeAdd,
        AccessForm::Exchange,
        AccessForm::PushPop,
        AccessForm::MoveByte,
        AccessForm::Vector,
        AccessForm::LoadSigned,
        AccessForm::StoreByte,
        AccessForm::StoreWord,
        AccessForm::ShiftMemory,
        AccessForm::RotateThroughCarry,
        AccessForm::SetCondition,
        AccessForm::Negate,
        AccessForm::MultiplyFrom,
        AccessForm::BitOfMemory,
        AccessForm::CompareExchange,
        AccessForm::CompareExchangeWide,
        AccessForm::ScalarVector,
    ]);
    let memory = (kind, place, 0_u8..6, any::<bool>()).prop_map(|(kind, place, data, wide)| LoopStep::Memory {
        kind,
        place,
        data,
        wide,
    });
    let step = prop_oneof![
        8 => memory,
        1 => (0_u8..6, 0_u8..6).prop_map(|(to, from)| LoopStep::Add(to, from)),
        1 => (0_u8..6, 0_u8..6).prop_map(|(one, other)| LoopStep::Compare(one, other)),
        1 => (0_u8..6, 0_u8..6).prop_map(|(to, from)| LoopStep::Carry(to, from)),
        1 => (0_u8..6, 0_u8..8).prop_map(|(to, by)| LoopStep::Shift(to, by)),
        1 => (0_u8..8, 0_u8..6, any::<bool>()).prop_map(|(cell, data, load)| LoopStep::Global { cell, data, load }),
        3 => Just(LoopStep::Reload),
        1 => any::<bool>().prop_map(|by_frame| LoopStep::Keep { by_frame }),
        1 => Just(LoopStep::Turn),
        1 => Just(LoopStep::SkipNext),
        1 => (0_u8..4, 0_u8..9, any::<bool>()).prop_map(|(kind, count, repeated)| LoopStep::String { kind, count, repeated }),
        1 => (0_u8..4).prop_map(LoopStep::SkipByFlag),
        1 => (0_u8..6).prop_map(LoopStep::FlagsThrough),
    ];
    let other = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(step.clone(), 1..5)];
    let steps = (other, prop::collection::vec(step, 1..14));
    (steps, 1_u64..12, 0_u64..4, 0_u8..6, any::<[u64; 6]>(), any::<u32>()).prop_map(
        |((other, steps), iterations, cell, slot, data, redirected)| LoopProgram {
            other,
            steps,
            iterations,
            cell,
            slot,
            data,
            redirected,
        },
    )
}

const WIDE: [AsmRegister64; 6] = [rax, rcx, rdx, rbx, r8, r9];
const NAMES: [Register; 6] = [Register::RAX, Register::RCX, Register::RDX, Register::RBX, Register::R8, Register::R9];
const NARROW: [AsmRegister32; 6] = [eax, ecx, edx, ebx, r8d, r9d];

impl LoopProgram {
    /// The code at `at`, followed by `end`; and the address of its head.
    pub(crate) fn code(&self, at: u64, end: &[u8]) -> (Vec<u8>, u64) {
        let assemble = || {
            let (mut code, head) = self.assemble(at)?;
            let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
            let made = code.assemble_options(at, options)?;
            let head = made.label_ip(&head)?;
            Ok::<_, IcedError>((made.inner.code_buffer, head))
        };
        let (mut bytes, head) = assemble().unwrap();
        // A jump over the end: the end is a jump through memory, which could lead back in by its
        // known targets.
        bytes.extend([0xeb, 0]);
        bytes.extend(end);
        (bytes, head)
    }

    fn assemble(&self, at: u64) -> Result<(CodeAssembler, CodeLabel), IcedError> {
        let mut code = CodeAssembler::new(64)?;
        let (mut head, mut other) = (code.create_label(), code.create_label());
        if !self.other.is_empty() {
            code.set_label(&mut other)?;
            steps_code(&mut code, at, &self.other)?;
            code.dec(r15)?;
        }
        code.set_label(&mut head)?;
        if !self.other.is_empty() {
            // The second path continues at the head.
            code.test(r15b, 1)?;
            code.jne(other)?;
        }
        steps_code(&mut code, at, &self.steps)?;
        code.dec(r15)?;
        code.jg(head)?;
        Ok((code, head))
    }
}

fn steps_code(code: &mut CodeAssembler, at: u64, steps: &[LoopStep]) -> Result<(), IcedError> {
    let mut skip = None;
    for step in steps {
        // A label belongs to one instruction, so the skipped code ends with a nop.
        step_code(code, at, *step)?;
        if let Some(mut label) = skip.take() {
            code.set_label(&mut label)?;
            code.nop()?;
        }
        if matches!(step, LoopStep::SkipNext | LoopStep::SkipByFlag(_)) {
            let label = code.create_label();
            match step {
                LoopStep::SkipByFlag(0) => code.jc(label)?,
                LoopStep::SkipByFlag(1) => code.jo(label)?,
                LoopStep::SkipByFlag(2) => code.jle(label)?,
                LoopStep::SkipByFlag(_) => code.jp(label)?,
                _ => {
                    code.test(al, 1)?;
                    code.je(label)?;
                }
            }
            skip = Some(label);
        }
    }
    if let Some(mut label) = skip.take() {
        code.set_label(&mut label)?;
        code.nop()?;
    }
    Ok(())
}

fn step_code(code: &mut CodeAssembler, at: u64, step: LoopStep) -> Result<(), IcedError> {
    let wide = |index: u8| WIDE[usize::from(index)];
    match step {
        LoopStep::Memory { kind, place, data, wide } => memory(code, kind, place, data, wide),
        LoopStep::Add(to, from) => code.add(wide(to), wide(from)),
        LoopStep::Compare(one, other) => code.cmp(wide(one), wide(other)),
        LoopStep::Carry(to, from) => code.adc(wide(to), wide(from)),
        LoopStep::Shift(to, by) => code.shl(wide(to), u32::from(by)),
        LoopStep::Global { cell, data, load } => {
            code.add_instruction(global(at - CODE + PAGE + RULES[0].start + u64::from(cell) * 8, data, load)?)
        }
        LoopStep::Reload => code.mov(r11, qword_ptr(rbp - 8)),
        LoopStep::Keep { by_frame: true } => code.mov(qword_ptr(rbp - 8), r11),
        LoopStep::Keep { by_frame: false } => {
            code.lea(r10, qword_ptr(rbp - 8))?;
            code.mov(qword_ptr(r10), r11)
        }
        LoopStep::Turn => code.xor(r11, 0x240),
        LoopStep::SkipNext | LoopStep::SkipByFlag(_) => Ok(()),
        LoopStep::String { kind, count, repeated } => string(code, kind, count, repeated),
        LoopStep::FlagsThrough(to) => {
            code.pushfq()?;
            code.pop(wide(to))?;
            // The flags of the program without the trap flag, which is never set here.
            code.push(wide(to))?;
            code.popfq()
        }
    }
}

/// A string between the second half of plain memory and its last quarter.
fn string(code: &mut CodeAssembler, kind: u8, count: u8, repeated: bool) -> Result<(), IcedError> {
    for register in [rdi, rsi, rcx, rax] {
        code.push(register)?;
    }
    code.lea(rdi, rsi + 0xc00)?;
    code.lea(rsi, rsi + 0x800)?;
    code.mov(ecx, u32::from(count))?;
    match (kind, repeated) {
        (0, true) => code.rep().movsb()?,
        (0, false) => code.movsq()?,
        (1, true) => code.rep().stosq()?,
        (1, false) => code.stosb()?,
        (2, true) => code.repe().cmpsb()?,
        (2, false) => code.cmpsq()?,
        (_, true) => code.repne().scasb()?,
        (_, false) => code.lodsd()?,
    }
    for register in [rax, rcx, rsi, rdi] {
        code.pop(register)?;
    }
    Ok(())
}

/// An instruction with an operand relative to rip.
pub(crate) fn global(address: u64, data: u8, load: bool) -> Result<Instruction, IcedError> {
    let operand = MemoryOperand::with_base_displ(Register::RIP, address.cast_signed());
    let register = NAMES[usize::from(data)];
    if load {
        return Instruction::with2(Code::Mov_r64_rm64, register, operand);
    }
    let mut add = Instruction::with2(Code::Add_rm64_r64, operand, register)?;
    add.set_has_lock_prefix(true);
    Ok(add)
}

/// The operand, without its size.
fn operand(place: Place) -> AsmMemoryOperand {
    let cell = |cell: u8| i32::from(cell) * 8;
    match place {
        Place::Stays(at) => rdi + cell(at),
        Place::Indexed(at) => rdi + r10 * 8 + cell(at),
        Place::Loaded(at) => r11 + cell(at),
        Place::Plain(at) => rsi + cell(at),
        Place::Stack(at) => rbp - cell(at),
    }
}

#[expect(clippy::too_many_lines, reason = "a line for each kind")]
fn memory(code: &mut CodeAssembler, kind: AccessForm, place: Place, data: u8, is_wide: bool) -> Result<(), IcedError> {
    if matches!(place, Place::Indexed(_)) {
        code.mov(r10d, NARROW[usize::from(data)])?;
        code.and(r10d, 3)?;
    }
    let (wide, narrow) = (WIDE[usize::from(data)], NARROW[usize::from(data)]);
    let (eight, four) = (qword_ptr(operand(place)), dword_ptr(operand(place)));
    match (kind, is_wide) {
        (AccessForm::Load, true) => code.mov(wide, eight),
        (AccessForm::Load, false) => code.mov(narrow, four),
        (AccessForm::LoadWhatPoints, _) => {
            // The loaded register is also the address register.
            code.lea(wide, operand(place))?;
            code.mov(wide, qword_ptr(wide))
        }
        (AccessForm::Store, true) => code.mov(eight, wide),
        (AccessForm::Store, false) => code.mov(four, narrow),
        (AccessForm::StoreNumber, _) => code.mov(eight, -5),
        (AccessForm::AddTo, true) => code.add(eight, wide),
        (AccessForm::AddTo, false) => code.add(four, narrow),
        (AccessForm::AddFrom, true) => code.add(wide, eight),
        (AccessForm::AddFrom, false) => code.add(narrow, four),
        (AccessForm::SubFrom, _) => code.sub(wide, eight),
        (AccessForm::XorTo, _) => code.xor(eight, wide),
        (AccessForm::Increment, _) => code.inc(four),
        (AccessForm::Compare, _) => code.cmp(eight, wide),
        (AccessForm::CompareAndMove, true) => code.cmovb(wide, eight),
        (AccessForm::CompareAndMove, false) => code.cmove(narrow, four),
        (AccessForm::AddWithCarry, _) => code.adc(eight, wide),
        (AccessForm::LockAdd, true) => code.lock().add(eight, wide),
        (AccessForm::LockAdd, false) => code.lock().sub(four, narrow),
        (AccessForm::LockExchangeAdd, _) => code.lock().xadd(eight, wide),
        (AccessForm::Exchange, true) => code.xchg(eight, wide),
        (AccessForm::Exchange, false) => code.xchg(four, narrow),
        (AccessForm::PushPop, _) => {
            code.push(eight)?;
            code.pop(wide)
        }
        (AccessForm::MoveByte, _) => code.movzx(narrow, byte_ptr(operand(place))),
        (AccessForm::Vector, _) => vector(code, place),
        (AccessForm::LoadSigned, true) => code.movsxd(wide, four),
        (AccessForm::LoadSigned, false) => code.movsx(narrow, word_ptr(operand(place))),
        (AccessForm::StoreByte, _) => code.mov(byte_ptr(operand(place)), dl),
        (AccessForm::StoreWord, _) => code.mov(word_ptr(operand(place)), cx),
        (AccessForm::ShiftMemory, true) => code.sar(eight, 1),
        (AccessForm::ShiftMemory, false) => code.shl(four, cl),
        (AccessForm::RotateThroughCarry, _) => code.rcl(eight, 1),
        (AccessForm::SetCondition, true) => code.setb(byte_ptr(operand(place))),
        (AccessForm::SetCondition, false) => code.setg(byte_ptr(operand(place))),
        (AccessForm::Negate, true) => code.neg(eight),
        (AccessForm::Negate, false) => code.not(four),
        (AccessForm::MultiplyFrom, _) => {
            code.imul_2(wide, eight)?;
            // The undefined flags are overwritten.
            code.cmp(wide, rbx)
        }
        (AccessForm::BitOfMemory, true) => {
            code.bts(eight, 37)?;
            code.adc(wide, 0)
        }
        (AccessForm::BitOfMemory, false) => {
            code.bt(four, 5)?;
            code.sbb(wide, rbx)
        }
        (AccessForm::CompareExchange, true) => code.lock().cmpxchg(eight, wide),
        (AccessForm::CompareExchange, false) => code.cmpxchg(four, narrow),
        (AccessForm::CompareExchangeWide, _) => {
            // The second slot and the pointer above it would be one such operand; a write could
            // make the pointer invalid.
            let place = if let Place::Stack(at) = place { Place::Stack(at + 1) } else { place };
            code.lea(r10, operand(place))?;
            code.and(r10, -16)?;
            code.lock().cmpxchg16b(xmmword_ptr(r10))
        }
        (AccessForm::ScalarVector, true) => {
            code.movq(xmm0, wide)?;
            code.addsd(xmm0, eight)?;
            code.movq(eight, xmm0)
        }
        (AccessForm::ScalarVector, false) => {
            code.movd(xmm0, four)?;
            code.movd(narrow, xmm0)
        }
    }
}

/// Sixteen bytes that fit into a rule or are in plain memory.
fn vector(code: &mut CodeAssembler, place: Place) -> Result<(), IcedError> {
    code.movups(xmm0, xmmword_ptr(rsi + 16))?;
    match place {
        Place::Stays(at) if at < 3 => code.movups(xmmword_ptr(operand(place)), xmm0),
        _ => code.movups(xmmword_ptr(rsi), xmm0),
    }
}
