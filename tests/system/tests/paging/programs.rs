//! Real programs give the same results with a bound.

use std::process::Command;

use crate::binaries;
use crate::fixture::{can_page, counted, largest, stdout};

const MIB: u64 = 1 << 20;

#[test]
fn gups_has_the_same_checksum_with_half_of_its_table_resident() {
    if !can_page() {
        return;
    }
    let gups = binaries::workload("gups");
    let gups = gups.to_str().unwrap();
    let alone = Command::new(gups).args(["64M", "20000"]).output().unwrap();
    let (output, stats) = counted("--resident 32M", &[gups, "64M", "20000"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), stdout(&alone)));
    let process = largest(&stats);
    assert!(process.peak_resident_bytes <= 32 * MIB, "{process:?}");
    assert!(process.stores.iter().map(|store| store.loaded_pages).sum::<u64>() > 1000, "{process:?}");
}

#[test]
fn a_store_of_compressed_pages_alone_suffices_for_pages_that_compress() {
    if !can_page() {
        return;
    }
    let script = "x = [str(i) * 40 for i in range(200000)]\nprint(sum(len(s) for s in x), x[0] == '0' * 40)";
    if Command::new("/usr/bin/python3").arg("--version").output().is_err() {
        println!("SKIP no python3");
        return;
    }
    let (output, stats) = counted("--resident 24M --page-store lz4:256M", &["/usr/bin/python3", "-c", script]);
    assert_eq!(stdout(&output), "43555600 True\n");
    let process = largest(&stats);
    assert_eq!(process.refused_pages, 0, "{process:?}");
    assert!(process.stores[0].loaded_pages > 0 && process.stores[1].loaded_pages == 0, "{process:?}");
}

#[test]
fn a_program_goes_on_when_its_store_is_full() {
    if !can_page() {
        return;
    }
    let gups = binaries::workload("gups");
    let gups = gups.to_str().unwrap();
    let alone = Command::new(gups).args(["64M", "20000"]).output().unwrap();
    let (output, stats) = counted("--resident 48M --page-store lz4:1M", &[gups, "64M", "20000"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), stdout(&alone)));
    let process = largest(&stats);
    assert!(process.refused_pages > 0, "{process:?}");
}

#[test]
fn a_program_below_the_bound_is_not_paged() {
    let (output, stats) = counted("--resident 1G", &["/bin/echo", "small"]);
    assert_eq!(stdout(&output), "small\n");
    assert!(stats.processes.iter().all(|process| process.faults == 0), "{stats:?}");
}
