//! Finds the rule for the canonical frame address of a function in `.eh_frame` or `.debug_frame`.

use std::fs::File;

use addr2line::gimli::{
    BaseAddresses, CfaRule, DebugFrame, EhFrame, EhFrameHdr, EhFrameOffset, EndianSlice, Expression, LittleEndian,
    Pointer, UnwindContext, UnwindSection,
};
use object::read::ReadCache;
use object::{Endianness, Object, ObjectSection};

use super::dwarf::Slice;

/// Limit of a section. A larger section is not read.
const MAX_BYTES: u64 = 256 << 20;
const ADDRESS_BYTES: u8 = 8;

/// The unwind sections of a file.
#[derive(Debug, Default)]
pub(super) struct UnwindTables {
    frame: SectionBytes,
    index: SectionBytes,
    debug: SectionBytes,
    text: u64,
}

#[derive(Debug, Default)]
struct SectionBytes {
    address: u64,
    bytes: Vec<u8>,
}

/// The rule for the canonical frame address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameRule<'a> {
    /// The value of a register (DWARF number) plus an offset.
    Register(u16, i64),
    /// The value of a DWARF expression.
    Expression(Expression<Slice<'a>>),
}

impl UnwindTables {
    pub(super) fn read(file: &File) -> Option<Self> {
        let data = ReadCache::new(file);
        let file = object::read::elf::ElfFile64::<Endianness, _>::parse(&data).ok()?;
        let text = file.section_by_name(".text").map_or(0, |section| section.address());
        let section = |name| {
            let section = file.section_by_name(name)?;
            let data = section.compressed_data().ok().filter(|data| data.uncompressed_size <= MAX_BYTES)?;
            Some(SectionBytes { address: section.address(), bytes: data.decompress().ok()?.into_owned() })
        };
        let named = |name| section(name).unwrap_or_default();
        Some(Self { frame: named(".eh_frame"), index: named(".eh_frame_hdr"), debug: named(".debug_frame"), text })
    }

    /// The rule at an address in the file. Cost: a binary search in `.eh_frame_hdr`, or without
    /// that section a linear search over all functions.
    pub(super) fn rule(&self, address: u64) -> Option<FrameRule<'_>> {
        self.by_index(address).or_else(|| self.by_frames(address)).or_else(|| {
            let mut section = DebugFrame::from(slice(&self.debug.bytes));
            section.set_address_size(ADDRESS_BYTES);
            rule(&section, &self.bases(), address, None)
        })
    }

    fn by_index(&self, address: u64) -> Option<FrameRule<'_>> {
        let bases = self.bases();
        let index = EhFrameHdr::from(slice(&self.index.bytes)).parse(&bases, ADDRESS_BYTES).ok()?;
        let table = index.table()?;
        let entry = table.lookup(address, &bases).and_then(Pointer::direct).ok()?;
        let offset = entry.checked_sub(index.eh_frame_ptr().direct().ok()?)?;
        rule(&self.eh_frame(), &bases, address, Some(EhFrameOffset(usize::try_from(offset).ok()?)))
    }

    fn by_frames(&self, address: u64) -> Option<FrameRule<'_>> {
        rule(&self.eh_frame(), &self.bases(), address, None)
    }

    fn eh_frame(&self) -> EhFrame<Slice<'_>> {
        let mut section = EhFrame::from(slice(&self.frame.bytes));
        section.set_address_size(ADDRESS_BYTES);
        section
    }

    fn bases(&self) -> BaseAddresses {
        let bases = BaseAddresses::default().set_text(self.text);
        bases.set_eh_frame(self.frame.address).set_eh_frame_hdr(self.index.address)
    }
}

fn slice(bytes: &[u8]) -> Slice<'_> {
    EndianSlice::new(bytes, LittleEndian)
}

/// The rule in one section. `entry` is the offset of the function's entry; without it, it is
/// searched.
fn rule<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    address: u64,
    entry: Option<S::Offset>,
) -> Option<FrameRule<'a>> {
    let function = match entry {
        Some(entry) => section.fde_from_offset(bases, entry, S::cie_from_offset),
        None => section.fde_for_address(bases, address, S::cie_from_offset),
    };
    let function = function.ok().filter(|function| function.contains(address))?;
    let mut context = UnwindContext::new();
    let row = function.unwind_info_for_address(section, bases, &mut context, address).ok()?;
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Some(FrameRule::Register(register.0, *offset)),
        CfaRule::Expression(expression) => expression.get(section).ok().map(FrameRule::Expression),
    }
}
