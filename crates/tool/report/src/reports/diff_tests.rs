//! The difference of two profiles on a terminal.

use super::*;
use crate::fixture::measured;
use crate::text::{self, Style};

fn text_of(diff: &Diff, style: Style) -> String {
    text::render(&document(diff, ["old.json", "new.json"]), style)
}

#[test]
fn it_shows_both_medians_and_the_ratio() {
    let a = measured(&[("4k", 2.0)], 8, 0.0);
    let mut b = measured(&[("4k", 3.0)], 8, 0.0);
    b.machine.cpu = "another".into();
    let text = text_of(&Diff::between(&a, &b), Style::default());
    for part in [
        "BEFORE  old.json",
        "AFTER   new.json",
        "slower",
        "2.00 s",
        "3.00 s",
        "1.500",
        "1.500 – 1.500",
        "processors differ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("Walks"), "{text}");
}

#[test]
fn records_name_the_two_files_and_keep_the_former_names() {
    let diff = Diff::between(&measured(&[("4k", 2.0)], 8, 0.0), &measured(&[("4k", 3.0)], 1, 0.0));
    let csv = crate::csv::render(&records(&diff));
    let [header, values, ..] = &csv.lines().map(|line| line.split(',').collect()).collect::<Vec<Vec<&str>>>()[..]
    else {
        panic!("{csv}")
    };
    let value = |name| values[header.iter().position(|field| *field == name).unwrap()];
    for (name, former, seconds) in [("before_s", "a_s", 2.0), ("after_s", "b_s", 3.0)] {
        assert_eq!(value(name), value(former));
        assert_eq!(value(name).parse(), Ok(seconds), "{csv}");
    }
    let json = serde_json::to_value(&diff.kinds[0]).unwrap();
    assert_eq!((&json["before_s"], &json["after_s"]), (&json["a_s"], &json["b_s"]));
    let text = text_of(&diff, Style::default());
    assert!(text.contains("change") && text.contains("too few runs") && !text.contains("AFTER is"), "{text}");
}

#[test]
fn different_programs_are_the_first_line_and_have_no_verdict() {
    let a = measured(&[("4k", 2.0)], 8, 0.0);
    let mut b = measured(&[("4k", 3.0)], 8, 0.0);
    b.program.command = vec!["another".into()];
    let text = text_of(&Diff::between(&a, &b), Style::default());
    assert!(text.starts_with("No verdict: the programs differ: BEFORE ") && text.contains("AFTER another."), "{text}");
    assert!(!text.contains("slower"), "{text}");
}

#[test]
fn it_shows_the_walks_of_both_traces() {
    let a = crate::fixture::profile();
    let mut b = a.clone();
    b.translation.as_mut().unwrap().configurations[0].data.walks /= 4;
    let text = text_of(&Diff::between(&a, &b), Style::default());
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
    let text = text_of(&Diff::between(&a, &b), Style::default());
    let lines = of_sites(&text);
    let of = |name: &str| {
        let at = lines.iter().position(|line| line.trim_start().starts_with(name));
        at.unwrap_or_else(|| panic!("no {name}\n{text}"))
    };
    let graph = of("build_graph");
    assert_eq!(words(lines[graph]), ["build_graph", "62.0", "%", "31.0", "%", "-31.0", "%"]);
    assert_eq!(words(lines[graph + 1]), ["src/graph/build.c:214"]);
    assert_eq!(words(lines[of("read_edges")])[1..], ["4.0", "%", "–", "only", "BEFORE"]);
    assert_eq!(words(lines[of("load_edges")])[1..], ["–", "4.0", "%", "only", "AFTER"]);
    assert!(graph < of("read_edges") && of("read_edges") < of("hash_grow"), "{text}");
    let untraced = crate::Profile { translation: None, ..a.clone() };
    assert!(of_sites(&text_of(&Diff::between(&a, &untraced), Style::default())).is_empty());
}

#[test]
fn hundreds_of_sites_are_ten_and_one_line_within_the_width() {
    use crate::translation::AllocationSite;
    let mut a = crate::fixture::profile();
    let traced = a.translation.as_mut().unwrap();
    let file = Some("/tmp/python-build.20260509073455.222/Python-3.11.7/Objects/dictobject.c".to_owned());
    let site = |n| AllocationSite {
        function: format!("site{n:03}<{}>", "std::pair<int, long>, ".repeat(9)),
        file: file.clone(),
        line: Some(n),
        walks: 1000,
        bytes: 1,
        ..AllocationSite::default()
    };
    traced.sites = (100..400).map(site).collect();
    let mut b = a.clone();
    for (site, more) in b.translation.as_mut().unwrap().sites.iter_mut().zip(0..) {
        site.walks += more * 40;
    }
    let changes = Diff::between(&a, &b);
    for width in [60, 80, 120] {
        let text = text_of(&changes, Style { width, colour: false });
        let widest = of_sites(&text).iter().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= usize::from(width), "{width}\n{text}");
        assert!(text.contains("dictobject.c:399"), "{text}");
    }
    let text = text_of(&changes, Style::default());
    assert!(text.contains("site399") && text.contains("site391") && !text.contains("site390"), "{text}");
    let last = *of_sites(&text).last().unwrap();
    assert!(last.trim_start().starts_with("291 more ") && last.contains('%'), "{text}");
}
