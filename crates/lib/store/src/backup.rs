//! Backups: a snapshot as a new file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::header::Header;
use crate::page::{PAGE, seal};
use crate::recovery::{write_start, write_whole};
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::space::{GROUP, is_used};
use crate::tree::Pages;

/// Writes the pages of a snapshot, of a file with `end` pages, to a new file.
pub(crate) fn write(snapshot: &Snapshot, shared: &Shared, end: u32, path: &Path) -> Result<()> {
    let failed = |error: io::Error| Error::io(path, "write the backup", &error);
    let copy = |file: &File| {
        let start = write_start(file, shared.header.log_pages).map_err(failed)?;
        let mut last = shared.header.catalog();
        for map in (shared.first..end).step_by(GROUP as usize) {
            let used = snapshot.page(map)?;
            for number in (map..end.min(map + GROUP)).filter(|number| is_used(used, number - map)) {
                let mut page = *snapshot.page(number)?;
                seal(&mut page, number, start.store);
                file.write_all_at(&page, u64::from(number) * PAGE as u64).map_err(failed)?;
                last = last.max(number);
            }
        }
        let header = Header { end: last + 1, ..start };
        file.write_all_at(&header.bytes(), header.offset()).map_err(failed)
    };
    write_whole(path, copy).map(drop)
}
