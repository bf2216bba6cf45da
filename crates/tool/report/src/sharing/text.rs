//! A look at sharing for a terminal: what dominates and what to do, then each object with its lines, bytes, code and remedy,
//! then what is no finding, and what could not be seen.

mod sheet;
#[cfg(test)]
mod tests;

use super::groups::{self, Group};
use super::threads::Threads;
use super::words::{notes, sampled};
use super::{Found, Headline, Sharing, others, tables, uses};
use crate::quantity::{address, bytes, count, moment, plural, share};
use crate::shell;
use crate::text::Style;
use fieldstone_sharing::LineUse;
use sheet::Sheet;
use uses::{Row, Touch};

/// Objects that are shown with all that is known; of the others the lines are listed.
const MOST_OBJECTS: usize = 5;
/// Lines of an object that are drawn.
const MOST_LINES: usize = 3;
/// Rows of a map, and of its table.
const MOST_ROWS: usize = 12;
/// Rows of code.
const MOST_CODE: usize = 8;
/// Lines that are listed, of findings and of others.
const MOST_LISTED: usize = 10;

/// `sharing` for a terminal.
pub fn text(sharing: &Sharing, style: Style) -> String {
    let groups = groups::of(sharing);
    let others = groups::heaviest_first(&sharing.others);
    let all: Vec<&Found> =
        groups.iter().flat_map(|group| group.lines.iter().copied()).chain(others.iter().copied()).collect();
    let threads = Threads::of(sharing, &all);
    let mut sheet = Sheet::new(style);
    head(sharing, &mut sheet);
    let (shown, rest) = groups.split_at(groups.len().min(MOST_OBJECTS));
    for (at, group) in shown.iter().enumerate() {
        object(at + 1, group, &threads, &mut sheet);
    }
    listed(
        "Also shared falsely",
        &rest.iter().flat_map(|group| group.lines.iter().copied()).collect::<Vec<_>>(),
        &mut sheet,
    );
    no_findings(&others, &threads, &mut sheet);
    if !sharing.unseen.is_empty() {
        sheet.heading("What could not be seen");
        sharing.unseen.iter().for_each(|sentence| sheet.item(sentence));
    }
    sheet.finish()
}

fn head(sharing: &Sharing, sheet: &mut Sheet) {
    let headline = Headline::of(sharing);
    let command = shell::join(&sharing.program.command);
    sheet.title(&sharing.pid.map_or_else(|| command.clone(), |pid| format!("{command} (process {pid})")));
    sheet.paragraph(&headline.sentence);
    headline.advice.iter().for_each(|advice| sheet.item(advice));
    if let Some(command) = &headline.command {
        sheet.gap();
        sheet.verbatim(command);
    }
    if let Some(unavailable) = &headline.unavailable {
        sheet.gap();
        unavailable.lines().for_each(|line| sheet.paragraph(line));
    }
    sheet.gap();
    sheet.paragraph(&circumstances(sharing));
    sheet.paragraph(&sampled(sharing));
}

/// When and where.
fn circumstances(sharing: &Sharing) -> String {
    let machine = &sharing.machine;
    let mut facts = vec![machine.cpu.clone(), plural(machine.cpus.into(), "processor"), bytes(machine.memory_bytes)];
    facts.push(format!("{} {}", machine.kernel, machine.architecture));
    facts.extend(machine.virtual_machine.then(|| "virtual machine".to_owned()));
    facts.retain(|fact| !fact.trim().is_empty());
    format!("{}. {}.", moment(sharing.taken_at_unix_s), facts.join(", "))
}

