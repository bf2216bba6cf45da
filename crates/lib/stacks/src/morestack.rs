//! `__morestack`: called by compiled prologues when the stack has too little space.
//!
//! # What gcc and clang emit
//! ```text
//! f:      cmp  %fs:0x70, %rsp        frames below 256 bytes; larger ones compare rsp - size, in r11
//!         jb   slow
//! body:   …
//! slow:   mov  $size, %r10d          bytes of the frame
//!         mov  $arguments, %r11d     bytes of the arguments that are on the stack
//!         call __morestack
//!         ret                        to f's caller, after the body returned to __morestack
//!         …                          the return address + 1: the body
//! ```
//! All argument registers are in use: rax (the count of vector arguments), rdi, rsi, rdx, rcx, r8,
//! r9, and the vector registers. The results are in rax, rdx, xmm0, xmm1 and the x87 stack.
//!
//! # The stack, when the body runs on another segment
//! ```text
//!   the old segment                                the new segment
//!   │ arguments of f          │ rbp + 24           │ StackSegment            │
//!   ├─────────────────────────┤                    ├─────────────────────────┤ high
//!   │ return to f's caller    │ rbp + 16           │ arguments of f, copied  │
//!   │ return into f, at `ret` │ rbp + 8            ├─────────────────────────┤ 16-aligned
//!   │ rbp of f's caller       │ ◄── rbp            │ return to __morestack   │
//!   ├ full path only ─────────┤                    │ frame of f              │
//!   │ rax                     │ rbp - 8            │          ▼              │
//!   │ rdi                     │ rbp - 16           └─────────────────────────┘
//!   │ current, as found       │ rbp - 24
//!   │ guard, as found         │ rbp - 32
//!   │ the new segment         │ rbp - 40
//!   │ where it was entered    │ rbp - 48
//!   └─────────────────────────┘
//! ```
//! Each call has a matching return, which keeps the processor's return predictor in step: f's
//! caller with f's `ret`, `call __morestack` with its own `ret`, and its call of the body with the
//! body's `ret`.
//!
//! # Files
//! This file has the switch between segments. `jumps.s` has the guard before a longjmp,
//! `other_entries.s` the other entries, `unwind.s` the table for exceptions. All are one block of
//! assembly, so that a linker takes all of them or none.
//!
//! # Signals
//! The switch between segments blocks no signals. The guard is
//! [`SWITCHING`](crate::thread::SWITCHING) meanwhile, so a handler's prologues call `__morestack`,
//! too. The order makes each point safe. Entering: guard to SWITCHING; read the next segment, which
//! nothing frees from then on; its `entered_from` and `prev`; current to it; rsp; arguments; guard
//! to the new segment's. Leaving: guard to SWITCHING; rsp; test `entered_from` and current; read
//! `prev`; current; guard to the previous segment's.
//!
//! # Unwinding
//! The frame's rule is CFA = rbp + 24, with the return address of *f's caller*. It skips the `ret`
//! in f, so a backtrace shows f's body, `__morestack`, f's caller. gdb accepts the jump between
//! stacks because of the function's name. An exception runs a cleanup (`thrown`), which restores
//! current and the guard; the personality is that of C cleanups.
//!
//! # Cost
//! The quick path is bound by its stores, ten with those of the calls, and by loads that wait for
//! them. Hence it stores nothing that can be recomputed, and uses a cached current segment before
//! the comparison with the real one. The full path handles rare cases: arguments on the stack, a
//! handler during a switch, a missing segment.

#![allow(unsafe_code, reason = "assembly")]

use core::arch::global_asm;

