//! The threads of a process: `/proc/PID/task`, read again until no new one shows.
//!
//! The list is a picture of a moving thing. A thread that is made between two looks inherits what its maker has, or shows in
//! the next look; a maker that has been provided for makes no unprovided thread. So when a look shows nothing new, nobody is
//! left out, but for those whose makers were themselves made behind the look's back, which the rounds are for.

use std::collections::BTreeSet;

use crate::Result;
use crate::process::threads;

/// Looks at most: a program that makes threads faster than they can be listed is not waited for.
const LOOKS: usize = 32;

/// Calls `provide` for each thread of a process, those that show meanwhile too; each one once.
pub(super) fn for_each(pid: u32, mut provide: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let mut known = BTreeSet::new();
    for _ in 0..LOOKS {
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
    fn a_thread_made_between_two_looks_is_provided_for_once() {
        let (ask, asked) = channel::<()>();
        let (tell, told) = channel();
        let maker = std::thread::spawn(move || {
            asked.recv().unwrap();
            let (hold, held) = channel::<()>();
            let made = std::thread::spawn(move || {
                tell.send(own()).unwrap();
                let _ = held.recv();
            });
            asked.recv().unwrap();
            drop(hold);
            made.join().unwrap();
        });
        let mut seen = Vec::new();
        let mut late = 0;
        for_each(std::process::id(), |tid| {
            if seen.is_empty() {
                ask.send(()).unwrap();
                late = told.recv().unwrap();
            }
            seen.push(tid);
            Ok(())
        })
        .unwrap();
        ask.send(()).unwrap();
        maker.join().unwrap();
        assert_eq!(seen.iter().filter(|&&tid| tid == late).count(), 1, "{late} in {seen:?}");
        assert!(seen.contains(&own()), "{seen:?}");
    }

    #[test]
    fn a_process_that_is_not_there_is_told() {
        let error = for_each(i32::MAX.unsigned_abs(), |_| Ok(())).unwrap_err();
        assert!(matches!(error, Error::NoSuchProcess { .. }), "{error}");
    }
}
