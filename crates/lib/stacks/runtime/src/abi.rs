//! The symbols that compilers, linkers and programs use: those of gcc's run-time library, and
//! Fieldstone's own.
//!
//! | | |
//! |---|---|
//! | `__morestack…` | defined in `fieldstone-stacks` |
//! | `__stack_split_initialize` | initialises the main thread; the first constructor |
//! | `__wrap_pthread_create` | initialises other threads; the linker redirects `pthread_create` here (`--wrap`) |
//! | `__wrap_longjmp` and variants | a jump out of the segment first sets the guard to [`LOST_GUARD`] |
//! | `__wrap_vfork` | the child uses other segments than the parent |
//! | `__splitstack_…` | `contexts` |
//! | `fieldstone_stack_…` | limit, size, freeing: `include/fieldstone/stacks.h` |

#![allow(unsafe_code, reason = "exports C functions")]

use core::arch::global_asm;
use core::ffi::{c_int, c_void};

use fieldstone_stacks::{LOST_GUARD, allocate_for_frame};

use crate::contexts;

global_asm!(
    ".pushsection .text.fieldstone_stack_names, \"ax\", @progbits",
    ".macro fieldstone_name name, function",
    ".globl \\name",
    ".type \\name, @function",
    "\\name:",
    "jmp \\function",
    ".endm",
    "fieldstone_name __splitstack_makecontext, {make}",
    "fieldstone_name __splitstack_getcontext, {get}",
    "fieldstone_name __splitstack_setcontext, {set}",
    "fieldstone_name __splitstack_resetcontext, {reset}",
    "fieldstone_name __splitstack_releasecontext, {release}",
    "fieldstone_name __splitstack_block_signals, {block}",
    "fieldstone_name __splitstack_block_signals_context, {block_context}",
    "fieldstone_name __splitstack_find, {find}",
    "fieldstone_name __splitstack_find_context, {find_context}",
    "fieldstone_name __morestack_allocate_stack_space, {allocate}",
    "fieldstone_name __stack_split_initialize, {initialize}",
    "fieldstone_name __wrap_pthread_create, {create}",
    // A jump out of the segment invalidates the guard.
    ".macro fieldstone_jump name",
    ".globl __wrap_\\name",
    ".type __wrap_\\name, @function",
    "__wrap_\\name:",
    "call fieldstone_stack_jumps",
    "jmp __real_\\name@PLT",
    ".endm",
    "fieldstone_jump longjmp",
    "fieldstone_jump _longjmp",
    "fieldstone_jump siglongjmp",
    "fieldstone_jump __longjmp_chk",
    // The child runs on the parent's stack and words until it calls exec. Afterwards the parent
    // finds its segment again. The return address is kept in a register, since the child may
    // overwrite the stack.
    ".globl __wrap_vfork",
    ".type __wrap_vfork, @function",
    "__wrap_vfork:",
    "pop rdx",
    "mov eax, {SYS_VFORK}",
    "syscall",
    "push rdx",
    "test rax, rax",
    "jz 3f",
    "cmp qword ptr fs:[0x70], 0",
    "je 2f",
    "mov qword ptr fs:[0x70], {LOST}",
    "2: test rax, rax",
    "js 4f",
    "3: ret",
    "4: push rax",
    "sub rsp, 8",
    "call __errno_location@PLT",
    "add rsp, 8",
    "pop rdx",
    "neg edx",
    "mov dword ptr [rax], edx",
    "mov rax, -1",
    "ret",
    ".popsection",
    ".pushsection .init_array.00001, \"aw\", @init_array",
    ".p2align 3",
    // Referenced by name, so that of several run times in a process only the first is initialised
    // and used.
    ".quad __stack_split_initialize",
    ".popsection",
    make = sym contexts::make,
    get = sym contexts::get,
    set = sym contexts::set,
    reset = sym contexts::reset,
    release = sym contexts::release,
    block = sym contexts::block_signals,
    block_context = sym contexts::block_signals_context,
    find = sym contexts::find,
    find_context = sym contexts::find_context,
    allocate = sym allocate_for_frame,
    initialize = sym initialize,
    create = sym create,
    LOST = const LOST_GUARD.cast_signed(),
    SYS_VFORK = const libc::SYS_vfork,
);

/// Initialises the main thread. The kernel grows its system stack.
extern "C" fn initialize() {
    fieldstone_stacks::adopt();
}

unsafe extern "C" {
    fn __real_pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
}

/// The function of a new thread, with its argument.
#[repr(C)]
struct ThreadStart {
    function: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
}

/// # Safety
/// The contract of pthread_create(3).
unsafe extern "C" fn create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    function: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the allocation is large enough for the record, and the new thread frees it.
    unsafe {
        let start = libc::malloc(size_of::<ThreadStart>()).cast::<ThreadStart>();
        if start.is_null() {
            return libc::EAGAIN;
        }
        start.write(ThreadStart { function, argument });
        let failed = __real_pthread_create(thread, attributes, run_thread, start.cast());
        if failed != 0 {
            libc::free(start.cast());
        }
        failed
    }
}

/// Runs a new thread. Cancellation unwinds through this function.
extern "C-unwind" fn run_thread(start: *mut c_void) -> *mut c_void {
    // SAFETY: `create` passed the record, which this thread owns.
    let ThreadStart { function, argument } = unsafe {
        let read = start.cast::<ThreadStart>().read();
        libc::free(start);
        read
    };
    fieldstone_stacks::adopt();
    // SAFETY: the caller of pthread_create vouches for function and argument.
    unsafe { function(argument) }
}

#[unsafe(no_mangle)]
extern "C" fn fieldstone_stack_limit() -> usize {
    fieldstone_stacks::limit_bytes()
}

#[unsafe(no_mangle)]
extern "C" fn fieldstone_stack_set_limit(bytes: usize) {
    fieldstone_stacks::set_limit_bytes(bytes);
}

#[unsafe(no_mangle)]
extern "C" fn fieldstone_stack_held() -> usize {
    fieldstone_stacks::held_bytes()
}

#[unsafe(no_mangle)]
extern "C" fn fieldstone_stack_allocations() -> u64 {
    fieldstone_stacks::allocations()
}

#[unsafe(no_mangle)]
extern "C" fn fieldstone_stack_trim() {
    fieldstone_stacks::trim();
}