use crate::segment::offset;
use crate::thread::SWITCHING;

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
    // The quick path, with few stores, which determine its cost. It requires: no arguments on the
    // stack, no switch or jump in progress, rsp in the current segment, and a next segment with
    // enough space and no alloca memory. A nonzero guard implies a segment.
    "test r11, r11",
    "jnz 31f",
    "cmp qword ptr fs:[0x70], {LOST}",
    "jae 32f",
    // The current segment is usually the one last left here. Using that copy before comparing
    // avoids waiting for the store of the previous call's return, so that a loop's calls overlap.
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
    // The body returned; results are in rax, rdx, xmm0, xmm1, st0, st1. The stack ends with the
    // record of the segment entered from this frame, so no load is needed. Only r10 and r11 may be
    // used, which prologues clobber.
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
    // An unnoticed jump, alloca memory to free, or a thread on another stack (40).
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
    // The full path: saves the state found on the stack and restores it from there. At 35, rbp and
    // the guard were already changed.
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
    // The total that the function needs.
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
    // A guard of LOST or SWITCHING means a jump, or a handler during a switch.
    "cmp qword ptr [rbp - 32], {LOST}",
    "jae 5f",
    "mov r10, qword ptr [rbp - 24]",
    // Switch to the segment in rdi from the one in r10.
    "2:",
    "mov qword ptr fs:[0x70], {SWITCHING}",
    "mov qword ptr [rbp - 40], rdi",
    "mov rax, qword ptr [rdi + {ENTERED_FROM}]",
    "mov qword ptr [rbp - 48], rax",
    "mov qword ptr [rdi + {ENTERED_FROM}], rbp",
    "mov qword ptr [rdi + {PREV}], r10",
    "mov rax, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
    "mov qword ptr fs:[rax], rdi",
    // Space for the arguments, a multiple of 16 bytes; a segment's record is aligned.
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
    // The body returned; results are in rax, rdx, xmm0, xmm1, st0, st1.
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
    // Copies the arguments on the stack, the last one first. rsp is already below them, where a
    // handler would write.
    "4:",
    "sub r11, 8",
    "mov r10, qword ptr [rbp + r11 + 24]",
    "mov qword ptr [rax + r11], r10",
    "jnz 4b",
    "jmp 3b",
    // After a jump within the segment: restore its guard, and test whether the frame fits after
    // all.
    "8:",
    "mov rax, qword ptr [rdi + {GUARD}]",
    "mov qword ptr fs:[0x70], rax",
    "mov qword ptr [rbp - 32], rax",
    "add rax, r10",
    "jc 5f",
    "lea rdi, [rbp + 16 - {SLACK}]",
    "cmp rdi, rax",
    "jae 6f",
    // The slow path: saves all registers that may carry arguments; pushes the other words of
    // `MorestackFrame`.
    "5:",
    "push rdi", // space for the new segment
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
    // The frame fits in place; current and guard are set. Jumps to the body by a return, for the
    // return predictor.
    "6:",
    "mov rax, qword ptr [rbp - 8]",
    "mov rdi, qword ptr [rbp - 16]",
    "inc qword ptr [rbp + 8]",
    "mov r10, qword ptr [rbp + 8]",
    // The body of a function of variable arguments begins `lea 24(%rbp), %r11`, which expects
    // `__morestack`'s frame.
    "cmp dword ptr [r10], 0x185d8d4c",
    "jne 7b",
    "lea r11, [rbp + 24]",
    "add qword ptr [rbp + 8], 4",
    "jmp 7b",
    // An exception passes through: rax is its object, rbp this frame.
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
    // Returns from a segment entered by the full path: restores the state for an interrupted
    // switch. Its alloca memory is freed when the segment is entered again. Clobbers r10 and r11.
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
    // After a jump from a later segment. Or this is a coroutine's stack, unwound while the thread's
    // own is current: the thread's own stays current.
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
    // Calls `place_frame` (9) or `leave_segment` (22) with all vector registers saved: rdi is the
    // argument, rax the result.
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
    include_str!("morestack/jumps.s"),
    include_str!("morestack/other_entries.s"),
    ".popsection",
    include_str!("morestack/unwind.s"),
    GUARD = const offset::GUARD,
    LAST_FROM = const core::mem::offset_of!(crate::thread::ThreadStack, last_from),
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
    kept = sym crate::registers::XSAVE_MASK,
    bytes = sym crate::registers::XSAVE_BYTES,
    more = sym crate::placement::place_frame,
    left = sym crate::placement::leave_segment,
);

const _: () = assert!(SWITCHING == usize::MAX);
