//! Numbered saves, each of which may continue the one before.

use crate::error::{Error, Result};
use crate::merge::merge;
use crate::saved::{Part, Saved};
use crate::sink::SinkWriter;

/// The most saves of which one is read: each is a file or an object that is opened.
const LONGEST_CHAIN: usize = 64;

/// The name of a save.
pub(crate) fn name_of(number: u64) -> String {
    format!("{number:010}.save")
}

/// The number of the save of this name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".save")?.parse().ok()?;
    // Other spellings are names of other files. No save comes after the largest number.
    (number < u64::MAX && name_of(number) == name).then_some(number)
}

/// A place of numbered saves.
pub(crate) trait Series {
    /// The names of all files or objects there.
    fn names(&self) -> Result<Vec<String>>;

    /// The numbers of the saves, in order.
    fn numbers(&self) -> Result<Vec<u64>> {
        let mut numbers: Vec<_> = self.names()?.iter().filter_map(|name| number_of(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Opens a save, and reads its manifest.
    fn open(&self, number: u64) -> Result<Part>;

    /// Begins a save. If another one has its number when it is finished, that is an error, unless
    /// `replaces` is set: then it takes its place.
    fn create(&self, number: u64, id: u64, replaces: bool) -> Result<Box<dyn SinkWriter>>;

    /// Deletes the saves before a number, and what is left of saves that were not finished.
    fn delete_before(&self, number: u64) -> Result<()>;

    /// The error without any save.
    fn no_save(&self) -> Error;
}

/// The last save, with all that it continues.
///
/// # Errors
/// [`Error::NoSave`], and if one of them is missing or damaged.
pub(crate) fn last(series: &impl Series) -> Result<Saved> {
    let mut numbers = series.numbers()?;
    loop {
        match chain(series, &numbers) {
            Ok(chain) => return Saved::of(chain.into_iter().map(|(_, part)| part).collect()),
            Err(error) => {
                // Another process may have merged and deleted saves meanwhile.
                let now = series.numbers()?;
                if now == numbers {
                    return Err(error);
                }
                numbers = now;
            }
        }
    }
}

/// Begins the save after the last one.
pub(crate) fn begin(series: &impl Series, id: u64) -> Result<Box<dyn SinkWriter>> {
    series.create(series.numbers()?.last().map_or(1, |last| last + 1), id, false)
}

/// The last save, unless it or one that it continues cannot be read: then the next one is complete.
pub(crate) fn continued(series: &impl Series) -> Result<Option<(u64, u64)>> {
    let numbers = series.numbers()?;
    let chain = chain(series, &numbers).unwrap_or_default();
    Ok(chain.last().map(|(_, part)| (part.identity().id, part.identity().digest)))
}

/// The last save, unless it cannot be read. Those that it continues are not looked at, because each is a
/// request.
#[cfg(feature = "opendal")]
pub(crate) fn continued_by_name(series: &impl Series) -> Result<Option<(u64, u64)>> {
    let last = series.numbers()?.last().and_then(|&last| series.open(last).ok());
    Ok(last.map(|part| (part.identity().id, part.identity().digest)))
}

/// Deletes what the last `saves` saves do not need; returns how many saves were deleted.
///
/// The earliest save that is kept and those that it continues are merged into one, if the increments
/// among them have half the size of the complete save, or are many. So a page is written three times at
/// most on average.
pub(crate) fn keep(series: &impl Series, saves: usize) -> Result<usize> {
    let numbers = series.numbers()?;
    let kept = numbers.len().saturating_sub(saves.max(1));
    let Some(&first) = numbers.get(kept) else { return Ok(0) };
    let chain = chain(series, &numbers[..=kept])?;
    let begin = chain[0].0;
    let parts: Vec<_> = chain.into_iter().map(|(_, part)| part).collect();
    let increments: u64 = parts[1..].iter().map(|part| part.bytes).sum();
    let merges = increments >= parts[0].bytes / 2 && parts.len() > 1 || parts.len() > LONGEST_CHAIN;
    if merges {
        merge(&parts, |id| series.create(first, id, true))?;
    }
    let begin = if merges { first } else { begin };
    let begin = begin.min(first_needed(series, &numbers, kept));
    series.delete_before(begin)?;
    Ok(numbers.iter().filter(|&&number| number < begin).count())
}

/// The first save that one of the last saves needs, from index `kept` on, which is not there: two processes
/// may have continued the same one.
fn first_needed(series: &impl Series, numbers: &[u64], kept: usize) -> u64 {
    let mut known = Vec::new();
    let mut first = numbers[kept];
    for (index, &number) in numbers.iter().enumerate().skip(kept) {
        let Ok(part) = series.open(number) else { continue };
        let parent = part.manifest.parent;
        known.push(part.identity());
        if index > kept && parent.is_some() && !known.contains(&parent) {
            let begun = chain(series, &numbers[..=index]).ok().and_then(|chain| Some(chain.first()?.0));
            first = first.min(begun.unwrap_or(first));
        }
    }
    first
}

/// The last one of these saves and all that it continues, with their numbers, oldest first.
fn chain(series: &impl Series, numbers: &[u64]) -> Result<Vec<(u64, Part)>> {
    let Some((&last, earlier)) = numbers.split_last() else { return Err(series.no_save()) };
    let mut chain = vec![(last, series.open(last)?)];
    let mut earlier = earlier.iter().rev();
    while let Some((_, part)) = chain.last()
        && part.manifest.parent.is_some()
    {
        let parent = part.manifest.parent;
        // Another process may have saved in between. What cannot be read is no parent.
        let (mut found, mut unread) = (None, None);
        for &number in earlier.by_ref() {
            match series.open(number) {
                Ok(part) if part.identity() == parent => {
                    found = Some((number, part));
                    break;
                }
                Err(Error::Damaged { .. } | Error::NoSave(_)) | Ok(_) => {}
                Err(Error::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => unread = Some(error),
            }
        }
        // A save that cannot be read here and now may be the parent.
        let missing = || Error::MissingParent { path: part.path.clone(), parent: parent.id };
        chain.push(found.ok_or_else(|| unread.unwrap_or_else(missing))?);
    }
    chain.reverse();
    Ok(chain)
}
