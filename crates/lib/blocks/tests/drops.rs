//! Every element is dropped exactly once and every block is freed, even if clones or drops panic.
//! Clones run when an array grows or copies a leaf on write; drops run when it shrinks, ends, or is
//! partly consumed.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::cell::{Cell, OnceCell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once};

use fieldstone_blocks::{HeapFrames, Pool, Snapshot, TreeArray};

const BLOCK_BYTES: usize = 4096;

thread_local! {
    /// The number of drops of each element created on this thread.
    static DROPS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    /// Clones and drops that succeed before one panics.
    static CLONES: Cell<usize> = const { Cell::new(usize::MAX) };
    static DROPS_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// An element that counts its drops and panics on request. `BYTES` sets its size.
struct Fragile<const BYTES: usize> {
    number: usize,
    _bulk: [u8; BYTES],
}

impl<const BYTES: usize> Fragile<BYTES> {
    fn new() -> Self {
        let number = DROPS.with_borrow_mut(|drops| {
            drops.push(0);
            drops.len() - 1
        });
        Self { number, _bulk: [0; BYTES] }
    }
}

/// Decrements the remaining successes. Returns false when none was left.
fn succeeds(left: &'static std::thread::LocalKey<Cell<usize>>) -> bool {
    let now = left.get();
    left.set(now.checked_sub(1).unwrap_or(usize::MAX));
    now > 0
}

impl<const BYTES: usize> Clone for Fragile<BYTES> {
    fn clone(&self) -> Self {
        assert!(succeeds(&CLONES), "a clone that fails");
        Self::new()
    }
}

impl<const BYTES: usize> Drop for Fragile<BYTES> {
    fn drop(&mut self) {
        DROPS.with_borrow_mut(|drops| drops[self.number] += 1);
        assert!(succeeds(&DROPS_LEFT), "a drop that fails");
    }
}

/// A new pool. Under Miri, where creating one takes seconds, this thread's pool.
fn pool() -> Pool {
    thread_local! {
        static POOL: OnceCell<Pool> = const { OnceCell::new() };
    }
    let new = || Pool::with_block_bytes(HeapFrames, BLOCK_BYTES).unwrap();
    if cfg!(miri) { POOL.with(|pool| pool.get_or_init(new).clone()) } else { new() }
}

/// Runs `act` on an array of `count` elements, with and without a snapshot, with each clone and
/// each drop failing in turn. The remaining array must be intact and usable, and leave nothing
/// behind.
fn fail_each_in_turn<const BYTES: usize>(count: usize, act: impl Fn(&Pool, TreeArray<Fragile<BYTES>>)) {
    for (with_snapshot, clones_fail) in [(false, false), (false, true), (true, false), (true, true)] {
        // Under Miri a block takes a tenth of a second: test one failure each, half of the
        // combinations for small arrays, the others for large ones.
        if cfg!(miri) && (with_snapshot != clones_fail) == (count * BYTES > BLOCK_BYTES) {
            continue;
        }
        let mut failed = 0;
        for successes in if cfg!(miri) { 1..2 } else { 0..3 * count + 4 } {
            let pool = pool();
            DROPS.take();
            let mut array = TreeArray::new_in(&pool);
            array.resize_with(count, Fragile::new);
            let snapshot = with_snapshot.then(|| array.snapshot());
            (if clones_fail { &CLONES } else { &DROPS_LEFT }).set(successes);
            let done = catch_unwind(AssertUnwindSafe(|| act(&pool, array)));
            failed += usize::from(done.is_err());
            if let Some(snapshot) = &snapshot {
                assert!(snapshot.iter().map(|element| element.number).eq(0..count), "a snapshot does not change");
                let alive = DROPS.with_borrow(|drops| drops[..count].iter().all(|&drops| drops == 0));
                assert!(alive, "the snapshot's elements are alive");
            }
            let _ = catch_unwind(AssertUnwindSafe(|| drop(snapshot)));
            CLONES.set(usize::MAX);
            DROPS_LEFT.set(usize::MAX);
            let drops = DROPS.take();
            assert!(
                drops.iter().all(|&times| times == 1),
                "{successes} successes, snapshot {with_snapshot}: {drops:?}"
            );
            assert_eq!(pool.stats().used_bytes, 0, "{successes} successes, snapshot {with_snapshot}: a block is lost");
        }
        assert!(failed > 0 || clones_fail || with_snapshot, "some drop failed");
    }
}

/// Runs an operation that may fail, then uses the array normally.
fn then_use<const BYTES: usize>(
    mut array: TreeArray<Fragile<BYTES>>,
    act: impl FnOnce(&mut TreeArray<Fragile<BYTES>>),
) {
    let failed = catch_unwind(AssertUnwindSafe(|| act(&mut array))).is_err();
    for _ in 0..9 {
        array.push(Fragile::new());
        // Reads every element: a freed one has another number.
        let made = DROPS.with_borrow(Vec::len);
        assert!(array.iter().all(|element| element.number < made));
    }
    let dead = DROPS.with_borrow(|drops| array.iter().any(|element| drops[element.number] > 0));
    assert!(!dead, "an element of the array was dropped");
    drop(array);
    assert!(!failed, "the act panics, so that the caller counts it");
}

/// Runs `act` on a small array, on arrays of one and of several leaves, and on elements of which a
/// leaf holds one.
fn on_all_shapes(act: impl Fn(&mut dyn DropShape)) {
    act(&mut Of::<16>(7));
    act(&mut Of::<1000>(if cfg!(miri) { 5 } else { 11 }));
    if !cfg!(miri) {
        act(&mut Of::<500>(5));
        act(&mut Of::<2100>(4));
    }
}

/// An operation on an array, for any element size.
#[derive(Clone, Copy)]
enum Act {
    Drop,
    Clear,
    Truncate,
    TruncateOne,
    Resize,
    Extend,
    Clone,
    Write,
    WriteAll,
    Push,
    IntoIter,
    Append,
    Shrink,
}

trait DropShape {
    fn run(&self, act: Act);
}

struct Of<const BYTES: usize>(usize);

impl<const BYTES: usize> DropShape for Of<BYTES> {
    fn run(&self, act: Act) {
        let count = self.0;
        fail_each_in_turn::<BYTES>(count, |pool, array| match act {
            Act::Drop => drop(array),
            Act::Clear => then_use(array, TreeArray::clear),
            Act::Truncate => then_use(array, |array| array.truncate(count / 3)),
            Act::TruncateOne => then_use(array, |array| {
                array.push(Fragile::new());
                array.truncate(1);
            }),
            Act::Resize => then_use(array, |array| array.resize(2 * count, Fragile::new())),
            Act::Extend => then_use(array, |array| {
                let more: Vec<_> = (0..count).map(|_| Fragile::new()).collect();
                array.extend_from_slice(&more);
            }),
            Act::Clone => then_use(array, |array| drop(array.clone())),
            Act::Write => then_use(array, |array| array[count / 2] = Fragile::new()),
            Act::WriteAll => then_use(array, |array| array.iter_mut().for_each(|slot| *slot = Fragile::new())),
            Act::Push => then_use(array, |array| {
                array.pop();
                array.push(Fragile::new());
            }),
            Act::IntoIter => {
                let mut elements = array.into_iter();
                let (first, last) = (elements.next(), elements.next_back());
                drop(elements);
                drop((first, last));
            }
            Act::Append => then_use(array, |array| {
                let mut other = TreeArray::new_in(pool);
                other.resize_with(3, Fragile::new);
                let _shared = other.snapshot();
                array.append(&mut other);
            }),
            Act::Shrink => then_use(array, |array| {
                array.reserve(2 * count);
                array.truncate(count / 2);
                array.shrink_to_fit();
            }),
        });
    }
}

/// Suppresses the messages of intended panics.
fn silence_expected_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.payload_as_str().is_some_and(|message| message.ends_with("that fails")) {
                default_hook(panic);
            }
        }));
    });
}

