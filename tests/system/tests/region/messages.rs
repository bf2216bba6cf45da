//! Messages that a run prints without a request: a reserve that was not granted, processes that
//! were not served.

use crate::fixture::{compiled, counted, primary, run, stderr, stdout};

const MIB: u64 = 1 << 20;

#[test]
fn a_reserve_that_is_granted_in_part_is_reported() {
    let (output, stats) = counted("--reserve 99T", &["true"]);
    let region = &stats.primary().unwrap().region;
    assert!(region.reserve_refused_bytes > 0 && region.reserve_bytes > 0, "{region:?}");
    assert_eq!(region.reserve_bytes + region.reserve_refused_bytes, 99 << 40);
    let line = stderr(&output);
    assert!(line.contains("--reserve: the kernel granted ") && line.contains(" of 99 TiB"), "{line}");
    let remedy = format!("try: --reserve {}M", region.reserve_bytes >> 20);
    assert_eq!(line.lines().skip(1).collect::<Vec<_>>(), [remedy.as_str()], "{line}");
    assert!(stderr(&run("--reserve 99T --stats -", &["true"])).matches("--reserve: the kernel granted").count() == 2);
    assert_eq!(stderr(&run("--reserve 8M", &["true"])), "");
}

#[test]
fn a_granted_reserve_is_prefaulted() {
    let program = ["sh", "-c", "ulimit -v 600000; exec \"$0\" \"$@\"", "grep", "VmRSS", "/proc/self/status"];
    let resident = |output| {
        let words = stdout(output);
        words.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or_else(|| panic!("{words}"))
    };
    let output = run("--reserve 1G --prefault --process grep", &program);
    assert!(stderr(&output).contains("--reserve: the kernel granted 512 MiB of 1 GiB"), "{}", stderr(&output));
    assert!(resident(&output) >= 500 << 10, "{}", stdout(&output));
}

#[test]
fn a_process_name_that_matches_nothing_is_reported() {
    let (output, stats) = counted("--process nothere", &["true"]);
    assert!(stderr(&output).contains("no process was served: --process nothere"), "{}", stderr(&output));
    assert!(stats.processes.iter().all(|process| process.region.base == 0), "{stats:?}");
    // Long enough to be observed.
    let table = stderr(&run("--process nothere --stats -", &["sleep", "0.5"]));
    assert!(table.contains("No region: another process was named by --process"), "{table}");
    assert!(!table.contains("from outside") && !table.contains("inside the region"), "{table}");
    assert_eq!(stderr(&run("--process true", &["sh", "-c", "true; exec true"])), "");
}

#[test]
fn a_static_program_that_another_starts_is_reported() {
    let Some((_directory, program)) = compiled("int main(void) { return 3; }\n", &["-static"]) else { return };
    let script = format!("{program}; exit 0");
    let output = run("", &["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("1 program started by others was not served"), "{}", stderr(&output));
    let table = stderr(&run("--stats -", &["sh", "-c", &format!("{program}; {program}; exit 0")]));
    assert!(table.contains("- 2 programs started by others were not served"), "{table}");
}

#[test]
fn zeroed_globals_that_are_advised_are_counted_as_served() {
    let source = "#include <string.h>\nstatic char zeroes[64 << 20];\n\
        int main(void) { memset(zeroes, 1, sizeof zeroes); return zeroes[77] - 1; }\n";
    let Some((_directory, program)) = compiled(source, &["-O1"]) else { return };
    let region = primary("--also globals", &[&program]);
    let resident = |words: &str| -> u64 {
        region
            .outside
            .iter()
            .filter(|outside| outside.reason.contains(words))
            .map(|outside| outside.resident_bytes)
            .sum()
    };
    assert!(resident("zero-initialised globals, advised where they are") >= 60 * MIB, "{:?}", region.outside);
    // The loader's own pages remain.
    assert!(resident("bypass libc") + resident("--also globals") < MIB >> 4, "{:?}", region.outside);
    assert!(region.private_rw_in_place_bytes >= 60 * MIB, "{region:?}");
    assert!(region.pages.iter().map(|share| share.bytes).sum::<u64>() >= 60 * MIB, "{:?}", region.pages);
    let small = primary("--pages 4k --also globals", &[&program]);
    let advised = small.small_pages.iter().filter(|small| small.reason.contains("MADV_NOHUGEPAGE"));
    let (bytes, reasons): (Vec<u64>, Vec<&str>) = advised.map(|small| (small.bytes, small.reason.as_str())).unzip();
    assert!(bytes.iter().sum::<u64>() >= 60 * MIB, "the globals are on small pages: {small:?}");
    assert!(reasons.iter().all(|reason| reason.contains("by --pages 4k")), "not only the program: {reasons:?}");
}
