//! Programs in which the recorder can do little or nothing, and must do no harm.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::sites::LossReason;

use crate::stage::{Recording, Workshop, recorder};

#[test]
fn a_handler_that_allocates_wherever_it_interrupts_is_counted_or_told_as_lost() {
    let (workshop, recording) = (Workshop::new(), Recording::new());
    workshop.compile("bump.c", "libbump.so", "-shared -fPIC");
    let program = workshop.compile("signals.c", "signals", "-L@ -lbump -Wl,-rpath,@");
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
    assert!(
        lost > 0,
        "of {handled} signals none has interrupted the recorder, where the program spends most of its time"
    );
    let interrupted = stacks.keys().filter(|names| names.starts_with("in_handler handler - ")).count();
    assert!(interrupted > 0, "the interrupted frames are in the stack: {stacks:?}");
}

#[test]
fn a_program_with_its_own_malloc_has_no_sites() {
    let (workshop, recording) = (Workshop::new(), Recording::new());
    let program = workshop.compile("own.c", "own", "");
    assert_eq!(recording.run(&program, &[]).stdout, b"mine!\n");
    assert_eq!(recording.sites().programs.load(Relaxed), 1, "it was there");
    assert_eq!(recording.count(&program, "main"), (0, 0));
}

#[test]
fn where_the_mailbox_is_taken_nothing_is_announced() {
    let (workshop, recording) = (Workshop::new(), Recording::new());
    workshop.compile("taker.c", "libtaker.so", "-shared -fPIC");
    let program = workshop.compile("taken.c", "taken", "-L@ -ltaker -Wl,-rpath,@ -Wl,-z,now");
    assert_eq!(recording.run(&program, &[]).stdout, b"went on\n");
    assert!(recording.lost(LossReason::MailboxesUnmapped) >= 2, "malloc and free");
    assert_eq!(recording.sites().sites().count(), 0);
}

#[test]
fn a_record_that_is_not_one_is_left_alone() {
    let workshop = Workshop::new();
    let program = workshop.compile("own.c", "own", "");
    let counts = workshop.compile("counts.c", "counts", "");
    let wrong = workshop.0.path().join("wrong");
    fs::write(&wrong, vec![0; 8 << 20]).unwrap();
    let short = workshop.0.path().join("short");
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
