//! Saves while the process forks, while its memory is unmapped, with little memory, and by slow sinks.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{scope, sleep};
use std::time::Duration;

use fieldstone_checkpoint::{Checkpointer, Compression, Directory, Result, Sink, SinkWriter};
use fieldstone_pages::Memory;

use crate::fixture::{EndOnDrop, MIB, PAGE, WORDS, checkpointer, contents, filled, is_alone, message};
use crate::hugetlb_reserve::HugetlbReserve;

/// Writes one number to each page, again and again.
fn write_until(memory: &Memory, ends: &AtomicBool) {
    for count in 1.. {
        memory.words().iter().step_by(WORDS).for_each(|word| word.store(count, Relaxed));
        if ends.load(Relaxed) {
            break;
        }
    }
}

/// The pages before the place of the writer have a new number, all others the one before.
fn is_of_one_instant(memory: &Memory) -> bool {
    let counts: Vec<_> = memory.words().iter().step_by(WORDS).map(|word| word.load(Relaxed)).collect();
    counts.is_sorted_by(|before, after| before >= after) && counts[0] - counts[counts.len() - 1] <= 1
}

#[test]
fn children_that_are_forked_during_a_save_have_plain_memory_and_the_parent_goes_on() {
    if !is_alone("hazards::children_that_are_forked_during_a_save_have_plain_memory_and_the_parent_goes_on") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(16 * MIB);
    memory.words().iter().step_by(WORDS).for_each(|word| word.store(0, Relaxed));
    for stop_limit in [Duration::from_micros(1), Duration::from_millis(50)] {
        let mut saver = Checkpointer::builder([&memory]).stop_limit(stop_limit).build().unwrap();
        let ends = AtomicBool::new(false);
        scope(|threads| {
            let _ends = EndOnDrop(&ends);
            threads.spawn(|| write_until(&memory, &ends));
            for _ in 0..4 {
                let save = saver.begin(&saves, || ((), 0)).unwrap();
                let mut children = 0;
                while !save.is_finished() || children == 0 {
                    // SAFETY: the child accesses the memory and ends, without any lock.
                    let child = unsafe { libc::fork() };
                    if child == 0 {
                        memory.words().iter().step_by(64 * WORDS).for_each(|word| word.store(77, Relaxed));
                        let is_written = memory.words()[0].load(Relaxed) == 77;
                        // SAFETY: ends the child without destructors.
                        unsafe { libc::_exit(i32::from(!is_written)) };
                    }
                    let mut status = 1;
                    // SAFETY: waits for the child; the status is a live local.
                    unsafe { libc::waitpid(child, &raw mut status, 0) };
                    assert_eq!(status, 0, "the child writes to its memory");
                    children += 1;
                }
                save.wait().unwrap();
                assert!(is_of_one_instant(&saves.last().unwrap().restore().unwrap()[0]));
            }
        });
    }
}

/// A sink that takes 10 MB a second.
struct Slow(Directory);

struct SlowWriter(Box<dyn SinkWriter>);

impl Sink for Slow {
    fn begin(&self, id: u64) -> Result<Box<dyn SinkWriter>> {
        Ok(Box::new(SlowWriter(self.0.begin(id)?)))
    }

    fn continued(&self) -> Result<Option<(u64, u64)>> {
        self.0.continued()
    }
}

impl SinkWriter for SlowWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        sleep(Duration::from_secs_f64(bytes.len() as f64 / 10e6));
        self.0.write(bytes)
    }

    fn finish(self: Box<Self>, manifest: &[u8]) -> Result<()> {
        self.0.finish(manifest)
    }
}

#[test]
fn a_slow_sink_slows_the_writer_and_takes_no_more_memory() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(16 * MIB);
    memory.words().iter().step_by(WORDS).for_each(|word| word.store(0, Relaxed));
    let builder = Checkpointer::builder([&memory]).stop_limit(Duration::from_micros(1)).memory_limit(4 * MIB);
    let mut saver = builder.build().unwrap();
    let ends = AtomicBool::new(false);
    scope(|threads| {
        let _ends = EndOnDrop(&ends);
        threads.spawn(|| write_until(&memory, &ends));
        let report = saver.save(&Slow(saves.clone()), || ((), 0)).unwrap();
        assert!(report.fell_back && report.peak_buffer_bytes <= 4 * MIB as u64, "{report}");
        assert!(report.total > Duration::from_secs(1) && report.stop < report.total / 2, "{report}");
        assert!(is_of_one_instant(&saves.last().unwrap().restore().unwrap()[0]));
    });
}

