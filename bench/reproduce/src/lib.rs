//! The papers' tables and figures, measured on this machine beside the published numbers: `fieldstone reproduce`.
//!
//! ```text
//!   experiment     what is measured: cells, rows, the papers' values by quotation
//!   layout, trial  a sample's process and its random layout
//!   contest        baseline and contenders, alternately, in one process
//!   nodes          node-heavy programs: the heap on blocks beside mimalloc
//!   pages          arrays on 4 KiB pages, pools on huge ones
//!   paper_tree     the paper's own trees
//!   count          instructions instead of time
//!   child          a sample in a process of its own
//!   beside         programs that a sample starts; `folder`: their files, which go with us
//!   campaign       run after run over all cells
//!   store          finished samples as JSON lines; provenance
//!   quotation      the papers' numbers, word for word
//!   summary, show  medians and intervals; text, JSON, CSV, Markdown, HTML
//! ```
//! Above them a file for each table or figure, listed in [`experiment::all`].

pub mod appel_li;
mod beside;
pub mod blog;
pub mod cachekata;
pub mod campaign;
pub mod child;
pub mod command;
pub mod contest;
pub mod count;
pub mod direct_segments;
pub mod experiment;
pub mod figure3;
pub mod figure4;
pub mod figure5;
mod folder;
pub mod fragmentation;
pub mod layout;
pub mod nodes;
pub mod pages;
pub mod paper_tree;
pub mod provenance;
pub mod quotation;
pub mod show;
pub mod store;
pub mod summary;
pub mod table2;
pub mod tree_walks;
pub mod trial;

pub use beside::Missing;
pub use contest::{Kernel, Prepared, Side, contest};
pub use experiment::{Cell, Experiment, Figure, Needs, Outcome, Row, Scale, Shows};
pub use layout::{Layout, consume, nops};
pub use trial::{Task, Trial};
