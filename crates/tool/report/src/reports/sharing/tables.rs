//! The tables of a report on false sharing.

use super::groups::{cost_value, whose};
use super::members::marked;
use super::threads::NamedThreads;
use super::uses::{ByteRun, runs, span};
use crate::document::{CellLine, Column, Rest, RowLimit, Table, TableCell, TableRow, Unit, row};
use crate::quantity::address;
use crate::sharing::{LineReport, SampledInstruction};
use fieldstone_sharing::Verdict;

/// Letters that are listed in one cell; more threads are counted.
const MOST_LETTERS: usize = 8;

/// At most this many rows on a terminal and on a page.
fn limit(terminal: usize, page: usize, rest: Rest) -> RowLimit {
    RowLimit { terminal, page, least: None, rest }
}

/// Threads by the bytes that they use.
pub(super) fn uses(found: &LineReport, threads: &NamedThreads<'_>) -> Table {
    let runs = runs(found);
    let has_members = runs.iter().any(|run| !marked(run).is_empty());
    let text = ["thread", "bytes"].map(Column::text).into_iter();
    let columns = text
        .chain(has_members.then(|| Column::text("member")))
        .chain([Column::number("read samples"), Column::number("write samples")]);
    let rows = runs.iter().map(|run: &ByteRun| {
        let name = format!("{} {}", threads.letter(run.thread), threads.name(run.thread));
        let mut row = row![name, span(&run.bytes)].weighing(run.read + run.written);
        row.cells.extend(has_members.then(|| TableCell::from(marked(run))));
        row.cells.extend([run.read, run.written].map(|samples| TableCell::from(Unit::Rate.of(samples))));
        row
    });
    let rest = Rest::Sum("run of bytes", "runs of bytes");
    Table::new(columns).with_rows(rows).with_limit(limit(12, 64, rest))
}

/// The code that accesses these lines, most samples first. What several lines have in common is one
/// row.
pub(super) fn code(lines: &[&LineReport], threads: &NamedThreads<'_>) -> Table {
    let mut sites: Vec<SampledInstruction> = Vec::new();
    for code in lines.iter().flat_map(|found| &found.code) {
        match sites.iter_mut().find(|site| is_same(site, code)) {
            Some(site) => join(site, code),
            None => sites.push(code.clone()),
        }
    }
    sites.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let text = ["function", "where", "access", "threads"].map(Column::text);
    let rows = sites.iter().map(|code| -> TableRow {
        let function =
            Some(&code.function).filter(|name| !name.is_empty()).map(|name| CellLine::Function(name.clone()));
        row![
            function,
            CellLine::Path(place(code)),
            does(code),
            threads.letters(&code.threads, MOST_LETTERS),
            Unit::Rate.of(code.weight),
        ]
        .weighing(code.weight)
    });
    let rest = Rest::Sum("line of code", "lines of code");
    Table::new(text.into_iter().chain([Column::number("samples")])).with_rows(rows).with_limit(limit(8, 64, rest))
}

/// Of one line of source, all instructions that do the same are one; where no line is known, each
/// instruction stands alone.
fn is_same(a: &SampledInstruction, b: &SampledInstruction) -> bool {
    let by_line = a.line.is_some() && (&a.function, &a.file, a.line) == (&b.function, &b.file, b.line);
    let by_ip = a.ip == b.ip && a.module == b.module;
    by_line || by_ip
}

fn join(site: &mut SampledInstruction, other: &SampledInstruction) {
    site.reads |= other.reads;
    site.writes |= other.writes;
    site.weight += other.weight;
    site.threads.extend(&other.threads);
    site.threads.sort_unstable();
    site.threads.dedup();
}

/// `lr.c:57`, or the instruction's place in its module.
fn place(code: &SampledInstruction) -> String {
    match (&code.file, code.line) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file.clone(),
        (None, _) => format!("{}+{:#x}", code.module, code.ip),
    }
}

fn does(code: &SampledInstruction) -> &'static str {
    match (code.reads, code.writes) {
        (true, true) => "reads, writes",
        (false, true) => "writes",
        (true, false) => "reads",
        (false, false) => "–",
    }
}

/// Lines that are no finding: what they are, whose, and what they take.
pub(super) fn others(lines: &[&LineReport], threads: &NamedThreads<'_>) -> Table {
    let text = ["memory", "what it is", "line", "threads"].map(Column::text);
    let rows = lines.iter().map(|found| {
        let line = &found.judged.line;
        let users: Vec<u32> = line.threads.iter().map(|thread| thread.thread).collect();
        row![
            whose(found),
            found.judged.verdict.words(),
            address(line.address),
            threads.letters(&users, MOST_LETTERS),
            Unit::Share.of(found.cost.share.likely),
        ]
    });
    let rest = Rest::Count("line", "lines", Some(1));
    Table::new(text.into_iter().chain([Column::number("of the time")])).with_rows(rows).with_limit(limit(10, 100, rest))
}

