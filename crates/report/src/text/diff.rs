//! The difference of two profiles for a terminal.

use super::Style;
use crate::{Diff, tables};

/// `diff` for a terminal.
pub fn diff(diff: &Diff, style: Style) -> String {
    let mut text = style.heading(&format!("{}, B against A", diff.metric.noun()));
    text += &style.rows(&tables::changes(diff));
    if !diff.warnings.is_empty() {
        text += &format!("\n{}{}", style.heading("Warnings"), style.list(&diff.warnings));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::measured;

    #[test]
    fn it_shows_both_medians_and_the_ratio() {
        let a = measured(&[("4k", 2.0)], 8, 0.0);
        let mut b = measured(&[("4k", 3.0)], 8, 0.0);
        b.machine.cpu = "another".into();
        let text = diff(&Diff::between(&a, &b), Style::default());
        for part in ["slower", "2.00 s", "3.00 s", "1.500", "1.500 – 1.500", "processors differ"] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
