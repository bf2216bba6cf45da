//! The only door to Linux: what a process's memory lies on, what the kernel offers, what this machine can do.
//!
//! | module | asks |
//! |---|---|
//! | [`process`] | a process's figures, its tree, what it inherits, how it ended |
//! | [`smaps`] | its mappings and how they are mapped |
//! | [`pagemap`] | the frames under them: folio sizes, contiguity |
//! | [`huge_pages`] | hugetlb pools and transparent modes |
//! | [`collapse`] | puts a running process's memory on huge pages |
//! | [`sampling`] | where its threads are and what is in their registers |
//! | [`cpuid`], [`counters`] | which processor this is, its TLBs; what it counts of page walks |
//! | [`ptrace`] | a process's threads, held still |
//! | [`turns`] | how a thread gets a processor at once that others wait for |
//! | [`signals`], [`witness`] | signals that wait; whether one was sent to the group or to this process |
//! | [`knob`] | turns a kernel knob and gives it back, come what may |
//! | [`warm`] | memory that a hypervisor has taken back |
//! | [`cache`] | where this user keeps what can be made again |
//! | [`descriptors`] | keeps files open that the program may close |
//! | [`userfault`], [`perf`], [`limits`], [`machine`] | what this user may do on this machine |
//! | [`doctor`] | all of that, and a verdict for each command |
//!
//! Names are those of the manual pages. Nothing here keeps state, starts a thread or changes the system, [`knob`],
//! [`collapse`], [`sampling`], [`turns`], [`signals`], [`witness`] and the setters of [`process`] excepted. Unsafe code is denied for the crate and opened in the files that make a
//! system call which has no safe form. The facts that Fieldstone leans on are probed by `tests/mechanisms.rs` and `tests/collapse.rs`.

pub mod cache;
mod cgroup;
pub mod collapse;
pub mod counters;
pub mod cpuid;
pub mod descriptors;
pub mod doctor;
mod error;
mod forked;
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
pub mod signals;
pub mod smaps;
pub mod turns;
pub mod userfault;
pub mod warm;
pub mod witness;

pub use error::{Error, Result};
