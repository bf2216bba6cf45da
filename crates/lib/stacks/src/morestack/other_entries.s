# Entries of __morestack for the large code model and for callers of code without checks.
#
# The large code model: both numbers in r10.
    .globl __morestack_large_model
    .type __morestack_large_model, @function
__morestack_large_model:
    .cfi_startproc
    .cfi_def_cfa rsp, 16
    mov r11, r10
    shr r11, 32
    mov r10d, r10d
    jmp __morestack
    .cfi_endproc
    .size __morestack_large_model, . - __morestack_large_model
# Linkers redirect callers of code without checks here. The headroom suffices for such code, so
# nothing is done if the frame fits.
    .globl __morestack_non_split
    .type __morestack_non_split, @function
__morestack_non_split:
    .cfi_startproc
    .cfi_def_cfa rsp, 16
    neg r10
    add r10, rsp
    cmp r10, qword ptr fs:[0x70]
    jae 14f
    sub r10, rsp
    neg r10
    jmp __morestack
14:
    pop r10
    .cfi_def_cfa rsp, 8
    inc r10
    cmp dword ptr [r10], 0x185d8d4c
    je 15f
    jmp r10
15:
    lea r11, [rsp + 8]
    add r10, 4
    jmp r10
    .cfi_endproc
    .size __morestack_non_split, . - __morestack_non_split