fn object(number: usize, group: &Group<'_>, threads: &Threads<'_>, sheet: &mut Sheet) {
    sheet.heading(&format!("{number}. {}: {} of the threads’ time", group.name(), groups::cost(&group.cost)));
    group.places().iter().for_each(|place| sheet.paragraph(&place.words()));
    let (drawn, rest) = group.lines.split_at(group.lines.len().min(MOST_LINES));
    drawn.iter().for_each(|found| line(found, threads, sheet));
    let more: Vec<String> = rest.iter().take(MOST_LISTED).map(|found| address(found.judged.line.address)).collect();
    if !more.is_empty() {
        let ends = if rest.len() > more.len() { ", …" } else { "" };
        sheet.paragraph(&format!("And {} more of its lines: {}{ends}.", count(rest.len() as u64), more.join(", ")));
    }
    sheet.gap();
    sheet.table(&tables::code(&group.lines, threads, MOST_CODE));
    sheet.gap();
    sheet.paragraph("What to do:");
    group.advice().iter().for_each(|advice| sheet.item(advice));
    if let Some(redesign) = group.redesign() {
        sheet.gap();
        sheet.verbatim(&redesign.text);
    }
}

fn line(found: &Found, threads: &Threads<'_>, sheet: &mut Sheet) {
    let of = &found.judged.line;
    sheet.gap();
    let pair = if uses::only_as_pair(found) { ", only as a pair that the prefetcher fetches together" } else { "" };
    sheet.paragraph(&format!(
        "Line {}: {}{pair}, {} of the threads’ time (95 % interval); a repair gives back {} at most.",
        address(of.address),
        found.judged.verdict.words(),
        groups::cost(&found.cost),
        share(found.cost.max_gain)
    ));
    notes(found).iter().for_each(|words| sheet.paragraph(words));
    map(of, threads, sheet);
    sheet.table(&tables::uses(found, threads, MOST_ROWS));
    if let Some(refused) = &found.refused {
        sheet.item(&format!("`run --repair` leaves it as it is: {refused}."));
    }
}

/// A row a thread, as many bytes of it as the terminal has room for.
fn map(line: &LineUse, threads: &Threads<'_>, sheet: &mut Sheet) {
    let mut rows = uses::rows(line);
    let more = rows.len().saturating_sub(MOST_ROWS);
    if more > 0 {
        rows.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        rows.truncate(MOST_ROWS);
        rows.sort_by_key(|row| row.thread);
    }
    let label = |row: &Row| format!("{} {}", threads.letter(row.thread), row.thread);
    let room = rows.iter().map(|row| label(row).chars().count()).max().unwrap_or(0);
    let width = [64, 32, 16].into_iter().find(|bytes| room + 2 + bytes <= sheet.room()).unwrap_or(8);
    let bytes = uses::bytes(line);
    for start in (0..bytes).step_by(width) {
        let end = (start + width).min(bytes);
        let ruler: String = (start..end).step_by(8).map(|byte| format!("{byte:<8}")).collect();
        sheet.row(&format!("{:room$}  {}", "", ruler.trim_end()));
        for row in &rows {
            let letter = |touch: &Touch| touch.letter(threads.letter(row.thread));
            let letters: String = row.touches[start..end].iter().map(letter).collect();
            sheet.row(&format!("{:room$}  {letters}", label(row)));
        }
    }
    let rest = if more > 0 { format!(" {more} threads with less are not drawn.") } else { String::new() };
    sheet.paragraph(&format!("Capital letters: written; small ones: only read.{rest}"));
}

fn listed(heading: &str, lines: &[&Found], sheet: &mut Sheet) {
    if lines.is_empty() {
        return;
    }
    sheet.heading(heading);
    let (shown, rest) = lines.split_at(lines.len().min(MOST_LISTED));
    sheet.table(&tables::lines(shown));
    others::more(rest).iter().for_each(|words| sheet.paragraph(words));
}

fn no_findings(lines: &[&Found], threads: &Threads<'_>, sheet: &mut Sheet) {
    if lines.is_empty() {
        return;
    }
    sheet.heading("Looked at, and no false sharing");
    let (shown, rest) = lines.split_at(lines.len().min(MOST_LISTED));
    sheet.table(&tables::others(shown, threads));
    others::more(rest).iter().for_each(|words| sheet.paragraph(words));
    sheet.gap();
    others::kinds(lines).iter().for_each(|(words, meaning)| sheet.item(&format!("{words}: {meaning}")));
}
