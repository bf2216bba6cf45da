//! Walks around assembled loops.

use std::collections::BTreeSet;

use iced_x86::code_asm::{
    CodeAssembler, al, byte_ptr, dword_ptr, eax, ecx, qword_ptr, r8, rax, rbp, rcx, rdi, rdx, rsi,
};

use super::{LoopAccess, Walk};
use crate::flow::Flow;
use crate::memory::{MemoryImage, ReadableMemory};
use crate::registers::{RBP, RSP, Registers};

const CODE: u64 = 0x1000;
const STACK: u64 = 0x8000;

/// Code with a stack.
struct LoadedCode {
    code: MemoryImage,
    stack: MemoryImage,
}

impl ReadableMemory for LoadedCode {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        [&self.code, &self.stack].into_iter().map(|image| image.read(address, into)).find(|got| *got > 0).unwrap_or(0)
    }
}

fn program(mut code: CodeAssembler) -> LoadedCode {
    LoadedCode {
        code: MemoryImage { start: CODE, bytes: code.assemble(CODE).unwrap() },
        stack: MemoryImage { start: STACK, bytes: vec![0; 256] },
    }
}

fn around(program: &LoadedCode, offset: u64, registers: &[(usize, u64)]) -> Walk {
    let mut sampled = Registers { rip: CODE + offset, ..Registers::default() };
    for (number, value) in registers {
        sampled.gpr[*number] = *value;
    }
    let flow = Flow::discover(program, CODE + offset).unwrap();
    let loops = flow.loops();
    Walk::around(&flow, loops.first(), &sampled, program)
}

fn addresses(walk: &Walk) -> Vec<(u64, u64)> {
    walk.accesses.iter().map(|access| (access.ip - CODE, access.address)).collect()
}

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RSI: usize = 6;
const RDI: usize = 7;

/// 0: add [rdi + 8], 1 (5); 5: mov rax, [rsi + rcx * 8] (4); 9: inc rcx (3); c: cmp rcx, rdx (3);
/// f: jne 0 (2); 11: ret
fn sum() -> LoadedCode {
    let mut code = CodeAssembler::new(64).unwrap();
    let mut head = code.create_label();
    code.set_label(&mut head).unwrap();
    code.add(qword_ptr(rdi + 8), 1).unwrap();
    code.mov(rax, qword_ptr(rsi + rcx * 8)).unwrap();
    code.inc(rcx).unwrap();
    code.cmp(rcx, rdx).unwrap();
    code.jne(head).unwrap();
    code.ret().unwrap();
    program(code)
}

#[test]
fn a_sample_between_accesses_finds_them_all() {
    let registers = [(RDI, 0x7f10), (RSI, 0x9000), (RCX, 3), (RDX, 10)];
    let walk = around(&sum(), 0xc, &registers);
    assert_eq!(addresses(&walk), [(0, 0x7f18), (5, 0x9000 + 24)], "in the next lap");
    let first = LoopAccess {
        ip: CODE,
        address: 0x7f18,
        bytes: 8,
        read: true,
        write: true,
        is_atomic: false,
        is_bitwise: false,
        read_now: false,
    };
    assert_eq!(walk.accesses[0], first);
    assert_eq!((walk.accesses[1].read, walk.accesses[1].write), (true, false));
    assert_eq!((walk.steps, walk.unknown), (5, 0), "one lap, and not the return");
    let walk = around(&sum(), 0, &registers);
    assert_eq!(addresses(&walk), [(0, 0x7f18), (5, 0x9000 + 24)]);
    let walk = around(&sum(), 0xc, &[(RDI, 0x7f10), (RSI, 0x9000), (RCX, 4)]);
    assert_eq!(addresses(&walk)[1], (5, 0x9000 + 32), "registers change along the lap, before the sample they did");
}

#[test]
fn a_walk_from_the_middle_of_a_block_equals_one_of_a_flow_from_there() {
    let program = sum();
    let whole = Flow::discover(&program, CODE).unwrap();
    let within = &whole.loops()[0];
    assert_eq!(whole.blocks.range(..CODE + 0x11).count(), 1, "one block");
    for offset in [0, 5, 9, 0xc, 0xf] {
        let registers = [(RDI, 0x7f10), (RSI, 0x9000), (RCX, 3), (RDX, 10)];
        let mut sampled = Registers { rip: CODE + offset, ..Registers::default() };
        registers.iter().for_each(|(number, value)| sampled.gpr[*number] = *value);
        let walk = Walk::around(&whole, Some(within), &sampled, &program);
        assert_eq!(walk, around(&program, offset, &registers), "{offset:#x}");
    }
}

