//! Programs whose threads fight for a line, remapped while they run: the same results, in clones of their loops, whatever else they do.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod stage;

use fieldstone_remap::{Done, Why};
use stage::{Stage, apart, put_back, redirected};

#[test]
fn loops_go_on_in_clones() {
    for options in [&["-O0"][..], &["-O1"], &["-O2"], &["-O3"], &["-O2", "-static"]] {
        let Some(then) = Stage::of("usleep(100000);").options(options).right_all_the_same() else { return };
        assert_eq!(put_back(&then), None, "{options:?}");
    }
}

#[test]
fn a_page_is_put_back_when_that_is_asked() {
    let mut running = Stage::of("usleep(1000);").start();
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    assert_eq!(process.put_all_back().unwrap(), [Done::PutBack { page: running.page, why: Why::Asked }]);
    process.move_page(&apart(running.page)).unwrap();
    let again = running.settle(&mut process);
    assert!(redirected(&again) >= 2, "{again:?}");
    process.put_all_back().unwrap();
    running.go_on(&mut process);
    let (then, told) = running.finish(&mut process);
    assert_eq!((redirected(&then), told.last().map(String::as_str)), (0, Some("right right")));
}
