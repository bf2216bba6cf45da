//! The counts of a run: what each process's region served, the resident pages, and what stayed
//! outside and why.

use crate::document::{Block, Column, Document, Rest, RowLimit, Section, Table, TableRow, Unit, Value, row};
use crate::quantity::{address, bytes, count, share};
use crate::run::unserved_words;
use crate::{ProcessStats, RegionStats, RunStats, SmallPages, shell};
use fieldstone_wire::PlacementReason;
use std::cmp::Reverse;

/// Rows of the table of processes.
const MOST_PROCESSES: usize = 10;
/// Shared memory below this is not reported.
const NOTEWORTHY_BYTES: u64 = 16 << 20;

/// The report on `stats`.
pub fn document(stats: &RunStats) -> Document {
    let unserved = unserved_words(stats.processes.iter().map(|process| process.region.unserved_programs()).sum());
    let mut blocks = vec![processes(&stats.processes).into(), Block::List(unserved.into_iter().collect())];
    blocks.extend(match stats.primary() {
        _ if stats.processes.is_empty() => vec![Block::Paragraph("No process had a region.".into())],
        Some(primary) => {
            std::iter::once(region(&primary.region, &stats.page_kind)).chain(exceptions(&primary.region)).collect()
        }
        None => vec![Block::Paragraph(format!(
            "The primary process, {} ({}), is not in the table: it carried no agent, and nothing of it was served.",
            stats.primary_name, stats.primary_pid
        ))],
    });
    let guard = stats.guard.iter().flat_map(super::heap_errors::process_blocks);
    blocks.push(Block::section("Guarded allocations", guard));
    blocks.extend(stats.paging.iter().flat_map(super::paging::process_blocks));
    Document {
        kind: "run".into(),
        subject: "Memory in a region".into(),
        title: shell::join(&stats.command),
        is_command: true,
        lead: Section::from(vec![Block::Paragraph(format!(
            "Page kind: {}. The program ended with {}. Primary process: {} (process {}).",
            stats.page_kind, stats.outcome, stats.primary_name, stats.primary_pid
        ))]),
        blocks,
        tool_version: stats.tool_version.clone(),
    }
}

/// The processes with the largest peaks, the primary one among them, in the order in which they
/// started.
fn processes(processes: &[ProcessStats]) -> Table {
    let columns = [
        Column::text("process"),
        Column::text("resident pages").explained("Resident pages: by size, in the region and in place."),
        Column::number("pid"),
        Column::number("served").explained(
            "Served: all bytes that the region handed out, summed over the calls. Peak: the most at one time.",
        ),
        Column::number("peak"),
        Column::number("inside").explained("Inside, in place: shares of the resident private read-write memory."),
        Column::number("in place"),
    ];
    let rows = processes.iter().map(|process| {
        let region = &process.region;
        let primary = if process.primary { " *" } else { "" };
        row![
            format!("{}{primary}", process.name),
            pages_got(region),
            process.pid.to_string(),
            Value::bytes(region.served_bytes),
            Value::bytes(region.mapped_peak_bytes),
            region.inside_share().map(|share| Unit::Share.of(share)),
            region.share_of(region.private_rw_in_place_bytes).map(|share| Unit::Share.of(share)),
        ]
        .weighing(region.mapped_peak_bytes as f64)
        .pinned_if(process.primary)
    });
    let others = processes.iter().filter(|process| !process.primary).count();
    let most = MOST_PROCESSES - (processes.len() - others).min(MOST_PROCESSES);
    let rest = Rest::Count("smaller process", "smaller processes", None);
    Table::new(columns).with_rows(rows).with_limit(RowLimit { terminal: most, page: 100, least: None, rest })
}

/// `thp 1.95 GiB, 4k 53 MiB`.
pub(super) fn pages_got(region: &RegionStats) -> Option<String> {
    let got = region.pages.iter().filter(|pages| pages.bytes > 0);
    let name = |kind: &str| if kind == "smaller" { "4k or folios".to_owned() } else { kind.to_owned() };
    let got = got.map(|pages| format!("{} {}", name(&pages.kind), bytes(pages.bytes))).collect::<Vec<_>>().join(", ");
    Some(got).filter(|got| !got.is_empty())
}

fn read_from(region: &RegionStats) -> String {
    match region.pages_source.as_str() {
        "" if region.private_rw_bytes() > 0 => "no memory in it, nor served in place".to_owned(),
        "" => "it ended before its pages could be read".to_owned(),
        source => format!("pages read from {source}"),
    }
}

