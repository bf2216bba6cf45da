//! What an invalid access or an invalid free did, and to which object.

use core::fmt;

/// The kind of a memory error, in the words of AddressSanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// An access past the end of a live object.
    HeapBufferOverflow = 1,
    /// An access before the start of a live object.
    HeapBufferUnderflow = 2,
    /// An access to an object after its free.
    UseAfterFree = 3,
    /// A free of an object that is already freed.
    DoubleFree = 4,
    /// A free of an address at which no object starts.
    InvalidFree = 5,
}

impl Kind {
    /// All kinds.
    const ALL: [Self; 5] =
        [Self::HeapBufferOverflow, Self::HeapBufferUnderflow, Self::UseAfterFree, Self::DoubleFree, Self::InvalidFree];

    /// The kind whose number, as by `kind as u32`, is `code`: for a record outside the process.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u32 == code)
    }

    /// The name in reports, for example `heap-buffer-overflow`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HeapBufferOverflow => "heap-buffer-overflow",
            Self::HeapBufferUnderflow => "heap-buffer-underflow",
            Self::UseAfterFree => "use-after-free",
            Self::DoubleFree => "double-free",
            Self::InvalidFree => "invalid-free",
        }
    }
}

/// The caller of an allocation or a free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trace<'a> {
    /// The thread's id, as of gettid(2). 0: the library asks the kernel.
    pub thread: u32,
    /// Words that describe the call stack, usually return addresses. At most
    /// [`MAX_FRAMES`](crate::MAX_FRAMES) are kept. The library only stores and compares them.
    pub frames: &'a [usize],
}

/// The number of a stack in the table of a [`Slots`](crate::Slots).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackId(pub(crate) u32);

impl StackId {
    /// No stack: the caller passed none, or the table was full.
    pub const NONE: Self = Self(0);

    /// The number, for a record outside the process.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// An allocation or a free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The stack; its frames are returned by [`Slots::frames`](crate::Slots::frames).
    pub stack: StackId,
    /// The thread's id, as of gettid(2).
    pub thread: u32,
}

/// An object as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// The address of its first byte.
    pub start: usize,
    /// Its size in bytes, as requested.
    pub bytes: usize,
}

/// A memory error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind.
    pub kind: Kind,
    /// The accessed or freed address. For [`Finding::padding`], the first byte that was changed.
    pub address: usize,
    /// The object. An invalid free in memory that never was an object has the freed address here,
    /// with 0 bytes.
    pub object: Object,
    /// For an overflow, the bytes from the object's end to the address (0: the first byte past the
    /// end). Otherwise the bytes from the object's start to the address, negative for an underflow.
    pub offset: isize,
    /// The object's allocation.
    pub allocated: Event,
    /// The object's free, if it is freed.
    pub freed: Option<Event>,
    /// Whether the error was found at the free of the object: a byte beside it was written some
    /// time before.
    pub padding: bool,
}

/// The kind, and where the address is in relation to the object:
/// `heap-buffer-overflow: 0 bytes after an object of 24 bytes at 0x7f1200001fe0`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Object { start, bytes } = self.object;
        write!(f, "{}: ", self.kind.name())?;
        let distance = self.offset.unsigned_abs();
        let unit = if distance == 1 { "byte" } else { "bytes" };
        match self.kind {
            Kind::InvalidFree if bytes == 0 => return write!(f, "no object at {start:#x}"),
            Kind::HeapBufferOverflow => write!(f, "{distance} {unit} after")?,
            _ if self.offset < 0 => write!(f, "{distance} {unit} before")?,
            _ => write!(f, "{distance} {unit} inside")?,
        }
        let state = if self.freed.is_some() { "a freed object" } else { "an object" };
        write!(f, " {state} of {bytes} bytes at {start:#x}")?;
        if self.padding { write!(f, ", written before its free") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn codes_come_back_as_they_were() {
        for code in 1..6 {
            assert_eq!(Kind::from_code(code).map(|kind| kind as u32), Some(code));
        }
        assert!(Kind::from_code(0).is_none() && Kind::from_code(6).is_none());
    }
}
