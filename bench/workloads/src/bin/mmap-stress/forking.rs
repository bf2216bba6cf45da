//! fork: the child sees what was there at the fork, whatever the parent writes meanwhile; the parent sees nothing of what the
//! child writes, but for shared memory.
//!
//! ```text
//! parent:  fork ── writes private memory ── signals ─────────────────────── waits ── books the shared writes ── checks
//! child:         └─ waits for the signal ── checks ── writes private and shared memory ── checks ── (steps on) ── exits
//! ```
//! Both draw what the child writes to shared memory from the same seed.

#![allow(unsafe_code, reason = "fork, pipe and waitpid")]

use crate::{
    contents, giant, heap,
    model::{Access, Origin},
    probe::{Touch, bears},
    steps,
    world::{Verdict, World},
};
use fieldstone_workloads::random::SplitMix64;

/// Steps that a child goes on for, every fourth time.
const CHILD_STEPS: usize = 25;
/// Seconds after which a stuck child is killed by SIGALRM, which its parent reports.
const CHILD_SECONDS: u32 = 300;

/// One fork, as drawn above.
pub(crate) fn fork(world: &mut World) -> Verdict {
    let seed = world.random.draw();
    let steps_on = world.random.below(4) == 0 && world.generation == 0;
    let mut pipe = [0; 2];
    // SAFETY: `pipe` is a place for two descriptors.
    if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err("pipe failed".into());
    }
    // SAFETY: the child uses only this thread's world, allocates (glibc's malloc is whole after fork), and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the parent's end, closed so that the parent's death would end the wait.
        unsafe { libc::close(pipe[1]) };
        leave(child_main(world, pipe[0], seed, steps_on));
    }
    if child < 0 {
        return Err(format!("fork answered {}", std::io::Error::last_os_error()));
    }
    let verdict = (0..8).try_for_each(|_| write_private(world));
    // SAFETY: both descriptors are this step's own; the bytes written are a static's.
    unsafe {
        libc::write(pipe[1], b"!".as_ptr().cast(), 1);
        libc::close(pipe[1]);
        libc::close(pipe[0]);
    }
    wait_for(child)?;
    verdict?;
    shared_writes(world, seed, false);
    world.check_all()
}

fn leave(verdict: Verdict) -> ! {
    let code = i32::from(verdict.is_err());
    if let Err(what) = verdict {
        let text = format!("mmap-stress: in a forked child: {what}\n");
        // SAFETY: writes `text`; not through std, whose lock another thread may have held at the fork.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: ends the child without running the parent's destructors.
    unsafe { libc::_exit(code) }
}

fn wait_for(child: i32) -> Verdict {
    let mut status = 0;
    // SAFETY: `status` is a place for the result; the child is this step's own.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return Err("waitpid failed".into());
        }
    }
    if status == 0 { Ok(()) } else { Err(format!("the forked child ended with status {status:#x}")) }
}

fn child_main(world: &mut World, signal: i32, seed: u64, steps_on: bool) -> Verdict {
    world.alone = true;
    world.generation += 1;
    let mut byte = 0_u8;
    // SAFETY: one byte is read into `byte`; alarm only arms a timer.
    unsafe {
        libc::alarm(CHILD_SECONDS);
        while libc::read(signal, (&raw mut byte).cast(), 1) < 0 {}
        libc::close(signal);
    }
    apply_fork(world)?;
    world.check_all()?;
    world.random = SplitMix64::new(!seed);
    (0..8).try_for_each(|_| write_private(world))?;
    heap::heap(world)?;
    giant::giant(world)?;
    shared_writes(world, seed, true);
    world.check_all()?;
    if steps_on {
        forget_shared(world);
        steps::run(world, CHILD_STEPS)?;
    }
    Ok(())
}

/// Turns the parent's model into the child's, and checks first, before anything allocates, that what must be gone is gone.
fn apply_fork(world: &mut World) -> Verdict {
    for span in &world.model.spans {
        let gone = (0..span.pages.len()).filter(|&index| span.pages[index].dropped);
        if let Some(index) = gone.into_iter().find(|&index| bears(span.address(index), Touch::Read)) {
            return Err(format!("{:#x}, under MADV_DONTFORK, can be read", span.address(index)));
        }
    }
    world.model.spans.iter_mut().flat_map(|span| &mut span.pages).filter(|page| page.wiped).for_each(|page| {
        page.bytes = None;
    });
    while let Some((span, page)) = find(world, |page| page.dropped) {
        let run = world.model.spans[span].run(page, |page| page.dropped);
        world.model.cut(span, run);
    }
    Ok(())
}

fn find(world: &World, holds: impl Fn(&crate::model::Page) -> bool) -> Option<(usize, usize)> {
    let mut spans = world.model.spans.iter().enumerate();
    spans.find_map(|(index, span)| span.pages.iter().position(&holds).map(|page| (index, page)))
}

/// A child that goes on for itself lets go of shared memory, whose writes the parent could not book.
fn forget_shared(world: &mut World) {
    while let Some((span, page)) = find(world, |page| page.origin == Origin::Shared) {
        let run = world.model.spans[span].run(page, |page| page.origin == Origin::Shared);
        world.model.cut(span, run);
    }
}

/// Writes to writable private memory, if the page drawn is some.
fn write_private(world: &mut World) -> Verdict {
    let Some((span, page)) = world.model.pick(&mut world.random) else { return Ok(()) };
    let drawn = &world.model.spans[span].pages[page];
    if drawn.access != Access::Write || drawn.origin == Origin::Shared {
        return Ok(());
    }
    let bytes = contents::random_bytes(world, 256);
    world.write(span, page, 1000, &bytes);
    world.check_pages(span, page..page + 1)
}

/// Writes (or, in the parent, books) a few words to each writable shared page, drawn from `seed`. The order of the spans
/// differs between child and parent, so each page's words follow from its address.
fn shared_writes(world: &mut World, seed: u64, really: bool) {
    for span in 0..world.model.spans.len() {
        for page in 0..world.model.spans[span].pages.len() {
            let (address, drawn) = (world.model.spans[span].address(page), &world.model.spans[span].pages[page]);
            if drawn.origin == Origin::Shared && drawn.access == Access::Write && !drawn.dropped {
                let word = SplitMix64::new(seed ^ address as u64).draw().to_le_bytes();
                if really {
                    world.write(span, page, 512, &word);
                } else {
                    world.note(span, page, 512, &word);
                }
            }
        }
    }
}
