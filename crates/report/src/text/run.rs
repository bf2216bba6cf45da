//! The counts of a run for a terminal: what each process' region served, the pages really got, what stayed outside and why.

use super::Style;
use crate::quantity::{address, bytes, count, share};
use crate::{ProcessStats, RegionStats, RunStats, SmallPages, shell, tables};
use std::cmp::Reverse;

/// Lines of the table of processes.
const MOST_PROCESSES: usize = 10;
/// Shared memory below this is not reported.
const NOTEWORTHY_BYTES: u64 = 16 << 20;

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
    let shown = largest(&stats.processes);
    text += &style.rows(&tables::processes(&shown));
    match stats.processes.len() - shown.len() {
        0 => {}
        1 => text += "and 1 smaller process\n",
        more => text += &format!("and {} smaller processes\n", count(more as u64)),
    }
    if let Some(primary) = stats.primary() {
        text += &region(&primary.region, &stats.page_kind, style);
    }
    text
}

/// The processes with the largest peaks, the primary one among them, in the order in which they started.
fn largest(processes: &[ProcessStats]) -> Vec<ProcessStats> {
    let mut order: Vec<usize> = (0..processes.len()).collect();
    order.sort_by_key(|&at| (!processes[at].primary, Reverse(processes[at].region.mapped_peak_bytes)));
    order.truncate(MOST_PROCESSES);
    order.sort_unstable();
    order.into_iter().map(|at| processes[at].clone()).collect()
}

fn read_from(region: &RegionStats) -> String {
    match region.pages_source.as_str() {
        "" => "it ended before its pages could be looked at".to_owned(),
        source => format!("pages read from {source}"),
    }
}

/// What the primary process' region counted, in sentences and a table.
fn region(region: &RegionStats, asked_for: &str, style: Style) -> String {
    let place = if region.base == 0 {
        format!("No region: put on huge pages from outside; {}.", read_from(region))
    } else {
        let extent = bytes(region.limit.saturating_sub(region.base));
        format!("Region {} to {}, {extent}; {}.", address(region.base), address(region.limit), read_from(region))
    };
    let mut facts = vec![place];
    facts.extend(private_memory(region));
    facts.extend(small_pages(region));
    if region.shared_rw_bytes >= NOTEWORTHY_BYTES {
        facts.push(format!(
            "{} of shared memory are not private and not served. Its pages follow /sys/kernel/mm/transparent_hugepage/shmem_enabled.",
            bytes(region.shared_rw_bytes)
        ));
    }
    if region.huge_pages_disabled {
        facts.push(
            "The process has switched transparent huge pages off for itself (PR_SET_THP_DISABLE). \
             --also disabled switches them on again; --pages hugetlb is not affected."
                .to_owned(),
        );
    }
    if region.fell_back_bytes > 0 {
        facts.push(fell_back(region.fell_back_bytes, asked_for));
    }
    if region.demoted_bytes > 0 {
        facts.push(format!(
            "{} moved from hugetlb to ordinary pages, because a fork or a call for a part of a huge page needs those. With --pages thp all memory stays on huge pages.",
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

/// Where the private read-write memory lay, and how much of it on large pages.
fn private_memory(region: &RegionStats) -> Option<String> {
    let part = |bytes| region.share_of(bytes).map(share);
    Some(format!(
        "Resident private read-write memory: {}. {} of it inside the region, {} in place, {} outside; {} on pages of 2 MiB or more.",
        bytes(region.private_rw_bytes()),
        part(region.private_rw_inside_bytes)?,
        part(region.private_rw_in_place_bytes)?,
        part(region.private_rw_outside_bytes)?,
        part(region.private_rw_huge_bytes)?,
    ))
}

/// Why private read-write memory lay on small pages.
fn small_pages(region: &RegionStats) -> Option<String> {
    let reason = |small: &SmallPages| format!("{} {}", bytes(small.bytes), small.reason);
    let reasons: Vec<_> = region.small_pages.iter().filter(|small| small.bytes >= 1 << 20).map(reason).collect();
    (!reasons.is_empty()).then(|| format!("On small pages: {}.", reasons.join("; ")))
}

/// Why it did is told by reason, in the table of what stayed outside.
fn fell_back(fell_back_bytes: u64, asked_for: &str) -> String {
    let way_out = match asked_for {
        "hugetlb" => {
            "`--reserve SIZE` fills it for the run, as root, and `fieldstone doctor` tells how to fill it for longer"
        }
        _ => "`fieldstone doctor` tells how to fill it",
    };
    format!(
        "{} asked for {asked_for} pages and lie on transparent ones, for the reason below. Where the pool was empty, {way_out}.",
        bytes(fell_back_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn many_children_do_not_bury_the_large_ones() {
        let mut stats = fixture::run_stats();
        let child = |number: u32| ProcessStats {
            pid: 5000 + number,
            name: format!("child-{number}"),
            region: RegionStats { mapped_peak_bytes: u64::from(number) << 10, ..RegionStats::default() },
            ..ProcessStats::default()
        };
        stats.processes.retain(|process| process.primary);
        stats.processes[0].region.mapped_peak_bytes = 0;
        stats.processes.extend((0..30).map(child));
        let text = run(&stats, Style::default());
        for part in ["redis-server *", "child-29 ", "child-21 ", "and 21 smaller processes\n"] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("child-20 "), "{text}");
        stats.processes.truncate(10);
        assert!(!run(&stats, Style::default()).contains("smaller process"));
        stats.processes.push(child(1));
        assert!(run(&stats, Style::default()).contains("and 1 smaller process\n"));
    }

    #[test]
    fn it_says_what_was_really_got_and_what_stayed_outside() {
        let mut stats = fixture::run_stats();
        stats.processes[0].region.fell_back_bytes = 6 << 20;
        stats.page_kind = "hugetlb".into();
        let text = run(&stats, Style::default());
        for part in [
            "redis-server --save ''",
            "4242",
            "thp 1.95 GiB, 4k 53 MiB",
            "thread stack",
            "pagemap+kpageflags",
            "6 MiB asked for hugetlb pages and lie on transparent ones",
            "`--reserve SIZE`",
            "0x100000000000",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("moved from hugetlb"));
        stats.page_kind = "hugetlb-1g".into();
        assert!(!run(&stats, Style::default()).contains("--reserve"), "it does not go with these");
        stats.processes.clear();
        assert!(run(&stats, Style::default()).contains("No process had a region."));
    }
}
