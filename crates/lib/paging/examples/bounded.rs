//! Uses 256 MiB of memory with 64 MiB of it resident: `cargo run --release -p fieldstone-paging --example bounded`

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use fieldstone_paging::{Error, Lz4, Paged, TempFile};

const BYTES: usize = 256 << 20;
const BOUND: usize = 64 << 20;

fn main() -> Result<(), Error> {
    let builder = Paged::builder(BYTES).resident(BOUND).store(Lz4::limit(32 << 20));
    let memory = match builder.store(TempFile::in_dir(std::env::temp_dir())?).build() {
        Ok(memory) => memory,
        Err(error @ Error::NoUserfaultfd { .. }) => {
            println!("SKIP {error}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let words = memory.as_slice::<AtomicU64>();
    let start = Instant::now();
    words.iter().enumerate().for_each(|(index, word)| word.store(index as u64 / 7, Relaxed));
    let wrong = words.iter().enumerate().filter(|(index, word)| word.load(Relaxed) != *index as u64 / 7).count();
    assert_eq!(wrong, 0, "each word has its value");
    println!("{} MiB written and read in {:.2?}", BYTES >> 20, start.elapsed());
    measure(&memory);
    print!("{}", memory.stats());
    assert!(memory.stats().resident_peak <= BOUND as u64);
    Ok(())
}

/// Prints the time of accesses to pages that are not resident, and to one that is.
fn measure(memory: &Paged) {
    const ACCESSES: u32 = 20_000;
    let words = memory.as_slice::<AtomicU64>();
    let before = memory.stats();
    let start = Instant::now();
    let mut at = 1;
    for _ in 0..ACCESSES {
        at = at * 48_271 % 65_521;
        words[at % (BYTES / 4096) * 512].load(Relaxed);
    }
    let (time, after) = (start.elapsed(), memory.stats());
    let faults = u32::try_from(after.faults - before.faults).unwrap_or(u32::MAX).max(1);
    println!("{faults} faults of {ACCESSES} random accesses, {:.1?} each", time / faults);
    let start = Instant::now();
    (0..ACCESSES).for_each(|_| _ = std::hint::black_box(words[0].load(Relaxed)));
    println!("accesses to a resident page: {:.1?} each", start.elapsed() / ACCESSES);
}
