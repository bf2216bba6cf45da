//! Builds a C program with a plain stack, with a stack of blocks, or with gcc's own split stacks.
//!
//! Objects are compiled once and stay in the user's cache. A program is linked once per layout,
//! after padding that shifts its functions.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::programs::StackProgram;
use super::source::{self, Source};
use crate::sibling_programs::{Missing, sibling};

/// The stack of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Contiguous.
    Plain,
    /// Made of blocks: `fieldstone-cc`.
    Blocks,
    /// Split by gcc, with gcc's run time.
    Gcc,
}

impl Kind {
    /// Additional options of the compiler and linker.
    const fn options(self) -> &'static str {
        match self {
            Self::Gcc => "-fsplit-stack",
            Self::Plain | Self::Blocks => "",
        }
    }
}

/// The linkers, as values of `-fuse-ld`.
pub const LINKERS: [&str; 4] = ["bfd", "gold", "lld", "mold"];

/// Whether a linker is installed.
#[must_use]
pub fn has_linker(name: &str) -> bool {
    let called =
        Command::new(format!("ld.{name}")).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    called.is_ok()
}

/// The directory of the builds, and the compilers.
#[derive(Debug)]
pub struct Builds {
    place: TempDir,
    bundled: PathBuf,
    driver: PathBuf,
    compiler: String,
}

impl Builds {
    /// Writes the bundled sources to a new directory, and finds the compilers.
    ///
    /// # Errors
    /// [`Missing`] without gcc, or without `fieldstone-cc` in the directory of this program.
    pub fn find() -> Result<Self> {
        let places = ["stacks/fieldstone-cc", "fieldstone-cc"];
        let driver = places.into_iter().filter_map(sibling).find(|file| file.exists());
        let driver = driver.ok_or_else(|| {
            Missing("no fieldstone-cc beside this program: `make` builds it where there is a C compiler".into())
        })?;
        let version = Command::new("gcc").arg("--version").output().map_err(|_| Missing("there is no gcc".into()))?;
        let compiler = String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or_default().to_owned();
        let place = tempfile::tempdir()?;
        Ok(Self { bundled: source::bundled(place.path())?, place, driver, compiler })
    }

    /// A shell command with the directories of the program in its environment.
    pub(super) fn shell(&self, words: &str, sources: &Path) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", words]).env("SOURCE", sources).env("BUNDLED", &self.bundled).env("FIELDSTONE_CC", "gcc");
        shell.stdin(Stdio::null());
        shell
    }

    /// The directory of a program's prepared source.
    pub(super) fn sources(&self, program: &StackProgram) -> Result<PathBuf> {
        let Source::Package(package) = program.source else { return Ok(self.bundled.clone()) };
        let sources = source::package(package)?;
        let prepared = finished(self.shell(program.prepare, &sources).current_dir(&sources));
        prepared.map_err(|why| Missing(format!("cannot prepare the source of {package}: {why}")))?;
        Ok(sources)
    }

    /// Builds a program with a code layout. Returns its file.
    ///
    /// # Errors
    /// [`Missing`] without its source; an error if it cannot be compiled or linked.
    pub fn build(&self, program: &StackProgram, kind: Kind, linker: &str, layout: usize) -> Result<PathBuf> {
        let objects = self.objects(program, kind)?;
        let out = self.place.path().join(format!("{}-{kind:?}-{linker}-{layout}", program.name.replace(' ', "-")));
        // The layouts are spread over 256 bytes, so that all alignments occur.
        let padding = format!(".text\n.skip {}, 0x90\n.section .note.GNU-stack, \"\", @progbits\n", layout * 53 % 256);
        let before = self.place.path().join("padding.s");
        std::fs::write(&before, padding)?;
        let words = format!(
            "exec {} {} -fuse-ld={linker} -pthread -o \"$OUT\" \"$PADDING\" \"$OBJECTS\"/*.o {} -lm",
            self.compiler(kind),
            kind.options(),
            program.link
        );
        let mut link = self.shell(&words, &objects);
        link.env("OUT", &out).env("PADDING", &before).env("OBJECTS", &objects);
        finished(&mut link).map_err(|why| anyhow::anyhow!("cannot link {}: {why}", program.name))?;
        Ok(out)
    }

    fn compiler(&self, kind: Kind) -> String {
        if kind == Kind::Blocks { format!("'{}'", self.driver.display()) } else { "gcc".to_owned() }
    }

    /// The directory of a program's objects. Compiles them if the cache has none.
    fn objects(&self, program: &StackProgram, kind: Kind) -> Result<PathBuf> {
        let words = format!("exec {} {} -O2 -pthread -w -c {}", self.compiler(kind), kind.options(), program.compile);
        let sources = self.sources(program)?;
        // Objects of bundled sources are not cached, because another version may have other
        // sources.
        let (bundled, cached) = (self.place.path().to_owned(), super::cache()?.join("objects"));
        let place = if program.source == Source::Bundled { bundled } else { cached };
        let objects = place.join(format!("{}-{kind:?}-{:016x}", program.name.replace(' ', "-"), self.key(&words)?));
        if objects.exists() {
            return Ok(objects);
        }
        std::fs::create_dir_all(&place)?;
        let made = tempfile::tempdir_in(&place)?;
        finished(self.shell(&words, &sources).current_dir(&made))
            .map_err(|why| anyhow::anyhow!("cannot compile {}: {why}", program.name))?;
        // Another process may have created the same objects.
        if let Err(error) = std::fs::rename(made.path(), &objects)
            && !objects.exists()
        {
            return Err(error).with_context(|| format!("cannot create {}", objects.display()));
        }
        Ok(objects)
    }

    /// A hash of the dependencies of objects, without their sources.
    fn key(&self, words: &str) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        (words, &self.compiler, std::fs::read(&self.driver)?).hash(&mut hasher);
        Ok(hasher.finish())
    }
}

/// Runs a command to its end.
///
/// # Errors
/// If it fails; the error has its last three lines.
fn finished(command: &mut Command) -> Result<()> {
    let output = command.output().context("cannot start sh")?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = errors.lines().rev().take(3).collect();
        bail!("{}; {}", last.into_iter().rev().collect::<Vec<_>>().join("; "), output.status);
    }
    Ok(())
}