#[test]
fn the_stop_does_not_wait_for_the_sink() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(16 * MIB);
    let mut saver = checkpointer(&memory);
    let report = saver.save(&Slow(saves.clone()), || ((), 0)).unwrap();
    // 8 MiB have contents: 0.8 s.
    assert!(!report.fell_back && report.total > Duration::from_millis(500), "{report}");
    assert!(report.stop < report.total / 10, "{report}");
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
}

#[test]
fn memory_that_is_mapped_again_is_an_error_or_saved_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(4 * MIB);
    let mut saver = checkpointer(&memory);
    saver.save(&saves, || ((), 1)).unwrap();
    let at = memory.as_ptr().wrapping_add(100 * PAGE);
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: replaces pages of this test's memory, which nothing else uses.
    let mapped = unsafe { libc::mmap(at.cast(), 10 * PAGE, protection, flags, -1, 0) };
    assert_eq!(mapped.cast(), at);
    memory.words()[105 * WORDS].store(5, Relaxed);
    memory.words()[0].store(6, Relaxed);
    match saver.save(&saves, || ((), 2)) {
        Ok(_) => assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory)),
        Err(error) => {
            assert!(error.to_string().contains("mapp"), "{error}");
            assert_eq!(saves.last().unwrap().value(), 1, "the last save is intact");
        }
    }
    // A new checkpointer tracks what is mapped now.
    drop(saver);
    checkpointer(&memory).save(&saves, || ((), 3)).unwrap();
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
}

#[test]
fn huge_pages_of_a_pool_are_saved() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let Some(_pool) = HugetlbReserve::with_free(4) else { return };
    let memory = Memory::hugetlb(8 * MIB).unwrap();
    memory.words().iter().step_by(100).enumerate().for_each(|(at, word)| word.store(at as u64, Relaxed));
    let mut saver = checkpointer(&memory);
    saver.save(&saves, || ((), 0)).unwrap();
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
    memory.words()[5].store(1 << 40, Relaxed);
    let report = saver.save(&saves, || ((), 0)).unwrap();
    assert!(report.is_increment && report.pages == 512, "{report}");
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
}

#[test]
fn read_only_directories_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path().join("saves")).unwrap();
    let memory = filled(MIB);
    let mut saver = checkpointer(&memory);
    saver.save(&saves, || ((), 1)).unwrap();
    let path = folder.path().join("saves");
    let mount = |arguments: &[&str]| Command::new("mount").args(arguments).arg(&path).status();
    let bound = Command::new("mount").arg("--bind").arg(&path).arg(&path).status();
    if !bound.is_ok_and(|status| status.success()) {
        return println!("SKIP no directory can be mounted here");
    }
    let read_only = mount(&["-o", "remount,bind,ro"]);
    let text = message(saver.save(&saves, || ((), 2)));
    let value = saves.last().map(|last| last.value());
    let unmounted = Command::new("umount").arg(&path).status();
    assert!(read_only.is_ok_and(|status| status.success()) && unmounted.is_ok_and(|status| status.success()));
    assert!(text.contains("cannot create") && text.contains("Read-only"), "{text}");
    assert_eq!(value.unwrap(), 1);
    saver.save(&saves, || ((), 3)).unwrap();
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
}

/// A group with a limit of memory, which this process enters.
struct Group(std::path::PathBuf);

impl Group {
    fn enter(limit: usize) -> Option<Self> {
        let path = Path::new("/sys/fs/cgroup/memory").join(format!("fieldstone-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        fs::write(group.0.join("memory.limit_in_bytes"), limit.to_string()).ok()?;
        fs::write(group.0.join("cgroup.procs"), std::process::id().to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write("/sys/fs/cgroup/memory/cgroup.procs", std::process::id().to_string());
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn saves_work_under_a_limit_of_memory_that_has_room_for_the_buffers_only() {
    if !is_alone("hazards::saves_work_under_a_limit_of_memory_that_has_room_for_the_buffers_only") {
        return;
    }
    let Some(_group) = Group::enter(96 * MIB) else {
        return println!("SKIP no memory control group of version 1 can be made here");
    };
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = Memory::anonymous(64 * MIB).unwrap();
    memory.words().iter().step_by(WORDS).for_each(|word| word.store(0, Relaxed));
    let builder = Checkpointer::builder([&memory]).compression(Compression::Lz4).memory_limit(8 * MIB);
    let mut saver = builder.stop_limit(Duration::from_micros(1)).build().unwrap();
    let ends = AtomicBool::new(false);
    scope(|threads| {
        let _ends = EndOnDrop(&ends);
        threads.spawn(|| write_until(&memory, &ends));
        let report = saver.save(&saves, || ((), 0)).unwrap();
        assert!(report.fell_back && report.peak_buffer_bytes <= 8 * MIB as u64, "{report}");
    });
    assert!(saves.last().unwrap().value() == 0);
}
