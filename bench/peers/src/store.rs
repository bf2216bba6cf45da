//! Embedded stores behind one trait: `fieldstone-store`, LMDB, redb, SQLite and fjall.
//!
//! | module | content |
//! |---|---|
//! | `engine` | the trait, the list of the stores, an open store |
//! | `records` | keys and values as `db_bench` of LevelDB has them |
//! | `fieldstone`, `lmdb`, `redb`, `sqlite`, `fjall` | a store each |
//! | `thread_time` | the parts of the time of a commit |
//!
//! All stores are on one file system and have the same records. Each commit is durable. LMDB has its default
//! flags but no read-ahead, redb `Durability::Immediate`, SQLite WAL mode with `synchronous=FULL`, fjall an fdatasync(2) a commit.

mod engine;
mod fieldstone;
mod fjall;
mod lmdb;
mod records;
mod redb;
mod sqlite;
mod thread_time;

pub use engine::{ENGINES, Engine, EngineType, Entry, LMDB, OURS, OpenStore, REDB, Totals};
pub use records::{RandomBytes, Records};
pub use thread_time::{DirectWriter, ThreadTime, written_bytes};
