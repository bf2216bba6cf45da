//! The machine of a test: memory, code in it that runs with given registers, and a small fault
//! handler.
//!
//! ```text
//!   CODE    the original             PAGE   the remapped page, inaccessible in rewritten runs
//!   CACHE   rewritten code           HOME, VIEWS   its bytes in such runs
//!   STACK   the code's stack         PLAIN  memory that is not remapped
//! ```
//! Assembly code exchanges all general registers and flags with [`MachineState`] at entry and exit.
//! The code under test ends with a jump through memory to the exit. A fault on the page resumes the
//! thread in the rewritelet for the instruction.
#![allow(unsafe_code, reason = "runs code that was made a moment ago, on memory of its own")]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fieldstone_rewrite::ReadableMemory;

pub(crate) const CODE: u64 = 0;
pub(crate) const CACHE: u64 = 0x4000;
pub(crate) const PAGE: u64 = 0x4_0000;
pub(crate) const HOME: u64 = 0x5_0000;
pub(crate) const VIEWS: [u64; 2] = [0x6_0000, 0x7_0000];
pub(crate) const STACK: u64 = 0x8_0000;
pub(crate) const PLAIN: u64 = 0x9_0000;
const ALL_BYTES: usize = 0xa_0000;
/// A page out of reach of the code cache, and at the maximum distance of a view from the page.
pub(crate) const FAR: u64 = PAGE + 0x7fff_f000;
const RESERVED_BYTES: usize = 0x1_0000_0000;
const CACHE_BYTES: usize = 0x3_0000;
pub(crate) const STACK_BYTES: u64 = 0x4000;
pub(crate) const PAGE_BYTES: usize = 4096;

std::arch::global_asm!(
    ".pushsection .data",
    ".balign 8",
    "fieldstone_state: .quad 0",
    "fieldstone_entry: .quad 0",
    "fieldstone_rdi: .quad 0",
    ".popsection",
    // fieldstone_enter(state: rdi, entry: rsi): saves the host's registers on its stack and loads
    // those of the state.
    ".globl fieldstone_enter",
    "fieldstone_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rip + fieldstone_state], rdi",
    "mov [rip + fieldstone_entry], rsi",
    "mov [rdi + 136], rsp",
    "push qword ptr [rdi + 128]",
    "popfq",
    "mov rax, [rdi]",
    "mov rcx, [rdi + 8]",
    "mov rdx, [rdi + 16]",
    "mov rbx, [rdi + 24]",
    "mov rsp, [rdi + 32]",
    "mov rbp, [rdi + 40]",
    "mov rsi, [rdi + 48]",
    "mov r8, [rdi + 64]",
    "mov r9, [rdi + 72]",
    "mov r10, [rdi + 80]",
    "mov r11, [rdi + 88]",
    "mov r12, [rdi + 96]",
    "mov r13, [rdi + 104]",
    "mov r14, [rdi + 112]",
    "mov r15, [rdi + 120]",
    "mov rdi, [rdi + 56]",
    "jmp qword ptr [rip + fieldstone_entry]",
    // The exit: stores the registers in the state and restores the host's from its stack. No flag
    // changes before pushfq.
    ".globl fieldstone_leave",
    "fieldstone_leave:",
    "mov [rip + fieldstone_rdi], rdi",
    "mov rdi, [rip + fieldstone_state]",
    "mov [rdi], rax",
    "mov [rdi + 8], rcx",
    "mov [rdi + 16], rdx",
    "mov [rdi + 24], rbx",
    "mov [rdi + 32], rsp",
    "mov [rdi + 40], rbp",
    "mov [rdi + 48], rsi",
    "mov rax, [rip + fieldstone_rdi]",
    "mov [rdi + 56], rax",
    "mov [rdi + 64], r8",
    "mov [rdi + 72], r9",
    "mov [rdi + 80], r10",
    "mov [rdi + 88], r11",
    "mov [rdi + 96], r12",
    "mov [rdi + 104], r13",
    "mov [rdi + 112], r14",
    "mov [rdi + 120], r15",
    "mov rsp, [rdi + 136]",
    "pushfq",
    "pop qword ptr [rdi + 128]",
    "cld",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
);

unsafe extern "C" {
    fn fieldstone_enter(state: *mut MachineState, entry: u64);
    fn fieldstone_leave();
}

/// The registers before and after a run.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MachineState {
    /// rax rcx rdx rbx rsp rbp rsi rdi r8 to r15.
    pub(crate) gpr: [u64; 16],
    pub(crate) flags: u64,
    pub(crate) host_rsp: u64,
}

/// The data of the fault handler.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    /// Addresses in rewritten code, with the original instructions.
    pub(crate) map: Vec<(u64, u64)>,
    /// Original instruction, first and last byte of its piece, rewritelet.
    pub(crate) rewritelets: Vec<(u64, u64, u64, u64)>,
    /// Number of answered faults.
    pub(crate) faults: AtomicUsize,
    /// Address of a trap or fault without an answer, which ended the run.
    pub(crate) lost: AtomicUsize,
}

static AGENT: AtomicPtr<Agent> = AtomicPtr::new(ptr::null_mut());
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The memory, for one test at a time: there is only one handler.
pub(crate) struct TestMachine {
    start: *mut u8,
    _alone: MutexGuard<'static, ()>,
}

