//! A look at sharing as one self-contained page, in the clothes of the profile's: each line's bytes in the colours of the
//! threads that use them.
//!
//! Head, style and macros are cut out of the profile's template, so that there is one of each; so its policy holds here too:
//! no script, nothing fetched. The template escapes whatever it is given; only what is cut out is passed as markup.

#[cfg(test)]
mod tests;
mod view;

use super::Sharing;
use crate::Error;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};

const PROFILE: &str = include_str!("../../templates/profile.html");
const PAGE: &str = include_str!("page.html");

/// The page of `sharing`: a whole HTML document. Costs some 30 KiB and as many milliseconds.
///
/// # Errors
/// [`Error::Page`]; what could be loaded causes none.
pub fn page(sharing: &Sharing) -> Result<String, Error> {
    let failed = |source| Error::Page { source };
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?);
    let (macros, rest) = PROFILE.split_once("<!doctype html>").unwrap_or_default();
    // The names' endings turn escaping on.
    environment.add_template("macros.html", macros).map_err(failed)?;
    environment.add_template("sharing.html", PAGE).map_err(failed)?;
    let context = minijinja::context! {
        head => Value::from_safe_string(format!("<!doctype html>{}", rest.split("<title>").next().unwrap_or_default())),
        style => Value::from_safe_string(between(rest, "<style>", "</style>").to_owned()),
        ..Value::from(Serde(view::Page::of(sharing)))
    };
    environment.get_template("sharing.html").and_then(|template| template.render(context)).map_err(failed)
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let behind = text.split_once(start).unwrap_or_default().1;
    behind.split_once(end).unwrap_or_default().0
}