/// What the primary process's region counted.
fn region(region: &RegionStats, asked_for: &str) -> Block {
    let place = if let Some(why) = region.no_region_reason().filter(|_| region.base == 0) {
        format!("No region: {why}. Nothing of this process was served.")
    } else if region.base == 0 {
        format!("No region: put on huge pages from outside; {}.", read_from(region))
    } else {
        let extent = bytes(region.limit.saturating_sub(region.base));
        format!("Region {} to {}, {extent}; {}.", address(region.base), address(region.limit), read_from(region))
    };
    let mut facts = vec![place];
    facts.extend(region.reserve_words());
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
    facts.extend(region.contiguity.map(|contiguity| {
        format!(
            "Physically contiguous: {} runs, the longest {}, half of the memory in runs of at least {}.",
            count(contiguity.runs),
            bytes(contiguity.longest_run_bytes),
            bytes(contiguity.median_run_bytes)
        )
    }));
    Block::section("Region of the primary process", [Block::List(facts)])
}

/// Memory that is not in the region on the requested pages, by where it is: a table each, with the
/// reasons, the most resident memory first.
fn exceptions(region: &RegionStats) -> [Block; 3] {
    let mut reasons: Vec<_> = region.outside.iter().collect();
    reasons.sort_by_key(|outside| Reverse((outside.resident_bytes, outside.bytes)));
    let [mut outside, mut in_place, mut inside] = [(); 3].map(|()| Vec::<TableRow>::new());
    for of in reasons {
        let known = PlacementReason::ALL.into_iter().find(|reason| reason.words() == of.reason);
        let rows = match known {
            Some(reason) if reason.is_inside() => &mut inside,
            Some(reason) if reason.is_in_place() => &mut in_place,
            _ => &mut outside,
        };
        let numbers = (Value::count(of.calls), Value::bytes(of.bytes), Value::bytes(of.resident_bytes));
        rows.push(row![&of.reason, numbers.0, numbers.1, numbers.2]);
    }
    [
        ("Memory outside the region", outside),
        ("Memory outside the region, but on the requested pages", in_place),
        ("Memory inside the region that was treated differently", inside),
    ]
    .map(|(heading, rows)| {
        let columns = ["calls", "requested", "resident"].map(Column::number);
        let table = Table::new([Column::text("reason")].into_iter().chain(columns)).with_rows(rows);
        Block::section(heading, [table.into()])
    })
}

/// Where the private read-write memory was, and how much of it on large pages.
fn private_memory(region: &RegionStats) -> Option<String> {
    let part = |bytes| region.share_of(bytes).map(share);
    if region.base == 0 {
        return Some(format!(
            "Resident private read-write memory: {}. {} on pages of 2 MiB or more.",
            bytes(region.private_rw_bytes()),
            part(region.private_rw_huge_bytes)?
        ));
    }
    Some(format!(
        "Resident private read-write memory: {}. {} of it inside the region, {} in place, {} outside; {} on pages of 2 MiB or more.",
        bytes(region.private_rw_bytes()),
        part(region.private_rw_inside_bytes)?,
        part(region.private_rw_in_place_bytes)?,
        part(region.private_rw_outside_bytes)?,
        part(region.private_rw_huge_bytes)?,
    ))
}

/// Why private read-write memory was on small pages.
fn small_pages(region: &RegionStats) -> Option<String> {
    let reason = |small: &SmallPages| format!("{} {}", bytes(small.bytes), small.reason);
    let reasons: Vec<_> = region.small_pages.iter().filter(|small| small.bytes >= 1 << 20).map(reason).collect();
    (!reasons.is_empty()).then(|| format!("On small pages: {}.", reasons.join("; ")))
}

