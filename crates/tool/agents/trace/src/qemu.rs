//! QEMU's plugin interface, version 1: the declarations that the plugin uses.
//!
//! Source: `include/qemu/qemu-plugin.h` of QEMU 7.2 and its documentation (docs/devel/tcg-plugins);
//! the names are QEMU's. Opaque objects are valid during the call-back that receives them.

#![allow(unsafe_code, reason = "declares functions that QEMU exports")]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The identifier of the plugin.
pub(crate) type Id = u64;

/// A block of guest code that is being translated.
#[repr(C)]
pub(crate) struct TranslationBlock {
    _opaque: [u8; 0],
}

/// An instruction of a block.
#[repr(C)]
pub(crate) struct Instruction {
    _opaque: [u8; 0],
}

/// QEMU's description of itself.
#[repr(C)]
pub(crate) struct Info {
    /// The guest's architecture, as in the name of the emulator.
    pub(crate) target_name: *const c_char,
    pub(crate) version_min: c_int,
    pub(crate) version_cur: c_int,
    /// Whether QEMU emulates a whole machine instead of a program.
    pub(crate) system_emulation: bool,
    pub(crate) smp_vcpus: c_int,
    pub(crate) max_vcpus: c_int,
}

/// Flag of call-backs that neither read nor write guest registers.
pub(crate) const NO_REGISTERS: c_int = 0;
/// Call back at loads and at stores.
pub(crate) const BOTH: c_int = 3;
/// Call back once at an instruction that loads and stores back: "reads only". QEMU 7.2 confuses the
/// kinds (`op_rw` adds one to a bit mask): "reads only" means stores, and "writes only" both. Later
/// versions are correct. So a plain load or store has to use [`BOTH`].
pub(crate) const ONCE: c_int = 1;

pub(crate) type SimpleCall = extern "C" fn(Id, c_uint);
pub(crate) type TranslateCall = extern "C" fn(Id, *mut TranslationBlock);
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

    pub(crate) fn qemu_plugin_tb_n_insns(block: *const TranslationBlock) -> usize;
    pub(crate) fn qemu_plugin_tb_get_insn(block: *const TranslationBlock, index: usize) -> *mut Instruction;
    pub(crate) fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const c_void;
    pub(crate) fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    /// The host address of the instruction.
    pub(crate) fn qemu_plugin_insn_haddr(instruction: *const Instruction) -> *const c_void;
    pub(crate) fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;

    /// The size of an access in bytes as a power of two, from the information that its call-back
    /// gets.
    pub(crate) fn qemu_plugin_mem_size_shift(information: u32) -> c_uint;

    pub(crate) fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut TranslationBlock,
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
