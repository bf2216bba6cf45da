//! Renderers: a [`Document`](crate::document::Document) as text for a terminal, as a page, as
//! Markdown; records as CSV.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `text` | a document for a terminal |
//! | `html` | a page: fills `templates/document.html`, which has all tags, classes and styles |
//! | `plot` | the plots of a page, as SVG |
//! | `markdown` | a page of documentation |
//! | `csv` | records as CSV |
//!
//! A renderer knows what a document is made of, and nothing of the subject of a report.

pub mod csv;
pub mod html;
pub mod markdown;
pub(crate) mod plot;
pub mod text;
