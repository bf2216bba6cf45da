//! Frames of this process's memory, compared with the advice and with smaps.
#![allow(unsafe_code, reason = "memory of each kind is mapped here")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod memory;

use fieldstone_sys::pagemap::{self, FrameStats, Placement};
use fieldstone_sys::{huge_pages, smaps};
use memory::Mapped;

const MIB: u64 = 1 << 20;

fn frames(mapped: &Mapped) -> Option<FrameStats> {
    match pagemap::read(std::process::id(), &[mapped.range()]).unwrap() {
        Placement::Exact(frames) => Some(frames),
        Placement::Hidden => {
            println!("SKIP frame numbers are hidden from this user");
            None
        }
    }
}

fn anon_huge_bytes(mapped: &Mapped) -> u64 {
    let range = mapped.range();
    let mappings = smaps::read(std::process::id()).unwrap();
    let ours = mappings.iter().filter(|mapping| mapping.start < range.end && mapping.end > range.start);
    ours.map(|mapping| mapping.anon_huge_bytes).sum()
}

#[test]
fn advised_memory_is_on_huge_pages_as_in_smaps() {
    let Some(huge) = huge_pages::transparent().huge_bytes else {
        println!("SKIP no transparent huge pages in this kernel");
        return;
    };
    let mapped = Mapped::anonymous(4 * huge, huge);
    mapped.advise(libc::MADV_HUGEPAGE);
    mapped.touch();
    let on_huge = anon_huge_bytes(&mapped);
    if on_huge == 0 {
        println!("SKIP the kernel gave no transparent huge page");
        return;
    }
    let Some(frames) = frames(&mapped) else { return };
    assert_eq!(frames.present_bytes, 4 * huge);
    // Memory mapped by huge entries is in huge folios; other memory may be in one too.
    assert!(frames.bytes_in(huge, false) >= on_huge, "{frames:?}, smaps says {on_huge}");
    assert!(frames.runs.longest_bytes >= huge);
    assert_eq!(frames.folios.iter().map(|folio| folio.bytes).sum::<u64>(), frames.present_bytes);

    // The same memory read in two halves that cut a huge page.
    let range = mapped.range();
    let middle = range.start + huge + huge / 2;
    let halves = pagemap::read(std::process::id(), &[range.start..middle, middle..range.end]).unwrap();
    assert_eq!(halves, Placement::Exact(frames));
}

#[test]
fn memory_advised_against_huge_pages_is_on_base_pages() {
    let mapped = Mapped::anonymous(8 * MIB, 2 * MIB);
    mapped.advise(libc::MADV_NOHUGEPAGE);
    mapped.touch();
    assert_eq!(anon_huge_bytes(&mapped), 0);
    let Some(frames) = frames(&mapped) else { return };
    assert_eq!(frames.present_bytes, 8 * MIB);
    assert_eq!(frames.bytes_in(rustix::param::page_size() as u64, false), 8 * MIB, "{frames:?}");
    assert!(frames.runs.count >= 1 && frames.runs.median_bytes <= frames.runs.longest_bytes);
}

#[test]
fn a_page_only_read_is_the_zero_page_and_others_are_absent() {
    let page = rustix::param::page_size() as u64;
    let mapped = Mapped::anonymous(64 * page, page);
    mapped.advise(libc::MADV_NOHUGEPAGE);
    for index in 0..8 {
        assert_eq!(mapped.read(index * page), 0);
    }
    mapped.write(8 * page, 1);
    let Some(frames) = frames(&mapped) else { return };
    assert_eq!((frames.present_bytes, frames.zero_bytes, frames.swapped_bytes), (9 * page, 8 * page, 0));
    assert_eq!(frames.bytes_in(page, false), page);
}

#[test]
fn a_missing_process_is_an_error() {
    let gone = pagemap::read(0x7fff_fff0, std::slice::from_ref(&(0..4096)));
    assert!(matches!(gone, Err(fieldstone_sys::Error::NoSuchProcess { .. })), "{gone:?}");
}
