//! The tables of a look at sharing as plain cells, so that the terminal and the page show the same ones.

use super::groups::{cost, whose};
use super::members::marked;
use super::threads::Threads;
use super::uses::{runs, span};
use super::{Code, Found};
use crate::quantity::{address, count, rate, share};
use crate::tables::Table;
use fieldstone_sharing::Verdict;

/// Letters that are listed in one cell; more threads are counted.
const MOST_LETTERS: usize = 8;

fn table(heading: &[&str], text_columns: usize, rows: Vec<Vec<String>>) -> Table {
    Table { heading: heading.iter().map(|cell| (*cell).to_owned()).collect(), rows, text_columns }
}

/// Threads by the bytes that they use, at most `most` rows, the heaviest of them.
pub(super) fn uses(found: &Found, threads: &Threads<'_>, most: usize) -> Table {
    let mut runs = runs(found);
    let more = runs.len().saturating_sub(most);
    if more > 0 {
        runs.sort_by(|a, b| (b.read + b.written).total_cmp(&(a.read + a.written)));
        runs.truncate(most);
        runs.sort_by_key(|run| (run.thread, run.bytes.start));
    }
    let has_members = runs.iter().any(|run| !marked(run).is_empty());
    let mut heading = vec!["", "thread", "bytes"];
    heading.extend(has_members.then_some("member"));
    let text_columns = heading.len();
    heading.extend(["reads", "writes"]);
    let row = |run: &super::uses::Run| {
        let mut row = vec![threads.letter(run.thread).to_string(), threads.name(run.thread), span(&run.bytes)];
        row.extend(has_members.then(|| marked(run)));
        row.extend([rate(run.read), rate(run.written)]);
        row
    };
    let mut rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    if more > 0 {
        let mut row = vec!["…".to_owned(), format!("{} more", count(more as u64))];
        row.resize(heading.len(), String::new());
        rows.push(row);
    }
    table(&heading, text_columns, rows)
}

/// The code that touches these lines, most samples first, at most `most` rows. What several lines have in common is one row.
pub(super) fn code(lines: &[&Found], threads: &Threads<'_>, most: usize) -> Table {
    let mut sites: Vec<Code> = Vec::new();
    for code in lines.iter().flat_map(|found| &found.code) {
        match sites.iter_mut().find(|site| is_same(site, code)) {
            Some(site) => join(site, code),
            None => sites.push(code.clone()),
        }
    }
    sites.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    sites.truncate(most);
    let row = |code: Code| {
        vec![
            function(&code),
            place(&code),
            does(&code).to_owned(),
            threads.letters(&code.threads, MOST_LETTERS),
            rate(code.weight),
        ]
    };
    table(&["function", "where", "does", "threads", "samples"], 4, sites.into_iter().map(row).collect())
}

/// Of one line of source, all instructions that do the same are one; where no line is known, each instruction stands alone.
fn is_same(a: &Code, b: &Code) -> bool {
    let by_line = a.line.is_some() && (&a.function, &a.file, a.line) == (&b.function, &b.file, b.line);
    let by_ip = a.ip == b.ip && a.module == b.module;
    by_line || by_ip
}

fn join(site: &mut Code, other: &Code) {
    site.reads |= other.reads;
    site.writes |= other.writes;
    site.weight += other.weight;
    site.threads.extend(&other.threads);
    site.threads.sort_unstable();
    site.threads.dedup();
}

fn function(code: &Code) -> String {
    if code.function.is_empty() { "–".to_owned() } else { code.function.clone() }
}

/// `lr.c:57`, or the instruction's place in its module.
fn place(code: &Code) -> String {
    match (&code.file, code.line) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file.clone(),
        (None, _) => format!("{}+{:#x}", code.module, code.ip),
    }
}

fn does(code: &Code) -> &'static str {
    match (code.reads, code.writes) {
        (true, true) => "reads, writes",
        (false, true) => "writes",
        (true, false) => "reads",
        (false, false) => "–",
    }
}

