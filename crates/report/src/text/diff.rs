//! The difference of two profiles for a terminal.

use super::Style;
use crate::{Diff, tables};

/// `diff` for a terminal.
pub fn diff(diff: &Diff, style: Style) -> String {
    let mut text = style.heading(&format!("{}, B against A", diff.metric.noun()));
    text += &style.rows(&tables::changes(diff));
    if !diff.configurations.is_empty() {
        text += &format!("\n{}", style.heading("Walks a 1,000 accesses, modelled"));
        text += &style.rows(&tables::translation::walk_changes(&diff.configurations));
    }
    if !diff.prices.is_empty() {
        text += &format!("\n{}", style.heading("What a walk costs, an estimate: likely (low–high)"));
        text += &style.rows(&tables::translation::price_changes(&diff.prices));
    }
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
        assert!(!text.contains("Walks"), "{text}");
    }

    #[test]
    fn it_shows_the_walks_of_both_traces() {
        let a = crate::fixture::profile();
        let mut b = a.clone();
        b.translation.as_mut().unwrap().configurations[0].data.walks /= 4;
        let text = diff(&Diff::between(&a, &b), Style::default());
        let line = text
            .lines()
            .skip_while(|line| !line.starts_with("Walks"))
            .find(|line| line.trim_start().starts_with("4k"))
            .unwrap();
        assert!(text.contains("mosaics") && text.contains("calibrated"), "{text}");
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["4k", "331", "82.8", "0.250"]);
    }
}
