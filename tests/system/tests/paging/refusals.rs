//! Options and programs that are refused before a program starts.

use crate::fixture::{paged, stderr};

#[test]
fn what_cannot_work_is_refused_with_the_reason() {
    for (options, reason) in [
        ("--resident 1M", "a bound of less than 4M"),
        ("--resident 64M --page-store brotli", "there is no store \"brotli\""),
        ("--resident 64M --page-store file:/nonexistent", "cannot store pages in /nonexistent"),
        ("--resident 64M --page-store file:/etc/passwd", "it is no directory"),
        ("--resident 64M --page-store file:/proc", "it takes no file without a name"),
        ("--resident 64M --page-store lz4:0", "a store needs at least 64K"),
        ("--resident 64M --repair", "cannot combine --repair with --resident"),
        ("--resident 64M --region --pages hugetlb", "cannot combine --pages hugetlb with --resident"),
        ("--page-store lz4 --region", "--resident"),
        ("--page-store lz4", "--resident"),
        ("--resident 64M --stats-every 1s", "--stats"),
        ("--resident 64M --stats-every 1h --stats -", "give an interval like 1s"),
    ] {
        let output = paged(options, &["/bin/echo", "started"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options}: {}", stderr(&output));
        assert!(output.stdout.is_empty() && stderr(&output).contains(reason), "{options}: {}", stderr(&output));
    }
}
