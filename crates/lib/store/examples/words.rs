//! Counts the words of standard input in a store, beside those of earlier runs, and prints the most
//! frequent ones.
//!
//! ```text
//! cargo run --example words -- words.store < README.md
//! ```

use std::error::Error;
use std::io::{BufRead, stdin};

use fieldstone_store::{Store, Table};

/// How often each word has occurred.
const COUNTS: Table<str, u64> = Table::new("counts");
/// Lines of a transaction.
const LINES: usize = 1000;
/// Words that are printed.
const SHOWN: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("the file of the store is missing")?;
    let store = Store::open(path)?;
    let lines: Vec<String> = stdin().lock().lines().collect::<Result<_, _>>()?;
    for lines in lines.chunks(LINES) {
        count(&store, lines)?;
    }
    for (word, count) in most_frequent(&store)? {
        println!("{count:8} {word}");
    }
    Ok(())
}

/// Adds the words of some lines, all or none of them.
fn count(store: &Store, lines: &[String]) -> fieldstone_store::Result<()> {
    store.write(|tx| {
        let mut counts = tx.table(COUNTS)?;
        for word in lines.iter().flat_map(|line| line.split_whitespace()).filter(|word| word.len() <= 100) {
            let before = counts.get(word)?.unwrap_or(0);
            counts.insert(word, &(before + 1))?;
        }
        Ok(())
    })
}

fn most_frequent(store: &Store) -> fieldstone_store::Result<Vec<(String, u64)>> {
    let now = store.read()?;
    let mut counts = now.table(COUNTS)?.iter()?.collect::<fieldstone_store::Result<Vec<_>>>()?;
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    counts.truncate(SHOWN);
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_two_runs_are_counted_together() {
        let folder = tempfile::tempdir().unwrap();
        for line in ["a b a", "b a c"] {
            let store = Store::open(folder.path().join("words.store")).unwrap();
            count(&store, &[line.to_owned()]).unwrap();
        }
        let store = Store::open(folder.path().join("words.store")).unwrap();
        let expected = [("a", 3), ("b", 2), ("c", 1)].map(|(word, count)| (word.to_owned(), count));
        assert_eq!(most_frequent(&store).unwrap(), expected);
    }
}
