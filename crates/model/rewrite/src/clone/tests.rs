//! The code of clones. `tests/differential.rs` tests their behaviour.

use iced_x86::code_asm::{CodeAssembler, ecx, qword_ptr, rax, rbp, rcx, rdi, rdx};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};

use super::{ClonePlan, LoopClone, Redirect};
use crate::error::RefusalReason;
use crate::flow::Flow;
use crate::liveness::Liveness;
use crate::memory::MemoryImage;
use crate::page::RemapRule;

const CODE: u64 = 0x40_0000;
const AT: u64 = 0x41_0000;
const DELTA: i64 = 0x2_0000;

fn rule() -> RemapRule {
    RemapRule { bytes: 0x50_0000..0x50_0040, delta: DELTA }
}

fn clone(
    code: &mut CodeAssembler,
    redirects: &[u64],
    moved: &[(u64, u64)],
    enter: &[u64],
) -> Result<(LoopClone, Vec<Instruction>), RefusalReason> {
    let redirects: Vec<_> =
        redirects.iter().map(|offset| Redirect { ip: CODE + offset, rule: rule(), expected: None }).collect();
    clone_with(code, &redirects, moved, enter)
}

fn clone_with(
    code: &mut CodeAssembler,
    redirects: &[Redirect],
    moved: &[(u64, u64)],
    enter: &[u64],
) -> Result<(LoopClone, Vec<Instruction>), RefusalReason> {
    let image = MemoryImage { start: CODE, bytes: code.assemble(CODE).unwrap() };
    let flow = Flow::discover(&image, CODE).unwrap();
    let loops = flow.loops();
    let plan = ClonePlan {
        flow: &flow,
        within: &loops[0],
        liveness: &Liveness::of(&flow),
        redirects,
        moved,
        enter,
        at: AT,
        aligned: false,
    };
    let found = LoopClone::new(&plan).map_err(|error| error.reason().unwrap())?;
    let decoded = Decoder::with_ip(64, &found.code, AT, DecoderOptions::NONE).into_iter().collect();
    Ok((found, decoded))
}

/// 0: add [rdi], 1 (4); 4: add [rdi + 8], rcx (4); 8: dec ecx (2); a: jne 0 (2); c: ret
fn counter() -> CodeAssembler {
    let mut code = CodeAssembler::new(64).unwrap();
    let mut head = code.create_label();
    code.set_label(&mut head).unwrap();
    code.add(qword_ptr(rdi), 1).unwrap();
    code.add(qword_ptr(rdi + 8), rcx).unwrap();
    code.dec(ecx).unwrap();
    code.jne(head).unwrap();
    code.ret().unwrap();
    code
}

/// The clone's instructions from `from` on.
fn since(code: &[Instruction], from: u64) -> Vec<Code> {
    code.iter().filter(|instruction| instruction.ip() >= from).map(Instruction::code).collect()
}

#[test]
fn a_loop_invariant_base_adds_no_code_to_the_loop() {
    let (found, code) = clone(&mut counter(), &[0, 4], &[], &[]).unwrap();
    let head = found.map.iter().rfind(|(_, ip)| *ip == CODE).unwrap().0;
    let expected = [Code::Add_rm64_imm8, Code::Add_rm64_r64, Code::Dec_rm32, Code::Jne_rel8_64, Code::Jmp_rel32_64];
    assert_eq!(since(&code, head)[..5], expected);
    let copies: Vec<_> = code.iter().filter(|instruction| instruction.ip() >= head).collect();
    assert_eq!([0, 1].map(|index: usize| copies[index].memory_displacement64()), [0x2_0000, 0x2_0008]);
    assert_eq!((copies[3].near_branch_target(), copies[4].near_branch_target()), (head, CODE + 0xc));
    assert_eq!((found.entry, found.guards), (AT, 0));
    let first = code.iter().position(|instruction| instruction.ip() == found.entry).unwrap();
    let check = [Code::Cmp_r64_rm64, Code::Jb_rel8_64, Code::Cmp_r64_rm64, Code::Ja_rel8_64];
    assert_eq!(code[first..first + 4].iter().map(Instruction::code).collect::<Vec<_>>(), check, "one check for both");
    let word = |index: usize| {
        let at = usize::try_from(code[first + index].ip_rel_memory_address() - AT).unwrap();
        u64::from_le_bytes(found.code[at..at + 8].try_into().unwrap())
    };
    assert_eq!(word(2) - word(0), 0x40 - 16, "from the first value that is right to the last");
    assert_eq!(found.failures.iter().map(|(_, ip)| *ip).collect::<Vec<_>>(), [CODE]);
}

