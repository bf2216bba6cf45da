//! Programs that the recorder can hardly record, and must not harm.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::sites::LossReason;

use crate::fixture::{ProgramDirectory, Recording, recorder};

#[test]
fn allocations_of_a_signal_handler_are_counted_or_reported_lost() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    programs.compile("bump.c", "libbump.so", "-shared -fPIC");
    let program = programs.compile("signals.c", "signals", "-L@ -lbump -Wl,-rpath,@");
    let output = recording.run(&program, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (calls, handled) = text.trim().split_once(' ').unwrap();
    let (calls, handled): (u64, u64) = (calls.parse().unwrap(), handled.parse().unwrap());
    let stacks = recording.stacks(&program);
    let with = |function: &str| -> u64 {
        stacks.iter().filter(|(names, _)| names.starts_with(function)).map(|(_, counts)| counts.0).sum()
    };
    let lost = recording.lost(LossReason::Nested);
    assert_eq!(with("in_handler handler") + lost, handled, "lost: {lost}");
    assert_eq!(with("at_work") + handled, calls);
    assert!(lost > 0, "none of {handled} signals interrupted the recorder, where the program spends most of its time");
    let interrupted = stacks.keys().filter(|names| names.starts_with("in_handler handler - ")).count();
    assert!(interrupted > 0, "the interrupted frames are in the stack: {stacks:?}");
}

#[test]
fn a_program_with_its_own_malloc_has_no_sites() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    let program = programs.compile("own.c", "own", "");
    assert_eq!(recording.run(&program, &[]).stdout, b"mine!\n");
    assert_eq!(recording.sites().programs.load(Relaxed), 1, "the recorder was loaded");
    assert_eq!(recording.count(&program, "main"), (0, 0));
}

#[test]
fn without_the_mailbox_range_nothing_is_announced() {
    let (programs, recording) = (ProgramDirectory::new(), Recording::new());
    programs.compile("reserve_mailbox.c", "libreserve.so", "-shared -fPIC");
    let program = programs.compile("no_mailbox.c", "no_mailbox", "-L@ -lreserve -Wl,-rpath,@ -Wl,-z,now");
    assert_eq!(recording.run(&program, &[]).stdout, b"continued\n");
    assert!(recording.lost(LossReason::MailboxesUnmapped) >= 2, "malloc and free");
    assert_eq!(recording.sites().sites().count(), 0);
}

#[test]
fn a_file_that_is_no_record_is_not_changed() {
    let programs = ProgramDirectory::new();
    let program = programs.compile("own.c", "own", "");
    let counts = programs.compile("counts.c", "counts", "");
    let wrong = programs.0.path().join("wrong");
    fs::write(&wrong, vec![0; 8 << 20]).unwrap();
    let short = programs.0.path().join("short");
    fs::write(&short, "short").unwrap();
    for record in [wrong.as_path(), &short, "/no/such/file".as_ref(), "/dev/null".as_ref()] {
        for program in [&program, &counts] {
            let mut command = std::process::Command::new(program);
            command.env("LD_PRELOAD", recorder()).env("FIELDSTONE_SITES", record);
            assert!(command.status().unwrap().success(), "{}", record.display());
        }
    }
    assert!(fs::read(&wrong).unwrap().iter().all(|&byte| byte == 0));
}
