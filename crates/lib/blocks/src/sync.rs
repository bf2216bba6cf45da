//! Atomics and the one lock: `core`'s and `std`'s, or `loom`'s when its tests explore the interleavings.
//!
//! The lock guards what is rare: taking a chunk from the system and giving it back. Without `std` it spins. While a thread
//! holds one, it can be asked (`is_held`): in a program whose allocator is on blocks, the pool's tables come from elsewhere.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(not(loom))]
pub(crate) use alloc::sync::Arc;
#[cfg(loom)]
pub(crate) use loom::sync::Arc;

/// A lock whose holder cannot leave it broken: a panic under it does not poison it.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Inner<T>);

#[cfg(loom)]
type Inner<T> = loom::sync::Mutex<T>;
#[cfg(all(not(loom), feature = "std"))]
type Inner<T> = std::sync::Mutex<T>;
#[cfg(all(not(loom), not(feature = "std")))]
type Inner<T> = spin::Spin<T>;

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Inner::new(value))
    }

    /// Runs `f` alone.
    #[cfg(any(loom, feature = "std"))]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        hold(|| self.with_inner(f))
    }

    #[cfg(any(loom, feature = "std"))]
    fn with_inner<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut held = match self.0.lock() {
            Ok(held) => held,
            #[cfg(not(loom))]
            Err(broken) => broken.into_inner(),
            #[cfg(loom)]
            Err(_) => unreachable!("no test panics under the lock"),
        };
        f(&mut held)
    }

    /// Runs `f` alone.
    #[cfg(not(any(loom, feature = "std")))]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(f)
    }
}

#[cfg(all(not(loom), feature = "std"))]
pub(crate) use held::{hold, is_held};

/// Runs `f`. Without threads that can ask, nobody is told.
#[cfg(any(loom, not(feature = "std")))]
pub(crate) fn hold<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(all(not(loom), not(feature = "std")))]
pub(crate) const fn is_held() -> bool {
    false
}

/// Whether this thread is at work on the crate's own records: a global allocator that is made of them must not ask them then.
#[cfg(all(not(loom), feature = "std"))]
mod held {
    use core::cell::Cell;

    std::thread_local! {
        static DEPTH: Cell<u32> = const { Cell::new(0) };
    }

    struct Held;

    impl Drop for Held {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }

    /// Runs `f` as work on the crate's own records.
    pub(crate) fn hold<R>(f: impl FnOnce() -> R) -> R {
        DEPTH.set(DEPTH.get() + 1);
        let _held = Held;
        f()
    }

    pub(crate) fn is_held() -> bool {
        DEPTH.get() > 0
    }
}

#[cfg(all(not(loom), not(feature = "std")))]
mod spin {
    #![allow(unsafe_code, reason = "a lock hands out what it guards")]

    use core::cell::UnsafeCell;
    use core::sync::atomic::{AtomicBool, Ordering};

    #[derive(Debug, Default)]
    pub(crate) struct Spin<T> {
        held: AtomicBool,
        value: UnsafeCell<T>,
    }

    // SAFETY: `with` lets one thread at a time at the value, as a mutex does.
    unsafe impl<T: Send> Sync for Spin<T> {}

    impl<T> Spin<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }

        pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
            struct Release<'a>(&'a AtomicBool);
            impl Drop for Release<'_> {
                fn drop(&mut self) {
                    self.0.store(false, Ordering::Release);
                }
            }
            // The wait ends: `f` takes a block off a list or puts one back, and waits for nothing. Without an operating system there
            // is no other thread to yield to.
            while self.held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
                core::hint::spin_loop();
            }
            let _release = Release(&self.held);
            // SAFETY: the flag was false and is ours now: nobody else has the value until it is false again.
            f(unsafe { &mut *self.value.get() })
        }
    }
}
