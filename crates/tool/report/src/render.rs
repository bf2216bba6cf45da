//! Renderers: a [`Document`](crate::document::Document) as text for a terminal, as a page, as
//! Markdown; records as CSV.
//!
//! A renderer knows what a document is made of, and nothing of the subject of a report.

pub mod csv;
pub mod html;
pub mod markdown;
pub(crate) mod plot;
pub mod text;
