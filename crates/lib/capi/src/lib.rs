//! libfieldstone: the C ABI of `fieldstone-pages`, of the slots of `fieldstone-guard`, of
//! `fieldstone-paging`, and of `fieldstone-checkpoint`.
//!
//! The headers in `include/fieldstone` are the documentation: each function's effect, units and
//! errors, and what a handler may call. Each file here has the functions of one type. They are not `pub`,
//! because Rust programs use the crates.
//!
//! ```text
//! C               here                    meaning
//! fs_x *          Box<X>                  the Rust type, opaque
//! fs_memory *     Box<MemoryHandle>       begins with a Memory
//! const fs_x *    Option<&X>              null is an error code, or 0
//! fs_x **         Option<&mut MaybeUninit<Option<Box<X>>>>   null when the call failed
//! int             result::CallResult      0 or an FS_ERROR_…; sets errno and a message
//! ```
//! | file | content |
//! |---|---|
//! | `memory` | `fs_memory` and `fs_alias` |
//! | `trapping`, `filling`, `tracking` | the types of these names, such as `fs_trapping` |
//! | `fault` | `fs_fault`: operations of a handler; C handlers as closures |
//! | `isolate` | requests for separate cache lines: `remap.h` |
//! | `slots` | `fs_slots`: guarded objects |
//! | `paging` | `fs_paging`: memory with a bound |
//! | `checkpoint` | `fs_checkpoint`: begins saves, and waits for them |
//! | `checkpoint_sink` | `fs_checkpoint_sink`: where saves go, and how they are restored |
//! | `store` | `fs_store`, its snapshots and transactions |
//! | `list` | writes dirty ranges to an array of C |
//! | `enums` | numbers and texts of the header's enums |
//! | `result` | error codes, errno and messages of calls |
//! # Safety
//! C callers guarantee, and no check can: a pointer is null, or came from this library and was not
//! freed; a buffer has the stated size. The safe signatures depend on that. Numbers of enums are
//! checked.
//!
//! Invariant: no panic crosses the boundary. Each call that can panic catches it (`result`), and a
//! C handler that unwinds ends the process. A message needs allocation and thread-local storage. So
//! the functions for handlers in signals (`fault`) set only the code and errno.

mod checkpoint;
mod checkpoint_sink;
mod enums;
mod fault;
mod filling;
mod isolate;
mod list;
mod memory;
mod paging;
mod result;
mod slots;
mod store;
mod tracking;
mod trapping;
