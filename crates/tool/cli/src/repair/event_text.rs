//! The events of a repair as lines of text.

use fieldstone_repair::{RepairEvent, SamplingStats, TimedEvent};
use fieldstone_report::quantity::plural;
use fieldstone_report::shell;
use fieldstone_wire::Remedy;

const fn access_verb(read: bool, write: bool) -> &'static str {
    match (read, write) {
        (true, true) => "reads and writes",
        (false, true) => "writes",
        _ => "reads",
    }
}

/// An event as one line of text, starting with its time in milliseconds.
pub(crate) fn describe(event: &TimedEvent) -> String {
    let of = match event.variables.join(", ") {
        names if names.is_empty() => names,
        names => format!(" of {names}"),
    };
    let text = match &event.kind {
        RepairEvent::LineFound { line, share } => {
            format!("line {line:#x}{of}: false sharing, {:.0} % of the threads' time at most", share * 100.0)
        }
        RepairEvent::PageMoved { page, lines, .. } if lines.is_empty() => {
            format!("page {page:#x}: moved by a rule")
        }
        RepairEvent::PageMoved { page, views, lines } => {
            let (lines, pages) = (plural(lines.len() as u64, "line"), plural((*views).into(), "page"));
            format!("page {page:#x}{of}: {lines} separated, over {pages}")
        }
        RepairEvent::PageRefused { page, why } => format!("page {page:#x}{of} is not moved: {why}"),
        RepairEvent::RuleRefused { page, why } => {
            format!("page {page:#x}, named by a rule, is not moved: {why}")
        }
        RepairEvent::LineLeft { line, why } => format!("line {line:#x}{of} is not repaired: {why}"),
        RepairEvent::PageRestored { page, why } => format!("page {page:#x}{of} is restored: {why}"),
        RepairEvent::AccessRedirected { ip, thread, code } => {
            format!("thread {thread}: the access {} is redirected", location(*ip, code.as_deref()))
        }
        RepairEvent::WatchedAccess { rule, thread, address, bytes, read, write, ip, code } => {
            let (verb, location) = (access_verb(*read, *write), location(*ip, code.as_deref()));
            format!("{rule}: thread {thread} {verb} {bytes} bytes at {address:#x}, by the access {location}")
        }
        RepairEvent::AccessCount { rule, thread, ip, code, reads, writes } => {
            let location = location(*ip, code.as_deref());
            format!("{rule}: thread {thread}, {reads} reads and {writes} writes by the access {location}")
        }
        RepairEvent::SymbolMissing { rule, source } => missing_symbol(rule, source),
        RepairEvent::Exec => "the process executes another program: the repair starts again".to_owned(),
        RepairEvent::SessionEnd(seen) => summarize(seen),
    };
    format!("{:>9.1} ms  {text}", event.at_ms)
}

/// `at 0x4011d6`, with `in work (main.c:12)` if the code is known.
fn location(ip: u64, code: Option<&str>) -> String {
    code.map_or_else(|| format!("at {ip:#x}"), |code| format!("at {ip:#x} in {code}"))
}

/// The event for a rule whose variable is missing. `source` is the line of the rules, such as
/// `rules:3`.
fn missing_symbol(rule: &str, source: &str) -> String {
    let lead = if source.is_empty() { String::new() } else { format!("{source}: ") };
    let name = rule.rsplit_once(':').filter(|(module, _)| !module.ends_with(':')).map_or(rule, |(_, name)| name);
    let name = name.split('+').next().unwrap_or(name);
    let remedy = format!("nm --demangle FILE | grep {}, with the program or library as FILE", shell::quote(name));
    format!(
        "{lead}cannot find {rule}: no loaded file has a variable of this name and size; the search is repeated{}",
        Remedy(Some(remedy))
    )
}

/// The end of the process, and the number of samples analysed until then.
fn summarize(seen: &SamplingStats) -> String {
    let end = if seen.ended { "the program has ended" } else { "everything is restored, and the program continues" };
    if seen.samples == 0 {
        return format!("{end}; {NO_SAMPLE}");
    }
    let alone = match seen.single_threaded {
        0 => String::new(),
        alone => format!(", {alone} skipped because only one thread was running"),
    };
    let blind = match seen.without_access {
        0 => String::new(),
        blind => format!(" ({blind} of them without a memory access)"),
    };
    format!("{end}; {}: {} analysed{blind}{alone}", plural(seen.samples, "sample"), seen.analysed)
}

/// Why nothing was repaired if there was no sample.
pub(super) const NO_SAMPLE: &str = "no sample was taken: the program slept all the time or ended too soon";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_on_a_page_names_its_variables() {
        let event = TimedEvent::new(1.0, RepairEvent::PageMoved { page: 4096, views: 2, lines: vec![4096] });
        assert!(describe(&event).ends_with("page 0x1000: 1 line separated, over 2 pages"));
        let event = TimedEvent { variables: vec!["counters+0x40".to_owned(), "other".to_owned()], ..event };
        assert!(describe(&event).ends_with("page 0x1000 of counters+0x40, other: 1 line separated, over 2 pages"));
    }

    #[test]
    fn an_event_on_code_names_it() {
        let redirected =
            |code| describe(&TimedEvent::new(1.0, RepairEvent::AccessRedirected { ip: 0x40, thread: 7, code }));
        assert!(redirected(None).ends_with("thread 7: the access at 0x40 is redirected"));
        let named = redirected(Some("work (main.c:12)".to_owned()));
        assert!(named.ends_with("the access at 0x40 in work (main.c:12) is redirected"), "{named}");
    }

    #[test]
    fn a_rule_for_an_unknown_variable_names_its_line_and_a_remedy() {
        let missing = missing_symbol("libq.so:head+8", "rules:3");
        assert!(missing.starts_with("rules:3: cannot find libq.so:head+8: "), "{missing}");
        assert!(missing.contains("\ntry: nm --demangle FILE | grep head,"), "{missing}");
        assert!(missing_symbol("queue::all", "").contains("grep queue::all,"));
    }

    #[test]
    fn the_summary_counts_analysed_and_skipped_samples() {
        let seen = SamplingStats {
            samples: 134,
            analysed: 8,
            single_threaded: 126,
            without_access: 1,
            ended: true,
            ..SamplingStats::default()
        };
        assert_eq!(
            summarize(&seen),
            "the program has ended; 134 samples: 8 analysed (1 of them without a memory access), \
             126 skipped because only one thread was running"
        );
    }
}