/// Lines that are no finding: what they are, whose, and what they take.
pub(super) fn others(lines: &[&Found], threads: &Threads<'_>) -> Table {
    let row = |found: &&Found| {
        let line = &found.judged.line;
        let users: Vec<u32> = line.threads.iter().map(|thread| thread.thread).collect();
        vec![
            whose(found),
            found.judged.verdict.words().to_owned(),
            address(line.address),
            threads.letters(&users, MOST_LETTERS),
            share(found.cost.share.likely),
        ]
    };
    table(&["memory", "what it is", "line", "threads", "of the time"], 4, lines.iter().map(row).collect())
}

/// Lines of findings that are not drawn.
pub(super) fn lines(lines: &[&Found]) -> Table {
    let row = |found: &&Found| {
        let verdict = match found.judged.verdict {
            Verdict::Mixed { .. } => "beside true sharing",
            _ => "false sharing",
        };
        vec![address(found.judged.line.address), whose(found), verdict.to_owned(), cost(&found.cost)]
    };
    table(&["line", "memory", "what it is", "of the time"], 3, lines.iter().map(row).collect())
}

/// Who the letters are.
pub(super) fn threads(threads: &Threads<'_>) -> Table {
    let row = |tid: u32| {
        let start = threads.start(tid).unwrap_or("–").to_owned();
        vec![threads.letter(tid).to_string(), threads.name(tid), start]
    };
    table(&["", "thread", "began in"], 3, threads.lettered().into_iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::fixture;

    #[test]
    fn code_of_one_source_line_is_one_row_over_all_lines() {
        let sharing = fixture::regression();
        let lines: Vec<&Found> = sharing.findings.iter().collect();
        let threads = Threads::of(&sharing, &lines);
        let table = code(&lines, &threads, 8);
        let first = &table.rows[0];
        assert_eq!(first[..4], ["regress", "src/sharing/linear_regression.c:57", "reads, writes", "A B C D"]);
        let sum: f64 = lines.iter().map(|found| found.code[0].weight).sum();
        assert_eq!(first[4], rate(sum));
        assert_eq!(code(&lines, &threads, 1).rows.len(), 1);
    }

    #[test]
    fn code_without_debug_information_is_told_by_its_offset() {
        let mut sharing = fixture::regression();
        for found in &mut sharing.findings {
            for code in &mut found.code {
                (code.function, code.file, code.line) = (String::new(), None, None);
            }
        }
        let lines: Vec<&Found> = sharing.findings.iter().collect();
        let table = code(&lines, &Threads::of(&sharing, &lines), 8);
        assert_eq!(table.rows.len(), 2, "two instructions");
        assert_eq!(table.rows[0][..2], ["–", "linear_regression+0x1187"]);
    }

    #[test]
    fn many_threads_are_the_heaviest_and_a_count() {
        let mut sharing = fixture::regression();
        let line = &mut sharing.findings[0].judged.line;
        let light = line.threads[0].clone();
        line.threads.extend((200..230).map(|thread| fieldstone_sharing::ThreadUse {
            thread,
            written: light.written.iter().map(|weight| weight / 100.0).collect(),
            ..light.clone()
        }));
        let lines: Vec<&Found> = sharing.findings.iter().collect();
        let table = uses(lines[0], &Threads::of(&sharing, &lines), 5);
        assert_eq!(table.rows.len(), 6);
        assert!(
            table.rows[5][1].ends_with(" more") && table.rows[5].len() == table.heading.len(),
            "{:?}",
            table.rows[5]
        );
    }

    #[test]
    fn members_have_a_column_only_where_they_are_known() {
        let mut sharing = fixture::regression();
        sharing.findings[0].places.clear();
        let lines: Vec<&Found> = sharing.findings.iter().collect();
        let threads = Threads::of(&sharing, &lines);
        assert_eq!(uses(lines[0], &threads, 9).heading, ["", "thread", "bytes", "reads", "writes"]);
        assert_eq!(uses(lines[1], &threads, 9).heading[3], "member");
    }
}
