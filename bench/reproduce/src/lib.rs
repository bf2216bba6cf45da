//! The tables and figures of the papers, measured on this machine and printed beside the published
//! numbers: `fieldstone reproduce`.
//!
//! ```text
//!   campaign ── run after run over all cells ──→ child      a process per sample, with a random layout
//!                                                  │
//!     store  ←── samples as JSON lines ────────────┘
//!       │
//!       └──→ summary ── medians, intervals, the paper's numbers ──→ show    text, JSON, CSV, Markdown, HTML
//! ```
//! | module | content |
//! |---|---|
//! | `experiment` | the description of what is measured: cells, rows, quotations |
//! | `catalog` | the list of all experiments |
//! | `quotation` | the numbers of the papers, word for word |
//! | `command` | the command line: which cells run, which results are shown |
//! | `campaign` | the order of the samples of all cells |
//! | `child` | starts the process of a sample; prints its outcome |
//! | `store` | samples on disk; names of rows in earlier versions |
//! | `summary` | medians and intervals, beside the paper's numbers |
//! | `show` | results as a document |
//! | `trial`, `layout` | the task of a sample's process, and its random layout |
//! | `comparison` | a baseline and contenders, run alternately in one process |
//! | `count` | instructions instead of time |
//! | `pages`, `paper_tree` | arrays and pools on a page kind; the trees of the paper |
//! | `nodes` | node-based programs on the heap of blocks and on mimalloc |
//! | `sibling_programs`, `folder` | programs that a sample starts, and a folder for their files |
//! | `provenance` | the machine, kernel and commit of a session |
//!
//! Each paper's tables and figures have modules, listed in [`catalog`]:
//!
//! | module | what it measures |
//! |---|---|
//! | `appel_li` | the primitives of Appel and Li |
//! | `cachekata` | Taylor's figures of false sharing and its repair |
//! | `direct_segments` | the tables of Basu et al. |
//! | `blog` | the arrays of the blog |
//! | `checkpoint` | a writer and a server while their memory is saved: by a checkpoint, by fork(2) |
//! | `persistent_store` | durable commits and file sizes of stores, and OO7 on objects |
//! | `redb_benchmark` | the benchmark program of redb |
//! | `table2` | scans of trees against contiguous arrays |
//! | `figure3`, `stack_blocks` | C programs on stacks of blocks |
//! | `figure4` | random updates of a large table; a red-black tree |
//! | `figure5` | programs with trees instead of large arrays |
//! | `compression_paging` | programs whose memory is bounded: `run --resident`, zram, a swap file |
//! | `heap_overflow` | a guard page at the end of a heap against a comparison at each allocation |
//! | `fragmentation` | availability of contiguous physical memory |
//! | `tree_walks` | reads that find an element, in software and hardware |

pub mod appel_li;
pub mod blog;
pub mod cachekata;
pub mod campaign;
pub mod catalog;
pub mod checkpoint;
pub mod child;
pub mod command;
pub mod comparison;
pub mod compression_paging;
pub mod count;
pub mod direct_segments;
pub mod experiment;
pub mod figure3;
pub mod figure4;
pub mod figure5;
mod folder;
pub mod fragmentation;
pub mod heap_overflow;
pub mod layout;
pub mod nodes;
pub mod pages;
pub mod paper_tree;
pub mod persistent_store;
pub mod provenance;
pub mod quotation;
pub mod redb_benchmark;
pub mod show;
mod sibling_programs;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_stack_blocks.rs")]
mod stack_blocks;
pub mod store;
pub mod summary;
pub mod table2;
pub mod tree_walks;
pub mod trial;

pub use comparison::{BuiltSide, Kernel, Side, compare_sides};
pub use experiment::{Cell, Experiment, MeasuredValue, Needs, Quantity, Row, SampleOutcome, Scale};
pub use layout::{Layout, consume, nops};
pub use sibling_programs::Missing;
pub use trial::{Task, Trial};
