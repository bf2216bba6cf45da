//! Patches of assembled heads.

use iced_x86::{Decoder, DecoderOptions};

use super::{HeadPatch, Pun};
use crate::error::RefusalReason;
use crate::flow::Flow;
use crate::memory::{MemoryImage, ReadableMemory};

const HEAD: u64 = 0x40_1000;

fn patch(bytes: &[u8]) -> Result<HeadPatch, RefusalReason> {
    let image = MemoryImage { start: HEAD, bytes: bytes.to_vec() };
    let flow = Flow::discover(&image, HEAD).unwrap();
    let mut original = [0; 5];
    assert_eq!(image.read(HEAD, &mut original), 5);
    HeadPatch::new(&flow, HEAD, original).map_err(|error| error.reason().unwrap())
}

/// add rax, [rdi]; dec ecx; jne head; ret
const SHORT: [u8; 8] = [0x48, 0x03, 0x07, 0xff, 0xc9, 0x75, 0xf9, 0xc3];

#[test]
fn overwritten_instructions_start_with_traps() {
    let found = patch(&SHORT).unwrap();
    // The second instruction begins at the third byte of the displacement.
    assert_eq!((found.pun.mask, found.pun.value), (0x00ff_0000, 0x00cc_0000));
    let entry = found.pun.entry_from(0x41_0000).unwrap();
    assert!(found.pun.allows(entry) && entry >= 0x41_0000);
    let writes = found.writes(entry).unwrap();
    let bytes: Vec<_> = writes.iter().map(|write| (write.address - HEAD, write.bytes.clone())).collect();
    assert_eq!((bytes[0].clone(), bytes[2].clone()), ((0, vec![0xcc]), (0, vec![0xe9])));
    assert_eq!((bytes[1].0, bytes[1].1[2]), (1, 0xcc));
    let mut jump = vec![0xe9];
    jump.extend(&bytes[1].1);
    let jump = Decoder::with_ip(64, &jump, HEAD, DecoderOptions::NONE).decode();
    assert_eq!(jump.near_branch_target(), entry);
    assert_eq!(found.writes(entry + 0x1_0000).unwrap_err().reason(), Some(RefusalReason::Pun));
    assert_eq!(found.writes(HEAD + (1 << 32)).unwrap_err().reason(), Some(RefusalReason::OutOfReach));
    let undo: Vec<u8> = found.undo()[1..].iter().rev().flat_map(|write| write.bytes.clone()).collect();
    assert_eq!(undo, SHORT[..5]);
}

#[test]
fn one_long_instruction_permits_any_entry() {
    // add qword [rdi + 8], 1; jne head; ret
    let found = patch(&[0x48, 0x83, 0x47, 0x08, 0x01, 0x75, 0xf9, 0xc3]).unwrap();
    assert_eq!((found.pun.mask, found.pun.entry_from(0x41_2345)), (0, Some(0x41_2345)));
}

#[test]
fn a_head_copy_continues_behind_the_overwritten_instructions() {
    let found = patch(&SHORT).unwrap();
    let copy = found.copy_at(0x42_0000).unwrap();
    let code: Vec<_> = Decoder::with_ip(64, &copy.code, copy.at, DecoderOptions::NONE).into_iter().collect();
    assert_eq!(copy.code[..5], SHORT[..5]);
    assert_eq!((code.len(), code[2].near_branch_target()), (3, HEAD + 5));
    assert_eq!(copy.moved, [(HEAD, 0x42_0000), (HEAD + 3, 0x42_0003)]);
}

#[test]
fn heads_that_cannot_be_overwritten_are_refused() {
    // dec ecx; inner: dec edx; dec eax; jne inner; jmp head
    assert_eq!(
        patch(&[0xff, 0xc9, 0xff, 0xca, 0xff, 0xc8, 0x75, 0xfa, 0xeb, 0xf6]).unwrap_err(),
        RefusalReason::InnerTarget
    );
    // dec ecx; ret, and unknown code behind it
    assert_eq!(patch(&[0xff, 0xc9, 0xc3, 0x06, 0x06]).unwrap_err(), RefusalReason::ShortHead);
    // dec ecx; call rax; dec ecx
    assert_eq!(patch(&[0xff, 0xc9, 0xff, 0xd0, 0xff, 0xc9]).unwrap_err(), RefusalReason::Call);
}

#[test]
fn the_next_entry_is_the_nearest_permitted_one() {
    for (mask, value) in [(0, 0), (0xff, 0xcc), (0xff00, 0xcc00), (0xff_ff00, 0xcc_cc00), (0xff00_00ff, 0xcc00_00cc)] {
        let pun = Pun { after: 0x1_0000_0000, mask, value };
        for from in
            [0x8000_0000_u64, 0xcc00_0000, 0xcc00_00cd, 0xfff0_1234, 0x1_0000_0000, 0x1_00cc_cc01, 0x1_7f00_0000]
        {
            let naive = (from..from + 0x2_0000).find(|entry| pun.allows(*entry));
            let found = pun.entry_from(from);
            // If the naive search finds none, the nearest may be further away.
            assert!(naive.is_none() || found == naive, "{mask:x} from {from:x}: {found:x?}, not {naive:x?}");
            assert!(found.is_none_or(|entry| entry >= from && pun.allows(entry)));
        }
    }
    let negative = Pun { after: 0x1_0000_0000, mask: 0xff00_0000, value: 0xcc00_0000 };
    assert_eq!(negative.entry_from(0x1_0000_0000), None, "only lower ones");
    assert_eq!(negative.entry_from(0), Some(0xcc00_0000));
}
