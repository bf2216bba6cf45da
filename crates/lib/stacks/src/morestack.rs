//! `__morestack`: where a compiled prologue goes that finds too little room on its stack.
//!
//! # What gcc and clang emit
//! ```text
//! f:      cmp  %fs:0x70, %rsp        frames below 256 bytes; larger ones compare rsp - size, in r11
//!         jb   slow
//! body:   …
//! slow:   mov  $size, %r10d          bytes of the frame
//!         mov  $arguments, %r11d     bytes of the arguments that lie on the stack
//!         call __morestack
//!         ret                        to f's caller, when the body has returned to us
//!         …                          the return address + 1: on to the body
//! ```
//! All argument registers are in use: rax (the count of vector arguments), rdi, rsi, rdx, rcx, r8, r9, and the vector registers.
//! The results are in rax, rdx, xmm0, xmm1 and the x87 stack.
//!
//! # The stack, when the body runs on another segment
//! ```text
//!   the old segment                                the new segment
//!   │ arguments of f          │ rbp + 24           │ Segment                 │
//!   ├─────────────────────────┤                    ├─────────────────────────┤ high
//!   │ return to f's caller    │ rbp + 16           │ arguments of f, copied  │
//!   │ return into f, at `ret` │ rbp + 8            ├─────────────────────────┤ 16-aligned
//!   │ rbp of f's caller       │ ◄── rbp            │ return to `left` below  │
//!   ├ the full way only ──────┤                    │ frame of f              │
//!   │ rax                     │ rbp - 8            │          ▼              │
//!   │ rdi                     │ rbp - 16           └─────────────────────────┘
//!   │ current, as found       │ rbp - 24
//!   │ guard, as found         │ rbp - 32
//!   │ the new segment         │ rbp - 40
//!   │ where it was entered    │ rbp - 48
//!   └─────────────────────────┘
//! ```
//! Each call has its return, so that the processor's return predictor stays in step: f's caller with f's `ret`, `call __morestack`
//! with ours, and our call of the body with the body's.
//!
//! # Signals
//! None is blocked on the way from one segment to the next. The guard is [`SWITCHING`](crate::thread::SWITCHING) in between, so that
//! a handler's prologues come here, too. The order makes each point safe: guard to SWITCHING; only then the next segment is looked for,
//! which nobody gives back from then on; where it was entered from, and who comes before it; current to it; rsp there; arguments;
//! guard to the new segment's. On the way back: guard to SWITCHING; rsp; whether the segment is still as it was entered, and the
//! current one; who came before; current; the guard as it was found.
//!
//! # Unwinding
//! The rule for the frame is CFA = rbp + 24, with the return address of *f's caller*: the `ret` in f is passed over, and a backtrace
//! shows f's body, `__morestack`, f's caller. gdb accepts that the stack jumps because of the function's name. An exception that
//! passes through runs a cleanup (`thrown`), which sets current and the guard back; the personality is that of C's cleanups.
//!
//! # Cost
//! The quick way is bound by its stores, ten with those of the calls, and by what waits for them; hence it keeps nothing that can be found
//! again, takes the current segment on trust until it is compared, and there is a full way for what is rare: arguments on the stack, a
//! handler in the middle of a switch, a segment that is not there.

#![allow(unsafe_code, reason = "assembly")]

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::segment::offset;
use crate::thread::SWITCHING;

/// What XSAVE keeps while the slow path runs: SSE, AVX, AVX-512. Not x87, which it does not touch. 0 without XSAVE.
static KEPT_REGISTERS: AtomicU32 = AtomicU32::new(0);
/// What they take: x87 and SSE 512, XSAVE's header 64, AVX 256; AVX-512 up to byte 2688, with a hole for what is not kept. The least that
/// does, since the stack may be a signal handler's.
static KEPT_BYTES: AtomicU32 = AtomicU32::new(2688);

/// Finds out which registers there are to keep: before the slow path is first taken.
pub(crate) fn find_registers() {
    use core::arch::x86_64::{__cpuid, _xgetbv};
    const OSXSAVE: u32 = 1 << 27;
    const KEPT: u64 = 0xe6;

    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: register 0 is there where XSAVE is.
        unsafe { _xgetbv(0) }
    }
    if __cpuid(1).ecx & OSXSAVE != 0 {
        // SAFETY: the processor has XSAVE, and the system has switched it on.
        let mask = unsafe { enabled() } & KEPT;
        const AVX: u64 = 1 << 2;
        let bytes = if mask & !0b111 != 0 { 2688 } else { 576 + if mask & AVX != 0 { 256 } else { 0 } };
        KEPT_BYTES.store(bytes, Ordering::Relaxed);
        KEPT_REGISTERS.store(u32::try_from(mask).unwrap_or(0), Ordering::Relaxed);
    }
}