macro_rules! drops {
    ($($name:ident: $act:ident;)*) => {
        $(#[test]
        fn $name() {
            silence_expected_panics();
            on_all_shapes(|shape| shape.run(Act::$act));
        })*
    };
}

drops! {
    dropping: Drop;
    clearing: Clear;
    truncating: Truncate;
    truncating_to_one: TruncateOne;
    resizing: Resize;
    extending: Extend;
    cloning: Clone;
    writing: Write;
    writing_all: WriteAll;
    pushing: Push;
    consuming: IntoIter;
    appending: Append;
    shrinking: Shrink;
}

/// An element whose clone drops the snapshot that causes the copy, so that the old block has no
/// other holder.
struct SnapshotDropper(Box<u32>);

static SNAPSHOT: Mutex<Option<Snapshot<SnapshotDropper>>> = Mutex::new(None);

impl Clone for SnapshotDropper {
    fn clone(&self) -> Self {
        drop(SNAPSHOT.lock().unwrap().take());
        Self(self.0.clone())
    }
}

#[test]
fn a_snapshot_may_be_dropped_while_a_leaf_is_copied() {
    for count in [3, 700] {
        let pool = pool();
        let mut array = TreeArray::new_in(&pool);
        array.extend((0..count).map(|number| SnapshotDropper(Box::new(number))));
        *SNAPSHOT.lock().unwrap() = Some(array.snapshot());
        *array[1].0 = 77;
        assert!(array.iter().map(|element| *element.0).eq((0..count).map(|n| if n == 1 { 77 } else { n })));
        drop(array);
        assert_eq!(pool.stats().used_bytes, 0);
    }
}
