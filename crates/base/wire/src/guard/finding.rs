//! A finding in the mailbox of `run --guard`.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Return addresses of a stack; a deeper stack loses its outermost frames.
pub const FRAMES: usize = 48;
/// Bytes of code at the faulting instruction: the longest x86-64 instruction.
pub const CODE_BYTES: usize = 16;

/// How a finding was noticed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load of the program.
    Read = 0,
    /// A store of the program.
    Write = 1,
    /// A call of free, realloc or delete.
    Free = 2,
    /// Changed padding behind an object, found when it was freed.
    Padding = 3,
}

impl Access {
    /// The access with this code.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Free,
            3 => Self::Padding,
            _ => return None,
        })
    }
}

/// The object that a finding is about.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A guarded object.
    Object = 0,
    /// A thread's stack: an invalid free.
    Stack = 1,
    /// A loaded file: an invalid free of a global variable or of code.
    File = 2,
}

impl Place {
    /// The place with this code.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::Object,
            1 => Self::Stack,
            2 => Self::File,
            _ => return None,
        })
    }
}

/// A stack: return addresses, innermost first.
#[repr(C)]
#[derive(Debug)]
pub struct Stack {
    depth: AtomicU32,
    frames: [AtomicU64; FRAMES],
}

impl Stack {
    /// Replaces the stack. Frames past the capacity are left out.
    pub fn store(&self, frames: &[usize]) {
        for (to, from) in self.frames.iter().zip(frames) {
            to.store(*from as u64, Relaxed);
        }
        #[allow(clippy::cast_possible_truncation, reason = "at most the capacity")]
        self.depth.store(frames.len().min(FRAMES) as u32, Relaxed);
    }

    /// The frames.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = u64> {
        let depth = self.depth.load(Relaxed) as usize;
        self.frames[..depth.min(FRAMES)].iter().map(|frame| frame.load(Relaxed))
    }
}

/// The owner of a cell.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellState {
    /// No process.
    Free = 0,
    /// A process fills it.
    Filling = 1,
    /// A process waits for the answer.
    Waiting = 2,
    /// The supervisor has printed it.
    Answered = 3,
}

/// A finding of a process.
#[repr(C)]
#[derive(Debug)]
pub struct FindingCell {
    /// A [`CellState`]; also the futex on which the process waits.
    pub state: AtomicU32,
    /// Number of claims so far.
    pub turn: AtomicU32,
    /// The process, in its own pid namespace.
    pub pid: AtomicU32,
    /// The thread that found it.
    pub thread: AtomicU32,
    /// A `fieldstone_guard::Kind`.
    pub kind: AtomicU32,
    /// An [`Access`].
    pub access: AtomicU32,
    /// A [`Place`].
    pub place: AtomicU32,
    /// The address of the access or of the free.
    pub address: AtomicU64,
    /// Bytes of the access; 0 if unknown: [`Self::code`] has the instruction.
    pub bytes: AtomicU64,
    /// Bytes past the end (overflow), before the start (underflow), or from the start.
    pub offset: AtomicU64,
    /// First address of the object.
    pub object: AtomicU64,
    /// Bytes of the object as requested.
    pub object_bytes: AtomicU64,
    /// The instructions at the fault, eight bytes a word in the order of the machine.
    pub code: [AtomicU64; CODE_BYTES / 8],
    /// Non-zero if the first frame of [`Self::stack`] is an instruction, not a return address.
    pub faulted: AtomicU32,
    /// The thread that allocated the object.
    pub allocated_by: AtomicU32,
    /// The thread that freed the object; 0 if it was not freed.
    pub freed_by: AtomicU32,
    /// Allocations of the object's site so far.
    pub site_allocations: AtomicU64,
    /// Guarded ones among them.
    pub site_guarded: AtomicU64,
    /// Where it was found.
    pub stack: Stack,
    /// Where the object was allocated.
    pub allocated: Stack,
    /// Where the object was freed.
    pub freed: Stack,
}

impl FindingCell {
    /// Claims the cell. Returns its turn; `None` if another process uses it.
    pub fn claim(&self) -> Option<u32> {
        let state = self.state.load(Relaxed);
        let is_usable = state == CellState::Free as u32 || state == CellState::Answered as u32;
        let claimed =
            is_usable && self.state.compare_exchange(state, CellState::Filling as u32, AcqRel, Relaxed).is_ok();
        claimed.then(|| self.turn.fetch_add(1, AcqRel).wrapping_add(1))
    }

    /// Whether the claim `turn` still waits for an answer.
    pub fn is_waiting(&self, turn: u32) -> bool {
        self.turn.load(Acquire) == turn && self.state.load(Acquire) == CellState::Waiting as u32
    }

    /// Withdraws a finding without an answer. False if it was answered meanwhile.
    pub fn withdraw(&self) -> bool {
        self.state.compare_exchange(CellState::Waiting as u32, CellState::Free as u32, AcqRel, Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use core::sync::atomic::Ordering::Release;

    use super::*;

    #[test]
    fn a_cell_is_claimed_once_and_again_after_its_answer() {
        let layout = std::alloc::Layout::new::<FindingCell>();
        let cell = FindingCell {
            state: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            pid: AtomicU32::new(0),
            thread: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            access: AtomicU32::new(0),
            place: AtomicU32::new(0),
            address: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            object: AtomicU64::new(0),
            object_bytes: AtomicU64::new(0),
            code: [const { AtomicU64::new(0) }; CODE_BYTES / 8],
            faulted: AtomicU32::new(0),
            allocated_by: AtomicU32::new(0),
            freed_by: AtomicU32::new(0),
            site_allocations: AtomicU64::new(0),
            site_guarded: AtomicU64::new(0),
            stack: empty(),
            allocated: empty(),
            freed: empty(),
        };
        assert!(layout.size() > 3 * FRAMES * 8);
        assert_eq!((cell.claim(), cell.claim()), (Some(1), None));
        cell.state.store(CellState::Waiting as u32, Release);
        assert!(cell.is_waiting(1) && !cell.is_waiting(2) && cell.claim().is_none());
        cell.state.store(CellState::Answered as u32, Release);
        assert!(!cell.is_waiting(1) && !cell.withdraw());
        assert_eq!(cell.claim(), Some(2));
        cell.state.store(CellState::Waiting as u32, Release);
        assert!(cell.withdraw() && cell.claim() == Some(3));
    }

    fn empty() -> Stack {
        Stack { depth: AtomicU32::new(0), frames: [const { AtomicU64::new(0) }; FRAMES] }
    }

    #[test]
    fn a_stack_keeps_its_innermost_frames() {
        let stack = empty();
        let frames: std::vec::Vec<usize> = (1..=FRAMES + 5).collect();
        stack.store(&frames);
        assert!(stack.frames().eq(1..=FRAMES as u64));
        stack.store(&[7]);
        assert!(stack.frames().eq([7]));
    }

    #[test]
    fn codes_come_back_as_they_were() {
        for code in 0..4 {
            assert_eq!(Access::from_code(code).map(|access| access as u32), Some(code));
        }
        assert!(Access::from_code(4).is_none() && Place::from_code(3).is_none());
    }
}
