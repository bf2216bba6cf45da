//! What is told of an address: the place's words, and the object there.

use std::ops::Range;

use fieldstone_sharing::{Member, Object};

use super::globals::Global;
use super::heap::Found;
use super::image::Symbol;
use super::modules::Module;

/// What kind of memory an address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A variable, or other memory of a file that is loaded.
    Global,
    /// A variable of which each thread has its own.
    ThreadLocal,
    /// A block of malloc's.
    Heap,
    /// Another mapping.
    Mapping,
    /// A stack.
    Stack,
    /// Nothing is mapped there.
    Nothing,
}

/// Whose memory an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind of memory.
    pub kind: Kind,
    /// In a report's words: a variable's name, `heap block of 136 bytes`, `stack of thread 17`, a mapping's name; `libx.so+0x1234`
    /// where a file's symbols say nothing.
    pub name: String,
    /// The name of the file whose variable it is.
    pub module: Option<String>,
    /// Where what is named starts and ends. A variable of no known size has none of its own: then this is empty.
    pub range: Range<u64>,
    /// Bytes from its start to the address.
    pub offset: u64,
    /// What is there, where it is known: of a variable its members, of a block its size alone; [`super::Objects::typed`] may tell more.
    pub object: Option<Object>,
    /// What could not be told, and why.
    pub untold: Option<&'static str>,
}

impl Place {
    pub(super) fn of(kind: Kind, name: String, range: Range<u64>, address: u64) -> Self {
        let offset = address.saturating_sub(range.start);
        Self { kind, name, module: None, range, offset, object: None, untold: None }
    }

    /// A variable of a file, `bias` below where it is in memory.
    fn of_variable(kind: Kind, module: &Module, variable: Global, bias: u64, address: u64) -> Self {
        let start = variable.start.wrapping_add(bias);
        let range = start..start.saturating_add(variable.bytes);
        let layout = variable.layout;
        let object = Object {
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

    /// A variable of which the symbol alone is known.
    fn of_symbol(kind: Kind, module: &Module, symbol: &Symbol, bias: u64, address: u64) -> Self {
        let start = symbol.start.wrapping_add(bias);
        let range = start..start.saturating_add(symbol.bytes);
        Self {
            module: Some(module.name.clone()),
            object: Some(plain(symbol.name.clone(), &range, false)),
            ..Self::of(kind, symbol.name.clone(), range, address)
        }
    }
}

/// An object of which the size alone is known.
fn plain(name: String, range: &Range<u64>, on_heap: bool) -> Object {
    Object { name, address: range.start, elements: 1, stride: range.end - range.start, members: Vec::new(), on_heap }
}

/// What malloc says.
pub(super) fn of_heap(found: Found, mapping: Range<u64>, address: u64) -> Place {
    match found {
        Found::Block(range) => {
            let name = format!("heap block of {} bytes", range.end - range.start);
            let object = Some(plain(name.clone(), &range, true));
            Place { object, ..Place::of(Kind::Heap, name, range, address) }
        }
        Found::Free(range) => Place {
            untold: Some("malloc has not given it out, or has it back"),
            ..Place::of(Kind::Heap, "free memory of the heap".to_owned(), range, address)
        },
        Found::NotTold(why) => {
            Place { untold: Some(why), ..Place::of(Kind::Heap, "heap".to_owned(), mapping, address) }
        }
        Found::Elsewhere => Place::of(Kind::Mapping, String::new(), mapping, address),
    }
}

/// What a file says of its memory.
pub(super) fn of_module(module: &Module, address: u64, line_bytes: u64) -> Place {
    let own = address.wrapping_sub(module.bias);
    let line = own - own % line_bytes..(own - own % line_bytes).saturating_add(line_bytes);
    let known = module.image.debug().and_then(|debug| {
        let (globals, reading) = (debug.globals(), debug.reading());
        Some((globals.at(&reading, own)?, globals.within(&reading, &line)))
    });
    if let Some((variable, together)) = known {
        let whole = variable.start >= line.start && variable.start + variable.bytes <= line.end;
        let place = Place::of_variable(Kind::Global, module, variable, module.bias, address);
        let members = together.into_iter().map(|other| Member {
            name: other.name,
            declaration: other.declaration,
            offset: other.start,
            bytes: other.bytes,
            alignment: 0,
        });
        return if whole { joined(place, members.collect(), module.bias) } else { place };
    }
    if let Some(symbol) = module.image.symbol(own) {
        let whole = symbol.start >= line.start && symbol.start + symbol.bytes <= line.end;
        let members = module.image.symbols_in(&line).into_iter().map(|other| Member {
            name: other.name.clone(),
            declaration: String::new(),
            offset: other.start,
            bytes: other.bytes,
            alignment: 0,
        });
        let place = Place::of_symbol(Kind::Global, module, symbol, module.bias, address);
        return if whole { joined(place, members.collect(), module.bias) } else { place };
    }
    let name = format!("{}+{own:#x}", module.name);
    Place { module: Some(module.name.clone()), ..Place::of(Kind::Global, name, address..address, address) }
}

/// The place with all variables of its line as one object; `members` lie where they do in the file.
fn joined(place: Place, mut members: Vec<Member>, bias: u64) -> Place {
    let Some(first) = members.first().map(|member| member.offset).filter(|_| members.len() > 1) else { return place };
    let end = members.iter().map(|member| member.offset.saturating_add(member.bytes)).max().unwrap_or(first);
    for member in &mut members {
        member.offset -= first;
    }
    let name = members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ");
    let address = first.wrapping_add(bias);
    let object = Object { name, address, elements: 1, stride: end - first, members, on_heap: false };
    if object.check().is_ok() { Place { object: Some(object), ..place } } else { place }
}

/// The program's thread-local variable at `address`, where its thread pointer is `pointer`.
pub(super) fn local(program: &Module, pointer: u64, address: u64) -> Option<Place> {
    let (bytes, alignment) = program.image.local?;
    let start = pointer.checked_sub(bytes.checked_next_multiple_of(alignment)?)?;
    let offset = address.checked_sub(start).filter(|&offset| offset < bytes)?;
    let known = program.image.debug().and_then(|debug| debug.globals().local_at(&debug.reading(), offset));
    if let Some(variable) = known {
        return Some(Place::of_variable(Kind::ThreadLocal, program, variable, start, address));
    }
    if let Some(symbol) = program.image.local_symbol(offset) {
        return Some(Place::of_symbol(Kind::ThreadLocal, program, symbol, start, address));
    }
    let name = format!("{}: thread-local memory+{offset:#x}", program.name);
    Some(Place {
        module: Some(program.name.clone()),
        ..Place::of(Kind::ThreadLocal, name, start..start + bytes, address)
    })
}
