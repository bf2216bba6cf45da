//! Operands of instructions written as bytes.

use iced_x86::{Decoder, DecoderOptions, Encoder, Instruction, InstructionInfoFactory, Register};

use super::Operand;
use crate::error::RefusalReason;
use crate::registers::Registers;

fn decode(bytes: &[u8]) -> Instruction {
    let instruction = Decoder::with_ip(64, bytes, 0x40_0000, DecoderOptions::NONE).decode();
    assert_eq!(instruction.len(), bytes.len(), "{bytes:x?}");
    instruction
}

fn operand(bytes: &[u8]) -> Result<Operand, RefusalReason> {
    Operand::of(&decode(bytes), &mut InstructionInfoFactory::new()).map_err(|error| error.reason().unwrap())
}

/// `bytes` redirected by `delta`, decoded at the same address.
fn redirected(bytes: &[u8], delta: i64) -> Instruction {
    let instruction = decode(bytes);
    let redirected = operand(bytes).unwrap().redirected(&instruction, delta).unwrap();
    let mut encoder = Encoder::new(64);
    encoder.encode(&redirected, 0x40_0000).unwrap();
    Decoder::with_ip(64, &encoder.take_buffer(), 0x40_0000, DecoderOptions::NONE).decode()
}

#[test]
fn an_operand_is_registers_and_a_displacement() {
    let found = operand(&[0xf0, 0x48, 0x01, 0x44, 0xcf, 0x10]).unwrap(); // lock add [rdi + rcx * 8 + 16], rax
    let expected = Operand {
        base: Register::RDI,
        index: Register::RCX,
        scale: 8,
        displacement: 16,
        bytes: 8,
        read: true,
        write: true,
        atomic: true,
    };
    assert_eq!(found, expected);
    let mut registers = Registers::default();
    (registers.gpr[7], registers.gpr[1]) = (0x1000, 2);
    assert_eq!(found.address(&registers), 0x1020);
}

#[test]
fn loads_read_stores_write_and_exchanges_are_atomic() {
    let kinds = |bytes: &[u8]| operand(bytes).map(|found| (found.bytes, found.read, found.write, found.atomic));
    assert_eq!(kinds(&[0x8a, 0x07]), Ok((1, true, false, false))); // mov al, [rdi]
    assert_eq!(kinds(&[0x89, 0x07]), Ok((4, false, true, false))); // mov [rdi], eax
    assert_eq!(kinds(&[0x48, 0x87, 0x07]), Ok((8, true, true, true))); // xchg [rdi], rax
    assert_eq!(kinds(&[0x0f, 0x11, 0x07]), Ok((16, false, true, false))); // movups [rdi], xmm0
    assert_eq!(kinds(&[0xff, 0x37]), Ok((8, true, false, false))); // push [rdi]
    assert_eq!(kinds(&[0x0f, 0x44, 0x07]), Ok((4, true, false, false))); // cmove eax, [rdi]
}

#[test]
fn a_redirect_is_another_displacement() {
    // mov rax, [rax]: the loaded register is also the address register.
    let moved = redirected(&[0x48, 0x8b, 0x00], 0x3000);
    assert_eq!((moved.memory_base(), moved.memory_displacement64()), (Register::RAX, 0x3000));
    let moved = redirected(&[0x48, 0x01, 0x44, 0xcf, 0x10], -0x1000);
    assert_eq!((moved.memory_index(), moved.memory_displacement64().cast_signed()), (Register::RCX, 0x10 - 0x1000));
    // add dword [rip + 0x10], 1
    let moved = redirected(&[0x83, 0x05, 0x10, 0, 0, 0, 1], 0x3000);
    assert_eq!((moved.memory_base(), moved.memory_displacement64()), (Register::RIP, 0x40_0000 + 7 + 0x10 + 0x3000));
    assert_eq!(moved.immediate(1), 1);
}

