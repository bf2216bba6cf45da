//! The object that a cache line belongs to.

use crate::quantity::{address, bytes};
use crate::translation::sites::called;
use fieldstone_sharing::{Member, ObjectLayout};
use serde::{Deserialize, Serialize};

/// An object of the program, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryOwner {
    /// What kind of memory.
    pub kind: MemoryKind,
    /// Its name: of the variable, of a heap object's type, of a mapped file; empty where there is
    /// none.
    pub name: String,
    /// The program or library whose global it is.
    pub module: Option<String>,
    /// For a global its offset in the module, as `nm` shows it.
    pub offset: Option<u64>,
    /// Where it begins.
    pub address: u64,
    /// Its size; 0 where it is not known.
    pub bytes: u64,
    /// The call stack that allocated it, innermost first, each as `function (file:line)`; empty if
    /// unknown.
    pub allocated_by: Vec<String>,
    /// Its structure and elements, if debug information has them.
    pub object: Option<ObjectLayout>,
}

/// A kind of memory. Unknown ones, of a later version, read as `Unknown`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKind {
    /// A variable of a module.
    Global,
    /// Allocated by `malloc` or a similar function.
    Heap,
    /// Mapped by the program: a file, shared memory, memory of another allocator.
    Mapping,
    /// A thread's stack, or what is local to a thread.
    Stack,
    /// Not known.
    #[default]
    #[serde(other)]
    Unknown,
}

impl MemoryOwner {
    /// The names by which it can be ignored.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let allocated = self.allocated_by.first().map(|frame| called(frame).0);
        let typed = self.object.as_ref().map(|object| object.name.as_str());
        [Some(self.name.as_str()), typed, allocated].into_iter().flatten()
    }

    /// The shortest words for it: `queue`, `memory from parse`, `libgomp.so.1+0x4080`.
    pub(crate) fn short(&self) -> String {
        self.known_as().unwrap_or_else(|| format!("the {} at {}", self.kind.noun(), address(self.address)))
    }

    fn known_as(&self) -> Option<String> {
        let typed = self.object.as_ref().map(|object| &object.name);
        let named = [Some(&self.name), typed].into_iter().flatten().find(|name| !name.is_empty()).cloned();
        let allocated = || self.allocated_by.first().map(|frame| format!("memory from {}", called(frame).0));
        named.or_else(allocated).or_else(|| self.in_module())
    }

    /// All that is known: `lreg_args: 256 B of heap memory at 0x5581, allocated by main
    /// (lr.c:120)`.
    pub(crate) fn words(&self) -> String {
        let name = self.known_as();
        let size = if self.bytes > 0 { format!("{} ", bytes(self.bytes)) } else { String::new() };
        let kind = match self.kind {
            MemoryKind::Global => "in the globals".to_owned(),
            kind if self.bytes > 0 => format!("of {}", kind.noun()),
            kind => kind.noun().to_owned(),
        };
        let prefix = name.as_ref().map_or_else(String::new, |name| format!("{name}: "));
        let mut words = format!("{prefix}{size}{kind} at {}", address(self.address));
        if let Some(module) = self.in_module().filter(|module| Some(module) != name.as_ref()) {
            words += &format!(", {module}");
        }
        if !self.allocated_by.is_empty() {
            words += &format!(", allocated by {}", self.allocated_by.join(" ← "));
        }
        words
    }

    fn in_module(&self) -> Option<String> {
        let module = self.module.as_deref()?;
        let file = module.rsplit('/').next().unwrap_or(module);
        Some(self.offset.map_or_else(|| file.to_owned(), |offset| format!("{file}+{offset:#x}")))
    }

    /// Whether it contains this address.
    pub fn has(&self, at: u64) -> bool {
        let end = self.object.as_ref().map_or(self.bytes, |object| object.stride.saturating_mul(object.elements));
        (self.address..self.address.saturating_add(end.max(self.bytes))).contains(&at)
    }

    /// What is at this address: the element's number, where there are several, and the member.
    pub(crate) fn member(&self, at: u64) -> Option<(Option<u64>, &Member)> {
        let object = self.object.as_ref().filter(|object| object.stride > 0)?;
        let behind = at.checked_sub(object.address)?;
        let (element, offset) = (behind / object.stride, behind % object.stride);
        let has = |member: &&Member| (member.offset..member.offset.saturating_add(member.bytes)).contains(&offset);
        let member = object.members.iter().find(has).filter(|_| element < object.elements)?;
        Some(((object.elements > 1).then_some(element), member))
    }
}

impl MemoryKind {
    fn noun(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Heap => "heap memory",
            Self::Mapping => "mapped memory",
            Self::Stack => "stack or thread-local memory",
            Self::Unknown => "memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripped_global_is_named_by_its_offset() {
        let place = MemoryOwner {
            kind: MemoryKind::Global,
            module: Some("/usr/lib/libgomp.so.1".into()),
            offset: Some(0x4080),
            address: 0x7f00_0000_4080,
            ..MemoryOwner::default()
        };
        assert_eq!(place.short(), "libgomp.so.1+0x4080");
        assert_eq!(place.words(), "libgomp.so.1+0x4080: in the globals at 0x7f0000004080");
        let named = MemoryOwner { name: "stats".into(), bytes: 24, ..place };
        assert_eq!(named.words(), "stats: 24 B in the globals at 0x7f0000004080, libgomp.so.1+0x4080");
    }

    #[test]
    fn heap_memory_without_a_type_is_named_by_its_allocator() {
        let place = MemoryOwner {
            kind: MemoryKind::Heap,
            address: 0x5000,
            bytes: 128,
            allocated_by: vec!["parse (src/parse.c:7)".into(), "main (src/main.c:3)".into()],
            ..MemoryOwner::default()
        };
        assert_eq!(place.short(), "memory from parse");
        assert!(
            place
                .words()
                .ends_with("128 B of heap memory at 0x5000, allocated by parse (src/parse.c:7) ← main (src/main.c:3)")
        );
        assert_eq!(place.names().filter(|name| !name.is_empty()).collect::<Vec<_>>(), ["parse"]);
        let bare = MemoryOwner { allocated_by: Vec::new(), bytes: 0, ..place };
        assert_eq!(
            (bare.short().as_str(), bare.words().as_str()),
            ("the heap memory at 0x5000", "heap memory at 0x5000")
        );
    }

    #[test]
    fn members_are_found_by_address() {
        let member = |name: &str, offset, bytes| Member { name: name.into(), offset, bytes, ..Member::default() };
        let object = ObjectLayout {
            name: "slot".into(),
            address: 0x1010,
            elements: 2,
            stride: 24,
            members: vec![member("sum", 0, 8), member("next", 16, 8)],
            on_heap: true,
        };
        let place = MemoryOwner { address: 0x1000, bytes: 64, object: Some(object), ..MemoryOwner::default() };
        let name = |at| place.member(at).map(|(element, member)| (element, member.name.as_str()));
        assert_eq!(name(0x1010), Some((Some(0), "sum")));
        assert_eq!(name(0x1010 + 24 + 23), Some((Some(1), "next")));
        assert_eq!((name(0x1018), name(0x100f), name(0x1010 + 48)), (None, None, None));
        assert!(place.has(0x1000) && place.has(0x103f) && !place.has(0x1040));
    }
}
