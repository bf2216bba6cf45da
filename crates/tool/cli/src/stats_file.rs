//! The file of `--stats`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use fieldstone_report::{Error, saved};

/// Opens the statistics file before the run, so that a bad path is reported before it. `None` for
/// `-`. The old content of the file stays until [`write_json`].
pub(crate) fn open_stats_file(path: Option<&Path>) -> anyhow::Result<Option<(PathBuf, fs::File)>> {
    path.filter(|path| *path != Path::new("-")).map(create).transpose()
}

fn create(path: &Path) -> anyhow::Result<(PathBuf, fs::File)> {
    let file = fs::File::options().write(true).create(true).truncate(false).open(path);
    Ok((path.to_owned(), file.map_err(|cause| Error::Write { path: path.to_owned(), cause })?))
}

/// Replaces the content of `file`, opened as `path`, by `data` as JSON.
pub(crate) fn write_json(path: &Path, file: &mut fs::File, data: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = saved::to_json(data)?;
    // A pipe or a terminal cannot be truncated.
    let emptied = if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) };
    let written = emptied.and_then(|()| file.write_all(text.as_bytes()));
    Ok(written.map_err(|cause| Error::Write { path: path.to_owned(), cause })?)
}