#[test]
fn an_absolute_operand_stays_absolute_while_it_fits() {
    let absolute = [0x83, 0x04, 0x25, 0x00, 0xf0, 0xff, 0x7f, 0x01]; // add dword [0x7ffff000], 1
    let near = redirected(&absolute, -0x1000);
    assert_eq!((near.memory_base(), near.memory_displacement64()), (Register::None, 0x7fff_e000));
    let far = redirected(&absolute, 0x1000);
    assert_eq!((far.memory_base(), far.memory_displacement64()), (Register::RIP, 0x8000_0000));
}

#[test]
fn a_displacement_that_does_not_fit_is_refused() {
    let bytes = [0x8b, 0x87, 0, 0, 0, 0x7f]; // mov eax, [rdi + 0x7f000000]
    let error = operand(&bytes).unwrap().redirected(&decode(&bytes), 0x0100_0000).unwrap_err();
    assert_eq!(error.reason(), Some(RefusalReason::OutOfReach));
}

#[test]
fn unredirectable_instructions_are_refused_with_the_reason() {
    for (bytes, reason) in [
        (&[0x01_u8, 0xc0][..], RefusalReason::NoMemory), // add eax, eax
        (&[0x48, 0x8d, 0x07], RefusalReason::NoMemory),  // lea rax, [rdi]
        (&[0xf3, 0x48, 0xa5], RefusalReason::String),    // rep movsq
        (&[0xaa], RefusalReason::String),                // stosb
        (&[0xc4, 0xe2, 0xf1, 0x90, 0x04, 0xd7], RefusalReason::Gather), // vpgatherdq xmm0, [rdi + xmm2 * 8], xmm1
        (&[0x64, 0x48, 0x8b, 0x07], RefusalReason::Segment), // mov rax, fs:[rdi]
        (&[0x50], RefusalReason::Stack),                 // push rax
        (&[0x48, 0x8b, 0x44, 0x24, 0x08], RefusalReason::Stack), // mov rax, [rsp + 8]
        (&[0x0f, 0xae, 0x07], RefusalReason::StateArea), // fxsave [rdi]
        (&[0xff, 0x27], RefusalReason::Branch),          // jmp [rdi]
        (&[0xff, 0x17], RefusalReason::Branch),          // call [rdi]
        (&[0x48, 0x0f, 0xab, 0x07], RefusalReason::BitString), // bts [rdi], rax
        (&[0x67, 0x8b, 0x07], RefusalReason::AddressForm), // mov eax, [edi]
        (&[0xa1, 0, 0x10, 0, 0, 0, 0, 0, 0], RefusalReason::AddressForm), // mov eax, [offset]
        (&[0xd7], RefusalReason::AddressForm),           // xlatb
    ] {
        assert_eq!(operand(bytes), Err(reason), "{bytes:x?}");
    }
    assert!(operand(&[0x48, 0x0f, 0xba, 0x2f, 3]).is_ok(), "a bit string with an immediate stays in its operand");
}

#[test]
fn an_indirect_jump_has_the_operand_of_its_target() {
    let jump = |bytes: &[u8]| Operand::of_jump(&decode(bytes), &mut InstructionInfoFactory::new());
    // bnd jmp [rip + 16], as in a procedure linkage table.
    let found = jump(&[0xf2, 0xff, 0x25, 0x10, 0, 0, 0]).unwrap().unwrap();
    assert_eq!(
        (found.address(&Registers::default()), found.bytes, found.read, found.write),
        (0x40_0017, 8, true, false)
    );
    // notrack jmp [rdi + rax * 8]
    let found = jump(&[0x3e, 0xff, 0x24, 0xc7]).unwrap().unwrap();
    assert_eq!((found.base, found.index, found.scale), (Register::RDI, Register::RAX, 8));
    // jmp fs:[rdi]; jmp rax; call [rdi]
    assert!(jump(&[0x64, 0xff, 0x27]).unwrap().is_err());
    assert!(jump(&[0xff, 0xe0]).is_none() && jump(&[0xff, 0x17]).is_none());
}
