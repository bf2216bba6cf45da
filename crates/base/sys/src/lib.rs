//! Fieldstone's interface to Linux: page placement, kernel settings, capabilities of this machine.
//!
//! | module | contents |
//! |---|---|
//! | [`process`] | statistics, process tree, inherited settings, exit status, memory |
//! | [`smaps`] | mappings and the page sizes that map them |
//! | [`pagemap`] | physical frames: folio sizes, contiguity |
//! | [`huge_pages`] | hugetlb pools and transparent huge page modes |
//! | [`collapse`] | the calls that collapse memory of a running process into huge pages |
//! | [`sampling`] | samples of a process's threads: instruction pointer and registers |
//! | [`cpuid`], [`counters`] | CPU model, its TLBs, hardware counts of page walks |
//! | [`ptrace`] | stopped threads of another process |
//! | [`scheduling`] | priority and waiting for threads on the critical path of others |
//! | [`signals`] | blocked signals, received one by one with their sender |
//! | [`witness`] | whether a signal was sent to the group or to this process; its helper process also continues this one after a stop |
//! | [`knob`] | sets a kernel setting; a second process restores it when this one ends |
//! | [`warm`] | touches memory that a hypervisor may have reclaimed |
//! | [`cache`] | directories for files that can be regenerated |
//! | [`thread_end`] | a word in shared memory that the kernel marks when a thread ends |
//! | [`descriptors`] | keeps files open that the program may close |
//! | [`machine`] | processor, memory and kernel of this machine |
//! | [`userfault`], [`perf`] | which userfaultfd and perf features this user may use; `userfault/fd`: the calls on a userfaultfd |
//! | [`limits`], `cgroup` | limits on a process's memory |
//! | `helper_process` | forks a helper process that is connected by a socket |
//! | `kernel_file` | reads and writes small text files of the kernel |
//! | `error` | errors, with the operation, its object and the remedy |
//! | [`doctor`] | all of these, and a verdict for each command |
//!
//! Names are those of the manual pages. Modules keep no state, start no thread and do not change
//! the system, except [`knob`], [`collapse`], [`sampling`], [`scheduling`], [`signals`],
//! [`witness`] and the setters of [`process`]. Unsafe code is denied for the crate and allowed in
//! the files with system calls that have no safe form. `tests/mechanisms.rs` and
//! `tests/collapse.rs` test the kernel behaviour that Fieldstone depends on.

pub mod cache;
mod cgroup;
pub mod collapse;
pub mod counters;
pub mod cpuid;
pub mod descriptors;
pub mod doctor;
mod error;
mod helper_process;
pub mod huge_pages;
mod kernel_file;
pub mod knob;
pub mod limits;
pub mod machine;
pub mod pagemap;
pub mod perf;
pub mod process;
pub mod ptrace;
pub mod sampling;
pub mod scheduling;
pub mod signals;
pub mod smaps;
pub mod thread_end;
pub mod userfault;
pub mod warm;
pub mod witness;

pub use error::{Error, Result};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
