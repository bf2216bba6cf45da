//! The size of an access, from the instruction that made it.

use iced_x86::{Decoder, DecoderOptions};

/// The narrowest vector.
const VECTOR_BYTES: u64 = 16;

/// Whether an access of `bytes` bytes is that of a vector instruction, of which a part may be valid.
pub(crate) const fn is_vector(bytes: u64) -> bool {
    bytes >= VECTOR_BYTES
}

/// Bytes that the first instruction in `code` accesses; 0 if it is not recognised, or has no fixed
/// size.
pub(crate) fn bytes(code: &[u8]) -> u64 {
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    instruction.memory_size().size() as u64
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn the_operand_has_the_size() {
        // mov byte [rax], 0; mov rax, [rcx]; vmovdqu [rdi], ymm0; rep movsb; ret; no instruction
        for (code, size) in [
            (&[0xc6, 0x00, 0x00][..], 1),
            (&[0x48, 0x8b, 0x01], 8),
            (&[0xc5, 0xfe, 0x7f, 0x07], 32),
            (&[0xf3, 0xa4], 1),
            (&[0x06], 0),
            (&[], 0),
        ] {
            assert_eq!(bytes(code), size, "{code:02x?}");
        }
    }
}
