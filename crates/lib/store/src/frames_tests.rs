//! Tests of the pages in memory.

#![allow(unsafe_code, reason = "looks into frames")]

use std::path::Path;

use crate::frames::{Frame, Frames};
use crate::page::PAGE;

fn publish(frames: &Frames, page: u32, commit: u64) -> Frame {
    let frame = frames.take().unwrap();
    // SAFETY: the frame was just taken.
    unsafe { frames.contents_mut(frame)[0] = commit as u8 };
    frames.publish(page, frame, commit);
    frames.reclaim(commit);
    frame
}

#[test]
fn a_snapshot_reads_its_version_until_it_ends() {
    let frames = Frames::new(Path::new("test"), 1 << 30).unwrap();
    let first = publish(&frames, 7, 1);
    let snapshot = frames.begin(1);
    let second = publish(&frames, 7, 2);
    assert_eq!((frames.find(7, 1), frames.find(7, 2), frames.find(8, 2)), (Some(first), Some(second), None));
    // SAFETY: the snapshot keeps the frame, which was published.
    assert_eq!(unsafe { frames.contents(first)[0] }, 1);
    frames.end(snapshot);
    let third = publish(&frames, 7, 3);
    assert_eq!((frames.find(7, 2), frames.find(7, 3)), (None, Some(third)));
    // Both old frames are used again.
    assert_eq!([frames.take(), frames.take()].map(|frame| frame.unwrap().0 < 2), [true, true]);
}

#[test]
fn a_reader_that_is_too_old_is_lent_nothing() {
    let frames = Frames::new(Path::new("test"), 1 << 30).unwrap();
    frames.limit_old_versions(PAGE);
    let [_, unchanged] = [7, 8].map(|page| publish(&frames, page, 1));
    let (old, new) = (frames.begin(1), 3);
    assert_eq!(frames.find(8, 1), Some(unchanged));
    for commit in 2..=new {
        publish(&frames, 7, commit);
    }
    assert!(frames.is_too_old(1) && !frames.is_too_old(new));
    assert_eq!((frames.find(8, 1), frames.find(8, new)), (None, Some(unchanged)));
    assert_eq!([1, new].map(|version| frames.lend(unchanged, version)), [false, true]);
    frames.end(old);
}

#[test]
fn pages_that_the_file_contains_are_evicted_at_the_bound() {
    let frames = Frames::new(Path::new("test"), 8 * PAGE).unwrap();
    for page in 0..8 {
        frames.keep(page, if page == 3 { 2 } else { 1 });
        publish(&frames, page, 1);
    }
    frames.set_flushed(1);
    publish(&frames, 8, 1);
    assert!((0..8).all(|page| frames.has(page)), "the file does not contain them yet");
    frames.set_flushed(2);
    publish(&frames, 9, 1);
    assert!((0..8).all(|page| frames.has(page) == (page == 3)));
    for page in 10..17 {
        publish(&frames, page, 1);
    }
    assert_eq!(frames.used(), 9, "their frames are used again");
}

#[test]
fn what_a_snapshot_was_lent_stays() {
    let frames = Frames::new(Path::new("test"), 4 * PAGE).unwrap();
    frames.set_flushed(9);
    for page in 0..4 {
        publish(&frames, page, 1);
    }
    let reader = frames.begin(1);
    let lent = frames.find(2, 1).unwrap();
    for page in 100..120 {
        let frame = publish(&frames, page, 1);
        assert_ne!(frame, lent);
    }
    assert!(!frames.has(2) && frames.find(2, 1).is_none());
    // SAFETY: the reader is registered since before the page was evicted.
    assert_eq!(unsafe { frames.contents(lent)[0] }, 1);
    frames.end(reader);
    let free: Vec<_> = (0..40).map(|_| frames.take().unwrap()).collect();
    assert!(free.contains(&lent));
    assert_eq!(frames.take_back(2), None);
}

#[test]
fn an_evicted_page_that_is_needed_while_a_snapshot_may_read_it_is_taken_back() {
    let frames = Frames::new(Path::new("test"), 4 * PAGE).unwrap();
    frames.set_flushed(9);
    let reader = frames.begin(1);
    let lent = publish(&frames, 2, 1);
    for round in 0..10 {
        for page in 0..20 {
            publish(&frames, 100 + page, 2 + round);
        }
        assert!(!frames.has(2), "round {round}");
        assert_eq!(frames.take_back(2), Some(lent));
        assert_eq!((frames.find(2, 1), frames.take_back(2)), (Some(lent), None));
    }
    frames.end(reader);
}

#[test]
fn an_evicted_page_that_is_made_again_is_not_taken_back() {
    let frames = Frames::new(Path::new("test"), 4 * PAGE).unwrap();
    frames.set_flushed(9);
    let reader = frames.begin(1);
    let old = publish(&frames, 2, 1);
    for page in 100..120 {
        publish(&frames, page, 1);
    }
    assert!(!frames.has(2));
    frames.keep(2, 9);
    let new = publish(&frames, 2, 2);
    assert_eq!((frames.take_back(2), frames.find(2, 2)), (None, Some(new)));
    frames.end(reader);
    for page in 200..220 {
        publish(&frames, page, 2);
    }
    assert_eq!(frames.find(2, 2), Some(new));
    assert_ne!(old, new);
}
