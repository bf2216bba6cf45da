//! The tracing plugin for QEMU user mode: records the memory accesses of the program that QEMU
//! runs.
//!
//! | file | purpose |
//! |---|---|
//! | `qemu` | the plugin interface, declared by hand |
//! | `block` | at translation: which instructions of a block get which call-back |
//! | `decode` | what one instruction does to memory |
//! | `callback_word` | the data word that QEMU stores for each call-back |
//! | `callbacks` | the call-backs that run during execution |
//! | `thread` | the state of one guest thread: phases, counts, records |
//! | `marker` | the blocks at which phases change, and their average counts |
//! | `translations` | two translations of the code: with all call-backs, and with markers only |
//! | `page_filter` | the filter: accesses that no model can miss are counted, not recorded |
//! | `dependence` | whether an access depends on an earlier one |
//! | `guest_memory` | safe reads of guest memory |
//! | `lane` | batches of records, submitted to the reader |
//! | `syscalls` | system calls that map, move and unmap memory |
//! | `huge_pages` | huge pages for guest memory, so that tracing is faster |
//! | `mailbox` | announcements of the site recorder in the guest |
//! | `trace` | the shared record |
//!
//! The plugin only records. Models, symbols and reports are in the reader, another process. QEMU
//! runs each guest thread on a separate host thread and calls the plugin on it, so the state of a
//! thread has no lock.
//!
//! Limits: accesses by the kernel are not seen, nor programs started by exec (QEMU runs them
//! without the plugin).

#![allow(unsafe_code, reason = "implements the C interface of QEMU plugins")]

mod block;
mod callback_word;
mod callbacks;
mod decode;
mod dependence;
mod guest_memory;
mod huge_pages;
mod lane;
mod mailbox;
mod marker;
mod page_filter;
mod qemu;
mod syscalls;
mod thread;
mod trace;
mod translations;

use std::ffi::{CStr, c_char, c_int};

/// The interface version of this plugin, which QEMU reads first.
// SAFETY: QEMU defines the meaning of this symbol; no other object in the process defines it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is QEMU's")]
pub static qemu_plugin_version: c_int = 1;

/// Called by QEMU once, before the program runs. Any result but 0 ends QEMU with a message.
///
/// # Safety
/// Only QEMU may call this; `info` and `arguments` have to be valid for the call.
// SAFETY: QEMU calls this symbol with this signature; no other object defines it.
#[unsafe(no_mangle)]
#[allow(private_interfaces, reason = "called by name, by QEMU alone")]
pub unsafe extern "C" fn qemu_plugin_install(
    id: qemu::Id,
    info: *const qemu::Info,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes a valid `info` and `count` C strings.
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
    thread::register_fork_handler();
    // SAFETY: the call-backs have the types of the interface, and the plugin is never unloaded.
    unsafe {
        qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, block::on_translation);
        qemu::qemu_plugin_register_vcpu_syscall_cb(id, syscalls::on_syscall);
        qemu::qemu_plugin_register_vcpu_syscall_ret_cb(id, syscalls::on_syscall_return);
        qemu::qemu_plugin_register_vcpu_exit_cb(id, callbacks::on_thread_exit);
        qemu::qemu_plugin_register_atexit_cb(id, callbacks::on_exit, std::ptr::null_mut());
    }
    0
}
