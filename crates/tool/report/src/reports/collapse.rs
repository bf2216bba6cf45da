//! A pass over a running process's memory: how much was put on huge pages, what was not and why.

use crate::document::{Block, Document};
use crate::quantity::{bytes, count, seconds, share};
use crate::{Collapse, CollapsedProcess, Tally};

/// The report on `collapse`.
pub fn document(collapse: &Collapse) -> Document {
    let mut blocks: Vec<Block> = collapse.processes.iter().map(process).collect();
    blocks.push(Block::Paragraph("Memory that is mapped after this is not included.".into()));
    Document {
        kind: "collapse".into(),
        subject: "Memory put on huge pages".into(),
        blocks,
        tool_version: collapse.tool_version.clone(),
        ..Document::default()
    }
}

fn process(process: &CollapsedProcess) -> Block {
    let duration = process.duration_s.map_or_else(String::new, |duration_s| format!(" in {}", seconds(duration_s)));
    let pages = if process.moved_ranges == 1 { "page" } else { "pages" };
    let heading = format!(
        "{} ({}): {} put on {} huge {pages}{duration}",
        process.name,
        process.pid,
        bytes(process.moved_bytes),
        count(process.moved_ranges),
    );
    let left = process
        .left
        .iter()
        .map(|left| ("left", format!("{} in {} ranges: {}", bytes(left.bytes), count(left.ranges), left.reason)));
    let facts = [("before", tally(process.before)), ("after", tally(process.after))].into_iter().chain(left);
    let end = if process.ended {
        Some("The process ended meanwhile.".to_owned())
    } else {
        let not_reached = Some(process.not_reached_ranges).filter(|ranges| *ranges > 0);
        not_reached.map(|ranges| format!("Stopped: {} ranges of 2 MiB were not tried.", count(ranges)))
    };
    Block::section(heading, [Block::facts(facts), Block::paragraph(end)])
}

fn tally(tally: Tally) -> String {
    let part = share(tally.huge_bytes as f64 / tally.resident_bytes.max(1) as f64);
    let (huge, all) = (bytes(tally.huge_bytes), bytes(tally.resident_bytes));
    format!("{huge} of {all} private read-write memory on huge pages ({part})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collapse::UncollapsedMemory;
    use crate::text::{self, Style};

    #[test]
    fn moved_and_left_memory_is_reported() {
        let left = UncollapsedMemory { reason: "less than half in memory".into(), ranges: 2, bytes: 12 << 10 };
        let process = CollapsedProcess {
            pid: 42,
            name: "server".into(),
            duration_s: Some(0.02),
            before: Tally { resident_bytes: 64 << 20, huge_bytes: 0 },
            after: Tally { resident_bytes: 64 << 20, huge_bytes: 48 << 20 },
            moved_ranges: 24,
            moved_bytes: 48 << 20,
            left: vec![left],
            not_reached_ranges: 3,
            ended: false,
        };
        let text_of = |process: &CollapsedProcess| {
            let collapse = Collapse { processes: vec![process.clone()], ..Collapse::default() };
            text::render(&document(&collapse), Style::default())
        };
        let text = text_of(&process);
        for part in [
            "server (42): 48 MiB put on 24 huge pages in 20",
            "(0.0 %)",
            "(75.0 %)",
            "12 KiB in 2 ranges: less than half",
            "3 ranges of 2 MiB were not tried",
            "not included",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let ended = text_of(&CollapsedProcess { ended: true, duration_s: None, ..process });
        assert!(ended.contains("24 huge pages\n") && ended.contains("ended meanwhile"), "{ended}");
    }
}
