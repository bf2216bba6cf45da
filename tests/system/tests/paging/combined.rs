//! `--resident` together with other modes, on a real program that forks.

use fieldstone_report::{PagingStats, RunStats, SavedFile};

use crate::fixture::{can_page, largest, paged, stderr, stdout};

/// Changes strings of about 30 MiB, and checks them in a forked child too.
const SCRIPT: &str = "
import os
texts = [b'%06d' % i * 20 for i in range(200000)]
for i in range(0, len(texts), 3):
    texts[i * 7 % len(texts)] = b'%06d' % i * 20
def total():
    return sum(text[0] + text[-1] + len(text) for text in texts)
child = os.fork()
if child == 0:
    os._exit(total() % 251)
status = os.waitpid(child, 0)[1]
print(total(), total() % 251, status / 256)
";

fn python(options: &str) -> Option<SavedFile> {
    let program = ["/usr/bin/python3", "-c", SCRIPT];
    let alone = std::process::Command::new(program[0]).args(&program[1..]).output();
    let (Ok(alone), true) = (alone, can_page()) else {
        println!("SKIP no python3, or no paging");
        return None;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats.json");
    let output = paged(&format!("{options} --resident 24M --stats {}", file.display()), &program).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), stdout(&alone)), "{options}: {}", stderr(&output));
    Some(SavedFile::load(&file).unwrap())
}

fn in_region(options: &str) -> Option<(RunStats, PagingStats)> {
    let SavedFile::RunStats(mut stats) = python(options)? else { panic!("{options}: other statistics") };
    // The forked child can be the primary process: it has all pages at its start.
    assert!(stats.processes.iter().any(|process| process.region.served_bytes > 20 << 20), "{stats:?}");
    let paging = stats.paging.take().unwrap();
    largest(&paging);
    Some((*stats, paging))
}

#[test]
fn memory_in_a_region_has_a_bound() {
    for pages in ["thp", "4k"] {
        let Some((_, paging)) = in_region(&format!("--region --pages {pages}")) else { return };
        assert!(paging.guard.is_none());
    }
}

#[test]
fn a_guarded_program_has_a_bound() {
    let Some(SavedFile::PagingStats(stats)) = python("--guard") else { return };
    largest(&stats);
    let guard = stats.guard.unwrap();
    assert!(guard.processes.iter().any(|process| process.guarded > 100), "{guard:?}");
    assert_eq!(guard.memory_limit_bytes, 6 << 20, "a quarter of the bound");
}

#[test]
fn a_guarded_program_in_a_region_has_a_bound() {
    let Some((stats, _)) = in_region("--region --guard=1/50") else { return };
    assert!(stats.guard.unwrap().processes.iter().any(|process| process.guarded > 100));
}
