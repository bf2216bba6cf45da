//! The description of an address: memory kind, name, range, and the object there.

use std::ops::Range;

use fieldstone_sharing::{Member, ObjectLayout};

use super::globals::GlobalVariable;
use super::heap::HeapLookup;
use super::image::VariableSymbol;
use super::modules::LoadedModule;

/// The kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressKind {
    /// A global or static variable, or other memory of a loaded file.
    Global,
    /// A thread-local variable.
    ThreadLocal,
    /// Memory of malloc.
    Heap,
    /// Another mapping.
    Mapping,
    /// A stack.
    Stack,
    /// Nothing is mapped there.
    Nothing,
}

/// The description of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressInfo {
    /// The kind of memory.
    pub kind: AddressKind,
    /// The name in a report: a variable, `heap block of 136 bytes`, `stack of thread 17`, or a
    /// mapping. `libx.so+0x1234` if the file has no symbol for the address.
    pub name: String,
    /// The base name of the file that contains the variable; `None` for other memory.
    pub module: Option<String>,
    /// The addresses of the named memory; empty if a variable's size is unknown.
    pub range: Range<u64>,
    /// Bytes from the start of `range` to the address.
    pub offset: u64,
    /// The object, if it is known: a variable with its members, or a block with its size.
    /// [`super::Objects::infer_type`] may find a block's members.
    pub object: Option<ObjectLayout>,
    /// Why the description is incomplete; `None` if it is complete.
    pub unknown_reason: Option<&'static str>,
}

impl AddressInfo {
    pub(super) fn of(kind: AddressKind, name: String, range: Range<u64>, address: u64) -> Self {
        let offset = address.saturating_sub(range.start);
        Self { kind, name, module: None, range, offset, object: None, unknown_reason: None }
    }

    /// A variable known by debug info. `bias` is the distance from its address in the file to
    /// memory.
    fn of_variable(
        kind: AddressKind,
        module: &LoadedModule,
        variable: GlobalVariable,
        bias: u64,
        address: u64,
    ) -> Self {
        let start = variable.start.wrapping_add(bias);
        let range = start..start.saturating_add(variable.bytes);
        let layout = variable.layout;
        let object = ObjectLayout {
            name: layout.name,
            address: start,
            elements: layout.elements,
            stride: layout.stride,
            members: layout.members,
            on_heap: false,
        };
        Self {
            module: Some(module.name.clone()),
            object: object.check().is_ok().then_some(object),
            ..Self::of(kind, variable.name, range, address)
        }
    }

    /// A variable known by its symbol.
    fn of_symbol(kind: AddressKind, module: &LoadedModule, symbol: &VariableSymbol, bias: u64, address: u64) -> Self {
        let start = symbol.start.wrapping_add(bias);
        let range = start..start.saturating_add(symbol.bytes);
        Self {
            module: Some(module.name.clone()),
            object: Some(plain_object(symbol.name.clone(), &range, false)),
            ..Self::of(kind, symbol.name.clone(), range, address)
        }
    }
}

/// An object without known members.
fn plain_object(name: String, range: &Range<u64>, on_heap: bool) -> ObjectLayout {
    ObjectLayout {
        name,
        address: range.start,
        elements: 1,
        stride: range.end - range.start,
        members: Vec::new(),
        on_heap,
    }
}

/// The description of an address in memory of malloc. `mapping` is the range around the address.
pub(super) fn of_heap(lookup: HeapLookup, mapping: Range<u64>, address: u64) -> AddressInfo {
    match lookup {
        HeapLookup::Block(range) => {
            let name = format!("heap block of {} bytes", range.end - range.start);
            let object = Some(plain_object(name.clone(), &range, true));
            AddressInfo { object, ..AddressInfo::of(AddressKind::Heap, name, range, address) }
        }
        HeapLookup::Free(range) => AddressInfo {
            unknown_reason: Some("malloc has not allocated it, or it was freed"),
            ..AddressInfo::of(AddressKind::Heap, "free memory of the heap".to_owned(), range, address)
        },
        HeapLookup::Unknown(why) => AddressInfo {
            unknown_reason: Some(why),
            ..AddressInfo::of(AddressKind::Heap, "heap".to_owned(), mapping, address)
        },
        HeapLookup::NotMalloc => AddressInfo::of(AddressKind::Mapping, String::new(), mapping, address),
    }
}

