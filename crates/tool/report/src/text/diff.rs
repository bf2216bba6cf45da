//! The difference of two profiles for a terminal.

use super::Style;
use crate::Diff;
use crate::diff::SiteDiff;
use crate::quantity::{count, percent, share};
use crate::tables::{self, Table};
use crate::translation::sites::{shortened, shortened_path};

/// Sites that are shown; the others are one line.
const MOST_SITES: usize = 10;
/// What their columns of numbers take of a line, with the gaps before and behind them.
const NUMBERS: usize = 36;
/// Letters that a name has on the narrowest terminal.
const LEAST_LETTERS: usize = 12;

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
    if !diff.sites.is_empty() {
        text += &format!("\n{}", style.heading("Share of the walks on 4 KiB pages, most change first"));
        text += &style.rows(&site_changes(&diff.sites, usize::from(style.width.max(40))));
    }
    if !diff.warnings.is_empty() {
        text += &format!("\n{}{}", style.heading("Warnings"), style.list(&diff.warnings));
    }
    text
}

/// The sites that changed most, and the others in one line. A name and its place are two lines of a cell, on a terminal of `columns`.
fn site_changes(sites: &[SiteDiff], columns: usize) -> Table {
    let letters = columns.saturating_sub(NUMBERS).max(LEAST_LETTERS);
    let (shown, others) = sites.split_at(sites.len().min(MOST_SITES));
    let others = (!others.is_empty()).then(|| together(others));
    let part = |of: Option<f64>| of.map_or_else(|| "–".to_owned(), share);
    let rows = shown.iter().chain(&others).map(|of| {
        let mut name = shortened(&of.name, letters);
        if !of.place.is_empty() {
            name += &format!("\n{}", shortened_path(&of.place, letters));
        }
        let change = match (of.a_share, of.b_share) {
            (Some(_), None) => "only in A".to_owned(),
            (None, Some(_)) => "only in B".to_owned(),
            _ => percent(of.change()),
        };
        vec![name, part(of.a_share), part(of.b_share), change]
    });
    Table {
        heading: ["memory from", "A", "B", "B - A"].map(str::to_owned).into(),
        rows: rows.collect(),
        text_columns: 1,
    }
}

/// Several sites in one line.
fn together(sites: &[SiteDiff]) -> SiteDiff {
    let sum = |side: fn(&SiteDiff) -> Option<f64>| Some(sites.iter().filter_map(side).sum());
    SiteDiff {
        name: format!("{} more", count(sites.len() as u64)),
        place: String::new(),
        a_share: sum(|of| of.a_share),
        b_share: sum(|of| of.b_share),
    }
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

    /// The lines of the table of sites.
    fn of_sites(text: &str) -> Vec<&str> {
        let lines = text.lines().skip_while(|line| !line.starts_with("Share of the walks"));
        lines.take_while(|line| !line.is_empty()).collect()
    }

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn it_shows_the_sites_of_both_traces() {
        let a = crate::fixture::profile();
        let mut b = a.clone();
        let sites = &mut b.translation.as_mut().unwrap().sites;
        sites[0].walks /= 2;
        sites[3].function = "load_edges".into();
        let text = diff(&Diff::between(&a, &b), Style::default());
        let lines = of_sites(&text);
        let of = |name: &str| {
            let at = lines.iter().position(|line| line.trim_start().starts_with(name));
            at.unwrap_or_else(|| panic!("no {name}\n{text}"))
        };
        let graph = of("build_graph");
        assert_eq!(words(lines[graph]), ["build_graph", "62.0", "%", "31.0", "%", "-31.0", "%"]);
        assert_eq!(words(lines[graph + 1]), ["src/graph/build.c:214"]);
        assert_eq!(words(lines[of("read_edges")])[1..], ["4.0", "%", "–", "only", "in", "A"]);
        assert_eq!(words(lines[of("load_edges")])[1..], ["–", "4.0", "%", "only", "in", "B"]);
        assert!(graph < of("read_edges") && of("read_edges") < of("hash_grow"), "{text}");
        let untraced = crate::Profile { translation: None, ..a.clone() };
        assert!(of_sites(&diff(&Diff::between(&a, &untraced), Style::default())).is_empty());
    }

    #[test]
    fn hundreds_of_sites_are_ten_and_one_line_within_the_width() {
        use crate::translation::Site;
        let mut a = crate::fixture::profile();
        let traced = a.translation.as_mut().unwrap();
        let file = Some("/tmp/python-build.20260509073455.222/Python-3.11.7/Objects/dictobject.c".to_owned());
        let site = |n| Site {
            function: format!("site{n:03}<{}>", "std::pair<int, long>, ".repeat(9)),
            file: file.clone(),
            line: Some(n),
            walks: 1000,
            bytes: 1,
            ..Site::default()
        };
        traced.sites = (100..400).map(site).collect();
        let mut b = a.clone();
        for (site, more) in b.translation.as_mut().unwrap().sites.iter_mut().zip(0..) {
            site.walks += more * 40;
        }
        let changes = Diff::between(&a, &b);
        for width in [60, 80, 120] {
            let text = diff(&changes, Style { width, colour: false });
            let widest = of_sites(&text).iter().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(width), "{width}\n{text}");
            assert!(text.contains("dictobject.c:399"), "{text}");
        }
        let text = diff(&changes, Style::default());
        assert!(text.contains("site399") && text.contains("site391") && !text.contains("site390"), "{text}");
        let last = *of_sites(&text).last().unwrap();
        assert!(last.trim_start().starts_with("291 more ") && last.contains('%'), "{text}");
    }
}
