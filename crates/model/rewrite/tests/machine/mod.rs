//! A machine of a test's own: memory, code in it that is run with given registers, and the agent's part in small.
//!
//! ```text
//!   CODE    the original             PAGE   the page that is remapped, inaccessible in rewritten runs
//!   CACHE   what was rewritten       HOME, VIEWS   where its bytes live then
//!   STACK   the code's own           PLAIN  memory that nobody remaps
//! ```
//! Code is entered and left by a piece of assembly that exchanges all general registers and flags with [`WalkState`]. Code ends by
//! a jump through memory to that piece. A fault on the page is answered as an agent would: the instruction is looked up, and the thread
//! goes on in its rewritelet.
#![allow(unsafe_code, reason = "runs code that was made a moment ago, on memory of its own")]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fieldstone_rewrite::Memory;

pub(crate) const CODE: u64 = 0;
pub(crate) const CACHE: u64 = 0x4000;
pub(crate) const PAGE: u64 = 0x4_0000;
pub(crate) const HOME: u64 = 0x5_0000;
pub(crate) const VIEWS: [u64; 2] = [0x6_0000, 0x7_0000];
pub(crate) const STACK: u64 = 0x8_0000;
pub(crate) const PLAIN: u64 = 0x9_0000;
const ALL_BYTES: usize = 0xa_0000;
/// A page out of reach of the code cache, and as far from the page as a view may be.
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
    // fieldstone_enter(state: rdi, entry: rsi): the host's registers to its stack, the state's to the processor.
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
    // Where the code ends: the processor's registers to the state, the host's from its stack. No flag changes before pushfq.
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
    fn fieldstone_enter(state: *mut WalkState, entry: u64);
    fn fieldstone_leave();
}

/// What code is run with, and what it leaves.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct WalkState {
    /// rax rcx rdx rbx rsp rbp rsi rdi r8 to r15.
    pub(crate) gpr: [u64; 16],
    pub(crate) flags: u64,
    pub(crate) host_rsp: u64,
}

/// What the handler of faults knows.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    /// Addresses in rewritten code, and the original instructions that they stand for.
    pub(crate) map: Vec<(u64, u64)>,
    /// Original instruction, first and last byte of its piece, rewritelet.
    pub(crate) rewritelets: Vec<(u64, u64, u64, u64)>,
    /// Faults that were answered.
    pub(crate) faults: AtomicUsize,
    /// Where a trap or a fault ended the run that nobody could answer.
    pub(crate) lost: AtomicUsize,
}

static AGENT: AtomicPtr<Agent> = AtomicPtr::new(ptr::null_mut());
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The memory, for one test at a time: there is one processor state and one handler.
pub(crate) struct Machine {
    start: *mut u8,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), RESERVED_BYTES, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let everything = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let far = start.wrapping_byte_add(usize::try_from(FAR).unwrap());
        for (place, bytes) in [(start, ALL_BYTES), (far, PAGE_BYTES)] {
            // SAFETY: inside the mapping, where nothing lies yet.
            let result = unsafe { libc::mprotect(place, bytes, everything) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        }
        for signal in [libc::SIGSEGV, libc::SIGILL] {
            answer(signal);
        }
        Self { start: start.cast(), _alone: alone }
    }

    /// The address of what lies at `offset`.
    pub(crate) fn at(&self, offset: u64) -> u64 {
        self.start.addr() as u64 + offset
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let from = usize::try_from(offset).unwrap();
        assert!(from + bytes.len() <= ALL_BYTES || offset == FAR && bytes.len() <= PAGE_BYTES);
        // SAFETY: inside the mapping and accessible, which is ours alone while the machine lives, and no code runs in it now.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(from), bytes.len()) }
    }

    pub(crate) fn bytes(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let from = usize::try_from(offset).unwrap();
        assert!(from + bytes <= ALL_BYTES || offset == FAR && bytes <= PAGE_BYTES);
        // SAFETY: inside the mapping and initialized by the kernel; nobody writes it now.
        unsafe { std::slice::from_raw_parts(self.start.add(from), bytes).to_vec() }
    }

    /// Makes the page inaccessible, or accessible again.
    pub(crate) fn protect(&self, accessible: bool) {
        let protection = if accessible { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let page = usize::try_from(PAGE).unwrap();
        // SAFETY: the page is part of the mapping, and nothing of Rust's lies there.
        let result = unsafe { libc::mprotect(self.start.add(page).cast(), PAGE_BYTES, protection) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// The bytes of a jump to where code ends.
    pub(crate) fn end() -> Vec<u8> {
        let mut jump = vec![0xff, 0x25, 0, 0, 0, 0];
        jump.extend((fieldstone_leave as *const () as u64).to_le_bytes());
        jump
    }

    /// Runs the code at `entry` until it ends, and gives what it leaves.
    pub(crate) fn run(&self, entry: u64, state: &WalkState, agent: &mut Agent) -> WalkState {
        let mut state = *state;
        AGENT.store(agent, Ordering::SeqCst);
        // SAFETY: entry is code that the test wrote into the mapping, whose stack pointer is in there too; it ends in
        // fieldstone_leave, by itself or by the handler. The registers that the ABI preserves are restored there.
        unsafe { fieldstone_enter(&raw mut state, entry) };
        AGENT.store(ptr::null_mut(), Ordering::SeqCst);
        state.host_rsp = 0;
        state
    }

    /// Where the next bytes of rewritten code may lie.
    pub(crate) fn room_from(&self, used: usize) -> u64 {
        assert!(used < CACHE_BYTES, "the code cache is full");
        self.at(CACHE) + used as u64
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: our own mapping, not used after this.
        unsafe { libc::munmap(self.start.cast(), RESERVED_BYTES) };
    }
}

impl Memory for Machine {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let Some(offset) = address.checked_sub(self.at(0)) else { return 0 };
        // The original code only: nothing else is code that was there before.
        let Some(room) = CACHE.checked_sub(offset) else { return 0 };
        let got = into.len().min(usize::try_from(room).unwrap());
        into[..got].copy_from_slice(&self.bytes(offset, got));
        got
    }
}

fn answer(signal: i32) {
    // SAFETY: all zeros is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler keeps to what a handler may do; the thread's alternate stack is the one that std gave it.
    let result = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// Sends the thread on: to the rewritelet, or to the end where there is none.
extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives both to a handler of this kind, for as long as it runs.
    let (address, frame) = unsafe { ((*info).si_addr().addr() as u64, &mut *context.cast::<libc::ucontext_t>()) };
    let rip = &mut frame.uc_mcontext.gregs[usize::try_from(libc::REG_RIP).unwrap_or(0)];
    // SAFETY: set by `run`, whose caller holds the agent until the code has ended.
    let Some(agent) = (unsafe { AGENT.load(Ordering::SeqCst).as_ref() }) else {
        // Not in code of ours: a bug of the test. The default action tells.
        // SAFETY: signal() is async-signal-safe.
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
