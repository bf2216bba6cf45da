//! Counts in memory that is saved every tenth of a second, and goes on from the last save when it is
//! started again: `cargo run --release -p fieldstone-checkpoint --example counter -- DIRECTORY`.

use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fieldstone_checkpoint::{Checkpointer, Directory, Error as SaveError};
use fieldstone_pages::Memory;

const BYTES: usize = 64 << 20;
/// Held for each count.
static COUNTING: Mutex<()> = Mutex::new(());

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1);
    let folder = folder.map_or_else(|| std::env::temp_dir().join("fieldstone-counter"), Into::into);
    count(&Directory::open(folder)?, Duration::from_millis(500))
}

fn count(saves: &Directory, time: Duration) -> Result<(), Box<dyn Error>> {
    let memory = match saves.last() {
        Ok(last) => last.restore()?.remove(0),
        Err(SaveError::NoSave(_)) => Memory::anonymous(BYTES)?,
        Err(error) => return Err(error.into()),
    };
    let mut saver = Checkpointer::builder([&memory]).build()?;
    let counters = memory.words();
    println!("begins at {}", counters[0].load(Relaxed));
    let end = Instant::now() + time;
    while Instant::now() < end {
        let save = saver.begin(saves, || (COUNTING.lock(), 0))?;
        let pause = Instant::now() + Duration::from_millis(100);
        while Instant::now() < pause {
            let _counting = COUNTING.lock();
            let count = counters[0].fetch_add(1, Relaxed);
            let place = usize::try_from(count % 64).unwrap_or(0) * 512;
            counters[place].fetch_add(1, Relaxed);
        }
        save.wait()?;
        saves.keep(3)?;
    }
    let save = saver.save(saves, || ((), 0))?;
    println!("{} after {} counts", save, counters[0].load(Relaxed));
    Ok(())
}

#[test]
fn counts_go_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let first = || saves.last().unwrap().restore().unwrap()[0].words()[0].load(Relaxed);
    count(&saves, Duration::from_millis(150)).unwrap();
    let before = first();
    count(&saves, Duration::from_millis(150)).unwrap();
    assert!(before > 0 && first() > before);
}
