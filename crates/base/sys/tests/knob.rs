//! Knobs are restored when their holder is killed. The holder is another instance of this test
//! program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod hugetlb_lock;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fieldstone_sys::knob::Restorer;
use fieldstone_sys::{Error, huge_pages, process};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const KNOB: &str = "FIELDSTONE_TEST_KNOB";
const PAGES: u64 = 2;

#[test]
#[ignore = "run by the other tests, as the process that is killed"]
fn holder() {
    let knob = std::env::var(KNOB).expect("the path of a knob, or the size of a pool's pages");
    let restorer = Restorer::start().unwrap();
    let (set, raised);
    if let Ok(page_bytes) = knob.parse::<u64>() {
        raised = match restorer.raise_pool(page_bytes, PAGES) {
            Err(Error::KnobDenied { .. }) => return println!("\ndenied"),
            raised => raised.unwrap(),
        };
        println!("\nheld {} {}", restorer.pid(), raised.pages());
    } else {
        set = restorer.set(Path::new(&knob), "turned").unwrap();
        println!("\nheld {} {}", restorer.pid(), set.former());
    }
    loop {
        std::thread::park();
    }
}

/// A method to end a holder.
type Ending = fn(Pid);

/// Starts a holder in its own process group; `None` when it may not write the knob.
fn hold(knob: &str) -> (Child, Option<(u32, String)>) {
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder", "--ignored", "--nocapture"])
        .env(KNOB, knob)
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map(Result::unwrap);
    let word = lines.find(|line| line.starts_with("held ") || line == "denied").expect("a holder");
    if word == "denied" {
        lines.for_each(drop);
        holder.wait().unwrap();
    }
    let mut words = word.split(' ').skip(1);
    let held = words.next().map(|pid| (pid.parse().unwrap(), words.next().unwrap().to_owned()));
    (holder, held)
}

/// Ends the holder by `end`, and waits for its restorer.
fn end(mut holder: Child, restorer: u32, end: impl Fn(Pid)) {
    end(Pid::from_child(&holder));
    holder.wait().unwrap();
    while process::stat(restorer).is_ok_and(|stat| !stat.state.has_ended()) {
        std::thread::yield_now();
    }
}

#[test]
fn a_knob_is_restored_when_its_holder_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let knob = directory.path().join("knob");
    let endings: [(&str, Ending); 4] = [
        ("SIGKILL to the holder", |pid| kill_process(pid, Signal::KILL).unwrap()),
        ("SIGKILL to its group", |pid| kill_process_group(pid, Signal::KILL).unwrap()),
        ("Ctrl-C", |pid| kill_process_group(pid, Signal::INT).unwrap()),
        ("a hang-up", |pid| kill_process_group(pid, Signal::HUP).unwrap()),
    ];
    for (name, ending) in endings {
        std::fs::write(&knob, "original value").unwrap();
        let (holder, held) = hold(knob.to_str().unwrap());
        let (restorer, former) = held.expect("a plain file is writable");
        assert_eq!((std::fs::read_to_string(&knob).unwrap().as_str(), former.as_str()), ("turned", "original"));
        end(holder, restorer, ending);
        assert_eq!(std::fs::read_to_string(&knob).unwrap(), "original value", "after {name}");
    }
}

#[test]
fn the_restorer_ignores_signals_of_terminal_and_user() {
    let directory = tempfile::tempdir().unwrap();
    let knob = directory.path().join("knob");
    std::fs::write(&knob, "1").unwrap();
    let restorer = Restorer::start().unwrap();
    let set = restorer.set(&knob, "2").unwrap();
    let pid = Pid::from_raw(i32::try_from(restorer.pid()).unwrap()).unwrap();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::PIPE, Signal::USR1] {
        kill_process(pid, signal).unwrap();
    }
    let stat = process::stat(restorer.pid()).unwrap();
    assert_eq!((stat.session, stat.comm.as_str()), (restorer.pid(), "fs-restorer"));
    assert_eq!(std::fs::read_dir(format!("/proc/{}/fd", restorer.pid())).unwrap().count(), 5, "0, 1, 2, socket, note");
    set.restore().unwrap();
    assert_eq!(std::fs::read_to_string(&knob).unwrap(), "1");
}

#[test]
fn pool_pages_are_removed_when_their_holder_is_killed() {
    let _alone = hugetlb_lock::lock();
    let Some(pool) = huge_pages::pools().into_iter().next() else {
        println!("SKIP this kernel has no hugetlb pool");
        return;
    };
    let (holder, held) = hold(&pool.page_bytes.to_string());
    let Some((restorer, added)) = held else {
        println!("SKIP the hugetlb pool may not be raised by this user");
        return;
    };
    let added: u64 = added.parse().unwrap();
    let raised = huge_pages::pool(pool.page_bytes).unwrap();
    assert_eq!((raised.total, added <= PAGES), (pool.total + added, true));
    end(holder, restorer, |pid| kill_process(pid, Signal::KILL).unwrap());
    // Surplus pages are ordinary ones while a pool is raised, and surplus again afterwards.
    let ordinary = |pool: &huge_pages::HugePagePool| pool.total - pool.surplus;
    assert_eq!(ordinary(&huge_pages::pool(pool.page_bytes).unwrap()), ordinary(&pool));
    if added == 0 {
        println!("SKIP memory was too scattered for a huge page");
    }
}

#[test]
fn a_value_that_the_kernel_refuses_leaves_no_note() {
    let knob = huge_pages::global_mode_path();
    if !knob.exists() {
        println!("SKIP this kernel has no transparent huge pages");
        return;
    }
    let before = std::fs::read_to_string(&knob).unwrap();
    match Restorer::start().unwrap().set(&knob, "nonsense") {
        Err(Error::File { source, .. }) => {
            assert_eq!(source.raw_os_error(), Some(rustix::io::Errno::INVAL.raw_os_error()));
            assert!(!Path::new("/run/fieldstone-knob!sys!kernel!mm!transparent_hugepage!enabled").exists());
            assert_eq!(std::fs::read_to_string(&knob).unwrap(), before);
        }
        Err(Error::KnobDenied { remedy, .. }) => {
            assert!(remedy.starts_with("echo nonsense | sudo tee /sys/"), "{remedy}")
        }
        // Another Fieldstone process of this machine is running.
        Err(Error::KnobBusy { .. }) => println!("SKIP the mode of transparent huge pages is held"),
        other => panic!("{other:?}"),
    }
}