#[test]
fn jumps_to_overwritten_instructions_lead_to_their_copies() {
    let moved = [(CODE, 0x43_0000), (CODE + 4, 0x43_0004)];
    let (_, code) = clone(&mut counter(), &[0], &moved, &[]).unwrap();
    let outside: Vec<_> = code
        .iter()
        .filter(|instruction| instruction.code() == Code::Jmp_rel32_64)
        .map(Instruction::near_branch_target)
        .collect();
    assert_eq!(outside, [CODE + 0xc, 0x43_0000], "the exit, and the check that failed");
}

#[test]
fn a_changing_base_is_checked_before_its_access() {
    // 0: mov rax, [rbp - 8] (4); 4: add [rax], 1 (4); 8: mov rdx, [rax + 8] (4); c: dec ecx; jne 0;
    // ret
    let mut code = CodeAssembler::new(64).unwrap();
    let mut head = code.create_label();
    code.set_label(&mut head).unwrap();
    code.mov(rax, qword_ptr(rbp - 8)).unwrap();
    code.add(qword_ptr(rax), 1).unwrap();
    code.mov(rdx, qword_ptr(rax + 8)).unwrap();
    code.dec(ecx).unwrap();
    code.jne(head).unwrap();
    code.ret().unwrap();
    let (found, decoded) = clone(&mut code, &[4, 8], &[], &[]).unwrap();
    assert_eq!((found.guards, found.saving_guards), (1, 0), "one for both, which takes no register");
    assert_eq!(found.failures.iter().map(|(_, ip)| *ip).collect::<Vec<_>>(), [CODE + 4]);
    let expected = [
        Code::Mov_r64_rm64,
        Code::Cmp_r64_rm64,
        Code::Jb_rel8_64,
        Code::Cmp_r64_rm64,
        Code::Ja_rel8_64,
        Code::Add_rm64_imm8,
        Code::Mov_r64_rm64,
        Code::Dec_rm32,
    ];
    assert_eq!(since(&decoded, found.entry)[..8], expected);
    let at_block = clone(&mut code, &[4, 8], &[], &[CODE + 4]).unwrap().0;
    assert_eq!(at_block.entries.len(), 2);
    assert_eq!(clone(&mut code, &[4, 8], &[], &[CODE + 8]).unwrap_err(), RefusalReason::BehindCheck);
}

#[test]
fn loops_that_cannot_be_cloned_are_refused() {
    assert_eq!(clone(&mut counter(), &[0xc], &[], &[]).unwrap_err(), RefusalReason::NotInLoop);
    assert_eq!(clone(&mut counter(), &[8], &[], &[]).unwrap_err(), RefusalReason::NoMemory);
    assert_eq!(clone(&mut counter(), &[], &[], &[CODE + 0xc]).unwrap_err(), RefusalReason::NotInLoop);
}

#[test]
fn a_call_and_the_code_after_it_run_in_the_original() {
    // 0: add [rdi], 1 (4); 4: call rax (2); 6: add [rdi + 8], 1 (5); b: jmp 0
    let mut calls = CodeAssembler::new(64).unwrap();
    let mut head = calls.create_label();
    calls.set_label(&mut head).unwrap();
    calls.add(qword_ptr(rdi), 1).unwrap();
    calls.call(rax).unwrap();
    calls.add(qword_ptr(rdi + 8), 1).unwrap();
    calls.jmp(head).unwrap();
    let (found, code) = clone(&mut calls, &[0], &[], &[]).unwrap();
    let copied = found.map.iter().rfind(|(_, ip)| *ip == CODE).unwrap().0;
    assert_eq!(since(&code, copied)[..2], [Code::Add_rm64_imm8, Code::Jmp_rel32_64]);
    let jump = code.iter().find(|instruction| instruction.ip() > copied).unwrap();
    assert_eq!((jump.near_branch_target(), found.map.contains(&(jump.ip(), CODE + 4))), (CODE + 4, true));
    assert_eq!(clone(&mut calls, &[6], &[], &[]).unwrap_err(), RefusalReason::NotInLoop);
}