/// The description of an address in the memory of a loaded file.
pub(super) fn of_module(module: &LoadedModule, address: u64, line_bytes: u64) -> AddressInfo {
    let file_address = address.wrapping_sub(module.bias);
    let line =
        file_address - file_address % line_bytes..(file_address - file_address % line_bytes).saturating_add(line_bytes);
    let known = module.image.debug().and_then(|debug| {
        let (globals, reader) = (debug.globals(), debug.reader());
        Some((globals.at(&reader, file_address)?, globals.within(&reader, &line)))
    });
    if let Some((variable, together)) = known {
        let is_on_line = variable.start >= line.start && variable.start + variable.bytes <= line.end;
        let info = AddressInfo::of_variable(AddressKind::Global, module, variable, module.bias, address);
        let members = together.into_iter().map(|other| Member {
            name: other.name,
            declaration: other.declaration,
            offset: other.start,
            bytes: other.bytes,
            alignment: 0,
        });
        return if is_on_line { joined(info, members.collect(), module.bias) } else { info };
    }
    if let Some(symbol) = module.image.symbol(file_address) {
        let is_on_line = symbol.start >= line.start && symbol.start + symbol.bytes <= line.end;
        let members = module.image.symbols_in(&line).into_iter().map(|other| Member {
            name: other.name.clone(),
            declaration: String::new(),
            offset: other.start,
            bytes: other.bytes,
            alignment: 0,
        });
        let info = AddressInfo::of_symbol(AddressKind::Global, module, symbol, module.bias, address);
        return if is_on_line { joined(info, members.collect(), module.bias) } else { info };
    }
    let name = format!("{}+{file_address:#x}", module.name);
    AddressInfo {
        module: Some(module.name.clone()),
        ..AddressInfo::of(AddressKind::Global, name, address..address, address)
    }
}

/// Replaces the object by one with all variables of the cache line as members. The offsets of
/// `members` are addresses in the file on entry.
fn joined(info: AddressInfo, mut members: Vec<Member>, bias: u64) -> AddressInfo {
    let Some(first) = members.first().map(|member| member.offset).filter(|_| members.len() > 1) else { return info };
    let end = members.iter().map(|member| member.offset.saturating_add(member.bytes)).max().unwrap_or(first);
    for member in &mut members {
        member.offset -= first;
    }
    let name = members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ");
    let address = first.wrapping_add(bias);
    let object = ObjectLayout { name, address, elements: 1, stride: end - first, members, on_heap: false };
    if object.check().is_ok() { AddressInfo { object: Some(object), ..info } } else { info }
}

/// The program's thread-local memory at `address`, for the thread with thread pointer `pointer`.
/// `None` if the address is outside of it.
pub(super) fn thread_local(program: &LoadedModule, pointer: u64, address: u64) -> Option<AddressInfo> {
    let (bytes, alignment) = program.image.local?;
    let start = pointer.checked_sub(bytes.checked_next_multiple_of(alignment)?)?;
    let offset = address.checked_sub(start).filter(|&offset| offset < bytes)?;
    let known = program.image.debug().and_then(|debug| debug.globals().local_at(&debug.reader(), offset));
    if let Some(variable) = known {
        return Some(AddressInfo::of_variable(AddressKind::ThreadLocal, program, variable, start, address));
    }
    if let Some(symbol) = program.image.local_symbol(offset) {
        return Some(AddressInfo::of_symbol(AddressKind::ThreadLocal, program, symbol, start, address));
    }
    let name = format!("{}: thread-local memory+{offset:#x}", program.name);
    Some(AddressInfo {
        module: Some(program.name.clone()),
        ..AddressInfo::of(AddressKind::ThreadLocal, name, start..start + bytes, address)
    })
}
