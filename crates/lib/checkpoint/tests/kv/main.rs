//! The example `kv`, as a process that clients use: its data, its saves, and its restarts.
//!
//! `FIELDSTONE_KILLS=200 cargo test --release -p fieldstone-checkpoint killed:: -- --nocapture` kills it 200 times
//! by each method while it saves.

#![allow(clippy::unwrap_used, dead_code, reason = "tests, and modules of the example of which only the tests run")]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "64-bit Linux, as in the example")]

// An example that cargo runs as a test is not built as a program, so the tests in its modules run here.
#[path = "../../examples/kv/arguments.rs"]
mod arguments;
#[path = "../../examples/kv/heap.rs"]
mod heap;
#[path = "../../examples/kv/request.rs"]
mod request;
#[path = "../../examples/kv/size_class.rs"]
mod size_class;
#[path = "../../examples/kv/words.rs"]
mod words;

mod client;
mod killed;
mod model;
mod process;
mod programs;
mod refusals;
mod saves;
