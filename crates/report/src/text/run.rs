//! The counts of a run for a terminal: what each process' region served, the pages really got, what stayed outside and why.

use super::Style;
use crate::quantity::{address, bytes, count};
use crate::{RegionStats, RunStats, shell, tables};

/// `stats` for a terminal.
pub fn run(stats: &RunStats, style: Style) -> String {
    let mut text = style.heading(&shell::join(&stats.command));
    text += &style.paragraph(&format!(
        "Asked for {} pages. Ended with {}. Primary process: {} ({}).",
        stats.page_kind, stats.outcome, stats.primary_name, stats.primary_pid
    ));
    if stats.processes.is_empty() {
        return text + &style.paragraph("No process had a region.");
    }
    text.push('\n');
    text += &style.rows(&tables::processes(&stats.processes));
    if let Some(primary) = stats.primary() {
        text += &region(&primary.region, style);
    }
    text
}

/// What the primary process' region counted, in sentences and a table.
fn region(region: &RegionStats, style: Style) -> String {
    let mut facts = vec![format!(
        "Region {} to {}, {}; pages read from {}.",
        address(region.base),
        address(region.limit),
        bytes(region.limit.saturating_sub(region.base)),
        region.pages_source
    )];
    if region.fell_back_bytes > 0 {
        facts.push(format!("{} asked for huge pages and got small ones: the pool was empty. `fieldstone doctor` tells how to reserve more.", bytes(region.fell_back_bytes)));
    }
    if region.demoted_bytes > 0 {
        facts.push(format!(
            "{} moved from hugetlb to ordinary pages: a call needed their manners. --pages thp keeps them all.",
            bytes(region.demoted_bytes)
        ));
    }
    if let Some(contiguity) = region.contiguity {
        facts.push(format!(
            "Physically contiguous: {} runs, the longest {}, half of the memory in runs of at least {}.",
            count(contiguity.runs),
            bytes(contiguity.longest_run_bytes),
            bytes(contiguity.median_run_bytes)
        ));
    }
    let mut text = format!("\n{}{}", style.heading("The primary process' region"), style.list(facts));
    if !region.outside.is_empty() {
        text += &format!("\n{}", style.heading("What stayed outside of it"));
        text += &style.rows(&tables::outside(region));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn it_says_what_was_really_got_and_what_stayed_outside() {
        let mut stats = fixture::run_stats();
        stats.processes[0].region.fell_back_bytes = 6 << 20;
        let text = run(&stats, Style::default());
        for part in [
            "redis-server --save ''",
            "4242",
            "thp 1.95 GiB, 4k 53 MiB",
            "thread stack",
            "pagemap+kpageflags",
            "6 MiB asked for huge",
            "0x100000000000",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("moved from hugetlb"));
        stats.processes.clear();
        assert!(run(&stats, Style::default()).contains("No process had a region."));
    }
}
