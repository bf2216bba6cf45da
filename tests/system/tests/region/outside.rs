//! Programs that cannot load an agent get huge pages from outside as they grow.

use std::fs;
use std::time::Duration;

use fieldstone_report::RunStats;
use fieldstone_sys::smaps;

use crate::common::wait_until;
use crate::fixture::{Waiting, child, compiled, has_transparent, region, run, stderr, stdout};

const MIB: u64 = 1 << 20;

/// Grows by 64 MiB, checks the contents when stdin ends, and returns 7.
const SOURCE: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
    int main(void) { unsigned *block[16]; char c; unsigned count = 1 << 20;\n\
    for (int b = 0; b < 16; b++) { block[b] = malloc(count * 4); for (unsigned i = 0; i < count; i++) block[b][i] = i * 7 + b; }\n\
    puts(\"grown\"); fflush(stdout); while (read(0, &c, 1) > 0) {}\n\
    for (int b = 0; b < 16; b++) for (unsigned i = 0; i < count; i++) if (block[b][i] != i * 7 + b) return 1;\n\
    return 7; }\n";

pub(crate) fn is_collapse_forbidden(message: &str) -> bool {
    let is_collapse_forbidden = message.contains("CAP_SYS_NICE") || message.contains("from 6.1 on");
    if is_collapse_forbidden {
        println!("SKIP memory may not be collapsed from outside: {}", message.trim());
    }
    is_collapse_forbidden
}

#[test]
fn a_static_program_gets_huge_pages_as_it_grows() {
    let Some((directory, program)) = compiled(SOURCE, &["-O1", "-static"]) else { return };
    let alone = run("", &[&program]);
    if !has_transparent() || is_collapse_forbidden(&stderr(&alone)) {
        return;
    }
    assert!(
        stderr(&alone).contains("statically linked") && stderr(&alone).contains("from outside"),
        "{}",
        stderr(&alone)
    );
    assert_eq!(
        (stdout(&alone).as_str(), alone.status.code()),
        ("grown\n", Some(7)),
        "its output and its code are its own"
    );
    let file = directory.path().join("stats.json");
    let waiting = Waiting::start(region(&format!("--stats {}", file.display()), &[&program]));
    assert_eq!(waiting.line, "grown\n");
    let pid = wait_until("the program", || child(waiting.running.id(), "program"));
    wait_until("huge pages", || (smaps::read_rollup(pid).unwrap().anon_huge_bytes >= 48 * MIB).then_some(()));
    // That pass scans all memory again.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(waiting.end().code(), Some(7));
    let stats: RunStats = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(stats.outcome, "exit 7");
    let primary = stats.primary().unwrap();
    assert_eq!((primary.name.as_str(), primary.region.base), ("program", 0));
    assert!(primary.region.served_bytes >= 46 * MIB, "{primary:?}");
    let huge: u64 = primary.region.pages.iter().filter(|share| share.kind == "thp").map(|share| share.bytes).sum();
    assert!(huge >= 48 * MIB, "{primary:?}");
}
