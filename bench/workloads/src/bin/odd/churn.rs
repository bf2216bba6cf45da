//! Memory that is written all the time: page migration under the program must lose no write.

use fieldstone_workloads::{Error, fill::fill, random::mix};
use std::{
    io::{Read, Write},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

const THREADS: usize = 4;

/// Fills `size` bytes, prints `ready`, and writes until stdin ends. Returns the rounds of all
/// threads together.
pub(crate) fn churn(size: usize) -> Result<u64, Error> {
    let mut words = fill(size / 8, |i| mix(i as u64))?;
    let part = words.len().div_ceil(THREADS).max(1);
    println!("ready");
    let _ = std::io::stdout().flush();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let churn = |(index, words)| scope.spawn(move || rounds(words, index * part, stop));
        let threads: Vec<_> = words.chunks_mut(part).enumerate().map(churn).collect();
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, SeqCst);
        threads.into_iter().try_fold(0, |sum, thread| {
            let rounds = thread.join().unwrap_or_else(|_| Err(Error::wrong("a thread panicked")));
            rounds.map(|rounds| sum + rounds)
        })
    })
}

/// Each round checks every word against the previous round and changes it. Two more rounds follow
/// the end of stdin.
fn rounds(words: &mut [u64], first: usize, stop: &AtomicBool) -> Result<u64, Error> {
    let mut round = 0;
    let mut left = 2;
    while left > 0 {
        left -= u64::from(stop.load(SeqCst));
        for (word, i) in words.iter_mut().zip(first as u64..) {
            if *word != mix(i).wrapping_add(round) {
                return Err(Error::wrong(format!("word {i} has changed before round {round}")));
            }
            *word = word.wrapping_add(1);
        }
        round += 1;
    }
    Ok(round)
}
