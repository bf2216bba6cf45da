//! Random bytes and random code: nothing panics, and the results are consistent.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use fieldstone_rewrite::{
    AccessSite, ClonePlan, Flow, LiveSet, Liveness, LoopClone, MemoryImage, Operand, Redirect, Registers, RemappedPage,
    Rewritelet, RewriteletForm, Walk,
};
use iced_x86::{Code, Decoder, DecoderOptions, InstructionInfoFactory};
use proptest::prelude::*;

const CODE: u64 = 0x40_0000;
const AT: u64 = 0x50_0000;

/// Pieces of code, some of them jumps or noise.
fn code() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        2 => Just(vec![0x48, 0x83, 0x07, 0x01]),                 // add qword [rdi], 1
        2 => Just(vec![0x8b, 0x44, 0x8f, 0x10]),                 // mov eax, [rdi + rcx * 4 + 16]
        2 => Just(vec![0x48, 0x8b, 0x45, 0xf8]),                 // mov rax, [rbp - 8]
        2 => Just(vec![0x48, 0x01, 0x48, 0x08]),                 // add [rax + 8], rcx
        1 => Just(vec![0xff, 0x05, 0x00, 0x10, 0x00, 0x00]),     // inc dword [rip + 0x1000]
        1 => Just(vec![0xf3, 0x48, 0xab]),                       // rep stosq
        1 => Just(vec![0xe8, 0x00, 0x00, 0x00, 0x00]),           // call
        1 => Just(vec![0xc3]),
        3 => (-60_i8..30).prop_map(|to| vec![0x75, to.cast_unsigned()]),
        1 => (-60_i8..30).prop_map(|to| vec![0xeb, to.cast_unsigned()]),
        1 => (-60_i8..30).prop_map(|to| vec![0xe3, to.cast_unsigned()]),
        2 => prop::collection::vec(any::<u8>(), 1..6),
    ];
    prop::collection::vec(piece, 1..40).prop_map(|pieces| pieces.concat())
}

fn registers(gpr: [u64; 16], rip: u64) -> Registers {
    Registers { gpr, rip, ..Registers::default() }
}

/// Each instruction is in one block, and blocks lead to blocks.
fn is_whole(flow: &Flow) -> Result<(), TestCaseError> {
    let in_blocks: usize = flow.blocks.values().map(|block| flow.instructions_of(block).count()).sum();
    prop_assert_eq!(in_blocks, flow.instructions.len());
    for block in flow.blocks.values() {
        prop_assert!(block.successors.iter().all(|next| flow.blocks.contains_key(next)));
        prop_assert!(!block.successors.is_empty() || !block.leaves.is_empty(), "it goes on somewhere");
        let mut at = block.start;
        for instruction in flow.instructions_of(block) {
            prop_assert_eq!(instruction.ip(), at);
            at = instruction.next_ip();
        }
        prop_assert_eq!(at, block.end);
    }
    Ok(())
}

/// Each mapped address starts an instruction: the original's copy, or a check before it.
fn maps(code: &[u8], at: u64, map: &[(u64, u64)], flow: &Flow) -> Result<(), TestCaseError> {
    let made: BTreeMap<u64, Code> = Decoder::with_ip(64, code, at, DecoderOptions::NONE)
        .into_iter()
        .map(|instruction| (instruction.ip(), instruction.code()))
        .collect();
    for (place, original) in map {
        let found = made.get(place);
        prop_assert!(found.is_some(), "{:#x} is inside an instruction", place);
        let original = flow.instructions[original];
        let is_copy = found == Some(&original.code());
        let begins_check = matches!(
            found,
            Some(Code::Mov_r64_imm64 | Code::Lea_r64_m | Code::Cmp_r64_rm64 | Code::Jmp_rel32_64 | Code::Jmp_rel8_64)
        );
        prop_assert!(is_copy || begins_check || original.op0_kind() == iced_x86::OpKind::NearBranch64, "{:?}", found);
    }
    Ok(())
}

fn page() -> RemappedPage {
    let rule = fieldstone_rewrite::RemapRule { bytes: 0x60_0100..0x60_0140, delta: 0x2_0000 };
    RemappedPage::new(0x60_0000, 0x1_0000, vec![rule]).unwrap()
}

/// 500 inputs per test, or more if `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(500), failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_is_read_is_whole(bytes in code(), gpr in any::<[u64; 16]>(), from in 0_u64..32) {
        let image = MemoryImage { start: CODE, bytes };
        let Ok(flow) = Flow::discover(&image, CODE + from) else { return Ok(()) };
        is_whole(&flow)?;
        let liveness = Liveness::of(&flow);
        for found in flow.loops() {
            prop_assert!(found.blocks.contains(&found.head) && found.blocks.contains(&flow.ip));
            let walk = Walk::around(&flow, Some(&found), &registers(gpr, flow.ip), &image);
            let size = flow.instructions_in(&found).count();
            prop_assert!(walk.steps <= size, "no block twice");
            // A walk from anywhere in the loop equals one of a flow from there.
            for instruction in flow.instructions_in(&found) {
                let walk = Walk::around(&flow, Some(&found), &registers(gpr, instruction.ip()), &image);
                prop_assert!(walk.steps <= size, "no instruction twice");
            }
        }
        for instruction in flow.instructions.values() {
            let before = liveness.before(instruction.ip());
            prop_assert!(before.flags & !LiveSet::ALL.flags == 0);
        }
    }

    #[test]
    fn whatever_is_made_is_mapped(bytes in code(), saved in any::<bool>()) {
        let image = MemoryImage { start: CODE, bytes };
        let Ok(flow) = Flow::discover(&image, CODE) else { return Ok(()) };
        let liveness = Liveness::of(&flow);
        let mut factory = InstructionInfoFactory::new();
        let page = page();
        for instruction in flow.instructions.values() {
            let live = if saved { LiveSet::ALL } else { liveness.before(instruction.ip()) };
            let site = AccessSite { instruction, live, moved: &[] };
            let forms = [RewriteletForm::Ladder(page.clone()), RewriteletForm::PerRule(page.rules[0].clone()), RewriteletForm::Displaced(0x2_0000)];
            for form in forms {
                let Ok(made) = Rewritelet::new(&site, &form, AT) else { continue };
                maps(&made.code, AT, &made.map, &flow)?;
            }
        }
        for within in flow.loops() {
            let accesses = flow.instructions_in(&within);
            let usable = accesses.filter(|instruction| {
                Operand::of(instruction, &mut factory).is_ok_and(|operand| !operand.is_absolute() && operand.bytes <= 64)
            });
            let redirects: Vec<Redirect> =
                usable.map(|found| Redirect { ip: found.ip(), rule: page.rules[0].clone(), expected: None }).collect();
            let plan = ClonePlan {
                flow: &flow,
                within: &within,
                liveness: &liveness,
                redirects: &redirects,
                moved: &[],
                enter: &[],
                at: AT,
                aligned: true,
            };
            match LoopClone::new(&plan) {
                Ok(made) => maps(&made.code, AT, &made.map, &flow)?,
                Err(refused) => prop_assert!(refused.reason().is_some()),
            }
        }
    }
}
