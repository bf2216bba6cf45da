# fieldstone_stack_jumps: the guard before a longjmp.
#
# Called before a longjmp, with the buffer in rdi: within the segment the guard stays, else it
# becomes LOST. glibc keeps the stack pointer in the buffer's seventh word, rotated and XORed
# with a word of the thread; a wrong decoding is in no segment.
    .globl fieldstone_stack_jumps
    .hidden fieldstone_stack_jumps
    .type fieldstone_stack_jumps, @function
fieldstone_stack_jumps:
    .cfi_startproc
# Without a guard nothing is checked, before and after the jump.
    cmp qword ptr fs:[0x70], 0
    je 17f
    mov rax, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]
    mov rax, qword ptr fs:[rax]
    test rax, rax
    jz 16f
    mov rcx, qword ptr [rdi + 48]
    ror rcx, 17
    xor rcx, qword ptr fs:[0x30]
    cmp rcx, qword ptr [rax + {LOW}]
    jb 16f
    cmp rcx, qword ptr [rax + {HIGH}]
    ja 16f
    cmp qword ptr fs:[0x70], {LOST}
    jb 17f
16:
    mov qword ptr fs:[0x70], {LOST}
17:
    ret
    .cfi_endproc
    .size fieldstone_stack_jumps, . - fieldstone_stack_jumps
