//! libfieldstone: the C ABI of `fieldstone-pages`.
//!
//! `include/fieldstone/pages.h` is the documentation: what each function does, its units, its errors, and what a handler may
//! call. A file here holds the functions of one type. They are not `pub`, as Rust has `fieldstone-pages`.
//!
//! ```text
//! C               here                    what it is
//! fs_memory *     Box<Memory>             the Rust type itself, opaque
//! const fs_x *    Option<&X>              a null pointer is an error code, or 0
//! fs_x **         Option<&mut MaybeUninit<Option<Box<X>>>>   null where the call failed
//! int             answer::Answer          0 or an FS_ERROR_… ; errno is set, the message kept for this thread
//! ```
//! # Safety
//! What C promises, and nobody can check: a pointer is null, or came from this library and was not freed; a buffer has the size
//! that is said. The safe signatures rest on that. Numbers of enums are checked.
//!
//! Nothing unwinds across: each call that can panic catches it (`answer`), and a handler of C's that unwinds ends the process.
//! A message needs allocation and thread-local storage; so what a handler in a signal may call (`fault`) gives the code and
//! errno only.

mod answer;
mod choices;
mod fault;
mod filling;
mod isolate;
mod list;
mod memory;
mod tracking;
mod trapping;