#[test]
fn pointers_on_the_stack_are_read_now() {
    // 0: mov rax, [rbp - 8] (4); 4: lock add [rax + 16], 1 (6); a: dec dword [rbp - 16] (3); d: jne
    // 0
    let mut code = CodeAssembler::new(64).unwrap();
    let mut head = code.create_label();
    code.set_label(&mut head).unwrap();
    code.mov(rax, qword_ptr(rbp - 8)).unwrap();
    code.lock().add(qword_ptr(rax + 16), 1).unwrap();
    code.dec(dword_ptr(rbp - 16)).unwrap();
    code.jne(head).unwrap();
    code.ret().unwrap();
    let mut program = program(code);
    program.stack.bytes[0x78..0x80].copy_from_slice(&0x5000_u64.to_le_bytes());
    let walk = around(&program, 0xa, &[(RBP, STACK + 0x80)]);
    let found: Vec<_> =
        walk.accesses.iter().map(|access| (access.address, access.is_atomic, access.read_now)).collect();
    assert_eq!(found, [(STACK + 0x70, false, false), (STACK + 0x78, false, false), (0x5010, true, true)]);
}

#[test]
fn writes_of_a_walk_are_read_back() {
    // push rcx; pop rdx; mov [rdx], eax; lea r8, [rdx + rdx + 1]; shl r8, 3; movzx, xor …; mov al,
    // [r8]; jmp head
    let mut code = CodeAssembler::new(64).unwrap();
    let mut head = code.create_label();
    code.set_label(&mut head).unwrap();
    code.push(rcx).unwrap();
    code.pop(rdx).unwrap();
    code.mov(dword_ptr(rdx), eax).unwrap();
    code.lea(r8, qword_ptr(rdx + rdx * 1 + 1)).unwrap();
    code.shl(r8, 3).unwrap();
    code.xor(eax, eax).unwrap();
    code.mov(al, byte_ptr(r8 + rax)).unwrap();
    code.jmp(head).unwrap();
    let walk = around(&program(code), 0, &[(RCX, 0x6000), (RSP, STACK + 0x40)]);
    let found: Vec<_> = walk.accesses.iter().map(|access| (access.address, access.bytes, access.read_now)).collect();
    let stack = STACK + 0x38;
    assert_eq!(found, [(stack, 8, false), (stack, 8, false), (0x6000, 4, false), (0xc001 * 8, 1, false)]);
}

#[test]
fn unknown_addresses_are_not_guessed() {
    // 0: call rax; 2: add [rcx], 1; 6: mov [rbp - 8], rcx; mov rdx, [rbp - 8]; add [rdx], 1; jmp
    // head
    let mut code = CodeAssembler::new(64).unwrap();
    let mut head = code.create_label();
    code.set_label(&mut head).unwrap();
    code.call(rax).unwrap();
    code.add(qword_ptr(rcx), 1).unwrap();
    code.mov(qword_ptr(rbp - 8), rcx).unwrap();
    code.mov(rdx, qword_ptr(rbp - 8)).unwrap();
    code.add(qword_ptr(rdx), 1).unwrap();
    code.rep().stosq().unwrap();
    code.jmp(head).unwrap();
    let walk = around(&program(code), 0, &[(RAX, 0x4000), (RCX, 0x6000), (RBP, STACK + 0x80), (RSP, STACK + 0x40)]);
    let slots: Vec<_> = walk.accesses.iter().map(|access| access.address).collect();
    // The return address that the call pushes, and two accesses to the slot.
    assert_eq!(slots, [STACK + 0x38, STACK + 0x78, STACK + 0x78]);
    assert_eq!(walk.unknown, 3);
}

