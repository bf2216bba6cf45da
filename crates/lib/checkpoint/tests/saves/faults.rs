//! Damaged files, sinks that fail, and memory that cannot be saved.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_checkpoint::{Checkpointer, Directory, Error, File, Result, Sink, SinkWriter};
use fieldstone_pages::Memory;

use crate::fixture::{MIB, checkpointer, contents, filled, message, names};

#[test]
fn each_flipped_bit_and_each_cut_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("heap");
    let file = File::at(&path);
    let memory = filled(64 << 10);
    checkpointer(&memory).save(&file, || ((), 7)).unwrap();
    let whole = fs::read(&path).unwrap();
    let restored = || file.last().and_then(|last| Ok(contents(&last.restore()?[0])));
    assert!(restored().unwrap() == contents(&memory));
    for at in (0..whole.len()).step_by(whole.len() / 300).chain(whole.len() - 300..whole.len()) {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        fs::write(&path, &changed).unwrap();
        assert!(restored().is_err(), "byte {at} of {}", whole.len());
        fs::write(&path, &whole[..at]).unwrap();
        assert!(restored().is_err(), "cut at {at}");
    }
    let mut later = whole.clone();
    later[8] = 2;
    fs::write(&path, &later).unwrap();
    assert!(message(file.last()).contains("newer"), "{}", message(file.last()));
}

#[test]
fn a_lost_or_exchanged_increment_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    let mut saver = checkpointer(&memory);
    for round in 0..3 {
        memory.words()[round].store(9, Relaxed);
        saver.save(&saves, || ((), 0)).unwrap();
    }
    let [first, second, third] = [1, 2, 3].map(|number| folder.path().join(format!("{number:010}.save")));
    let aside = folder.path().join("aside");
    fs::rename(&second, &aside).unwrap();
    assert!(matches!(saves.last(), Err(Error::MissingParent { path, .. }) if path == third));
    fs::copy(&first, &second).unwrap();
    assert!(matches!(saves.last(), Err(Error::MissingParent { path, .. }) if path == third));
    let mut later = fs::read(&aside).unwrap();
    later[8] = 2;
    fs::write(&second, later).unwrap();
    assert!(matches!(saves.last(), Err(Error::Unsupported { path, .. }) if path == second));
    fs::rename(&aside, &second).unwrap();
    // An increment alone is no save.
    assert!(matches!(File::at(&third).last(), Err(Error::MissingParent { path, .. }) if path == third));
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
    // The last save is another one than this checkpointer made: the next one is complete.
    fs::remove_file(&third).unwrap();
    assert!(!saver.save(&saves, || ((), 0)).unwrap().is_increment);
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
}

/// A sink whose call number `fails` fails.
#[derive(Clone)]
struct Failing {
    inner: Directory,
    calls: Arc<AtomicUsize>,
    fails: usize,
}

struct FailingWriter(Option<Box<dyn SinkWriter>>, Failing);

impl Failing {
    fn call(&self) -> Result<()> {
        if self.calls.fetch_add(1, Relaxed) == self.fails {
            let source = io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(Error::File { operation: "write", path: PathBuf::from("somewhere"), source });
        }
        Ok(())
    }
}

impl Sink for Failing {
    fn begin(&self, id: u64) -> Result<Box<dyn SinkWriter>> {
        self.call()?;
        Ok(Box::new(FailingWriter(Some(self.inner.begin(id)?), self.clone())))
    }

    fn continued(&self) -> Result<Option<(u64, u64)>> {
        self.call()?;
        self.inner.continued()
    }
}

impl SinkWriter for FailingWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.1.call()?;
        self.0.as_mut().unwrap().write(bytes)
    }

    fn finish(mut self: Box<Self>, manifest: &[u8]) -> Result<()> {
        self.1.call()?;
        self.0.take().unwrap().finish(manifest)
    }
}

#[test]
fn a_sink_that_fails_at_any_call_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let inner = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    let mut saver = checkpointer(&memory);
    saver.save(&inner, || ((), 0)).unwrap();
    let mut failures = 0;
    loop {
        let before = contents(&inner.last().unwrap().restore().unwrap()[0]);
        // Other pages in each round; none in the last ones, which have those of the failed saves.
        if failures < 4 {
            memory.words().iter().skip(failures * 512).step_by(700 * 4).for_each(|word| _ = word.fetch_add(1, Relaxed));
        }
        let failing = Failing { inner: inner.clone(), calls: Arc::default(), fails: failures };
        let result = saver.save(&failing, || ((), 0));
        if result.is_ok() {
            break;
        }
        assert!(message(result).contains("somewhere"));
        assert!(contents(&inner.last().unwrap().restore().unwrap()[0]) == before, "the last save is intact");
        failures += 1;
    }
    assert!(failures > 5, "{failures}");
    assert!(contents(&inner.last().unwrap().restore().unwrap()[0]) == contents(&memory));
    assert!(names(folder.path()).iter().all(|name| name.ends_with(".save")));
}

#[test]
fn full_disks_and_missing_directories_are_errors() {
    let memory = filled(MIB);
    let mut saver = checkpointer(&memory);
    let text = message(saver.save(&File::at("/dev/full/heap"), || ((), 0)));
    assert!(text.contains("/dev/full/heap"), "{text}");
    assert!(message(saver.save(&File::at("/there/is/none/heap"), || ((), 0))).contains("/there/is/none/heap"));
    assert!(message(Directory::open("/proc/saves")).contains("cannot create /proc/saves"));
    let folder = tempfile::tempdir().unwrap();
    // A file system of one megabyte, whose memory the save does not fit into.
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=512k", "none"])
        .arg(folder.path())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return println!("SKIP no tmpfs can be mounted here");
    }
    let file = File::at(folder.path().join("heap"));
    let text = message(saver.save(&file, || ((), 0)));
    let left = names(folder.path());
    let unmounted = std::process::Command::new("umount").arg(folder.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert!(text.contains("cannot write") && text.contains("No space left"), "{text}");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn memory_that_can_be_written_by_other_ways_is_refused() {
    let shared = Memory::shared(MIB).unwrap();
    let text = message(Checkpointer::builder([&shared]).build());
    assert!(text.contains("shared memory") && text.contains("Memory::anonymous"), "{text}");
    let memory = filled(MIB);
    let _first = checkpointer(&memory);
    assert!(message(Checkpointer::builder([&memory]).build()).contains("another region controls it"));
}
