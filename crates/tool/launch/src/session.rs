//! Our end of the record that processes with a region share with us.

#![allow(unsafe_code, reason = "vouches for the shape of a session")]

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use fieldstone_translation::mosaic::threshold;
use fieldstone_wire::{BUILD, Config, MAGIC, Mixture, NAME_BYTES, Session};
use rustix::thread::futex;

use crate::error::{Error, Result};
use crate::shared::{Shared, Signed};

/// What is asked of the region.
#[derive(Clone, Debug)]
pub struct RegionOptions {
    /// The pages it shall lie on.
    pub pages: Mixture,
    /// Bytes mapped at the start of each process.
    pub reserve_bytes: u64,
    /// Whether memory is touched when it is mapped.
    pub prefault: bool,
    /// The only process to serve, by its file's name; all if there is none.
    pub process: Option<String>,
    /// What else is to lie on such pages.
    pub also: Also,
}

/// What else is to lie on the pages asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent choices of the user")]
pub struct Also {
    /// Threads' stacks, in the region; the first thread's where it is.
    pub stacks: bool,
    /// Zero-initialised data, where it is.
    pub globals: bool,
    /// Memory for which the program hints at an address, in the region.
    pub hinted: bool,
    /// Memory of a program that has switched transparent huge pages off for itself.
    pub disabled: bool,
}

impl RegionOptions {
    /// A region on such pages, with nothing else asked.
    #[must_use]
    pub fn on(pages: impl Into<Mixture>) -> Self {
        Self { pages: pages.into(), reserve_bytes: 0, prefault: false, process: None, also: Also::default() }
    }
}

/// A session that this process made.
pub type SharedSession = Shared<Session>;

// SAFETY: a session is made of numbers and atomics, for which zero is a value; the configuration is not changed again.
unsafe impl Signed for Session {
    const NAME: &str = "fieldstone-session";

    fn sign(&mut self) {
        (self.build, self.magic) = (BUILD, MAGIC);
    }
}

impl SharedSession {
    /// Makes a session. With `watched`, processes that leave wait to be looked at (see [`Self::wait`]).
    ///
    /// # Errors
    /// [`Error::System`] where there is no memory or no descriptor; a process name of 64 bytes or more.
    pub fn create(options: &RegionOptions, watched: bool) -> Result<Self> {
        let mut process = [0; NAME_BYTES];
        if let Some(name) = &options.process {
            let too_long =
                || Error::System { operation: "use the process name", source: std::io::ErrorKind::InvalidInput.into() };
            let room = process.get_mut(..name.len()).filter(|room| room.len() < NAME_BYTES).ok_or_else(too_long)?;
            room.copy_from_slice(name.as_bytes());
        }
        let config = Config {
            page_kind: options.pages.kind() as u32,
            prefault: u32::from(options.prefault),
            watched: u32::from(watched),
            also: options.also.bits(),
            reserve_bytes: options.reserve_bytes,
            mosaic_bound: threshold(f64::from(options.pages.percent()) / 100.0),
            process,
        };
        Self::make(|session| session.config = config)
    }

    /// Waits until a process wants to be looked at, or `timeout` has passed. `seen` is the count of the last call.
    pub fn wait(&self, seen: u32, timeout: Duration) -> u32 {
        let word = &self.record().attention;
        let timeout = futex::Timespec::try_from(timeout).ok();
        // A wake-up, a time-out, a signal and a count that has moved on all mean: look.
        let _ = futex::wait(word, futex::Flags::empty(), seen, timeout.as_ref());
        word.load(SeqCst)
    }

    /// Ends a [`Self::wait`] of another thread of ours.
    pub fn call_attention(&self) {
        let word = &self.record().attention;
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }

    /// Lets a process go that waits with `phase` in its slot.
    pub fn release(&self, phase: &std::sync::atomic::AtomicU32) {
        phase.store(fieldstone_wire::ProcessPhase::Sampled as u32, SeqCst);
        // Nobody waiting is as good as somebody woken.
        let _ = futex::wake(phase, futex::Flags::empty(), 64);
    }
}

impl Also {
    /// As the agent reads it.
    fn bits(self) -> u32 {
        let bit = |asked, bit| if asked { bit } else { 0 };
        bit(self.stacks, Config::STACKS)
            | bit(self.globals, Config::GLOBALS)
            | bit(self.hinted, Config::HINTED)
            | bit(self.disabled, Config::DISABLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_translation::mosaic_is_huge;
    use fieldstone_wire::{PageKind, mosaic};

    #[test]
    fn a_session_is_whole_when_its_path_is_opened() {
        let mut options = RegionOptions::on(PageKind::Hugetlb2m);
        options.process = Some("redis-server".to_owned());
        options.also.globals = true;
        let session = SharedSession::create(&options, true).unwrap();
        assert_eq!(std::fs::metadata(session.path()).unwrap().len(), size_of::<Session>() as u64);
        let record = session.record();
        assert_eq!(record.check(), Ok(()));
        assert_eq!(record.config.page_kind(), Some(PageKind::Hugetlb2m));
        assert_eq!(record.config.process(), Some(&b"redis-server"[..]));
        assert_eq!(record.config.also, Config::GLOBALS);
        assert_eq!(record.claimed_slots().count(), 0);
    }

    #[test]
    fn the_agent_is_told_to_pick_what_the_models_pick() {
        let bound =
            |pages| SharedSession::create(&RegionOptions::on(pages), false).unwrap().record().config.mosaic_bound;
        assert_eq!(bound(Mixture::from(PageKind::Thp)), mosaic::ALL);
        for percent in 1..100 {
            let (bound, share) = (bound(Mixture::mosaic(percent).unwrap()), f64::from(percent) / 100.0);
            let alike = |chunk| mosaic::is_huge(chunk, bound) == mosaic_is_huge(chunk, share);
            assert!((0..10_000).all(alike), "{percent} %");
        }
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        let mut options = RegionOptions::on(PageKind::Thp);
        options.process = Some("n".repeat(NAME_BYTES));
        assert!(SharedSession::create(&options, false).is_err());
        options.process = Some("n".repeat(NAME_BYTES - 1));
        assert!(SharedSession::create(&options, false).is_ok());
    }

    #[test]
    fn waiting_ends_by_attention_and_by_time() {
        let session = SharedSession::create(&RegionOptions::on(PageKind::Thp), true).unwrap();
        assert_eq!(session.wait(0, Duration::from_millis(1)), 0);
        session.record().attention.fetch_add(1, SeqCst);
        assert_eq!(session.wait(0, Duration::from_secs(3600)), 1, "a count that moved on does not sleep");
    }
}
