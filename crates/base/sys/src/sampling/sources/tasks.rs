//! The threads of a process: `/proc/PID/task`, read until no new one appears.
//!
//! The list is no snapshot. A thread created between two reads inherits its creator's events, or
//! appears in the next read. So after a read without new threads none is missing, except threads
//! whose creators were themselves created during a read; the repetition makes these rare.

use std::collections::BTreeSet;

use crate::Result;
use crate::process::threads;

/// Upper bound of reads, for programs that create threads faster than they can be listed.
const MAX_READS: usize = 32;

/// Calls `provide` once for each thread of a process, including threads that appear meanwhile.
pub(super) fn for_each(pid: u32, mut provide: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let mut known = BTreeSet::new();
    for _ in 0..MAX_READS {
        let new: Vec<u32> = threads(pid)?.into_iter().filter(|&tid| known.insert(tid)).collect();
        if new.is_empty() {
            break;
        }
        new.into_iter().try_for_each(&mut provide)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use std::sync::mpsc::channel;

    fn own() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
    }

    #[test]
    fn a_thread_created_between_two_reads_is_provided_once() {
        let (step, steps) = channel::<()>();
        let (send_id, thread_id) = channel();
        let maker = std::thread::spawn(move || {
            steps.recv().unwrap();
            let (release, released) = channel::<()>();
            let made = std::thread::spawn(move || {
                send_id.send(own()).unwrap();
                let _ = released.recv();
            });
            steps.recv().unwrap();
            drop(release);
            made.join().unwrap();
        });
        let mut seen = Vec::new();
        let mut late = 0;
        for_each(std::process::id(), |tid| {
            if seen.is_empty() {
                step.send(()).unwrap();
                late = thread_id.recv().unwrap();
            }
            seen.push(tid);
            Ok(())
        })
        .unwrap();
        step.send(()).unwrap();
        maker.join().unwrap();
        assert_eq!(seen.iter().filter(|&&tid| tid == late).count(), 1, "{late} in {seen:?}");
        assert!(seen.contains(&own()), "{seen:?}");
    }

    #[test]
    fn a_missing_process_is_an_error() {
        let error = for_each(i32::MAX.unsigned_abs(), |_| Ok(())).unwrap_err();
        assert!(matches!(error, Error::NoSuchProcess { .. }), "{error}");
    }
}
