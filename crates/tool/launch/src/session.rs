//! Creates the record that processes with a region share with this process, and waits for events in
//! it.

#![allow(unsafe_code, reason = "implements an unsafe trait for the record's type")]

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use fieldstone_translation::mosaic::threshold;
use fieldstone_wire::{BUILD, Config, MAGIC, Mixture, NAME_BYTES, Session};
use rustix::thread::futex;

use crate::error::{Error, Result};
use crate::shared_record::{ShareableRecord, SharedRecord};

/// Properties of a region.
#[derive(Clone, Debug)]
pub struct RegionOptions {
    /// Page kinds of the region.
    pub pages: Mixture,
    /// Bytes mapped at the start of each process.
    pub reserve_bytes: u64,
    /// Whether memory is populated when it is mapped.
    pub prefault: bool,
    /// The name of the only process to serve (its executable file, or `argv[0]`); `None` for all.
    pub process: Option<String>,
    /// Further memory on these pages.
    pub also: ExtraMemory,
}

/// Memory to serve besides the default (option `--also`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent choices of the user")]
pub struct ExtraMemory {
    /// Threads' stacks, in the region; the main thread's stack in place.
    pub stacks: bool,
    /// Zero-initialised data, in place.
    pub globals: bool,
    /// Memory that the program maps with an address hint, in the region.
    pub hinted: bool,
    /// Memory of a program that has disabled transparent huge pages for itself.
    pub disabled: bool,
}

impl RegionOptions {
    /// A region on these pages, with the defaults otherwise.
    #[must_use]
    pub fn on(pages: impl Into<Mixture>) -> Self {
        Self { pages: pages.into(), reserve_bytes: 0, prefault: false, process: None, also: ExtraMemory::default() }
    }
}

/// The session record.
pub type SharedSession = SharedRecord<Session>;

// SAFETY: `Session` consists of integers and atomics, so all zeros is a valid value. `sign` and the
// closure in `create` write the plain fields before the record is shared; afterwards only atomics
// change.
unsafe impl ShareableRecord for Session {
    const NAME: &str = "fieldstone-session";

    fn sign(&mut self) {
        (self.build, self.magic) = (BUILD, MAGIC);
    }
}

impl SharedSession {
    /// Creates a session. With `watched`, an exiting process waits until it is sampled and released
    /// (see [`Self::wait`] and [`Self::release`]).
    ///
    /// # Errors
    /// [`Error::System`] without memory or descriptors, or for a process name of 64 bytes or more.
    pub fn create(options: &RegionOptions, watched: bool) -> Result<Self> {
        let mut process = [0; NAME_BYTES];
        if let Some(name) = &options.process {
            let too_long =
                || Error::System { operation: "use the process name", source: std::io::ErrorKind::InvalidInput.into() };
            let field = process.get_mut(..name.len()).filter(|field| field.len() < NAME_BYTES).ok_or_else(too_long)?;
            field.copy_from_slice(name.as_bytes());
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
        Self::create_with(|session| session.config = config)
    }

    /// Waits until the `attention` counter differs from `last`, or `timeout` has passed. Returns
    /// the counter, which a process increments when it wants to be sampled.
    pub fn wait(&self, last: u32, timeout: Duration) -> u32 {
        let word = &self.record().attention;
        let timeout = futex::Timespec::try_from(timeout).ok();
        // The caller compares the counters, so it does not matter why the wait ended.
        let _ = futex::wait(word, futex::Flags::empty(), last, timeout.as_ref());
        word.load(SeqCst)
    }

    /// Ends a [`Self::wait`] of another thread of this process.
    pub fn wake_waiter(&self) {
        let word = &self.record().attention;
        word.fetch_add(1, SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }

    /// Releases the process that waits on `phase`, the field of its slot.
    pub fn release(&self, phase: &std::sync::atomic::AtomicU32) {
        phase.store(fieldstone_wire::ProcessPhase::Sampled as u32, SeqCst);
        // The call fails if the process does not wait yet. It reads the phase before it waits.
        let _ = futex::wake(phase, futex::Flags::empty(), 64);
    }
}

impl ExtraMemory {
    /// The bits of [`Config`]'s field `also`.
    fn bits(self) -> u32 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
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
    fn a_session_is_complete_when_it_is_created() {
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
    fn the_agent_and_the_models_choose_the_same_huge_chunks() {
        let bound =
            |pages| SharedSession::create(&RegionOptions::on(pages), false).unwrap().record().config.mosaic_bound;
        assert_eq!(bound(Mixture::from(PageKind::Thp)), mosaic::ALL);
        for percent in 1..100 {
            let (bound, share) = (bound(Mixture::mosaic(percent).unwrap()), f64::from(percent) / 100.0);
            let agrees = |chunk| mosaic::is_huge(chunk, bound) == mosaic_is_huge(chunk, share);
            assert!((0..10_000).all(agrees), "{percent} %");
        }
    }

    #[test]
    fn a_process_name_that_is_too_long_is_refused() {
        let mut options = RegionOptions::on(PageKind::Thp);
        options.process = Some("n".repeat(NAME_BYTES));
        assert!(SharedSession::create(&options, false).is_err());
        options.process = Some("n".repeat(NAME_BYTES - 1));
        assert!(SharedSession::create(&options, false).is_ok());
    }

    #[test]
    fn a_wait_ends_by_a_new_count_or_by_timeout() {
        let session = SharedSession::create(&RegionOptions::on(PageKind::Thp), true).unwrap();
        assert_eq!(session.wait(0, Duration::from_millis(1)), 0);
        session.record().attention.fetch_add(1, SeqCst);
        assert_eq!(session.wait(0, Duration::from_secs(3600)), 1, "a changed count does not sleep");
    }
}
