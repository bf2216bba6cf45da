//! A pass over a running process's memory for a terminal: how much was put on huge pages, what was not and why.

use super::Style;
use crate::quantity::{bytes, count, seconds, share};
use crate::shell::printable;
use crate::{Collapse, CollapsedProcess, Tally};

/// `done` for a terminal.
pub fn collapse(done: &Collapse, style: Style) -> String {
    let processes: String = done.processes.iter().map(|process| of(process, style)).collect();
    processes + &style.paragraph("Memory that is mapped after this is not included.")
}

fn of(process: &CollapsedProcess, style: Style) -> String {
    let took = process.duration_s.map_or_else(String::new, |took_s| format!(" in {}", seconds(took_s)));
    let pages = if process.moved_ranges == 1 { "page" } else { "pages" };
    let mut text = style.paragraph(&format!(
        "{} ({}): {} put on {} huge {pages}{took}",
        process.name,
        process.pid,
        bytes(process.moved_bytes),
        count(process.moved_ranges),
    ));
    let mut fact = |name: &str, words: &str| text += &style.hanging(&format!("  {name:8}"), &printable(words));
    fact("before", &tally(process.before));
    fact("after", &tally(process.after));
    for left in &process.left {
        fact("left", &format!("{} in {} ranges: {}", bytes(left.bytes), count(left.ranges), left.reason));
    }
    if process.ended {
        text += "  The process ended meanwhile.\n";
    } else if process.not_reached_ranges > 0 {
        text += &format!("  Stopped: {} ranges of 2 MiB were not tried.\n", count(process.not_reached_ranges));
    }
    text
}

fn tally(tally: Tally) -> String {
    let part = share(tally.huge_bytes as f64 / tally.resident_bytes.max(1) as f64);
    let (huge, all) = (bytes(tally.huge_bytes), bytes(tally.resident_bytes));
    format!("{huge} of {all} private read-write memory on huge pages ({part})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collapse::LeftSmall;

    #[test]
    fn what_was_done_and_what_was_not_is_told() {
        let left = LeftSmall { reason: "less than half in memory".into(), ranges: 2, bytes: 12 << 10 };
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
        let said = |process: &CollapsedProcess| {
            collapse(&Collapse { processes: vec![process.clone()], ..Collapse::default() }, Style::default())
        };
        let text = said(&process);
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
        let ended = CollapsedProcess { ended: true, duration_s: None, ..process };
        assert!(
            said(&ended).contains("24 huge pages\n") && said(&ended).contains("ended meanwhile"),
            "{}",
            said(&ended)
        );
    }
}
