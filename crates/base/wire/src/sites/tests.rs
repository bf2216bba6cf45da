//! The record and the mailboxes as plain data: readers get back what was written.

#![allow(unsafe_code, reason = "a record is made as the kernel makes it: of zeroes")]

extern crate std;

use std::boxed::Box;
use std::vec::Vec;

use super::*;

fn record() -> Box<Sites> {
    // SAFETY: all-zero bytes are a valid record, which holds only integers and atomics.
    unsafe { Box::<Sites>::new_zeroed().assume_init() }
}

fn nowhere(_: &[u64]) -> [u16; FRAMES] {
    [NO_MODULE; FRAMES]
}

#[test]
fn one_stack_is_one_site() {
    let sites = record();
    let first = sites.intern(&[10, 20, 30], |frames| {
        assert_eq!(frames, [10, 20, 30]);
        core::array::from_fn(|place| place as u16)
    });
    assert_ne!(first, 0);
    assert_eq!(sites.intern(&[10, 20, 30], |_| panic!("it is known")), first);
    let others = [&[10, 30, 20][..], &[10, 20], &[10, 20, 30, 0], &[30, 20, 10], &[0]];
    let numbers: Vec<u32> = others.iter().map(|frames| sites.intern(frames, nowhere)).collect();
    for (place, number) in numbers.iter().enumerate() {
        assert!(*number != 0 && *number != first && !numbers[..place].contains(number), "{numbers:?}");
    }
    assert_eq!(sites.count.load(Relaxed), 6);
    let frames: Vec<_> = sites.site(first).unwrap().frames().collect();
    assert_eq!(frames, [(10, 0), (20, 1), (30, 2)]);
    assert_eq!(sites.sites().count(), 6);
    assert!(sites.site(0).is_none() && sites.site(u32::MAX).is_none());
}

#[test]
fn a_deep_stack_loses_its_outermost_frames() {
    let sites = record();
    let deep: Vec<u64> = (1..=20).collect();
    let number = sites.intern(&deep, nowhere);
    let frames: Vec<u64> = sites.site(number).unwrap().frames().map(|(frame, _)| frame).collect();
    assert_eq!(frames, deep[..FRAMES]);
    assert_eq!(sites.intern(&deep[..FRAMES], nowhere), number);
}

#[test]
fn a_full_table_returns_no_site() {
    let sites = record();
    let mut seen = std::vec![false; SITES];
    for frame in 1..SITES as u64 {
        let number = sites.intern(&[frame * 16], nowhere) as usize;
        assert!(number != 0 && !seen[number], "{frame}: {number}");
        seen[number] = true;
    }
    assert_eq!(sites.intern(&[7], nowhere), 0);
    assert_ne!(sites.intern(&[16], nowhere), 0, "known sites are still found");
}

#[test]
fn threads_agree_on_a_site() {
    let sites = record();
    let numbers: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (1..500).map(|frame| sites.intern(&[frame, 1], nowhere)).collect::<Vec<u32>>()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(numbers.iter().all(|of_thread| of_thread == &numbers[0]));
    assert_eq!(sites.count.load(Relaxed), 499);
}

#[test]
fn a_module_is_entered_once() {
    let sites = record();
    let first = sites.intern_module(0x1000, 0x1000..0x3000, b"/lib/a.so");
    assert_eq!(sites.intern_module(0x1000, 0x1000..0x3000, b"/lib/a.so"), first);
    let others =
        [sites.intern_module(0x9000, 0x9000..0xa000, b"/lib/a.so"), sites.intern_module(0x1000, 0..1, b"/lib/b.so")];
    assert!(others[0] != first && others[1] != first && others[0] != others[1]);
    let path: Vec<u8> = sites.module(first).unwrap().path().collect();
    assert_eq!(path, b"/lib/a.so");
    let long = [b'x'; PATH_BYTES + 9];
    let cut = sites.intern_module(5, 0..1, &long);
    assert_eq!(sites.module(cut).unwrap().path().len(), PATH_BYTES);
    assert_eq!(sites.intern_module(5, 0..1, &long), cut);
    assert!(sites.module(NO_MODULE).is_none() && sites.module(77).is_none());
    for base in 100..100 + MODULES as u64 {
        sites.intern_module(base, 0..1, b"many");
    }
    assert_eq!(sites.intern_module(9999, 0..1, b"many"), NO_MODULE);
}

#[test]
fn a_mailbox_reads_as_it_was_written() {
    let messages = [
        Announcement::Here { address: 0x7000, bytes: 0x2000 },
        Announcement::Quiet,
        Announcement::Alloc { address: 0x55, bytes: 24, site: 16383 },
        Announcement::Free { address: 0x55 },
        Announcement::Map { address: 0x7000, bytes: 4096, site: 7 },
    ];
    // SAFETY: all-zero bytes are a valid mailbox, which holds only atomics.
    let mailbox: Mailbox = unsafe { core::mem::zeroed() };
    let words = || [&mailbox.doorbell, &mailbox.address, &mailbox.bytes, &mailbox.site].map(|word| word.load(Relaxed));
    assert_eq!(Announcement::read(words()), None, "no message yet");
    for message in messages {
        mailbox.announce(message);
        assert_eq!(Announcement::read(words()), Some(message));
    }
    assert_eq!(Announcement::read([9, 0, 0, 0]), None);
    let odd = Announcement::read([3, 1, 2, 16384]);
    assert_eq!(odd, Some(Announcement::Alloc { address: 1, bytes: 2, site: 0 }), "no table has such a site");
}

