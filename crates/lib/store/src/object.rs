//! Objects: plain data and pointers of 4 bytes, in pages of the store.
//!
//! ```text
//! alloc, edit ─→ pages of objects, changed like those of trees ─→ commit
//! follow      ─→ window: the page comes at its first access
//! ```

pub(crate) mod allocation;
pub(crate) mod changes;
pub(crate) mod check;
mod collect;
mod collection;
#[cfg(test)]
mod fault_tests;
pub(crate) mod layout;
pub(crate) mod lists;
mod marks;
pub(crate) mod object_page;
mod objects;
pub(crate) mod pointers;
mod read;
mod resident;
mod stored;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod types;
pub(crate) mod window;
mod write;

pub(crate) use crate::object::objects::{ObjectOptions, Objects};
pub(crate) use crate::object::write::ObjectEdits;
pub use crate::object::{
    collection::CollectReport,
    stored::{Field, LongPtr, Object, Ptr},
    write::ObjectEdit,
};
