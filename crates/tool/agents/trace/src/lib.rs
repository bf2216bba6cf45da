//! The tracing plugin: loaded by QEMU's user mode, it records the memory accesses of the program that QEMU runs.
//!
//! ```text
//! qemu      the plugin interface, declared by hand
//! block     when a block of code is translated: which of its instructions are watched, and how cheaply
//! decode    what one instruction does to memory
//! word      what QEMU keeps for each call-back
//! calls     the call-backs that run while the program does
//! thread    the state of one guest thread: phases, counts, records
//! marker    the blocks at which phases change, and what they stand for while accesses pass
//! switch    two translations of the code: one that calls back, one for while accesses pass
//! recent    the filter: accesses that no model could miss are counted, not recorded
//! chain     whether an access had to wait for another one
//! guest     the guest's memory, read safely
//! lane      batches of records, handed over to the reader
//! memory    system calls that change what memory there is
//! huge      huge pages for that memory, which the trace need not wait for
//! mail      what the site recorder in the guest tells
//! trace     the shared record
//! ```
//!
//! It only records. Models, symbols and reports are the reader's, in another process and on another processor. QEMU runs
//! each guest thread on a thread of its own, and calls us on it: the state of a thread has no lock.
//!
//! What it cannot see: the kernel's own accesses, programs started by exec (QEMU runs them without the plugin).

#![allow(unsafe_code, reason = "this is the plugin's door")]

mod block;
mod calls;
mod chain;
mod decode;
mod guest;
mod huge;
mod lane;
mod mail;
mod marker;
mod memory;
mod qemu;
mod recent;
mod switch;
mod thread;
mod trace;
mod word;

use std::ffi::{CStr, c_char, c_int};

/// The version of the interface that this plugin was written for. QEMU reads it before anything else.
// SAFETY: the name is QEMU's for exactly this; nothing else in the process has it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is QEMU's")]
pub static qemu_plugin_version: c_int = 1;

/// Called by QEMU once, before the program runs. Anything but 0 ends QEMU with a message.
///
/// # Safety
/// QEMU's: `info` and `arguments` are valid for the call.
// SAFETY: the name is QEMU's for exactly this.
#[unsafe(no_mangle)]
#[allow(private_interfaces, reason = "called by name, by QEMU alone")]
pub unsafe extern "C" fn qemu_plugin_install(
    id: qemu::Id,
    info: *const qemu::Info,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU hands over what it describes: a valid `info`, `count` strings.
    let (target, session) = unsafe {
        let words = (0..usize::try_from(count).unwrap_or(0)).map(|at| CStr::from_ptr(*arguments.add(at)));
        let session = words.filter_map(|word| word.to_str().ok()?.strip_prefix("session=")).next_back();
        (CStr::from_ptr((*info).target_name), session)
    };
    if target != c"x86_64" {
        eprintln!("fieldstone: the tracing plugin is for x86-64 programs, not for {}", target.to_string_lossy());
        return 1;
    }
    if let Err(why) = trace::open(session.unwrap_or_default()) {
        eprintln!("fieldstone: the tracing plugin cannot use its session: {why}");
        return 1;
    }
    thread::watch_forks();
    // SAFETY: the call-backs have the types that QEMU asks for, and live as long as the process.
    unsafe {
        qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, block::translated);
        qemu::qemu_plugin_register_vcpu_syscall_cb(id, memory::called);
        qemu::qemu_plugin_register_vcpu_syscall_ret_cb(id, memory::returned);
        qemu::qemu_plugin_register_vcpu_exit_cb(id, calls::left);
        qemu::qemu_plugin_register_atexit_cb(id, calls::ended, std::ptr::null_mut());
    }
    0
}
