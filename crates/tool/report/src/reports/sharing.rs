//! False sharing: what dominates and what to do, then each object with its lines, bytes, code and
//! remedy, then lines that are no finding, and what could not be seen.
//!
//! | file | |
//! |---|---|
//! | `headline` | the sentence on what dominates, and the remedy |
//! | `groups` | findings by object |
//! | `others` | lines that are no finding: what they are |
//! | `threads` | a letter and a colour for each thread |
//! | `uses` | which thread uses which bytes of a line |
//! | `members` | what is atomic, a lock, or on two lines |
//! | `tables` | the tables |

mod groups;
mod headline;
mod members;
mod others;
mod tables;
#[cfg(test)]
mod tests;
mod threads;
mod uses;

pub use headline::Headline;

use super::machine;
use crate::Sharing;
use crate::document::{Block, Document, Section};
use crate::quantity::{address, count, moment, plural, rate, seconds, share};
use crate::sharing::{LineReport, MemoryOwner};
use crate::shell;
use fieldstone_stats::Interval;
use groups::Group;
use threads::NamedThreads;

/// Objects that a terminal shows with all that is known, and that a page shows so; of the others
/// the lines are listed.
const MOST_OBJECTS: usize = 5;
const MOST_OBJECTS_ON_PAGE: usize = 50;
/// Lines of an object that are drawn.
const MOST_LINES: usize = 3;
const MOST_LINES_ON_PAGE: usize = 16;

/// The report on `sharing`.
pub fn document(sharing: &Sharing) -> Document {
    let groups = groups::by_object(sharing);
    let others = groups::heaviest_first(&sharing.others);
    let in_groups = groups.iter().flat_map(|group| group.lines.iter().copied());
    let all: Vec<&LineReport> = in_groups.chain(others.iter().copied()).collect();
    let threads = NamedThreads::of(sharing, &all);
    let command = shell::join(&sharing.program.command);
    let mut objects = groups.iter().enumerate().map(|(at, group)| object(at + 1, group, &threads));
    let mut blocks = vec![Block::facts(facts(sharing))];
    blocks.extend(objects.by_ref().take(MOST_OBJECTS));
    let listed = groups.iter().skip(MOST_OBJECTS).flat_map(|group| group.lines.iter().copied());
    blocks.extend([
        Block::section("Also shared falsely", [tables::lines(listed).into()]),
        Block::Detail(objects.take(MOST_OBJECTS_ON_PAGE - MOST_OBJECTS).collect()),
        Block::section(
            "Sampled lines without false sharing",
            [tables::others(&others, &threads).into(), Block::List(others::kinds(&others))],
        ),
        Block::section("What could not be seen", [Block::List(sharing.unseen.clone())]),
        Block::Detail(vec![Block::folded("Threads", [tables::threads(&threads).into()])]),
    ]);
    Document {
        kind: "sharing".into(),
        subject: "Which cache lines threads contend for".into(),
        title: sharing.pid.map_or_else(|| command.clone(), |pid| format!("{command} (process {pid})")),
        is_command: true,
        lead: lead(Headline::of(sharing)),
        blocks,
        tool_version: sharing.tool_version.clone(),
    }
}

fn lead(headline: Headline) -> Section {
    Section::from(vec![
        Block::Paragraph(headline.sentence),
        Block::List(headline.advice),
        Block::command(headline.command),
        Block::paragraph(headline.unavailable),
    ])
}

fn facts(sharing: &Sharing) -> impl Iterator<Item = (&'static str, String)> {
    [("Began", moment(sharing.taken_at_unix_s)), ("Samples", samples(sharing))]
        .into_iter()
        .chain(machine::facts(&sharing.machine))
}

/// `6,412 samples by perf's software clock at 1000 Hz for 3.20 s, 12 lost; 18,230 accesses with an
/// address`.
fn samples(sharing: &Sharing) -> String {
    let of = &sharing.sampling;
    let means = if of.means.is_empty() { String::new() } else { format!(" by {}", of.means) };
    let hertz = if of.hertz > 0.0 { format!(" at {} Hz", rate(of.hertz)) } else { String::new() };
    format!(
        "{}{means}{hertz} for {}, {} lost; {} with an address",
        plural(of.samples, "sample"),
        seconds(sharing.duration_s),
        count(of.lost),
        if of.accesses == 1 { "1 access".to_owned() } else { format!("{} accesses", count(of.accesses)) }
    )
}

/// An object whose lines are shared falsely.
fn object(number: usize, group: &Group<'_>, threads: &NamedThreads<'_>) -> Block {
    let heading = format!("{number}. {}: {} of the threads’ time", group.name(), groups::cost(&group.cost));
    let mut blocks: Vec<Block> =
        group.places().iter().map(|place| Block::Paragraph(MemoryOwner::words(place))).collect();
    let mut drawn = group.lines.iter().map(|found| line(found, threads));
    blocks.extend(drawn.by_ref().take(MOST_LINES));
    blocks.extend([
        Block::section("More of its lines", [tables::lines(group.lines.iter().skip(MOST_LINES).copied()).into()]),
        Block::Detail(drawn.take(MOST_LINES_ON_PAGE - MOST_LINES).collect()),
        Block::section("The code that accesses it", [tables::code(&group.lines, threads).into()]),
        Block::section(
            "What to do",
            // The report leads with the advice on the first object.
            (number > 1)
                .then(|| Block::List(group.advice()))
                .into_iter()
                .chain(group.redesigns().into_iter().map(|redesign| Block::Listing(redesign.text.clone()))),
        ),
    ]);
    Block::section(heading, blocks)
}

fn line(found: &LineReport, threads: &NamedThreads<'_>) -> Block {
    let line = &found.judged.line;
    let pair = if uses::only_as_pair(found) { ", only as a pair that the prefetcher fetches together" } else { "" };
    let (verdict, cost) = (found.judged.verdict.words(), groups::cost(&found.cost));
    let heading = format!("Line {}: {verdict}{pair}, {cost} of the threads’ time", address(line.address));
    let saving =
        format!("The interval is a {}. A repair saves {} at most.", Interval::LABEL, share(found.cost.max_gain));
    let refused = found.refused.as_ref().map(|why| format!("`run --repair` does not change it: {why}."));
    let notes = contended(found).into_iter().chain(members::notes(found)).chain(refused);
    let words = std::iter::once(saving).chain(notes).map(Block::Paragraph);
    let numbers = [Block::ByteMap(uses::map(found, threads)), tables::uses(found, threads).into()];
    Block::section(heading, words.chain(numbers))
}

/// What the processor recorded of a line; `None` where it recorded nothing.
fn contended(found: &LineReport) -> Option<String> {
    let loads = Some(found.contended).filter(|loads| *loads > 0)?;
    Some(format!("{} found it modified in another processor’s cache (HITM).", plural(loads, "sampled load")))
}