global_asm!(
    ".pushsection .text.__morestack, \"ax\", @progbits",
    ".globl __morestack",
    ".type __morestack, @function",
    ".p2align 6",
    "__morestack:",
    ".Lfieldstone_begin:",
    ".cfi_startproc",
    ".cfi_personality 0x9b, .Lfieldstone_personality",
    ".cfi_lsda 0x1b, .Lfieldstone_lsda",
    // The frame begins at f's caller.
    ".cfi_def_cfa rsp, 16",
    "push rbp",
    ".cfi_def_cfa_offset 24",
    ".cfi_offset rbp, -24",
    // The quick way, in few stores: they are what it costs. No arguments on the stack, no switch or jump going on; we are in the
    // current segment, and the next one is there, has room enough, and no memory of alloca. Where there is a guard there is a segment.
    "test r11, r11",
    "jnz 31f",
    "cmp qword ptr fs:[0x70], {LOST}",
    "jae 32f",
    // The current segment is the one that was left here last, as a rule. Taken from there and compared, it need not wait for the store
    // of who came back from the call before: a loop's calls overlap.
    "mov r11, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
    "mov rbp, qword ptr fs:[r11 + {LAST_FROM}]",
    "cmp rbp, qword ptr fs:[r11]",
    "jne 36f",
    "37:",
    "cmp rsp, qword ptr [rbp + {LOW}]",
    "jb 32f",
    "cmp rsp, qword ptr [rbp + {HIGH}]",
    "ja 32f",
    "mov qword ptr fs:[0x70], {SWITCHING}",
    "mov r11, qword ptr [rbp + {NEXT}]",
    "test r11, r11",
    "jz 35f",
    "cmp r10, qword ptr [r11 + {ROOM}]",
    "ja 35f",
    "cmp qword ptr [r11 + {DYNAMIC}], 0",
    "jne 35f",
    "mov qword ptr [r11 + {ENTERED_FROM}], rsp",
    "mov qword ptr [r11 + {PREV}], rbp",
    ".cfi_remember_state",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov r10, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
    "mov qword ptr fs:[r10], r11",
    "mov rsp, r11",
    "mov r10, qword ptr [r11 + {GUARD}]",
    "mov qword ptr fs:[0x70], r10",
    "mov r10, qword ptr [rbp + 8]",
    "inc r10",
    ".Lfieldstone_quick_call:",
    "call r10",
    ".Lfieldstone_quick_called:",
    // Back, with results in rax, rdx, xmm0, xmm1, st0, st1. The stack ends with the record of the segment that was entered from this
    // frame: no load has to tell. Only the two registers that a prologue has spoilt already.
    "mov r11, rsp",
    "mov qword ptr fs:[0x70], {SWITCHING}",
    "mov rsp, rbp",
    "cmp qword ptr [r11 + {ENTERED_FROM}], rbp",
    "jne 33f",
    "cmp qword ptr [r11 + {DYNAMIC}], 0",
    "jne 33f",
    "mov r10, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
    "cmp qword ptr fs:[r10], r11",
    "jne 33f",
    "mov r11, qword ptr [r11 + {PREV}]",
    "mov qword ptr fs:[r10], r11",
    "mov r11, qword ptr [r11 + {GUARD}]",
    "mov qword ptr fs:[0x70], r11",
    "34:",
    ".cfi_remember_state",
    "pop rbp",
    ".cfi_def_cfa rsp, 16",
    ".cfi_restore rbp",
    "ret",
    ".cfi_restore_state",
    // Something jumped without our knowledge, or there is memory of alloca to be given back, or the thread is on another stack (40).
    "33:",
    "lea rsp, [rbp - 16]",
    "push rax",
    "push rdx",
    "push rdi",
    "push rsi",
    "push rcx",
    "push r8",
    "mov rdi, rbp",
    "call 22f",
    "pop r8",
    "pop rcx",
    "pop rsi",
    "pop rdi",
    "pop rdx",
    "pop rax",
    "mov rsp, rbp",
    "jmp 34b",
    ".cfi_restore_state",
    "36:",
    "mov rbp, qword ptr fs:[r11]",
    "mov qword ptr fs:[r11 + {LAST_FROM}], rbp",
    "jmp 37b",
    // The full way: whatever is found is put on the stack, and comes back from there. From 35 on, rbp and the guard are ours.
    "35:",
    "mov r11, qword ptr [rbp + {GUARD}]",
    "mov qword ptr fs:[0x70], r11",
    "32:",
    "xor r11d, r11d",
    "31:",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rax",
    "push rdi",
    "mov rax, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
    "mov rdi, qword ptr fs:[rax]",
    "push rdi",
    "push qword ptr fs:[0x70]",
    // All that the function needs.
    "add r10, r11",
    "test rdi, rdi",
    "jz 5f",
    "cmp rsp, qword ptr [rdi + {LOW}]",
    "jb 5f",
    "cmp rsp, qword ptr [rdi + {HIGH}]",
    "ja 5f",
    "cmp qword ptr [rbp - 32], {LOST}",
    "je 8f",
    "mov rdi, qword ptr [rdi + {NEXT}]",
    "test rdi, rdi",
    "jz 5f",
    "cmp qword ptr [rdi + {DYNAMIC}], 0",
    "jne 5f",
    "cmp r10, qword ptr [rdi + {ROOM}]",
    "ja 5f",
    // A guard that is none means that somebody has jumped, or that a handler came in between.
    "cmp qword ptr [rbp - 32], {LOST}",
    "jae 5f",
    "mov r10, qword ptr [rbp - 24]",
    // To the segment in rdi, from the one in r10.
    "2:",
    "mov qword ptr fs:[0x70], {SWITCHING}",
    "mov qword ptr [rbp - 40], rdi",
    "mov rax, qword ptr [rdi + {ENTERED_FROM}]",
    "mov qword ptr [rbp - 48], rax",
    "mov qword ptr [rdi + {ENTERED_FROM}], rbp",
    "mov qword ptr [rdi + {PREV}], r10",
    "mov rax, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
    "mov qword ptr fs:[rax], rdi",
    // Room for the arguments, a multiple of 16 bytes; a segment's record is aligned.
    "mov rax, rdi",
    "sub rax, r11",
    "and rax, -16",
    "mov rsp, rax",
    "test r11, r11",
    "jnz 4f",
    "3:",
    "mov rax, qword ptr [rdi + {GUARD}]",
    "mov qword ptr fs:[0x70], rax",
    "mov rax, qword ptr [rbp - 8]",
    "mov rdi, qword ptr [rbp - 16]",
    "mov r10, qword ptr [rbp + 8]",
    "inc r10",
    ".Lfieldstone_call:",
    "call r10",
    ".Lfieldstone_called:",
    // Back, with results in rax, rdx, xmm0, xmm1, st0, st1.
    "mov qword ptr fs:[0x70], {SWITCHING}",
    "lea rsp, [rbp - 56]",
    "call 38f",
    "7:",
    ".cfi_remember_state",
    "leave",
    ".cfi_def_cfa rsp, 16",
    ".cfi_restore rbp",
    "ret",
    ".cfi_restore_state",
    // Arguments on the stack, the last one first. The stack pointer is there already: a handler would write below it.
    "4:",
    "sub r11, 8",
    "mov r10, qword ptr [rbp + r11 + 24]",
    "mov qword ptr [rax + r11], r10",
    "jnz 4b",
    "jmp 3b",
    // After a jump within the segment the guard is what it was; and is there room after all?
    "8:",
    "mov rax, qword ptr [rdi + {GUARD}]",
    "mov qword ptr fs:[0x70], rax",
    "mov qword ptr [rbp - 32], rax",
    "add rax, r10",
    "jc 5f",
    "lea rdi, [rbp + 16 - {SLACK}]",
    "cmp rdi, rax",
    "jae 6f",
    // The slow way. All registers that may carry arguments are kept; a few more words of `Call`.
    "5:",
    "push rdi", // the place of the new segment
    "push r10",
    "push r11",
    "mov rdi, rsp",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "push rbx",
    "call 9f",
    "pop rbx",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop r11",
    "pop r10",
    "pop rdi",
    "test rax, rax",
    "jz 6f",
    "mov rdi, rax",
    "jmp 2b",
    // In place: current and guard are set. On to the body as if we had never been; by a return, for the predictor's sake.
    "6:",
    "mov rax, qword ptr [rbp - 8]",
    "mov rdi, qword ptr [rbp - 16]",
    "inc qword ptr [rbp + 8]",
    "mov r10, qword ptr [rbp + 8]",
    // The body of a function of variable arguments begins `lea 24(%rbp), %r11`, with our frame in mind.
    "cmp dword ptr [r10], 0x185d8d4c",
    "jne 7b",
    "lea r11, [rbp + 24]",
    "add qword ptr [rbp + 8], 4",
    "jmp 7b",
    // An exception passes through: rax is its object, rbp our frame.
    ".Lfieldstone_quick_thrown:",
    "mov qword ptr fs:[0x70], {SWITCHING}",
    "lea rsp, [rbp - 104]",
    "push rax",
    "push rax",
    "mov rdi, rbp",
    "call 22f",
    "pop rdi",
    "pop rdi",
    "call _Unwind_Resume@PLT",
    "ud2",
    ".Lfieldstone_thrown:",
    "mov qword ptr fs:[0x70], {SWITCHING}",
    "lea rsp, [rbp - 120]",
    "push rax",
    "push rax",
    "call 38f",
    "pop rdi",
    "pop rdi",
    "call _Unwind_Resume@PLT",
    "ud2",
    // Back from a segment that was entered the full way: who was interrupted in the middle of a switch finds all as it was. Its memory of
    // alloca goes when the segment is entered anew. Spoils r10 and r11.
    "38:",
    "mov r11, qword ptr [rbp - 40]",
    "mov r10, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
    "cmp qword ptr fs:[r10], r11",
    "jne 40f",
    "39:",
    "mov r10, qword ptr [rbp - 48]",
    "mov qword ptr [r11 + {ENTERED_FROM}], r10",
    "mov r11, qword ptr [rbp - 24]",
    "mov r10, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
    "mov qword ptr fs:[r10], r11",
    "mov r10, qword ptr [rbp - 32]",
    "mov qword ptr fs:[0x70], r10",
    "ret",
    // Somebody has jumped, from a segment behind this one. Or this is a coroutine's stack, which is unwound while the thread is on its own: that
    // one stays the current one.
    "40:",
    "mov r10, qword ptr fs:[r10]",
    "41:",
    "test r10, r10",
    "jz 42f",
    "mov r10, qword ptr [r10 + {PREV}]",
    "cmp r10, r11",
    "jne 41b",
    "jmp 39b",
    "42:",
    "mov r10, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
    "mov r10, qword ptr fs:[r10]",
    "test r10, r10",
    "jz 43f",
    "mov r10, qword ptr [r10 + {GUARD}]",
    "43:",
    "mov qword ptr fs:[0x70], r10",
    "ret",
    ".Lfieldstone_end:",
    ".cfi_endproc",
    ".size __morestack, . - __morestack",
    // Calls the decisions (9) or what gives memory back (10) with all vector registers kept: rdi is theirs, rax the answer.
    "9:",
    ".cfi_startproc",
    "lea rax, [rip + {more}]",
    "jmp 23f",
    "22:",
    "lea rax, [rip + {left}]",
    "23:",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rbx",
    "push r12",
    "mov rbx, rax",
    "mov eax, dword ptr [rip + {bytes}]",
    "sub rsp, rax",
    "and rsp, -64",
    "mov eax, dword ptr [rip + {kept}]",
    "xor edx, edx",
    "test eax, eax",
    "jz 12f",
    "mov qword ptr [rsp + 512], rdx",
    "mov qword ptr [rsp + 520], rdx",
    "mov qword ptr [rsp + 528], rdx",
    "mov qword ptr [rsp + 536], rdx",
    "mov qword ptr [rsp + 544], rdx",
    "mov qword ptr [rsp + 552], rdx",
    "mov qword ptr [rsp + 560], rdx",
    "mov qword ptr [rsp + 568], rdx",
    "xsave64 [rsp]",
    "call rbx",
    "mov rbx, rax",
    "mov eax, dword ptr [rip + {kept}]",
    "xor edx, edx",
    "xrstor64 [rsp]",
    "jmp 13f",
    "12:",
    "fxsave64 [rsp]",
    "call rbx",
    "mov rbx, rax",
    "fxrstor64 [rsp]",
    "13:",
    "mov rax, rbx",
    "mov rbx, qword ptr [rbp - 8]",
    "mov r12, qword ptr [rbp - 16]",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    // Somebody is about to jump (longjmp), rdi has the buffer: within the segment the guard stays, else it is LOST. glibc keeps the stack
    // pointer in the buffer's seventh word, rotated and mixed with a word of the thread's; read wrongly, it lies in no segment.
    ".globl fieldstone_stack_jumps",
    ".hidden fieldstone_stack_jumps",
    ".type fieldstone_stack_jumps, @function",
    "fieldstone_stack_jumps:",
    ".cfi_startproc",
    // Without a guard nothing is checked, before and after.
    "cmp qword ptr fs:[0x70], 0",
    "je 17f",
    "mov rax, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
    "mov rax, qword ptr fs:[rax]",
    "test rax, rax",
    "jz 16f",
    "mov rcx, qword ptr [rdi + 48]",
    "ror rcx, 17",
    "xor rcx, qword ptr fs:[0x30]",
    "cmp rcx, qword ptr [rax + {LOW}]",
    "jb 16f",
    "cmp rcx, qword ptr [rax + {HIGH}]",
    "ja 16f",
    "cmp qword ptr fs:[0x70], {LOST}",
    "jb 17f",
    "16:",
    "mov qword ptr fs:[0x70], {LOST}",
    "17:",
    "ret",
    ".cfi_endproc",
    ".size fieldstone_stack_jumps, . - fieldstone_stack_jumps",
    // The large code model: both numbers in r10.
    ".globl __morestack_large_model",
    ".type __morestack_large_model, @function",
    "__morestack_large_model:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 16",
    "mov r11, r10",
    "shr r11, 32",
    "mov r10d, r10d",
    "jmp __morestack",
    ".cfi_endproc",
    ".size __morestack_large_model, . - __morestack_large_model",
    // Linkers that rewrite the callers of code without checks have them always come here. The headroom does for such code, so
    // that there is nothing to do where the frame fits.
    ".globl __morestack_non_split",
    ".type __morestack_non_split, @function",
    "__morestack_non_split:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 16",
    "neg r10",
    "add r10, rsp",
    "cmp r10, qword ptr fs:[0x70]",
    "jae 14f",
    "sub r10, rsp",
    "neg r10",
    "jmp __morestack",
    "14:",
    "pop r10",
    ".cfi_def_cfa rsp, 8",
    "inc r10",
    "cmp dword ptr [r10], 0x185d8d4c",
    "je 15f",
    "jmp r10",
    "15:",
    "lea r11, [rsp + 8]",
    "add r10, 4",
    "jmp r10",
    ".cfi_endproc",
    ".size __morestack_non_split, . - __morestack_non_split",
    ".popsection",
    // Which calls have a cleanup: the body's.
    ".pushsection .gcc_except_table.__morestack, \"a\", @progbits",
    ".Lfieldstone_lsda:",
    ".byte 0xff, 0xff, 0x01",
    ".uleb128 .Lfieldstone_sites_end - .Lfieldstone_sites",
    ".Lfieldstone_sites:",
    ".uleb128 .Lfieldstone_quick_call - .Lfieldstone_begin",
    ".uleb128 .Lfieldstone_quick_called - .Lfieldstone_quick_call",
    ".uleb128 .Lfieldstone_quick_thrown - .Lfieldstone_begin",
    ".uleb128 0",
    ".uleb128 .Lfieldstone_call - .Lfieldstone_begin",
    ".uleb128 .Lfieldstone_called - .Lfieldstone_call",
    ".uleb128 .Lfieldstone_thrown - .Lfieldstone_begin",
    ".uleb128 0",
    ".Lfieldstone_sites_end:",
    ".popsection",
    // Ours alone: the name that compilers have for such a word is one for a whole program, which would lose ours or keep it alone.
    ".pushsection .data.rel.ro.__morestack, \"aw\", @progbits",
    ".p2align 3",
    ".Lfieldstone_personality:",
    ".quad __gcc_personality_v0",
    ".popsection",
    GUARD = const offset::GUARD,
    LAST_FROM = const core::mem::offset_of!(crate::thread::Thread, last_from),
    LOW = const offset::LOW,
    HIGH = const offset::HIGH,
    PREV = const offset::PREV,
    NEXT = const offset::NEXT,
    ROOM = const offset::ROOM,
    DYNAMIC = const offset::DYNAMIC,
    ENTERED_FROM = const offset::ENTERED_FROM,
    SWITCHING = const -1,
    LOST = const -2,
    SLACK = const crate::segment::SLACK_BYTES,
    kept = sym KEPT_REGISTERS,
    bytes = sym KEPT_BYTES,
    more = sym crate::more::more,
    left = sym crate::more::left,
);

const _: () = assert!(SWITCHING == usize::MAX);
