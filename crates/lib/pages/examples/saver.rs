//! Saves a running program's heap incrementally: each save costs only what changed.
//!
//! `cargo run --release -p fieldstone-pages --example saver`
//!
//! The heap of 64 MiB is under [`Tracking`]. A saver thread appends the dirty ranges of each round
//! to a log file, each with its offset and length; the ranges are the index. A page written during
//! its save is dirty again, so the next round saves it. Replaying the file in order reconstructs
//! the heap as of the last save, if no thread wrote meanwhile.

#![allow(unsafe_code, reason = "reads and writes the heap by its address")]

use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fieldstone_pages::{Memory, Tracking};

type SaverResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

const HEAP_BYTES: usize = 64 << 20;
const ROUNDS: usize = 10;
const WRITES: usize = 2_000;

/// Writes pseudo-random words, nine in ten of them in one sixteenth of the heap, which moves with
/// `seed`.
fn mutate(heap: &[AtomicU64], writes: usize, seed: u64) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let hot = heap.len() / 16;
    let start = usize::try_from(seed % 16).unwrap_or(0) * hot;
    for write in 0..writes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let place = usize::try_from(state >> 8).unwrap_or(0);
        let word = if write % 10 == 0 { place % heap.len() } else { start + place % hot };
        heap[word].store(state, Ordering::Relaxed);
    }
}

/// Appends each dirty range to the file: its offset, its length, its contents. Returns the number
/// of content bytes.
fn save(tracking: &Tracking, file: &mut impl Write) -> SaverResult<usize> {
    let (heap, mut saved) = (tracking.memory().words(), 0);
    let mut contents = Vec::new();
    for range in tracking.dirty()? {
        // The range is clean from here on: a write during the copy makes it dirty again.
        let range = range?;
        contents.clear();
        let dirty = &heap[range.start / 8..range.end / 8];
        contents.extend(dirty.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()));
        file.write_all(&(range.start as u64).to_le_bytes())?;
        file.write_all(&(range.len() as u64).to_le_bytes())?;
        file.write_all(&contents)?;
        saved += range.len();
    }
    file.flush()?;
    Ok(saved)
}

/// Reconstructs the heap from a file.
fn replay(file: &File, heap_bytes: usize) -> io::Result<Vec<u8>> {
    let (mut file, mut heap) = (BufReader::new(file), vec![0; heap_bytes]);
    let mut number = [0; 8];
    loop {
        match file.read_exact(&mut number) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(heap),
            done => done?,
        }
        let start = usize::try_from(u64::from_le_bytes(number)).map_err(io::Error::other)?;
        file.read_exact(&mut number)?;
        let length = usize::try_from(u64::from_le_bytes(number)).map_err(io::Error::other)?;
        let range = start.checked_add(length).and_then(|end| heap.get_mut(start..end));
        file.read_exact(range.ok_or_else(|| io::Error::other("a range outside of the heap"))?)?;
    }
}

/// Writes and saves concurrently, then replays. Returns the bytes saved per round; no write
/// disturbs the last round.
fn run(heap_bytes: usize, writes: usize, file: &File) -> SaverResult<Vec<usize>> {
    let tracking = Tracking::new(Memory::anonymous(heap_bytes)?)?;
    let (done, mut saved) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        let saver = scope.spawn(|| -> SaverResult<Vec<usize>> {
            let (mut file, mut saved) = (BufWriter::new(file), Vec::new());
            loop {
                // Checked before the save, which then includes all earlier writes.
                let last = done.load(Ordering::Acquire);
                saved.push(save(&tracking, &mut file)?);
                if last {
                    return Ok(saved);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        (0..ROUNDS).for_each(|round| {
            mutate(tracking.memory().words(), writes, round as u64 + 1);
            std::thread::sleep(Duration::from_millis(20));
        });
        done.store(true, Ordering::Release);
        saved = saver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        SaverResult::Ok(())
    })?;
    io::Seek::rewind(&mut &*file)?;
    let heap = tracking.memory().words().iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    if replay(file, heap_bytes)?.into_iter().ne(heap) {
        return Err("the replayed file differs from the heap".into());
    }
    Ok(saved)
}

fn main() -> SaverResult<()> {
    let path = std::env::temp_dir().join(format!("fieldstone-saver-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    // The file needs no name, and disappears with the process.
    std::fs::remove_file(&path)?;
    let saved = run(HEAP_BYTES, WRITES, &file)?;
    for (round, bytes) in saved.iter().enumerate() {
        let share = 100.0 * *bytes as f64 / HEAP_BYTES as f64;
        println!("round {round:3}: {bytes:9} bytes saved, {share:5.1} % of the heap");
    }
    println!("{} bytes in total; the replayed file equals the heap", saved.iter().sum::<usize>());
    Ok(())
}

#[cfg(test)]
#[test]
fn a_heap_is_saved_and_replayed_and_a_broken_file_is_refused() {
    let file = tempfile::tempfile().unwrap();
    let saved = run(1 << 20, 500, &file).unwrap();
    assert!(saved.len() >= 2 && saved.iter().sum::<usize>() >= 1 << 16, "{saved:?}");
    io::Write::write_all(&mut &file, &[255; 16]).unwrap();
    io::Seek::rewind(&mut &file).unwrap();
    assert!(replay(&file, 1 << 20).is_err());
}
