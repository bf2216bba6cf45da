//! Memory that a program maps itself is counted at its site; other mappings are not.

use std::path::Path;

use fieldstone_wire::sites::LossReason;

use crate::fixture::{ProgramDirectory, Recording};

#[test]
fn mappings_of_the_program_are_counted_exactly() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = maps(&programs);
    recording.run(&program, &[]);
    check(&recording, &program);
}

#[test]
fn mappings_in_the_emulator_are_counted_equally() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = maps(&programs);
    let Some(mut command) = recording.emulated(&program) else { return };
    assert!(command.status().unwrap().success());
    check(&recording, &program);
}

fn maps(programs: &ProgramDirectory) -> std::path::PathBuf {
    programs.compile("pool.c", "libpool.so", "-shared -fPIC");
    programs.compile("maps.c", "maps", "-L@ -lpool -Wl,-rpath,@")
}

fn check(recording: &Recording, program: &Path) {
    let count = |stack| recording.count(program, stack);
    assert_eq!(count("page_by_page plain main"), (20, 20 << 16));
    assert_eq!(count("page_by_page plain in_thread"), (80, 80 << 16));
    assert_eq!(count("page_by_page reserved main"), (1, 1 << 20));
    assert_eq!(count("page_by_page before_main"), (1, 12288));
    assert_eq!(count("page_by_page at main"), (1, 8192));
    assert_eq!(count("at main"), (1, 4096), "by mmap64, with another length");
    for other in ["page_by_page shared", "page_by_page file", "failed"] {
        assert_eq!(count(other), (0, 0), "{other} is no private anonymous memory");
    }
    assert_eq!(count("allocated main"), (50, 50 * 100_000), "the blocks, and not what the allocator mapped for them");
    let pools = recording.stacks(program).into_keys().filter(|stack| stack.starts_with("- allocated"));
    assert_eq!(pools.collect::<Vec<_>>(), [""; 0], "the pool of the allocator has no site");
    for lost in [LossReason::TableFull, LossReason::Nested, LossReason::NoFreeMailbox, LossReason::MailboxesUnmapped] {
        assert_eq!(recording.lost(lost), 0, "{lost:?}");
    }
}

#[test]
fn a_program_is_recorded_by_the_path_that_started_it() {
    let programs = ProgramDirectory::new();
    let program = programs.compile("counts.c", "counts", "");
    let link = program.with_file_name("called");
    std::os::unix::fs::symlink(&program, &link).unwrap();
    for (start, expected) in [(&link, &link), (&program, &program)] {
        let recording = Recording::new();
        match recording.emulated(start) {
            Some(mut emulated) => assert!(emulated.status().unwrap().success()),
            None => drop(recording.run(start, &[])),
        }
        let sites = recording.sites();
        let paths = (0..4).filter_map(|number| sites.module(number)).map(|module| module.path().collect::<Vec<u8>>());
        let expected = std::os::unix::ffi::OsStrExt::as_bytes(expected.as_os_str());
        assert!(paths.into_iter().any(|path| path == expected), "{}", start.display());
    }
}

#[test]
fn an_allocator_may_map_memory_with_its_lock_held() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = programs.compile("locked.c", "locked", "");
    recording.run(&program, &[]);
    let (maps, bytes) = recording.count(&program, "malloc deeper");
    assert_eq!(
        (maps, bytes),
        (3000, 3000 * (4096 + 5000)),
        "its memory has sites, its blocks are not recorded: {:?}",
        recording.stacks(&program)
    );
}