#[test]
fn a_backward_walk_finds_addresses_that_a_call_loses() {
    // 0: call rcx (2); 2: mov [rax], rcx (3); 5: call rcx (2); 7: mov rdx, [rax] (3); a: lock xadd
    // [rax + 8], rdx (6); 10: mov [rdx], rcx (3); 13: nop; 14: jmp 0
    let mut code = CodeAssembler::new(64).unwrap();
    let mut head = code.create_label();
    code.set_label(&mut head).unwrap();
    code.call(rcx).unwrap();
    code.mov(qword_ptr(rax), rcx).unwrap();
    code.call(rcx).unwrap();
    code.mov(rdx, qword_ptr(rax)).unwrap();
    code.lock().xadd(qword_ptr(rax + 8), rdx).unwrap();
    code.mov(qword_ptr(rdx), rcx).unwrap();
    code.nop().unwrap();
    code.jmp(head).unwrap();
    let program = program(code);
    let registers = [(RAX, 0x5000), (RCX, 0x4000), (RDX, 0x6000), (RSP, STACK + 0x40)];
    let found = |offset| {
        let walk = around(&program, offset, &registers);
        let known: BTreeSet<_> = addresses(&walk).into_iter().filter(|(_, address)| *address < STACK).collect();
        known.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(found(0x13), [(0x7, 0x5000), (0xa, 0x5008), (0x10, 0x6000)], "and nothing beyond a call");
    assert_eq!(found(0x10), [(0x7, 0x5000), (0xa, 0x5008), (0x10, 0x6000)], "the last is of the lap");
    assert_eq!(found(0xa), [(0x7, 0x5000), (0xa, 0x5008)], "rdx is not what it will be");
    assert_eq!(found(0x7), [(0x7, 0x5000), (0xa, 0x5008)], "of the lap");
}

#[test]
fn an_observed_address_is_used_if_the_registers_give_none() {
    // 0: call rcx (2); 2: mov [rax], rcx (3); 5: push [rdx] (2); 7: add [rdi], 1 (4); b: jmp 0
    let mut code = CodeAssembler::new(64).unwrap();
    let mut head = code.create_label();
    code.set_label(&mut head).unwrap();
    code.call(rcx).unwrap();
    code.mov(qword_ptr(rax), rcx).unwrap();
    code.push(qword_ptr(rdx)).unwrap();
    code.add(qword_ptr(rdi), 1).unwrap();
    code.jmp(head).unwrap();
    let program = program(code);
    let flow = Flow::discover(&program, CODE + 5).unwrap();
    let mut registers = Registers { rip: CODE + 5, ..Registers::default() };
    (registers.gpr[RAX], registers.gpr[RDX], registers.gpr[RDI], registers.gpr[RSP]) =
        (0x5000, 0x6000, 0x7000, STACK + 0x40);
    let observed = |ip: u64| Some(0x4000 + ip - CODE);
    let within = flow.loops();
    let walk = Walk::around_with(&flow, within.first(), &registers, &program, &observed);
    let of = |offset| walk.accesses.iter().filter(move |access| access.ip == CODE + offset);
    let addresses = |offset| of(offset).map(|access| (access.address, access.read_now)).collect::<Vec<_>>();
    assert_eq!(addresses(0x7), [(0x7000, false)], "of the lap");
    assert_eq!(addresses(0x2), [(0x5000, false)], "looked back at");
    assert_eq!(addresses(0x5)[0], (0x6000, false), "of the lap");
    // From behind the call, the walk loses all three addresses.
    registers.rip = CODE;
    let flow = Flow::discover(&program, CODE).unwrap();
    let walk = Walk::around_with(&flow, flow.loops().first(), &registers, &program, &observed);
    let found = |offset| walk.accesses.iter().find(|access| access.ip == CODE + offset);
    assert_eq!(found(0x2).map(|access| (access.address, access.bytes, access.read_now)), Some((0x4002, 8, true)));
    assert_eq!(found(0x7).map(|access| (access.address, access.read, access.write)), Some((0x4007, true, true)));
    assert!(!walk.accesses.iter().any(|access| access.address == 0x4005), "which of the two that a push touches?");
    assert_eq!(Walk::around(&flow, flow.loops().first(), &registers, &program).accesses.len() + 2, walk.accesses.len());
}

#[test]
fn a_backward_walk_uses_only_certain_predecessors() {
    // 0: call rcx (2); 2: test ecx, ecx (2); 4: jz a (2); 6: mov [rax], rcx (3); 9: nop; a: mov
    // [rdi], rcx (3); d: rep stosb (2); f: jmp 0
    let mut code = CodeAssembler::new(64).unwrap();
    let (mut head, mut join) = (code.create_label(), code.create_label());
    code.set_label(&mut head).unwrap();
    code.call(rcx).unwrap();
    code.test(ecx, ecx).unwrap();
    code.jz(join).unwrap();
    code.mov(qword_ptr(rax), rcx).unwrap();
    code.nop().unwrap();
    code.set_label(&mut join).unwrap();
    code.mov(qword_ptr(rdi), rcx).unwrap();
    code.rep().stosb().unwrap();
    code.jmp(head).unwrap();
    let program = program(code);
    let registers = [(RAX, 0x5000), (RCX, 0x4000), (RDI, 0x6000), (RSP, STACK + 0x40)];
    let known = |offset, ip| addresses(&around(&program, offset, &registers)).iter().any(|(at, _)| *at == ip);
    assert!(known(0x9, 0x6), "it was just run");
    assert!(!known(0xa, 0x6), "it may have been jumped over");
    assert!(!known(0xf, 0xa), "rdi has moved on since");
    assert!(!known(0xd, 0xa), "rdi is somewhere in what repeats");
}

#[test]
fn both_ways_of_a_condition_are_followed_once() {
    // 0: test ecx, ecx; jz other; add [rdi], 1; other: add [rsi], 1; jmp 0
    let mut code = CodeAssembler::new(64).unwrap();
    let (mut head, mut other) = (code.create_label(), code.create_label());
    code.set_label(&mut head).unwrap();
    code.test(ecx, ecx).unwrap();
    code.jz(other).unwrap();
    code.add(qword_ptr(rdi), 1).unwrap();
    code.set_label(&mut other).unwrap();
    code.add(qword_ptr(rsi), 1).unwrap();
    code.jmp(head).unwrap();
    let walk = around(&program(code), 0, &[(RDI, 0x6000), (RSI, 0x7000)]);
    let mut found: Vec<_> = walk.accesses.iter().map(|access| access.address).collect();
    found.sort_unstable();
    assert_eq!(found, [0x6000, 0x7000]);
}
