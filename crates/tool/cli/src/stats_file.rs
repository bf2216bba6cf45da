//! Result files of a run, opened before it, so that a path that cannot be written is reported before
//! a program starts.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fieldstone_report::{Document, Error, saved, text};
use serde::Serialize;

use crate::output::{style_of, write_stderr};

/// Where `--stats` writes.
#[derive(Debug)]
pub(crate) enum StatsOutput {
    /// Nowhere: the option is not given.
    None,
    /// `-`: as text to standard error.
    Text,
    /// As JSON to a file.
    Json(OutputFile),
    /// As JSON to a file, one object a line, while the program runs.
    Lines {
        /// The file.
        file: OutputFile,
        /// Whether a line was written.
        has_lines: bool,
    },
}

/// A file that is open for writing.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
}

impl StatsOutput {
    /// The output that the option names. The old content of a file stays until [`Self::write`].
    pub(crate) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        match path {
            None => Ok(Self::None),
            Some(path) if path == Path::new("-") => Ok(Self::Text),
            Some(path) => Ok(Self::Json(OutputFile::open(path, File::options().write(true))?)),
        }
    }

    /// The same, for statistics that are written several times.
    pub(crate) fn repeated(self) -> Self {
        match self {
            Self::Json(file) => Self::Lines { file, has_lines: false },
            other => other,
        }
    }

    /// Whether the option is given.
    pub(crate) const fn is_given(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Writes statistics: `document` is their text form.
    pub(crate) fn write(&mut self, stats: &impl Serialize, document: impl FnOnce() -> Document) -> anyhow::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Text => {
                write_stderr(&text::render(&document(), style_of(io::stderr())));
                Ok(())
            }
            Self::Json(file) => file.replace(&saved::to_json(stats)?),
            Self::Lines { file, has_lines: true } => Ok(file.append(&saved::to_json_line(stats)?)?),
            Self::Lines { file, has_lines } => {
                *has_lines = true;
                file.replace(&saved::to_json_line(stats)?)
            }
        }
    }
}

impl OutputFile {
    /// Opens a file, and creates it if it does not exist.
    pub(crate) fn open(path: &Path, options: &mut fs::OpenOptions) -> Result<Self, Error> {
        let failed = |cause| Error::Write { path: path.to_owned(), cause };
        let file = options.create(true).open(path).map_err(failed)?;
        // A device such as /dev/full refuses even an empty write. A pipe would wait or break.
        if !file.metadata().is_ok_and(|found| is_pipe(&found)) {
            rustix::io::write(&file, &[]).map_err(|errno| failed(errno.into()))?;
        }
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends a text.
    pub(crate) fn append(&mut self, text: &str) -> Result<(), Error> {
        self.file.write_all(text.as_bytes()).map_err(|cause| Error::Write { path: self.path.clone(), cause })
    }

    /// Replaces the content.
    fn replace(&mut self, text: &str) -> anyhow::Result<()> {
        // A pipe or a terminal cannot be truncated.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0).map_err(|cause| Error::Write { path: self.path.clone(), cause })?;
        }
        Ok(self.append(text)?)
    }
}

/// Whether it is a named pipe.
pub(crate) fn is_pipe(found: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    found.file_type().is_fifo()
}
