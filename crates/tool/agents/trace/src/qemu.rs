//! QEMU's plugin interface, version 1, declared by hand: the part of it that we use.
//!
//! Source: `include/qemu/qemu-plugin.h` of QEMU 7.2 and its documentation (docs/devel/tcg-plugins). The names are QEMU's.
//! Everything opaque lives as long as the call-back that hands it over.

#![allow(unsafe_code, reason = "declares what QEMU exports")]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Names the plugin towards QEMU.
pub(crate) type Id = u64;

/// A block of guest code that is being translated.
#[repr(C)]
pub(crate) struct Block {
    _opaque: [u8; 0],
}

/// An instruction of such a block.
#[repr(C)]
pub(crate) struct Instruction {
    _opaque: [u8; 0],
}

/// What QEMU says of itself at the start.
#[repr(C)]
pub(crate) struct Info {
    /// The guest's architecture, as in the name of the emulator.
    pub(crate) target_name: *const c_char,
    pub(crate) version_min: c_int,
    pub(crate) version_cur: c_int,
    /// Whether a whole machine is emulated, not a program.
    pub(crate) system_emulation: bool,
    pub(crate) smp_vcpus: c_int,
    pub(crate) max_vcpus: c_int,
}

/// Our call-backs neither read nor write guest registers.
pub(crate) const NO_REGISTERS: c_int = 0;
/// Call back at loads and at stores.
pub(crate) const BOTH: c_int = 3;
/// Call back once at an instruction that loads and stores back: "reads only". QEMU 7.2 mixes the kinds up (`op_rw` adds one to
/// what is a bit already): "reads only" means its stores, "writes only" both. Later ones mean what they say. So nothing else may be asked of a
/// plain load or store than [`BOTH`].
pub(crate) const ONCE: c_int = 1;

pub(crate) type SimpleCall = extern "C" fn(Id, c_uint);
pub(crate) type TranslateCall = extern "C" fn(Id, *mut Block);
pub(crate) type EnterCall = extern "C" fn(c_uint, *mut c_void);
pub(crate) type AccessCall = extern "C" fn(c_uint, u32, u64, *mut c_void);
pub(crate) type ExitCall = extern "C" fn(Id, *mut c_void);
pub(crate) type SyscallCall = extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
pub(crate) type SyscallReturnCall = extern "C" fn(Id, c_uint, i64, i64);

unsafe extern "C" {
    pub(crate) fn qemu_plugin_register_vcpu_exit_cb(id: Id, call: SimpleCall);
    pub(crate) fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, call: TranslateCall);
    pub(crate) fn qemu_plugin_register_atexit_cb(id: Id, call: ExitCall, data: *mut c_void);
    pub(crate) fn qemu_plugin_register_vcpu_syscall_cb(id: Id, call: SyscallCall);
    pub(crate) fn qemu_plugin_register_vcpu_syscall_ret_cb(id: Id, call: SyscallReturnCall);

    pub(crate) fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    pub(crate) fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    pub(crate) fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const c_void;
    pub(crate) fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    /// Where the instruction lies in this process.
    pub(crate) fn qemu_plugin_insn_haddr(instruction: *const Instruction) -> *const c_void;
    pub(crate) fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;

    /// The power of two of an access' size in bytes, out of what its call-back was told.
    pub(crate) fn qemu_plugin_mem_size_shift(information: u32) -> c_uint;

    pub(crate) fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Block,
        call: EnterCall,
        flags: c_int,
        data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        call: EnterCall,
        flags: c_int,
        data: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        call: AccessCall,
        flags: c_int,
        accesses: c_int,
        data: *mut c_void,
    );
}
