//! fork: the child sees memory as of the fork, whatever the parent writes meanwhile. The parent
//! sees no write of the child, except in shared memory.
//!
//! ```text
//! parent:  fork ── writes private memory ── signals ──────────────── waits ── records shared writes ── checks
//! child:         └─ waits ── checks ── writes private and shared memory ── checks ── (more steps) ── exits
//! ```
//! Both processes draw the child's writes to shared memory from the same seed.

#![allow(unsafe_code, reason = "fork, pipe and waitpid")]

use crate::{
    contents, heap,
    model::{Origin, PageAccess},
    probe::{ProbeKind, is_accessible},
    reservation, steps,
    test_thread::{CheckResult, TestThread},
};
use fieldstone_workloads::random::SplitMix64;

/// Steps of the child, in every fourth fork.
const CHILD_STEPS: usize = 25;
/// Seconds until SIGALRM kills a stuck child, which the parent then reports.
const CHILD_SECONDS: u32 = 300;

/// One fork, as in the drawing of the module.
pub(crate) fn fork(test: &mut TestThread) -> CheckResult {
    let seed = test.random.draw();
    let runs_steps = test.random.below(4) == 0 && test.generation == 0;
    let mut pipe = [0; 2];
    // SAFETY: `pipe` is a writable array of two descriptors.
    if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err("pipe failed".into());
    }
    // SAFETY: the child uses only this thread's test, allocates (glibc keeps malloc usable after
    // fork), and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: closes the child's copy of the parent's end, so that the parent's death ends the
        // read.
        unsafe { libc::close(pipe[1]) };
        exit_child(child_main(test, pipe[0], seed, runs_steps));
    }
    if child < 0 {
        return Err(format!("fork answered {}", std::io::Error::last_os_error()));
    }
    let verdict = (0..8).try_for_each(|_| write_private(test));
    // SAFETY: both descriptors were created by this step; the written bytes are static.
    unsafe {
        libc::write(pipe[1], b"!".as_ptr().cast(), 1);
        libc::close(pipe[1]);
        libc::close(pipe[0]);
    }
    wait_for(child)?;
    verdict?;
    write_shared(test, seed, false);
    test.check_all()
}

fn exit_child(verdict: CheckResult) -> ! {
    let code = i32::from(verdict.is_err());
    if let Err(what) = verdict {
        let text = format!("mmap-stress: in a forked child: {what}\n");
        // SAFETY: `text` is a valid slice. std's stderr lock is avoided, since another thread may
        // have held it at the fork.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: _exit ends the child without running the parent's destructors.
    unsafe { libc::_exit(code) }
}

fn wait_for(child: i32) -> CheckResult {
    let mut status = 0;
    // SAFETY: `status` is a local integer that the kernel writes; the child was created by this
    // step.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return Err("waitpid failed".into());
        }
    }
    if status == 0 { Ok(()) } else { Err(format!("the forked child ended with status {status:#x}")) }
}

fn child_main(test: &mut TestThread, signal: i32, seed: u64, runs_steps: bool) -> CheckResult {
    test.is_only_thread = true;
    test.generation += 1;
    let mut byte = 0_u8;
    // SAFETY: read writes one byte into `byte`; alarm only starts a timer; the descriptor is this
    // child's.
    unsafe {
        libc::alarm(CHILD_SECONDS);
        while libc::read(signal, (&raw mut byte).cast(), 1) < 0 {}
        libc::close(signal);
    }
    apply_fork(test)?;
    test.check_all()?;
    test.random = SplitMix64::new(!seed);
    (0..8).try_for_each(|_| write_private(test))?;
    heap::heap(test)?;
    reservation::use_reservation(test)?;
    write_shared(test, seed, true);
    test.check_all()?;
    if runs_steps {
        forget_shared(test);
        steps::run(test, CHILD_STEPS)?;
    }
    Ok(())
}

/// Turns the parent's model into the child's. First, before anything allocates, checks that the
/// pages dropped by the fork are unmapped.
fn apply_fork(test: &mut TestThread) -> CheckResult {
    for span in &test.model.spans {
        let dropped = (0..span.pages.len()).filter(|&index| span.pages[index].is_dropped_on_fork);
        if let Some(index) = dropped.into_iter().find(|&index| is_accessible(span.address(index), ProbeKind::Read)) {
            return Err(format!("{:#x}, under MADV_DONTFORK, can be read", span.address(index)));
        }
    }
    test.model.spans.iter_mut().flat_map(|span| &mut span.pages).filter(|page| page.is_wiped_on_fork).for_each(
        |page| {
            page.bytes = None;
        },
    );
    while let Some((span, page)) = find(test, |page| page.is_dropped_on_fork) {
        let run = test.model.spans[span].run(page, |page| page.is_dropped_on_fork);
        test.model.remove_range(span, run);
    }
    Ok(())
}

fn find(test: &TestThread, holds: impl Fn(&crate::model::ModelPage) -> bool) -> Option<(usize, usize)> {
    let mut spans = test.model.spans.iter().enumerate();
    spans.find_map(|(index, span)| span.pages.iter().position(&holds).map(|page| (index, page)))
}

/// Removes shared memory from the child's model before it runs steps: the parent cannot record
/// those writes.
fn forget_shared(test: &mut TestThread) {
    while let Some((span, page)) = find(test, |page| page.origin == Origin::Shared) {
        let run = test.model.spans[span].run(page, |page| page.origin == Origin::Shared);
        test.model.remove_range(span, run);
    }
}

/// Writes to a random page, if it is writable and private.
fn write_private(test: &mut TestThread) -> CheckResult {
    let Some((span, page)) = test.model.pick(&mut test.random) else { return Ok(()) };
    let drawn = &test.model.spans[span].pages[page];
    if drawn.access != PageAccess::Write || drawn.origin == Origin::Shared {
        return Ok(());
    }
    let bytes = contents::random_bytes(test, 256);
    test.write(span, page, 1000, &bytes);
    test.check_pages(span, page..page + 1)
}

/// Writes a few words, drawn from `seed`, to each writable shared page, or only records them (in
/// the parent). Each page's words depend on its address, since the order of spans differs between
/// child and parent.
fn write_shared(test: &mut TestThread, seed: u64, is_child: bool) {
    for span in 0..test.model.spans.len() {
        for page in 0..test.model.spans[span].pages.len() {
            let (address, drawn) = (test.model.spans[span].address(page), &test.model.spans[span].pages[page]);
            if drawn.origin == Origin::Shared && drawn.access == PageAccess::Write && !drawn.is_dropped_on_fork {
                let word = SplitMix64::new(seed ^ address as u64).draw().to_le_bytes();
                if is_child {
                    test.write(span, page, 512, &word);
                } else {
                    test.record_write(span, page, 512, &word);
                }
            }
        }
    }
}
