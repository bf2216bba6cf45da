//! Where the frame of a function lies on the stack: what unwinding calls the canonical frame address, by `.eh_frame` or `.debug_frame`.

use std::fs::File;

use addr2line::gimli::{
    BaseAddresses, CfaRule, DebugFrame, EhFrame, EhFrameHdr, EhFrameOffset, EndianSlice, Expression, LittleEndian,
    Pointer, UnwindContext, UnwindSection,
};
use object::read::ReadCache;
use object::{Endianness, Object, ObjectSection};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// More of it is left alone.
const MOST_BYTES: u64 = 256 << 20;
const ADDRESS_BYTES: u8 = 8;

/// A file's tables.
#[derive(Debug, Default)]
pub(super) struct Frames {
    frame: Section,
    index: Section,
    debug: Section,
    text: u64,
}

#[derive(Debug, Default)]
struct Section {
    address: u64,
    bytes: Vec<u8>,
}

/// How the address is found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rule<'a> {
    /// A register, by DWARF's number, and what is added to it.
    Register(u16, i64),
    /// An expression.
    Expression(Expression<Slice<'a>>),
}

impl Frames {
    pub(super) fn read(file: &File) -> Option<Self> {
        let data = ReadCache::new(file);
        let file = object::read::elf::ElfFile64::<Endianness, _>::parse(&data).ok()?;
        let text = file.section_by_name(".text").map_or(0, |section| section.address());
        let section = |name| {
            let section = file.section_by_name(name)?;
            let data = section.compressed_data().ok().filter(|data| data.uncompressed_size <= MOST_BYTES)?;
            Some(Section { address: section.address(), bytes: data.decompress().ok()?.into_owned() })
        };
        let named = |name| section(name).unwrap_or_default();
        Some(Self { frame: named(".eh_frame"), index: named(".eh_frame_hdr"), debug: named(".debug_frame"), text })
    }

    /// The rule at an address in the file. Costs a search in the file's index; where it has none, a walk through all functions.
    pub(super) fn rule(&self, address: u64) -> Option<Rule<'_>> {
        self.by_index(address).or_else(|| self.by_frames(address)).or_else(|| {
            let mut section = DebugFrame::from(slice(&self.debug.bytes));
            section.set_address_size(ADDRESS_BYTES);
            rule(&section, &self.bases(), address, None)
        })
    }

    fn by_index(&self, address: u64) -> Option<Rule<'_>> {
        let bases = self.bases();
        let index = EhFrameHdr::from(slice(&self.index.bytes)).parse(&bases, ADDRESS_BYTES).ok()?;
        let table = index.table()?;
        let entry = table.lookup(address, &bases).and_then(Pointer::direct).ok()?;
        let offset = entry.checked_sub(index.eh_frame_ptr().direct().ok()?)?;
        rule(&self.eh_frame(), &bases, address, Some(EhFrameOffset(usize::try_from(offset).ok()?)))
    }

    fn by_frames(&self, address: u64) -> Option<Rule<'_>> {
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

/// The rule of the function whose entry is known, or else looked for.
fn rule<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    address: u64,
    entry: Option<S::Offset>,
) -> Option<Rule<'a>> {
    let function = match entry {
        Some(entry) => section.fde_from_offset(bases, entry, S::cie_from_offset),
        None => section.fde_for_address(bases, address, S::cie_from_offset),
    };
    let function = function.ok().filter(|function| function.contains(address))?;
    let mut context = UnwindContext::new();
    let row = function.unwind_info_for_address(section, bases, &mut context, address).ok()?;
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Some(Rule::Register(register.0, *offset)),
        CfaRule::Expression(expression) => expression.get(section).ok().map(Rule::Expression),
    }
}