/// 0: mov rax, [rbp - 8] (4); 4: add [rax], 1 (4); 8: mov rax, [rbp - 8] (4); c: add [rax + 8], 1
/// (5); 11: add [rbp - 24], 1 (5); dec ecx; jne 0
fn by_a_slot(expected: [u64; 2]) -> (LoopClone, Vec<Instruction>) {
    let mut code = CodeAssembler::new(64).unwrap();
    let mut head = code.create_label();
    code.set_label(&mut head).unwrap();
    code.mov(rax, qword_ptr(rbp - 8)).unwrap();
    code.add(qword_ptr(rax), 1).unwrap();
    code.mov(rax, qword_ptr(rbp - 8)).unwrap();
    code.add(qword_ptr(rax + 8), 1).unwrap();
    code.add(qword_ptr(rbp - 24), 1).unwrap();
    code.dec(ecx).unwrap();
    code.jne(head).unwrap();
    code.ret().unwrap();
    let redirects = [(4, expected[0]), (0xc, expected[1])];
    let redirects: Vec<_> = redirects
        .into_iter()
        .map(|(offset, expected)| Redirect { ip: CODE + offset, rule: rule(), expected: Some(expected) })
        .collect();
    clone_with(&mut code, &redirects, &[], &[]).unwrap()
}

#[test]
fn a_slot_is_checked_once_for_its_expected_value() {
    let (found, code) = by_a_slot([0x50_0010, 0x50_0018]);
    assert_eq!((found.guards, found.saving_guards), (1, 0));
    let expected = [
        Code::Mov_r64_rm64,
        Code::Cmp_r64_rm64,
        Code::Jne_rel8_64,
        Code::Add_rm64_imm8,
        Code::Mov_r64_imm64,
        Code::Add_rm64_imm8,
        Code::Add_rm64_imm8,
    ];
    assert_eq!(since(&code, found.entry)[..7], expected);
    let own: Vec<_> = code.iter().filter(|instruction| instruction.ip() >= found.entry).collect();
    let word = own[1].ip_rel_memory_address();
    assert_eq!((own[4].op0_register(), own[4].immediate64()), (own[0].op0_register(), 0x50_0010), "it is known now");
    let at = usize::try_from(word - AT).unwrap();
    assert_eq!(found.code[at..at + 8], 0x50_0010_u64.to_le_bytes());
    assert_eq!(own[5].memory_displacement64(), 8 + DELTA.cast_unsigned());
}

#[test]
fn an_expected_value_outside_of_the_rule_is_ignored() {
    let (found, code) = by_a_slot([0x60_0010, 0x60_0018]);
    assert_eq!(found.guards, 2, "each by the range of what is right");
    assert!(code.iter().any(|instruction| instruction.code() == Code::Jb_rel8_64));
}

#[test]
fn the_copy_of_a_head_starts_a_line_on_request() {
    let mut code = counter();
    let image = MemoryImage { start: CODE, bytes: code.assemble(CODE).unwrap() };
    let flow = Flow::discover(&image, CODE).unwrap();
    let (loops, liveness) = (flow.loops(), Liveness::of(&flow));
    let redirects = [Redirect { ip: CODE, rule: rule(), expected: None }];
    let plan = ClonePlan {
        flow: &flow,
        within: &loops[0],
        liveness: &liveness,
        redirects: &redirects,
        moved: &[],
        enter: &[],
        at: AT + 16,
        aligned: false,
    };
    let (plain, aligned) =
        (LoopClone::new(&plan).unwrap(), LoopClone::new(&ClonePlan { aligned: true, ..plan }).unwrap());
    let head = |clone: &LoopClone| clone.map.iter().rfind(|(_, ip)| *ip == CODE).unwrap().0;
    assert_ne!(head(&plain) % 64, 0);
    assert_eq!((head(&aligned) % 64, aligned.at), (0, AT + 16));
    let padding = head(&aligned) - head(&plain);
    assert_eq!((aligned.entry, aligned.code.len() as u64), (plain.entry + padding, plain.code.len() as u64 + padding));
    assert!(aligned.code[..usize::try_from(padding).unwrap()].iter().all(|byte| *byte == 0xcc));
    let shifted: Vec<_> = plain.map.iter().map(|(at, ip)| (at + padding, *ip)).collect();
    assert_eq!(aligned.map, shifted);
}
