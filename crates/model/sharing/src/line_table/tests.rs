//! The table against a naive oracle: a list of all accesses, which is summed at each query.
#![expect(clippy::single_range_in_vec_init, reason = "runs of bytes are compared with lists of them")]

use std::collections::HashMap;

use proptest::prelude::*;

use super::LineTable;
use crate::access::SampledAccess;
use crate::bits::Bits;
use crate::line_use::{LineUse, MOST_THREADS};
use crate::settings::Settings;

/// Weight of one thread's reads or writes (`true`) of one byte.
type Bytes = HashMap<(u32, u64, bool), f64>;

fn naive(accesses: &[SampledAccess], settings: &Settings, now_ns: u64) -> Bytes {
    let mut bytes = Bytes::new();
    for access in accesses.iter().filter(|access| access.is_usable()) {
        let half_lives = settings.half_life_ns.map_or(0.0, |ns| (now_ns - access.at_ns) as f64 / ns as f64);
        let unit = u64::from(settings.unit_bytes());
        for byte in access.address..access.end() {
            let line = byte / unit * unit;
            let in_line = access.end().min(line + unit) - access.address.max(line);
            let a_byte = access.weight / in_line as f64 * (-half_lives).exp2();
            *bytes.entry((access.thread, byte, access.write)).or_default() += a_byte;
        }
    }
    bytes
}

fn found(lines: &LineTable, now_ns: u64) -> Bytes {
    let mut bytes = Bytes::new();
    for line in lines.heaviest(usize::MAX, now_ns) {
        for thread in &line.threads {
            for (write, weights) in [(false, &thread.read), (true, &thread.written)] {
                for (at, &weight) in (line.address..).zip(weights).filter(|(_, weight)| **weight > 0.0) {
                    bytes.insert((thread.thread, at, write), weight.into());
                }
            }
        }
    }
    bytes
}

