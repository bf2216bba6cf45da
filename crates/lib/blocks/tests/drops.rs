//! Every element is dropped exactly once and every block comes back, whatever panics: clones when an array grows or copies a leaf on
//! write, drops when it shrinks, ends, or is left half consumed.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::cell::{Cell, OnceCell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once};

use fieldstone_blocks::{HeapFrames, Pool, Snapshot, TreeArray};

const BLOCK_BYTES: usize = 4096;

thread_local! {
    /// How often each element that was made here has been dropped.
    static DROPS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    /// Clones and drops that go well before one panics.
    static CLONES: Cell<usize> = const { Cell::new(usize::MAX) };
    static DROPS_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// An element that knows how often it was dropped, and panics when it is told to. `BYTES` makes it as large as is wanted.
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

/// One less of those that go well; false when none was left.
fn goes_well(left: &'static std::thread::LocalKey<Cell<usize>>) -> bool {
    let now = left.get();
    left.set(now.checked_sub(1).unwrap_or(usize::MAX));
    now > 0
}

impl<const BYTES: usize> Clone for Fragile<BYTES> {
    fn clone(&self) -> Self {
        assert!(goes_well(&CLONES), "a clone that fails");
        Self::new()
    }
}

impl<const BYTES: usize> Drop for Fragile<BYTES> {
    fn drop(&mut self) {
        DROPS.with_borrow_mut(|drops| drops[self.number] += 1);
        assert!(goes_well(&DROPS_LEFT), "a drop that fails");
    }
}

/// A new pool; under Miri, where one takes seconds to make, this thread's.
fn pool() -> Pool {
    thread_local! {
        static POOL: OnceCell<Pool> = const { OnceCell::new() };
    }
    let new = || Pool::with_block_bytes(HeapFrames, BLOCK_BYTES).unwrap();
    if cfg!(miri) { POOL.with(|pool| pool.get_or_init(new).clone()) } else { new() }
}

/// Runs `act` on an array of `count` elements, alone and beside a snapshot, with every clone and every drop failing in turn; what is
/// left must be whole, usable, and go without a rest.
fn each_once<const BYTES: usize>(count: usize, act: impl Fn(&Pool, TreeArray<Fragile<BYTES>>)) {
    for (with_snapshot, clones_fail) in [(false, false), (false, true), (true, false), (true, true)] {
        // Under Miri a block costs a tenth of a second: one failure a way, two ways for small arrays, the others for large.
        if cfg!(miri) && (with_snapshot != clones_fail) == (count * BYTES > BLOCK_BYTES) {
            continue;
        }
        let mut failed = 0;
        for well in if cfg!(miri) { 1..2 } else { 0..3 * count + 4 } {
            let pool = pool();
            DROPS.take();
            let mut array = TreeArray::new_in(&pool);
            array.resize_with(count, Fragile::new);
            let snapshot = with_snapshot.then(|| array.snapshot());
            (if clones_fail { &CLONES } else { &DROPS_LEFT }).set(well);
            let done = catch_unwind(AssertUnwindSafe(|| act(&pool, array)));
            failed += usize::from(done.is_err());
            if let Some(snapshot) = &snapshot {
                assert!(snapshot.iter().map(|element| element.number).eq(0..count), "a snapshot stays as it is");
                let alive = DROPS.with_borrow(|drops| drops[..count].iter().all(|&drops| drops == 0));
                assert!(alive, "and its elements live");
            }
            let _ = catch_unwind(AssertUnwindSafe(|| drop(snapshot)));
            CLONES.set(usize::MAX);
            DROPS_LEFT.set(usize::MAX);
            let drops = DROPS.take();
            assert!(drops.iter().all(|&times| times == 1), "{well} went well, snapshot {with_snapshot}: {drops:?}");
            assert_eq!(pool.stats().used_bytes, 0, "{well} went well, snapshot {with_snapshot}: a block is lost");
        }
        assert!(failed > 0 || clones_fail || with_snapshot, "some drop failed");
    }
}

/// Runs what may fail, and then the array as if nothing had happened.
fn and_go_on<const BYTES: usize>(
    mut array: TreeArray<Fragile<BYTES>>,
    act: impl FnOnce(&mut TreeArray<Fragile<BYTES>>),
) {
    let failed = catch_unwind(AssertUnwindSafe(|| act(&mut array))).is_err();
    for _ in 0..9 {
        array.push(Fragile::new());
        // Reads every element: one that is not there any more has another number, or none.
        let made = DROPS.with_borrow(Vec::len);
        assert!(array.iter().all(|element| element.number < made));
    }
    let dead = DROPS.with_borrow(|drops| array.iter().any(|element| drops[element.number] > 0));
    assert!(!dead, "an element of the array was dropped");
    drop(array);
    assert!(!failed, "as the act that fails");
}

/// Small beginnings, a leaf, several leaves, and elements of which a leaf holds one.
fn on_all_shapes(act: impl Fn(&mut dyn Shape)) {
    act(&mut Of::<16>(7));
    act(&mut Of::<1000>(if cfg!(miri) { 5 } else { 11 }));
    if !cfg!(miri) {
        act(&mut Of::<500>(5));
        act(&mut Of::<2100>(4));
    }
}

/// What to do to an array, whatever its elements' size.
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

trait Shape {
    fn run(&self, act: Act);
}

struct Of<const BYTES: usize>(usize);

impl<const BYTES: usize> Shape for Of<BYTES> {
    fn run(&self, act: Act) {
        let count = self.0;
        each_once::<BYTES>(count, |pool, array| match act {
            Act::Drop => drop(array),
            Act::Clear => and_go_on(array, TreeArray::clear),
            Act::Truncate => and_go_on(array, |array| array.truncate(count / 3)),
            Act::TruncateOne => and_go_on(array, |array| {
                array.push(Fragile::new());
                array.truncate(1);
            }),
            Act::Resize => and_go_on(array, |array| array.resize(2 * count, Fragile::new())),
            Act::Extend => and_go_on(array, |array| {
                let more: Vec<_> = (0..count).map(|_| Fragile::new()).collect();
                array.extend_from_slice(&more);
            }),
            Act::Clone => and_go_on(array, |array| drop(array.clone())),
            Act::Write => and_go_on(array, |array| array[count / 2] = Fragile::new()),
            Act::WriteAll => and_go_on(array, |array| array.iter_mut().for_each(|place| *place = Fragile::new())),
            Act::Push => and_go_on(array, |array| {
                array.pop();
                array.push(Fragile::new());
            }),
            Act::IntoIter => {
                let mut elements = array.into_iter();
                let (first, last) = (elements.next(), elements.next_back());
                drop(elements);
                drop((first, last));
            }
            Act::Append => and_go_on(array, |array| {
                let mut other = TreeArray::new_in(pool);
                other.resize_with(3, Fragile::new);
                let _shared = other.snapshot();
                array.append(&mut other);
            }),
            Act::Shrink => and_go_on(array, |array| {
                array.reserve(2 * count);
                array.truncate(count / 2);
                array.shrink_to_fit();
            }),
        });
    }
}

/// Panics that are meant are not told.
fn quietly_fail() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.payload_as_str().is_some_and(|words| words.ends_with("that fails")) {
                tell(panic);
            }
        }));
    });
}

macro_rules! drops {
    ($($name:ident: $act:ident;)*) => {
        $(#[test]
        fn $name() {
            quietly_fail();
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

/// Its clone drops the snapshot that it is cloned for, so that the copied leaf's old block has no holder any more.
struct Traitor(Box<u32>);

static BETRAYED: Mutex<Option<Snapshot<Traitor>>> = Mutex::new(None);

impl Clone for Traitor {
    fn clone(&self) -> Self {
        drop(BETRAYED.lock().unwrap().take());
        Self(self.0.clone())
    }
}

#[test]
fn a_snapshot_that_goes_while_a_leaf_is_copied() {
    for count in [3, 700] {
        let pool = pool();
        let mut array = TreeArray::new_in(&pool);
        array.extend((0..count).map(|number| Traitor(Box::new(number))));
        *BETRAYED.lock().unwrap() = Some(array.snapshot());
        *array[1].0 = 77;
        assert!(array.iter().map(|element| *element.0).eq((0..count).map(|n| if n == 1 { 77 } else { n })));
        drop(array);
        assert_eq!(pool.stats().used_bytes, 0);
    }
}
