//! Prints the loops around an instruction: `cargo run -p fieldstone-rewrite --example loops`.

use fieldstone_rewrite::{Flow, LoopCounter, MemoryImage};

/// Address of the code.
const START: u64 = 0x40_0000;
/// A loop over a table: `add qword [rdi], 1; add rdi, 8; dec ecx; jne START; ret`.
const CODE: [u8; 13] = [0x48, 0x83, 0x07, 0x01, 0x48, 0x83, 0xc7, 0x08, 0xff, 0xc9, 0x75, 0xf4, 0xc3];

fn main() -> fieldstone_rewrite::Result<()> {
    let code = MemoryImage { start: START, bytes: CODE.to_vec() };
    let flow = Flow::discover(&code, START)?;
    for found in flow.loops() {
        println!("loop at {:#x}: {} blocks, {} exits", found.head, found.blocks.len(), found.exits.len());
        for instruction in flow.instructions_in(&found) {
            println!("  {:#x}  {:?}", instruction.ip(), instruction.code());
        }
        println!("  counter: {:?}", LoopCounter::of(&flow, &found));
    }
    Ok(())
}