impl TestMachine {
    pub(crate) fn new() -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses a free address for the new mapping, so it overlaps no other
        // memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), RESERVED_BYTES, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let everything = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let far = start.wrapping_byte_add(usize::try_from(FAR).unwrap());
        for (place, bytes) in [(start, ALL_BYTES), (far, PAGE_BYTES)] {
            // SAFETY: the range is inside of the new mapping, which holds no objects yet.
            let result = unsafe { libc::mprotect(place, bytes, everything) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        }
        for signal in [libc::SIGSEGV, libc::SIGILL] {
            answer(signal);
        }
        Self { start: start.cast(), _alone: alone }
    }

    /// Address of an offset.
    pub(crate) fn at(&self, offset: u64) -> u64 {
        self.start.addr() as u64 + offset
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let from = usize::try_from(offset).unwrap();
        assert!(from + bytes.len() <= ALL_BYTES || offset == FAR && bytes.len() <= PAGE_BYTES);
        // SAFETY: the assertion keeps the range inside of the mapping, which only this machine
        // accesses. No code runs in it now.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(from), bytes.len()) }
    }

    pub(crate) fn bytes(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let from = usize::try_from(offset).unwrap();
        assert!(from + bytes <= ALL_BYTES || offset == FAR && bytes <= PAGE_BYTES);
        // SAFETY: the assertion keeps the range inside of the mapping, which the kernel has zeroed.
        // Nothing writes it now.
        unsafe { std::slice::from_raw_parts(self.start.add(from), bytes).to_vec() }
    }

    /// Makes the page accessible or inaccessible.
    pub(crate) fn protect(&self, accessible: bool) {
        let protection = if accessible { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let page = usize::try_from(PAGE).unwrap();
        // SAFETY: the page is inside of the mapping and holds no Rust objects.
        let result = unsafe { libc::mprotect(self.start.add(page).cast(), PAGE_BYTES, protection) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// A jump to the exit.
    pub(crate) fn end() -> Vec<u8> {
        let mut jump = vec![0xff, 0x25, 0, 0, 0, 0];
        jump.extend((fieldstone_leave as *const () as u64).to_le_bytes());
        jump
    }

    /// Runs the code at `entry` until it reaches the exit, and returns the state.
    pub(crate) fn run(&self, entry: u64, state: &MachineState, agent: &mut Agent) -> MachineState {
        let mut state = *state;
        AGENT.store(agent, Ordering::SeqCst);
        // SAFETY: `entry` is code that the test wrote into the mapping, and its stack is there too.
        // It ends in fieldstone_leave, by itself or by the handler, which restores the registers
        // that the ABI preserves.
        unsafe { fieldstone_enter(&raw mut state, entry) };
        AGENT.store(ptr::null_mut(), Ordering::SeqCst);
        state.host_rsp = 0;
        state
    }

    /// Address for the next rewritten code.
    pub(crate) fn room_from(&self, used: usize) -> u64 {
        assert!(used < CACHE_BYTES, "the code cache is full");
        self.at(CACHE) + used as u64
    }
}

impl Drop for TestMachine {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once, and no reference into the mapping outlives the machine.
        unsafe { libc::munmap(self.start.cast(), RESERVED_BYTES) };
    }
}

impl ReadableMemory for TestMachine {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let Some(offset) = address.checked_sub(self.at(0)) else { return 0 };
        // The original code only; the rest is no program code.
        let Some(room) = CACHE.checked_sub(offset) else { return 0 };
        let got = into.len().min(usize::try_from(room).unwrap());
        into[..got].copy_from_slice(&self.bytes(offset, got));
        got
    }
}

fn answer(signal: i32) {
    // SAFETY: `sigaction` consists of integers and pointers, for which zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `handle` calls async-signal-safe functions only. Its stack is the alternate one that
    // std set up.
    let result = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// Resumes the thread in the rewritelet, or at the exit if there is none.
extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers to an SA_SIGINFO handler while it runs.
    let (address, frame) = unsafe { ((*info).si_addr().addr() as u64, &mut *context.cast::<libc::ucontext_t>()) };
    let rip = &mut frame.uc_mcontext.gregs[usize::try_from(libc::REG_RIP).unwrap_or(0)];
    // SAFETY: `run` has set the pointer, and its caller keeps the agent until the code has ended.
    let Some(agent) = (unsafe { AGENT.load(Ordering::SeqCst).as_ref() }) else {
        // The fault is outside of the code under test: a bug of the test. The default action
        // reports it. SAFETY: signal() is async-signal-safe and gets valid arguments.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    };
    let at = rip.cast_unsigned();
    let original = agent.map.iter().find(|(place, _)| *place == at).map_or(at, |(_, original)| *original);
    let serves = |entry: &&(u64, u64, u64, u64)| entry.0 == original && (entry.1..=entry.2).contains(&address);
    let found = agent.rewritelets.iter().find(serves).filter(|_| signal == libc::SIGSEGV);
    match found {
        Some((_, _, _, rewritelet)) if agent.faults.fetch_add(1, Ordering::SeqCst) < 100_000 => {
            *rip = rewritelet.cast_signed();
        }
        _ => {
            agent.lost.store(usize::try_from(at).unwrap_or(1), Ordering::SeqCst);
            *rip = (fieldstone_leave as *const () as u64).cast_signed();
        }
    }
}
