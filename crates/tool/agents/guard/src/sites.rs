//! Allocation sites, and which of their allocations are guarded.
//!
//! ```text
//! site   key | allocations | guarded | gap | left         65,536 of them, found by the key
//!
//! allocation  1  2 ... first | then one in 2, 4, 8, ... interval, at random distances
//!             └── guarded ──┘
//! ```
//! So a path that runs ten times is covered as well as one that runs a million times. A thread
//! counts down in its cache ([`crate::thread`]) and comes here when an allocation is due or its site
//! is not in the cache. The countdown of a site that leaves a cache is kept in `left`.
//!
//! After the budget of time is used up, first allocations of new sites are guarded at a limited rate.
//! If the budget of time denies a guarded object, the site waits longer: twice its gap if it is known,
//! else an eighth of its allocations so far.
//!
//! Sources: GWP-ASan (sampling by a countdown in each thread); the first allocations of each site as
//! in bursty tracing (Hirzel and Chilimbi 2001) and its adaptive form (SWAT, Hauswirth and Chilimbi
//! 2004).

#![allow(unsafe_code, reason = "shares a mapped table")]

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use fieldstone_wire::guard::{Sampling, UnguardedReason};

use crate::budget::{self, Share};
use crate::start::Settings;
use crate::thread::{Cache, ENTRIES, Inside};
use crate::unwind::Caller;
use crate::{raw, start};

/// Capacity in sites. Allocations of further sites are not guarded.
const SITES: usize = 1 << 16;
/// Entries that a search looks at.
const PROBES: usize = 64;
/// The longest countdown.
const LONGEST: u32 = 1 << 30;

/// Allocations of a site that pass, on average, after the memory limit was reached.
const POSTPONED: u32 = 1000;

/// Guarded allocations between two records of their memory.
const RECORDED_EVERY: u32 = 256;

/// A site.
#[repr(C, align(32))]
struct Site {
    /// The key; 0 while the entry is free.
    key: AtomicU64,
    /// Allocations that threads have reported.
    allocations: AtomicU64,
    guarded: AtomicU32,
    /// Allocations per guarded one, at present.
    gap: AtomicU32,
    /// A countdown that no thread has; 0 if there is none.
    left: AtomicU32,
}

static TABLE: AtomicPtr<Site> = AtomicPtr::new(core::ptr::null_mut());

/// Maps the table. False without memory.
pub(crate) fn prepare() -> bool {
    let Some(memory) = raw::map(SITES * size_of::<Site>()) else { return false };
    TABLE.store(memory.as_ptr().cast(), Release);
    SEED.store(raw::ticks() | 1, Relaxed);
    true
}

fn table() -> &'static [Site] {
    let table = TABLE.load(Acquire);
    if table.is_null() {
        return &[];
    }
    // SAFETY: mapped for the life of the process with this length; all zeroes are sites of atomics.
    unsafe { core::slice::from_raw_parts(table, SITES) }
}

fn site(number: u32) -> Option<&'static Site> {
    table().get(number as usize)
}

/// Allocations and guarded ones of a site.
pub(crate) fn counts(number: u32) -> (u64, u64) {
    site(number).map_or((0, 0), |site| (site.allocations.load(Relaxed), u64::from(site.guarded.load(Relaxed))))
}

/// The number of the site with this key, added if it is new. Number 0 is not used.
fn intern(key: usize) -> Option<u32> {
    let key = key as u64 | 1;
    let first = (key >> 40) as usize;
    for step in 0..PROBES {
        let number = (first + step) % SITES;
        if number == 0 {
            continue;
        }
        let word = &table().get(number)?.key;
        let found = match word.load(Acquire) {
            0 => match word.compare_exchange(0, key, AcqRel, Acquire) {
                Ok(_) => {
                    start::count(|process| &process.sites, 1);
                    key
                }
                Err(other) => other,
            },
            other => other,
        };
        if found == key {
            return Some(number as u32);
        }
    }
    None
}

