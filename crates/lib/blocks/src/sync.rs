//! Atomics and the crate's lock: from `core` and `std`, or from `loom` when its tests explore
//! interleavings.
//!
//! The lock guards rare operations: taking a chunk from the frames and returning it. Without `std`
//! it spins. While a thread holds a lock, [`is_in_internals`] is true: a global allocator built on
//! this crate must then take memory from elsewhere.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(not(loom))]
pub(crate) use alloc::sync::Arc;
#[cfg(loom)]
pub(crate) use loom::sync::Arc;

/// A mutex that ignores poisoning: a panic under the lock leaves it usable.
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

    /// Runs `f` with exclusive access.
    #[cfg(any(loom, feature = "std"))]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        enter_internals(|| self.with_inner(f))
    }

    #[cfg(any(loom, feature = "std"))]
    fn with_inner<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut guard = match self.0.lock() {
            Ok(guard) => guard,
            #[cfg(not(loom))]
            Err(poisoned) => poisoned.into_inner(),
            #[cfg(loom)]
            Err(_) => unreachable!("no test panics under the lock"),
        };
        f(&mut guard)
    }

    /// Runs `f` with exclusive access.
    #[cfg(not(any(loom, feature = "std")))]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(f)
    }
}

#[cfg(all(not(loom), feature = "std"))]
pub(crate) use reentrancy::{enter_internals, is_in_internals};

/// Runs `f`. Without `std` or under loom, no global allocator uses this crate, so nothing is
/// recorded.
#[cfg(any(loom, not(feature = "std")))]
pub(crate) fn enter_internals<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(all(not(loom), not(feature = "std")))]
pub(crate) const fn is_in_internals() -> bool {
    false
}

/// Records whether this thread is changing the crate's own tables. A global allocator built on the
/// crate must not use them then.
#[cfg(all(not(loom), feature = "std"))]
mod reentrancy {
    use core::cell::Cell;

    std::thread_local! {
        static DEPTH: Cell<u32> = const { Cell::new(0) };
    }

    struct DepthGuard;

    impl Drop for DepthGuard {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }

    /// Runs `f` as a change of the crate's own tables.
    pub(crate) fn enter_internals<R>(f: impl FnOnce() -> R) -> R {
        DEPTH.set(DEPTH.get() + 1);
        let _guard = DepthGuard;
        f()
    }

    pub(crate) fn is_in_internals() -> bool {
        DEPTH.get() > 0
    }
}

#[cfg(all(not(loom), not(feature = "std")))]
mod spin {
    #![allow(unsafe_code, reason = "a lock returns a reference to the value it guards")]

    use core::cell::UnsafeCell;
    use core::sync::atomic::{AtomicBool, Ordering};

    #[derive(Debug, Default)]
    pub(crate) struct Spin<T> {
        locked: AtomicBool,
        value: UnsafeCell<T>,
    }

    // SAFETY: `with` gives one thread at a time access to the value, so `T: Send` suffices.
    unsafe impl<T: Send> Sync for Spin<T> {}

    impl<T> Spin<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }

        pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
            struct Release<'a>(&'a AtomicBool);
            impl Drop for Release<'_> {
                fn drop(&mut self) {
                    self.0.store(false, Ordering::Release);
                }
            }
            // The wait is bounded: `f` only links or unlinks a block and never waits. Without an
            // operating system there is no thread to yield to.
            while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
                core::hint::spin_loop();
            }
            let _release = Release(&self.locked);
            // SAFETY: this thread set the flag from false to true, so it alone accesses the value
            // until the flag is false.
            f(unsafe { &mut *self.value.get() })
        }
    }
}