#[test]
fn a_doorbell_is_the_first_word_of_a_mailbox() {
    let end = MAILBOXES_ADDRESS + MAILBOXES_BYTES as u64;
    assert!(
        Announcement::is_doorbell(MAILBOXES_ADDRESS)
            && Announcement::is_doorbell(MAILBOXES_ADDRESS + 64)
            && Announcement::is_doorbell(end - 64)
    );
    assert!(
        !Announcement::is_doorbell(MAILBOXES_ADDRESS + 8)
            && !Announcement::is_doorbell(MAILBOXES_ADDRESS - 64)
            && !Announcement::is_doorbell(end)
    );
    assert!(
        RECORDER_RANGE.contains(&MAILBOXES_ADDRESS)
            && RECORDER_RANGE.contains(&(CACHES_ADDRESS + (MAILBOXES * CACHE_BYTES) as u64 - 1))
    );
}

#[test]
fn a_record_of_another_build_is_refused() {
    let mut sites = record();
    assert_eq!(sites.check(), Err(Mismatch));
    (sites.magic, sites.build) = (crate::MAGIC, BUILD);
    assert_eq!(sites.check(), Ok(()));
    sites.build += 1;
    assert_eq!(sites.check(), Err(Mismatch));
}

/// The addresses a site keeps after blocks of these lengths, which are contiguous from 0.
fn sampled(seed: u64, blocks: impl Iterator<Item = u64>) -> Vec<u64> {
    let sites = record();
    let number = sites.intern(&[seed + 1], nowhere);
    let site = sites.site(number).unwrap();
    for bytes in blocks {
        let counted = site.count(bytes);
        site.sample(counted.start, &counted, || 77);
    }
    assert!(site.sampled_addresses().all(|place| place.process == 77));
    site.sampled_addresses().map(|place| place.address).collect()
}

#[test]
fn each_byte_is_sampled_with_equal_probability() {
    const PAGES: u64 = 4096;
    // One block; blocks of one page; blocks of mixed lengths.
    let lengths: [&dyn Fn() -> Vec<u64>; 3] =
        [&|| std::vec![PAGES << 12], &|| std::vec![1 << 12; PAGES as usize], &|| {
            (0..PAGES / 64).flat_map(|_| [60 << 12, 1 << 12, 3 << 11, 3 << 11]).collect()
        }];
    for lengths in lengths {
        // Counts pages per eighth of the range, over many sites.
        let mut eighths = [0_u64; 8];
        let mut all = 0;
        for seed in 0..500 {
            let places = sampled(seed, lengths().into_iter());
            assert!(places.len() <= SAMPLED_ADDRESSES && places.iter().all(|at| *at < PAGES << 12));
            all += places.len() as u64;
            places.iter().for_each(|at| eighths[(at >> 12) as usize / (PAGES as usize / 8)] += 1);
        }
        assert!(all > 500 * SAMPLED_ADDRESSES as u64 * 99 / 100, "{all}");
        // A thousand in each eighth, standard deviation 30: five of them has a probability of 1e-6.
        assert!(eighths.iter().all(|count| count.abs_diff(all / 8) < 150), "{eighths:?}");
    }
}

#[test]
fn sampling_ends_for_all_lengths() {
    let sites = record();
    let site = sites.site(sites.intern(&[1], nowhere)).unwrap();
    let mut calls_of_process = 0_u64;
    for bytes in [0, 1, u64::MAX / 2, 0, u64::MAX / 2, 9, u64::MAX, 5] {
        let counted = site.count(bytes);
        let calls = core::cell::Cell::new(0);
        site.sample(u64::MAX - 5, &counted, || {
            calls.set(calls.get() + 1);
            u32::MAX
        });
        calls_of_process += calls.get();
    }
    assert!((SAMPLED_ADDRESSES as u64..5000).contains(&calls_of_process), "16 times the logarithm: {calls_of_process}");
    assert!(site.sampled_addresses().count() <= SAMPLED_ADDRESSES);
}

#[test]
fn threads_sample_concurrently() {
    let sites = record();
    let number = sites.intern(&[1], nowhere);
    std::thread::scope(|scope| {
        for thread in 1..=4_u32 {
            let site = sites.site(number).unwrap();
            scope.spawn(move || {
                for block in 0..100_000_u64 {
                    let counted = site.count(64);
                    site.sample(u64::from(thread) << 40 | block << 12, &counted, || thread);
                }
            });
        }
    });
    let places: Vec<SampledAddress> = sites.site(number).unwrap().sampled_addresses().collect();
    assert!(places.len() > SAMPLED_ADDRESSES / 2, "{places:?}");
    assert!(places.iter().all(|place| place.address >> 40 == u64::from(place.process)), "none is mixed up: {places:?}");
}
