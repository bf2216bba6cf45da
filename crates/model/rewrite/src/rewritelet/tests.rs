//! The code of rewritelets. `tests/differential.rs` tests their behaviour.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Register};

use super::{AccessSite, Rewritelet, RewriteletForm};
use crate::error::RefusalReason;
use crate::liveness::LiveSet;
use crate::page::{RemapRule, RemappedPage};

const IP: u64 = 0x40_0000;
const AT: u64 = 0x41_0000;

fn rule(from: u64, to: u64, delta: i64) -> RemapRule {
    RemapRule { bytes: from..to, delta }
}

fn page() -> RemappedPage {
    RemappedPage::new(0x50_0000, 0x1_0000, vec![rule(0x50_0008, 0x50_0010, 0x2_0000)]).unwrap()
}

/// The rewritelet for an instruction with this live set, and its code.
fn made(bytes: &[u8], live: LiveSet, form: &RewriteletForm) -> Result<(Rewritelet, Vec<Instruction>), RefusalReason> {
    let instruction = Decoder::with_ip(64, bytes, IP, DecoderOptions::NONE).decode();
    let site = AccessSite { instruction: &instruction, live, moved: &[(IP + bytes.len() as u64, 0x42_0000)] };
    let found = Rewritelet::new(&site, form, AT).map_err(|error| error.reason().unwrap())?;
    let code = Decoder::with_ip(64, &found.code, AT, DecoderOptions::NONE).into_iter().collect();
    Ok((found, code))
}

fn codes(instructions: &[Instruction]) -> Vec<Code> {
    instructions.iter().map(Instruction::code).collect()
}

const ADD: [u8; 4] = [0x48, 0x83, 0x07, 0x01]; // add qword [rdi], 1

#[test]
fn a_known_address_needs_no_check() {
    let (found, code) = made(&ADD, LiveSet::ALL, &RewriteletForm::Displaced(0x2_0000)).unwrap();
    assert_eq!(codes(&code), [Code::Add_rm64_imm8, Code::Jmp_rel32_64]);
    assert_eq!((code[0].memory_base(), code[0].memory_displacement64()), (Register::RDI, 0x2_0000));
    assert_eq!(code[1].near_branch_target(), 0x42_0000, "what follows has been moved by a patch");
    assert_eq!(found.map, [(AT, IP)]);
}

#[test]
fn dead_registers_are_not_saved() {
    let rule = RewriteletForm::PerRule(rule(0x50_0008, 0x50_0010, 0x2_0000));
    let dead = LiveSet { registers: !1, flags: 0 };
    let (found, code) = made(&ADD, dead, &rule).unwrap();
    let expected = [
        Code::Mov_r64_imm64,
        Code::Lea_r64_m,
        Code::Cmp_rm64_imm32,
        Code::Ja_rel8_64,
        Code::Add_rm64_imm8,
        Code::Jmp_rel32_64,
        Code::Add_rm64_imm8,
        Code::Jmp_rel32_64,
    ];
    assert_eq!(codes(&code), expected);
    assert_eq!(
        (code[0].op0_register(), code[2].immediate(1)),
        (Register::RAX, 0),
        "eight bytes begin at the first only"
    );
    let displacements = [4, 6].map(|index: usize| code[index].memory_displacement64());
    assert_eq!(displacements, [0x2_0000, 0]);
    assert_eq!(found.map, [(AT, IP), (code[4].ip(), IP), (code[6].ip(), IP)]);
    let (_, saving) = made(&ADD, LiveSet::ALL, &rule).unwrap();
    assert_eq!(codes(&saving[..3]), [Code::Lea_r64_m, Code::Push_r64, Code::Pushfq]);
    assert_eq!(saving[0].memory_displacement64().cast_signed(), -128, "over the red zone");
}

#[test]
fn a_ladder_checks_each_piece_and_redirects_no_other_access() {
    let (_, code) = made(&ADD, LiveSet::ALL, &RewriteletForm::Ladder(page())).unwrap();
    let redirects: Vec<_> = code
        .iter()
        .filter(|instruction| instruction.code() == Code::Add_rm64_imm8)
        .map(Instruction::memory_displacement64)
        .collect();
    assert_eq!(redirects, [0, 0x1_0000, 0x2_0000, 0x1_0000]);
    let asks = |code: &[Instruction]| code.iter().filter(|one| one.code() == Code::Cmp_rm64_imm32).count();
    let byte = [0x80, 0x07, 0x01]; // add byte [rdi], 1
    let (_, of_byte) = made(&byte, LiveSet::ALL, &RewriteletForm::Ladder(page())).unwrap();
    assert!(asks(&of_byte) < asks(&code), "a byte is astride of nothing");
}

#[test]
fn absolute_addresses_are_checked_at_once() {
    let relative = |to: u32| {
        let mut bytes = vec![0x83, 0x05, 0, 0, 0, 0, 0x01]; // add dword [rip + …], 1
        bytes[2..6].copy_from_slice(&(to - u32::try_from(IP).unwrap() - 7).to_le_bytes());
        bytes
    };
    let ladder = RewriteletForm::Ladder(page());
    let (_, code) = made(&relative(0x50_0008), LiveSet::ALL, &ladder).unwrap();
    assert_eq!((code.len(), code[0].memory_displacement64()), (2, 0x52_0008));
    let (_, code) = made(&relative(0x50_0000), LiveSet::ALL, &ladder).unwrap();
    assert_eq!(code[0].memory_displacement64(), 0x51_0000, "the underlay");
    assert_eq!(made(&relative(0x50_0006), LiveSet::ALL, &ladder).unwrap_err(), RefusalReason::Straddles);
    let other = RewriteletForm::PerRule(rule(0x50_0010, 0x50_0018, 0x2_0000));
    assert_eq!(made(&relative(0x50_0008), LiveSet::ALL, &other).unwrap_err(), RefusalReason::OutsideRule);
}

#[test]
fn a_view_too_far_for_an_absolute_operand_is_accessed_through_a_register() {
    let bytes = [0xf0, 0x83, 0x05, 0, 0, 0, 0, 0x01]; // lock add dword [rip], 1
    let far = RewriteletForm::Displaced(0x7fff_f000);
    let instruction = Decoder::with_ip(64, &bytes, IP, DecoderOptions::NONE).decode();
    let site = AccessSite { instruction: &instruction, live: LiveSet { registers: !4, flags: u32::MAX }, moved: &[] };
    // Below the original code, so that the view is more than 2 GiB away.
    let found = Rewritelet::new(&site, &far, 0x1_0000).unwrap();
    let code: Vec<_> = Decoder::with_ip(64, &found.code, 0x1_0000, DecoderOptions::NONE).into_iter().collect();
    assert_eq!(codes(&code), [Code::Mov_r64_imm64, Code::Add_rm32_imm8, Code::Jmp_rel32_64]);
    assert_eq!((code[0].op0_register(), code[1].memory_base()), (Register::RDX, Register::RDX));
    assert_eq!(code[0].immediate(1), IP + 8 + 0x7fff_f000);
    assert!(code[1].has_lock_prefix());
}

#[test]
fn an_access_too_large_for_the_rule_is_refused() {
    let small = RewriteletForm::PerRule(rule(0x50_0008, 0x50_000c, 0x2_0000));
    assert_eq!(made(&ADD, LiveSet::ALL, &small).unwrap_err(), RefusalReason::Straddles);
}
