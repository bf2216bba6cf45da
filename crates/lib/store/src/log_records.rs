//! The records that are in the log, whether recovery applies them or not.
//!
//! Recovery stops at the first record that is not whole: usually the end of the log. A crash can tear a
//! record and keep later ones of the same write. But each record names the last commit that was durable
//! before it was made. If recovery stops before that commit, the log was damaged.

use std::io;

use crate::finding::{Finding, Lost};
use crate::header::Header;
use crate::log::{self, BLOCK, Found};
use crate::page::u64_at;
use crate::storage::Storage;

/// A record and its commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) found: Found,
}

/// The record that begins at this byte of a half, whatever its commit is.
fn record_at(half: &[u8], at: usize, store: u64) -> Option<Record> {
    let bytes = half.get(at..)?;
    let header = bytes.get(..24)?;
    let (epoch, sequence) = (u64_at(header, 8), u64_at(header, 16));
    Some(Record { epoch, sequence, found: log::find(bytes, store, epoch, sequence)? })
}

/// The half of the log with an epoch.
pub(crate) fn half(storage: &dyn Storage, header: &Header, epoch: u64) -> io::Result<Vec<u8>> {
    let mut half = vec![0; header.half_bytes()];
    storage.read(&mut half, header.half(epoch))?;
    Ok(half)
}

/// The records of one epoch from the beginning of a half, one behind the other, with their places
/// in the half.
pub(crate) fn leading(half: &[u8], store: u64) -> impl Iterator<Item = (usize, Record)> {
    let (mut at, mut last) = (0, None);
    std::iter::from_fn(move || {
        let record = record_at(half, at, store)?;
        let follows = last.is_none_or(|(epoch, sequence): (u64, u64)| {
            epoch == record.epoch && sequence.checked_add(1) == Some(record.sequence)
        });
        last = Some((record.epoch, record.sequence));
        let place = at;
        at += record.found.in_log();
        follows.then_some((place, record))
    })
}

/// The damage in the log, if recovery stopped at commit `sequence` by `error`, or before a commit that a
/// later record proves to have been durable.
pub(crate) fn damage(
    storage: &dyn Storage,
    header: &Header,
    sequence: u64,
    error: Option<String>,
) -> io::Result<Option<Finding>> {
    let first = sequence.saturating_add(1);
    let (mut stop, mut damaged, mut last, mut durable) = (header.half(header.epoch), None, first, 0);
    for epoch in header.epochs() {
        let (half, base) = (half(storage, header, epoch)?, header.half(epoch));
        let mut end = 0;
        for (at, record) in leading(&half, header.store) {
            if record.epoch == epoch && record.sequence <= sequence {
                end = at + record.found.in_log();
                stop = base + end as u64;
            }
        }
        for at in (end..half.len()).step_by(BLOCK) {
            let later = record_at(&half, at, header.store).filter(|record| record.epoch == epoch);
            let Some(later) = later.filter(|later| later.sequence > first) else { continue };
            damaged.get_or_insert(if end == 0 && at > 0 { base } else { stop });
            last = last.max(later.sequence);
            durable = durable.max(later.found.durable);
        }
    }
    let is_proven = damaged.is_some() && durable >= first;
    let what = error.or_else(|| is_proven.then(|| "a record of the log is damaged".to_owned()));
    Ok(what.map(|what| Finding { offset: damaged.unwrap_or(stop), what, lost: Lost::Commits(first, last) }))
}