/// The number of the caller's site if this allocation is to be guarded. Counts the allocation.
pub(crate) fn select(inside: &Inside, caller: &Caller, settings: &Settings) -> Option<u32> {
    let key = caller.key();
    if settings.sampling == Sampling::All {
        let number = intern(key)?;
        count_allocations(site(number)?, 1);
        return Some(number);
    }
    let cache = inside.cache()?;
    let index = key >> (usize::BITS - ENTRIES.trailing_zeros());
    let (hot, cold) = (&cache.hot[index], &cache.cold[index]);
    let tag = key as u32 | 1;
    let mut due = true;
    if hot.tag.load(Relaxed) == tag {
        count_allocations(site(cold.site.load(Relaxed))?, cold.granted.load(Relaxed));
    } else {
        evict(cache, index);
        let number = intern(key)?;
        let entered = site(number)?;
        cold.site.store(number, Relaxed);
        hot.tag.store(tag, Relaxed);
        let left = match entered.left.swap(0, Relaxed) {
            // The site is new, or another thread has its countdown.
            0 if entered.guarded.load(Relaxed) < settings.first => 1,
            0 => random_distance(entered.gap.load(Relaxed)),
            left => left,
        };
        due = left == 1;
        cold.granted.store(left, Relaxed);
        hot.left.store(left - 1, Relaxed);
        if due {
            count_allocations(entered, 1);
        }
    }
    let number = cold.site.load(Relaxed);
    let site = site(number)?;
    if !due {
        return None;
    }
    let (is_guarded, distance) = decide(site, settings);
    cold.granted.store(distance, Relaxed);
    hot.left.store(distance, Relaxed);
    is_guarded.then_some(number)
}

/// Whether the site's due allocation is guarded, and the distance to the next due one.
fn decide(site: &Site, settings: &Settings) -> (bool, u32) {
    let guarded = site.guarded.load(Relaxed);
    let is_new = guarded < settings.first;
    let gap = site.gap.load(Relaxed).max(1);
    let share = match guarded {
        0 if site.allocations.load(Relaxed) <= 1 => Share::First,
        0 => Share::New,
        _ if is_new => Share::Young,
        _ => Share::Known,
    };
    if settings.sampling == Sampling::Budget && !budget::permits(share) {
        start::count_unguarded(UnguardedReason::TimeBudget);
        if is_new {
            let longer = 1 + site.allocations.load(Relaxed) / 8;
            return (false, random_distance(longer.min(u64::from(LONGEST)) as u32));
        }
        let longer = next_gap(gap, settings);
        site.gap.store(longer, Relaxed);
        return (false, random_distance(longer));
    }
    if guarded + 1 < settings.first {
        return (true, 1);
    }
    let gap = if settings.sampling == Sampling::Fixed { settings.interval } else { next_gap(gap, settings) };
    site.gap.store(gap, Relaxed);
    (true, random_distance(gap))
}

fn next_gap(gap: u32, settings: &Settings) -> u32 {
    gap.saturating_mul(2).min(settings.interval)
}

/// Lets the caller's site wait, because no guarded object could be allocated.
pub(crate) fn postpone(inside: &Inside, caller: &Caller) {
    let key = caller.key();
    let Some(cache) = inside.cache() else { return };
    let index = key >> (usize::BITS - ENTRIES.trailing_zeros());
    if cache.hot[index].tag.load(Relaxed) == key as u32 | 1 {
        let distance = random_distance(POSTPONED);
        cache.cold[index].granted.store(distance, Relaxed);
        cache.hot[index].left.store(distance, Relaxed);
    }
}

/// Counts an allocation of the site that is guarded now.
pub(crate) fn count_guarded(number: u32) {
    if let Some(site) = site(number) {
        site.guarded.fetch_add(1, Relaxed);
        start::count(|process| &process.guarded, 1);
        // The end of a process that is killed or executes another program is not seen.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if COUNT.fetch_add(1, Relaxed).is_multiple_of(RECORDED_EVERY) {
            start::record_memory();
        }
    }
}

fn count_allocations(site: &Site, count: u32) {
    site.allocations.fetch_add(u64::from(count), Relaxed);
    start::count(|process| &process.allocations, u64::from(count));
}

/// Writes the countdown of an entry back to its site.
fn evict(cache: &Cache, index: usize) {
    let (hot, cold) = (&cache.hot[index], &cache.cold[index]);
    let number = cold.site.swap(0, Relaxed);
    let Some(site) = site(number).filter(|_| number != 0) else { return };
    let left = hot.left.load(Relaxed).min(cold.granted.load(Relaxed));
    count_allocations(site, cold.granted.load(Relaxed) - left);
    cold.granted.store(left, Relaxed);
    site.left.store(left.max(1), Relaxed);
}

/// Writes all countdowns of a cache back.
pub(crate) fn write_back(cache: &Cache) {
    (0..ENTRIES).for_each(|index| evict(cache, index));
}

static SEED: AtomicU64 = AtomicU64::new(1);

/// A distance between half the gap and one and a half, so that the due allocations of a program with
/// a period do not fall on the same object.
fn random_distance(gap: u32) -> u32 {
    if gap < 4 {
        return gap.max(1);
    }
    // A lost update of the seed is harmless.
    let mut seed = SEED.load(Relaxed);
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    SEED.store(seed, Relaxed);
    gap / 2 + (seed >> 33) as u32 % (gap + 1)
}