fn access() -> impl Strategy<Value = SampledAccess> {
    let place = (0_u64..700, prop_oneof![Just(1_u32), Just(4), Just(8), Just(64), 0_u32..600]);
    let kind = (any::<bool>(), any::<bool>(), 0_u32..5, 0_u64..12);
    (place, kind, 0.01_f64..1.0, 0_u64..4_000_000_000).prop_map(|((address, bytes), kind, weight, at_ns)| {
        let (write, atomic, thread, site) = kind;
        SampledAccess {
            address,
            bytes,
            write,
            atomic,
            thread,
            site,
            weight,
            at_ns,
            cpu: thread,
            ..SampledAccess::default()
        }
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    let half_life = prop_oneof![Just(None), Just(Some(50_000_000)), Just(Some(1_000_000_000))];
    (prop_oneof![Just(32_u32), Just(64)], any::<bool>(), half_life).prop_map(|(line_bytes, pairs, half_life_ns)| {
        Settings { line_bytes, pairs, half_life_ns, most_lines: 64, ..Settings::default() }
    })
}

/// Equality up to rounding: weights below a millionth of the heaviest may be missing.
fn same(found: &Bytes, naive: &Bytes) -> Result<(), TestCaseError> {
    let heaviest = naive.values().copied().fold(0.0, f64::max);
    for key in found.keys().chain(naive.keys()) {
        let (found, naive) = (found.get(key).copied().unwrap_or(0.0), naive.get(key).copied().unwrap_or(0.0));
        let apart = (found - naive).abs();
        prop_assert!(apart <= naive * 1e-4 + heaviest * 1e-6, "{:?}: {} for {}", key, found, naive);
    }
    Ok(())
}

proptest! {
    #[test]
    fn weights_equal_those_of_the_naive_list(settings in settings(), accesses in prop::collection::vec(access(), 1..60)) {
        let mut lines = LineTable::new(settings).unwrap();
        accesses.iter().for_each(|access| lines.record(access));
        let now_ns = 4_000_000_000;
        same(&found(&lines, now_ns), &naive(&accesses, &settings, now_ns))?;
        let unusable = accesses.iter().filter(|access| !access.is_usable()).count();
        prop_assert_eq!(lines.unusable(), unusable as u64);
        let all: f64 = lines.heaviest(usize::MAX, now_ns).iter().map(|line| line.weight).sum();
        let (total, unit) = (lines.total(now_ns), u64::from(settings.unit_bytes()));
        prop_assert!(all - total >= -1e-6 * (1.0 + all), "{} of {}", all, total);
        let crosses = |access: &SampledAccess| access.is_usable() && access.address / unit != (access.end() - 1) / unit;
        if !accesses.iter().any(crosses) {
            prop_assert!((all - total).abs() <= 1e-6 * (1.0 + all), "{} of {}", all, total);
        }
        for line in lines.heaviest(usize::MAX, now_ns) {
            prop_assert!(line.weight <= total * (1.0 + 1e-6) + 1e-6, "{} of {}", line.weight, total);
        }
    }

    #[test]
    fn a_forgotten_thread_leaves_no_trace(accesses in prop::collection::vec(access(), 1..50), gone in 0_u32..5) {
        let settings = Settings { half_life_ns: None, most_lines: 64, ..Settings::default() };
        let mut lines = LineTable::new(settings).unwrap();
        accesses.iter().for_each(|access| lines.record(access));
        lines.forget(gone);
        let others: Vec<SampledAccess> = accesses.into_iter().filter(|access| access.thread != gone).collect();
        same(&found(&lines, 0), &naive(&others, &settings, u64::MAX))?;
        let mut fresh = LineTable::new(settings).unwrap();
        others.iter().for_each(|access| fresh.record(access));
        prop_assert_eq!(lines.len(), fresh.len());
        let (left, right) = (lines.heaviest(usize::MAX, 0), fresh.heaviest(usize::MAX, 0));
        let weights = |lines: &[LineUse]| lines.iter().map(|line| line.weight).sum::<f64>();
        prop_assert!((weights(&left) - weights(&right)).abs() < 1e-6);
    }

    #[test]
    fn a_full_table_stays_full_and_keeps_heavy_lines(
        most_lines in 1_u32..40,
        others in prop::collection::vec((1_u64..5000, 0_u32..3), 1..600),
    ) {
        let settings = Settings { most_lines, half_life_ns: None, ..Settings::default() };
        let mut lines = LineTable::new(settings).unwrap();
        for (at, (number, thread)) in others.into_iter().enumerate() {
            // Line 0 gets every second access. A table of one line keeps it only until the next
            // access.
            lines.record(&SampledAccess { address: 0, ..plain(0) });
            lines.record(&SampledAccess { address: number * 64, ..plain(thread) });
            prop_assert!(lines.len() <= most_lines as usize);
            if most_lines > 1 {
                let kept = lines.line(0, 0).map_or(0.0, |line| line.weight);
                prop_assert!((kept - (at + 1) as f64).abs() < 1e-9, "{} after {}", kept, at + 1);
            }
        }
    }
}

fn plain(thread: u32) -> SampledAccess {
    SampledAccess {
        address: 0,
        bytes: 8,
        write: true,
        thread,
        site: 0x40_0000,
        weight: 1.0,
        at_ns: 0,
        cpu: thread,
        ..SampledAccess::default()
    }
}

#[test]
fn a_full_table_evicts_its_lightest_quarter() {
    let mut lines = LineTable::new(Settings { most_lines: 8, half_life_ns: None, ..Settings::default() }).unwrap();
    for number in [3_u64, 7, 1, 5, 0, 6, 2, 4] {
        lines.record(&SampledAccess { address: number * 64, weight: (number + 1) as f64 / 10.0, ..plain(1) });
    }
    lines.record(&SampledAccess { address: 100 * 64, weight: 0.001, ..plain(1) });
    let kept: Vec<u64> = lines.heaviest(99, 0).iter().map(|line| line.address / 64).collect();
    assert_eq!(kept, [7, 6, 5, 4, 3, 2, 100]);
}

#[test]
fn the_threads_of_a_line_are_counted() {
    let mut lines = LineTable::new(Settings::default()).unwrap();
    [1, 2, 1].into_iter().for_each(|thread| lines.record(&SampledAccess { address: 64, ..plain(thread) }));
    assert_eq!([63, 64, 127, 128].map(|address| lines.threads_at(address)), [0, 2, 2, 0]);
    lines.forget(2);
    assert_eq!(lines.threads_at(64), 1);
}

#[test]
fn a_line_keeps_its_heaviest_threads_and_a_small_pool_suffices() {
    let mut lines = LineTable::new(Settings { most_lines: 1, ..Settings::default() }).unwrap();
    for thread in 0..200 {
        lines.record(&SampledAccess { weight: if thread == 7 { 0.9 } else { 0.1 }, ..plain(thread) });
    }
    let line = lines.line(0, 0).unwrap();
    assert_eq!(line.threads.len(), MOST_THREADS);
    assert!(line.threads.iter().any(|thread| thread.thread == 7));
    let entries: f64 = line.threads.iter().map(|thread| thread.weight()).sum();
    assert!((line.weight - entries).abs() < 1e-4, "{} and {entries}", line.weight);
}

#[test]
fn many_threads_on_every_line_never_exhaust_the_pool() {
    let mut lines = LineTable::new(Settings { most_lines: 16, ..Settings::default() }).unwrap();
    for round in 0..40_u64 {
        for thread in 0..70 {
            lines.record(&SampledAccess { address: round % 20 * 64, at_ns: round, ..plain(thread) });
        }
    }
    assert!((1..=16).contains(&lines.len()));
    assert!(lines.heaviest(16, 40).iter().all(|line| !line.threads.is_empty()));
}

#[test]
fn an_access_across_two_lines_joins_them_and_counts_in_each() {
    let mut lines = LineTable::new(Settings::default()).unwrap();
    lines.record(&SampledAccess { address: 60, atomic: true, ..plain(1) });
    let [first, second] = [0, 64].map(|address| lines.line(address, 0).unwrap());
    assert_eq!(first.threads[0].joined.runs().collect::<Vec<_>>(), [60..64], "byte 63 goes on in the next line");
    assert_eq!(second.threads[0].joined.runs().collect::<Vec<_>>(), [0..3]);
    assert_eq!(second.threads[0].atomic.runs().collect::<Vec<_>>(), [0..4]);
    assert_eq!([&first, &second].map(|line| line.threads[0].began_before), [Bits::NONE, Bits::range(0..4)]);
    assert!((first.weight - 1.0).abs() < 1e-9 && (second.weight - 1.0).abs() < 1e-9);
    assert!((lines.total(0) - 1.0).abs() < 1e-9, "one sample all the same");
}

#[test]
fn a_pair_has_two_halves() {
    let mut lines = LineTable::new(Settings { pairs: true, ..Settings::default() }).unwrap();
    lines.record(&SampledAccess { address: 128, ..plain(1) });
    lines.record(&SampledAccess { address: 248, ..plain(2) });
    let pair = lines.line(200, 0).unwrap();
    assert_eq!((pair.address, pair.bytes, pair.threads.len()), (128, 128, 2));
    let [first, second] = pair.halves().unwrap();
    assert_eq!((first.address, second.address, second.end()), (128, 192, 256));
    assert_eq!((first.threads[0].thread, second.threads[0].thread), (1, 2));
    assert_eq!(second.threads[0].joined.runs().collect::<Vec<_>>(), [56..63]);
    assert!(first.halves().is_none());
}

#[test]
fn sites_are_sorted_and_never_too_light() {
    let mut lines = LineTable::new(Settings { half_life_ns: None, ..Settings::default() }).unwrap();
    for round in 0..100_u64 {
        lines.record(&SampledAccess { site: 1, ..plain(1) });
        lines.record(&SampledAccess { site: 100 + round % 20, weight: 0.5, ..plain(1) });
    }
    let sites = &lines.line(0, 0).unwrap().threads[0].sites;
    assert_eq!((sites.len(), sites[0].site), (8, 1));
    assert!((sites[0].weight - 100.0).abs() < 1e-3);
    assert!(sites.iter().all(|site| site.weight >= 2.5), "each of the others has five times a half: {sites:?}");
}

#[test]
fn freed_memory_is_forgotten_and_other_samples_count_in_the_total() {
    let mut lines = LineTable::new(Settings { half_life_ns: None, ..Settings::default() }).unwrap();
    for number in 0..4 {
        lines.record(&SampledAccess { address: number * 64, ..plain(1) });
    }
    lines.forget_bytes(&(120..130));
    let left: Vec<u64> = lines.heaviest(9, 0).iter().map(|line| line.address).collect();
    assert_eq!(left, [0, 192]);
    lines.record_elsewhere(2.0, 0);
    lines.record_elsewhere(f64::NAN, 0);
    assert!((lines.total(0) - 6.0).abs() < 1e-9);
    lines.forget(1);
    assert!(lines.is_empty());
}

#[test]
fn a_line_round_trips_through_json() {
    let mut lines = LineTable::new(Settings::default()).unwrap();
    lines.record(&plain(1));
    let line = lines.line(0, 0).unwrap();
    assert_eq!(serde_json::from_str::<LineUse>(&serde_json::to_string(&line).unwrap()).unwrap(), line);
}
