# The table and the personality by which an exception passes through __morestack.
#
# The calls with a cleanup: those of the body.
    .pushsection .gcc_except_table.__morestack, "a", @progbits
.Lfieldstone_lsda:
    .byte 0xff, 0xff, 0x01
    .uleb128 .Lfieldstone_sites_end - .Lfieldstone_sites
.Lfieldstone_sites:
    .uleb128 .Lfieldstone_quick_call - .Lfieldstone_begin
    .uleb128 .Lfieldstone_quick_called - .Lfieldstone_quick_call
    .uleb128 .Lfieldstone_quick_thrown - .Lfieldstone_begin
    .uleb128 0
    .uleb128 .Lfieldstone_call - .Lfieldstone_begin
    .uleb128 .Lfieldstone_called - .Lfieldstone_call
    .uleb128 .Lfieldstone_thrown - .Lfieldstone_begin
    .uleb128 0
.Lfieldstone_sites_end:
    .popsection
# A local word: the compilers' global name for it is shared in a program, which would merge or
# drop this one.
    .pushsection .data.rel.ro.__morestack, "aw", @progbits
    .p2align 3
.Lfieldstone_personality:
    .quad __gcc_personality_v0
    .popsection