/// The reason itself is in the table of what stayed outside.
fn fell_back(fell_back_bytes: u64, requested: &str) -> String {
    let remedy = match requested {
        "hugetlb" => {
            "`--reserve SIZE` fills it for the run, as root, and `fieldstone doctor` prints how to fill it for longer"
        }
        _ => "`fieldstone doctor` prints how to fill it",
    };
    format!(
        "{} were requested on {requested} pages and are on transparent ones, for the reason below. Where the pool was empty, {remedy}.",
        bytes(fell_back_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::text::{self, Style};

    fn text_of(stats: &RunStats, style: Style) -> String {
        text::render(&document(stats), style)
    }

    #[test]
    fn many_children_do_not_hide_the_large_ones() {
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
        let text = text_of(&stats, Style::default());
        for part in ["redis-server *", "child-29 ", "child-21 ", "And 21 more smaller processes."] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("child-20 "), "{text}");
        stats.processes.truncate(10);
        assert!(!text_of(&stats, Style::default()).contains("smaller process"));
        stats.processes.push(child(1));
        assert!(text_of(&stats, Style::default()).contains("And 1 more smaller process."));
    }

    #[test]
    fn the_pages_really_got_and_what_stayed_outside_are_reported() {
        let mut stats = fixture::run_stats();
        stats.processes[0].region.fell_back_bytes = 6 << 20;
        stats.page_kind = "hugetlb".into();
        let text = text_of(&stats, Style::default());
        for part in [
            "redis-server --save ''",
            "4242",
            "thp 1.95 GiB, 4k 53 MiB",
            "thread stack",
            "pagemap+kpageflags",
            "6 MiB were requested on hugetlb pages and are on transparent ones",
            "`--reserve SIZE`",
            "0x100000000000",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("moved from hugetlb"));
        stats.page_kind = "hugetlb-1g".into();
        assert!(!text_of(&stats, Style::default()).contains("--reserve"), "it does not go with these");
        stats.processes.clear();
        assert!(text_of(&stats, Style::default()).contains("No process had a region."));
    }

    #[test]
    fn memory_is_listed_by_where_it_is() {
        let mut stats = fixture::run_stats();
        let reasons = [PlacementReason::PoolEmpty, PlacementReason::InPlace, PlacementReason::Low32];
        let outside = |reason: PlacementReason| crate::Outside {
            reason: reason.words().to_owned(),
            calls: 1,
            ..crate::Outside::default()
        };
        stats.processes[0].region.outside = reasons.map(outside).to_vec();
        stats.processes[0].region.pages = vec![crate::PageShare { kind: "smaller".into(), bytes: 20 << 10 }];
        let text = text_of(&stats, Style::default());
        let places = [
            "4k or folios 20 KiB",
            "\nMemory outside the region\n",
            "  low 32-bit address",
            "\nMemory outside the region, but on the requested pages\n",
            "  in place: ",
            "\nMemory inside the region that was treated differently\n",
            "  in the region on transparent pages: hugetlb pool empty",
        ];
        let places = places.map(|part| text.find(part).unwrap_or_else(|| panic!("no {part}\n{text}")));
        assert!(places.is_sorted(), "{text}");
    }

    #[test]
    fn memory_without_a_region_is_not_called_inside_of_it() {
        let mut stats = fixture::run_stats();
        stats.processes.retain(|process| process.primary);
        let region = &mut stats.processes[0].region;
        (region.base, region.limit) = (0, 0);
        let text = text_of(&stats, Style::default());
        assert!(text.contains("put on huge pages from outside") && !text.contains("inside the region"), "{text}");
        let reason = "everything: another process was named by --process".to_owned();
        stats.processes[0].region.outside = vec![crate::Outside { reason, ..crate::Outside::default() }];
        let text = text_of(&stats, Style::default());
        assert!(text.contains("No region: another process was named") && !text.contains("from outside"), "{text}");
    }

    #[test]
    fn programs_that_were_not_served_are_mentioned() {
        let mut stats = fixture::run_stats();
        let reason = crate::run::UNSERVED_PROGRAMS.to_owned();
        stats.processes[0].region.outside.push(crate::Outside { reason, calls: 2, ..crate::Outside::default() });
        stats.processes.iter_mut().for_each(|process| process.primary = false);
        (stats.primary_name, stats.primary_pid) = ("static-program".to_owned(), 77);
        let text = text_of(&stats, Style { width: 400, ..Style::default() });
        assert!(text.contains("- 2 programs started by others were not served"), "{text}");
        assert!(text.contains("The primary process, static-program (77), is not in the table"), "{text}");
    }

    #[test]
    fn a_reserve_granted_in_part_has_a_line() {
        let gib = 1 << 30;
        let mut region = RegionStats { reserve_bytes: 16 * gib, ..RegionStats::default() };
        assert_eq!(region.reserve_words(), None);
        (region.reserve_refused_bytes, region.reserve_untouched_bytes) = (24 * gib, 6 * gib);
        let words = region.reserve_words().unwrap();
        assert!(
            words.contains("granted 16 GiB of 40 GiB") && words.contains("10 GiB of 16 GiB are prefaulted"),
            "{words}"
        );
    }
}