/// Lines of findings that are not drawn.
pub(super) fn lines<'a>(lines: impl Iterator<Item = &'a LineReport>) -> Table {
    let text = ["line", "memory", "what it is"].map(Column::text);
    let rows = lines.map(|found| {
        let verdict = match found.judged.verdict {
            Verdict::Mixed { .. } => "beside true sharing",
            _ => "false sharing",
        };
        row![address(found.judged.line.address), whose(found), verdict, cost_value(&found.cost)]
    });
    let rest = Rest::Count("line", "lines", Some(2));
    Table::new(text.into_iter().chain([Column::number("of the time")])).with_rows(rows).with_limit(limit(10, 100, rest))
}

/// The threads that the letters stand for.
pub(super) fn threads(threads: &NamedThreads<'_>) -> Table {
    let rows = threads
        .lettered()
        .into_iter()
        .map(|tid| row![format!("{} {}", threads.letter(tid), threads.name(tid)), threads.start(tid)]);
    Table::new(["thread", "began in"].map(Column::text)).with_rows(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::fixture;

    fn words(row: &TableRow) -> Vec<String> {
        row.cells.iter().map(ToString::to_string).collect()
    }

    fn headings(table: &Table) -> Vec<&str> {
        table.columns.iter().map(|column| column.heading.as_str()).collect()
    }

    #[test]
    fn code_of_one_source_line_is_one_row_over_all_lines() {
        let sharing = fixture::regression();
        let lines: Vec<&LineReport> = sharing.findings.iter().collect();
        let threads = NamedThreads::of(&sharing, &lines);
        let first = words(&code(&lines, &threads).rows[0]);
        assert_eq!(first[..4], ["regress", "src/sharing/linear_regression.c:57", "reads, writes", "A B C D"]);
        let sum: f64 = lines.iter().map(|found| found.code[0].weight).sum();
        assert_eq!(first[4], crate::quantity::rate(sum));
    }

    #[test]
    fn code_without_debug_information_is_named_by_its_offset() {
        let mut sharing = fixture::regression();
        for found in &mut sharing.findings {
            for code in &mut found.code {
                (code.function, code.file, code.line) = (String::new(), None, None);
            }
        }
        let lines: Vec<&LineReport> = sharing.findings.iter().collect();
        let table = code(&lines, &NamedThreads::of(&sharing, &lines));
        assert_eq!(table.rows.len(), 2, "two instructions");
        assert_eq!(words(&table.rows[0])[..2], ["–", "linear_regression+0x1187"]);
    }

    #[test]
    fn many_threads_are_the_heaviest_and_a_sum() {
        let mut sharing = fixture::regression();
        let line = &mut sharing.findings[0].judged.line;
        let light = line.threads[0].clone();
        line.threads.extend((200..230).map(|thread| fieldstone_sharing::ThreadUse {
            thread,
            written: light.written.iter().map(|weight| weight / 100.0).collect(),
            ..light.clone()
        }));
        let lines: Vec<&LineReport> = sharing.findings.iter().collect();
        let table = uses(lines[0], &NamedThreads::of(&sharing, &lines));
        let (rows, _) = table.on_terminal();
        assert_eq!(rows.len(), 13);
        let last = words(&rows[12]);
        assert!(last[0].ends_with(" more runs of bytes") && last.len() == table.columns.len(), "{last:?}");
    }

    #[test]
    fn members_have_a_column_only_where_they_are_known() {
        let mut sharing = fixture::regression();
        sharing.findings[0].places.clear();
        let lines: Vec<&LineReport> = sharing.findings.iter().collect();
        let threads = NamedThreads::of(&sharing, &lines);
        assert_eq!(headings(&uses(lines[0], &threads)), ["thread", "bytes", "read samples", "write samples"]);
        assert_eq!(headings(&uses(lines[1], &threads))[2], "member");
    }

    #[test]
    fn many_other_lines_are_counted_by_kind() {
        let clean = fixture::clean();
        let lines: Vec<&LineReport> = std::iter::repeat_n(&clean.others, 4).flatten().collect();
        let (rows, rest) = others(&lines, &NamedThreads::of(&clean, &lines)).on_terminal();
        assert!(rows.len() == 10 && rest.starts_with("And 10 more lines: "), "{rest}");
        assert!(rest.contains("2 only read") && rest.contains("2 true sharing,"), "{rest}");
    }
}
