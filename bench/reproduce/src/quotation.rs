//! The numbers of the papers, word for word: `quotations.toml`.
//!
//! A quotation is a number, or a few words with one, and its sentence or line of a table, copied
//! from the text of the paper. Tests find the number in the sentence, and the sentence in the paper
//! if its text is available. Most figures are lost images: their numbers have no quotation and are
//! shown as "not in the text".

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// A number of a paper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotation {
    /// The id that rows refer to; for a cell of a table `table/line/column`.
    pub id: String,
    /// The number of the text, see the top of `quotations.toml`.
    pub seed: String,
    /// The sentence, or the line of the table, word for word.
    pub sentence: String,
    /// The number, or a few words with it, as in the sentence.
    pub value: String,
}

impl Quotation {
    /// The number, for plots; `None` if the value has other words than the mark of a footnote or a
    /// percent sign.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        self.value.trim_start_matches(['*', '†']).trim_end_matches('%').parse().ok()
    }
}

/// A table of a paper; its cells are separated by tabs.
#[derive(Debug, Deserialize)]
struct QuotedTable {
    id: String,
    seed: String,
    heading: String,
    /// Number of the first columns, which name the line.
    #[serde(default = "one")]
    names: usize,
    lines: Vec<String>,
}

const fn one() -> usize {
    1
}

#[derive(Debug, Default, Deserialize)]
struct File {
    #[serde(default)]
    table: Vec<QuotedTable>,
    #[serde(default)]
    quotation: Vec<Quotation>,
}

const TEXT: &str = include_str!("../quotations.toml");

/// The names of the lines of a table, in order.
#[must_use]
pub fn lines(table: &str) -> Vec<String> {
    let file: File = toml::from_str(TEXT).unwrap_or_default();
    let of_table = file.table.iter().filter(|known| known.id == table);
    of_table.flat_map(|table| table.lines.iter().map(|line| name(table, line))).collect()
}

/// The quotation `id`.
#[must_use]
pub fn find(id: &str) -> Option<&'static Quotation> {
    all().get(id)
}

fn all() -> &'static BTreeMap<String, Quotation> {
    static ALL: OnceLock<BTreeMap<String, Quotation>> = OnceLock::new();
    // Tests verify that the file, a part of the program, is valid.
    ALL.get_or_init(|| read(TEXT).unwrap_or_default())
}

fn read(text: &str) -> Result<BTreeMap<String, Quotation>, toml::de::Error> {
    let file: File = toml::from_str(text)?;
    let of_tables = file.table.iter().flat_map(cells);
    Ok(file.quotation.iter().cloned().chain(of_tables).map(|quotation| (quotation.id.clone(), quotation)).collect())
}

/// The cells of a table as quotations.
fn cells(table: &QuotedTable) -> Vec<Quotation> {
    let columns: Vec<&str> = table.heading.split('\t').skip(table.names).collect();
    let mut all = Vec::new();
    for line in &table.lines {
        let (name, values) = (name(table, line), line.split('\t').skip(table.names));
        let filled = columns.iter().zip(values).filter(|(_, value)| !value.is_empty());
        all.extend(filled.map(|(column, value)| Quotation {
            id: format!("{}/{name}/{column}", table.id),
            seed: table.seed.clone(),
            sentence: line.clone(),
            value: value.to_owned(),
        }));
    }
    all
}

/// The name of a line.
fn name(table: &QuotedTable, line: &str) -> String {
    line.split('\t').take(table.names).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::all as experiments;
    use crate::experiment::Scale;

    #[test]
    fn every_value_stands_in_its_sentence() {
        let file: File = toml::from_str(TEXT).unwrap();
        assert!(file.table.iter().all(|table| {
            let width = table.heading.split('\t').count();
            table.lines.iter().all(|line| line.split('\t').count() == width)
        }));
        let all = read(TEXT).unwrap();
        assert!(all.len() >= 28);
        for quotation in all.values() {
            let is_number = quotation.value.contains(|letter: char| letter.is_ascii_digit());
            assert!(is_number || ["yes", "no"].contains(&quotation.value.as_str()), "{quotation:?}");
            let found = quotation.sentence.match_indices(&quotation.value).any(|(at, value)| {
                // A whole number, not a part of a longer one.
                let before = quotation.sentence[..at].chars().next_back();
                let after = quotation.sentence[at + value.len()..].chars().next();
                let part = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_digit());
                !part(before) && !part(after)
            });
            assert!(found, "{quotation:?}");
        }
        assert_eq!(all["table2/Strided Scan: Iter/4MB"].value, "0.57");
        assert_eq!(all["table2/Linear Scan: Naive/64GB"].number(), Some(3.37));
        assert_eq!(all["appel-li/SparcStn 1 SunOS 4.0.3c/TRAP"].value, "†230");
    }

    #[test]
    fn every_row_s_quotation_is_there_and_none_is_left_over() {
        let mut used = std::collections::BTreeSet::new();
        for experiment in experiments() {
            for cell in [Scale::Full, Scale::Quick].into_iter().flat_map(experiment.cells) {
                for quotation in cell.rows.iter().filter_map(|row| row.paper.as_ref()) {
                    assert!(find(quotation).is_some(), "{}: there is no quotation {quotation:?}", cell.id);
                    used.insert(quotation.clone());
                }
            }
        }
        let left: Vec<&String> = all().keys().filter(|id| !used.contains(*id)).collect();
        assert!(left.is_empty(), "no row shows {left:?}");
    }

    /// The texts of the papers by file name, with single blanks; `None` if they are not available.
    fn papers() -> Option<Vec<(String, String)>> {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/seeds");
        let Ok(files) = std::fs::read_dir(&seeds) else {
            println!("SKIP seed 001_ is not beside the repository");
            return None;
        };
        let read = |file: std::io::Result<std::fs::DirEntry>| {
            let path = file.ok()?.path();
            let text = std::fs::read_to_string(&path).ok()?;
            Some((path.file_name()?.to_string_lossy().into_owned(), one_blank(&text)))
        };
        Some(files.filter_map(read).collect())
    }

    fn one_blank(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn sentences_stand_in_the_papers() {
        let Some(texts) = papers() else { return };
        for quotation in all().values() {
            let words = one_blank(&quotation.sentence);
            let stands = texts.iter().any(|(name, text)| name.starts_with(&quotation.seed) && text.contains(&words));
            assert!(stands, "{}: not in seed {}", quotation.id, quotation.seed);
        }
    }

    #[test]
    fn words_between_quotation_marks_stand_in_a_paper() {
        let Some(texts) = papers() else { return };
        for experiment in experiments() {
            for quoted in
                [experiment.source, experiment.about].iter().flat_map(|words| words.split('"').skip(1).step_by(2))
            {
                assert!(texts.iter().any(|(_, text)| text.contains(quoted)), "{}: {quoted:?}", experiment.name);
            }
        }
    }
}
