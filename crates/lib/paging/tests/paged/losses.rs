//! Pages that a store does not return, or returns with other contents.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use fieldstone_paging::Advice::{Cold, Drop, Soon};
use fieldstone_paging::{Error, OnLoss, Page, Paged, PagedBuilder, Store, StoreError, TempFile};

use crate::fixture::{MIB, PAGE, WORDS, build, dies_alone, passes_alone};

/// How the store fails.
static FAILURES: AtomicU64 = AtomicU64::new(0);
static IS_FLIPPING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicU64 = AtomicU64::new(0);

/// A file that fails `FAILURES` times, or flips a bit.
struct FailingStore(TempFile);

impl Store for FailingStore {
    fn put(&self, pages: &[&Page], keys: &mut [u32]) -> Result<usize, StoreError> {
        self.0.put(pages, keys)
    }

    fn get(&self, keys: &[u32], pages: &mut [Page]) -> Result<(), StoreError> {
        if FAILURES.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(StoreError::Failed(libc::ETIMEDOUT));
        }
        self.0.get(keys, pages)?;
        if IS_FLIPPING.load(Relaxed) {
            pages[0][77] ^= 4;
        }
        Ok(())
    }

    fn forget(&self, keys: &[u32]) {
        self.0.forget(keys);
    }
}

/// Memory whose page 5 contains 41 and has left memory.
fn memory(configure: impl FnOnce(PagedBuilder) -> PagedBuilder) -> Option<Paged> {
    let file = TempFile::in_dir(std::env::temp_dir()).unwrap();
    let memory = build(configure(Paged::builder(MIB).store(FailingStore(file))))?;
    memory.as_slice::<AtomicU64>()[5 * WORDS].store(41, Relaxed);
    memory.advise(0..memory.len(), Cold).unwrap();
    assert_eq!(memory.resident(0..memory.len()), Ok(0));
    Some(memory)
}

fn access(memory: &Paged) -> u64 {
    memory.as_slice::<AtomicU64>()[5 * WORDS].load(Relaxed)
}

#[test]
#[ignore = "runs in a process of its own"]
fn retried() {
    let handler = |page, error| {
        assert!(page == 5 * PAGE && matches!(error, Error::Load { store: "FailingStore", .. }), "{error}");
        ASKED.fetch_add(1, Relaxed);
        OnLoss::Retry
    };
    let Some(memory) = memory(|builder| builder.on_loss(handler)) else { return };
    FAILURES.store(3, Relaxed);
    assert_eq!((access(&memory), ASKED.load(Relaxed), memory.stats().lost), (41, 3, 0));
}

#[test]
fn a_page_that_is_asked_for_again_comes_back() {
    passes_alone("losses::retried");
}

#[test]
#[ignore = "ends by SIGBUS"]
fn faulted() {
    let handler = |page, error| {
        eprintln!("handler: {page} {error}");
        if ASKED.fetch_add(1, Relaxed) == 0 { OnLoss::Retry } else { OnLoss::Fault }
    };
    let Some(memory) = memory(|builder| builder.on_loss(handler)) else { return };
    FAILURES.store(u64::MAX, Relaxed);
    println!("{}", access(&memory));
}

#[test]
fn a_lost_page_raises_sigbus_in_the_thread_that_needs_it() {
    let errors = dies_alone("losses::faulted", libc::SIGBUS);
    let text = "cannot bring back the page at byte 20480 from the store FailingStore: it does not answer (ETIMEDOUT)";
    assert_eq!(errors.matches(text).count(), 2, "{errors}");
}

#[test]
#[ignore = "ends by SIGBUS"]
fn flipped() {
    let Some(memory) = memory(|builder| builder) else { return };
    IS_FLIPPING.store(true, Relaxed);
    println!("{}", access(&memory));
}

#[test]
fn a_flipped_bit_is_detected_and_never_served() {
    let errors = dies_alone("losses::flipped", libc::SIGBUS);
    assert!(errors.contains("from the store FailingStore: the contents have changed in the store"), "{errors}");
}

#[test]
#[ignore = "runs in a process of its own"]
fn repaired() {
    let Some(memory) = memory(|builder| builder.on_loss(|_, _| OnLoss::Fault)) else { return };
    FAILURES.store(u64::MAX, Relaxed);
    // A system call that needs the page fails, and raises no signal.
    // SAFETY: the array has two places, and the address is inside the memory.
    let written = unsafe {
        let mut pipe = [0; 2];
        libc::pipe(pipe.as_mut_ptr());
        libc::write(pipe[1], memory.as_ptr().as_ptr().add(5 * PAGE).cast(), 8)
    };
    if memory.stats().has_kernel_faults {
        assert_eq!((written, memory.stats().lost), (-1, 1));
    }
    memory.advise(0..memory.len(), Soon).unwrap();
    assert_eq!(memory.resident(5 * PAGE..6 * PAGE), Ok(0), "the store does not return it");
    FAILURES.store(0, Relaxed);
    memory.advise(0..memory.len(), Soon).unwrap();
    assert_eq!(access(&memory), 41, "the store returns it now");
    memory.advise(0..memory.len(), Cold).unwrap();
    FAILURES.store(u64::MAX, Relaxed);
    memory.advise(0..memory.len(), Soon).unwrap();
    memory.advise(0..memory.len(), Drop).unwrap();
    assert_eq!(access(&memory), 0, "a dropped page is an ordinary one");
    memory.as_slice::<AtomicU64>()[5 * WORDS].store(1, Relaxed);
    FAILURES.store(0, Relaxed);
    memory.advise(0..memory.len(), Cold).unwrap();
    assert_eq!(access(&memory), 1);
}

#[test]
fn a_lost_page_comes_back_by_advice_or_is_dropped() {
    passes_alone("losses::repaired");
}

#[test]
#[ignore = "ends by SIGABRT"]
fn panicking() {
    let Some(memory) = memory(|builder| builder.on_loss(|_, _| panic!("for the test"))) else { return };
    FAILURES.store(u64::MAX, Relaxed);
    println!("{}", access(&memory));
}

#[test]
fn a_panic_of_a_handler_ends_the_process_with_a_message() {
    let errors = dies_alone("losses::panicking", libc::SIGABRT);
    assert!(errors.contains("a store or the handler of losses has panicked"), "{errors}");
}
