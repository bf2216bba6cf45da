//! Programs of `workloads/src/stacks`, built with a plain stack and with one of blocks.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use tempfile::TempDir;

/// The sources, as they are in the repository.
const SOURCES: [(&str, &str); 5] = [
    ("clock.h", include_str!("../../../workloads/src/stacks/clock.h")),
    ("fib.c", include_str!("../../../workloads/src/stacks/fib.c")),
    ("sum.c", include_str!("../../../workloads/src/stacks/sum.c")),
    ("border.c", include_str!("../../../workloads/src/stacks/border.c")),
    ("coroutines.c", include_str!("../../../workloads/src/stacks/coroutines.c")),
];
const HEADER: &str = include_str!("../../../crates/stacks/include/fieldstone/stacks.h");

/// What a program's stack is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Plain,
    Blocks,
}

/// Where programs are built.
#[derive(Debug)]
pub(crate) struct Builds {
    place: TempDir,
    driver: PathBuf,
}

impl Builds {
    /// The sources in a directory of their own; or why nothing can be built.
    pub(crate) fn find() -> anyhow::Result<Result<Self, String>> {
        let here = std::env::current_exe()?;
        let driver = here.with_file_name("stacks").join("fieldstone-cc");
        if !driver.exists() {
            return Ok(Err("fieldstone-cc is not built: make build makes it where there is a C compiler".into()));
        }
        if Command::new("gcc").arg("--version").output().is_err() {
            return Ok(Err("there is no gcc".into()));
        }
        let place = tempfile::tempdir()?;
        std::fs::create_dir(place.path().join("fieldstone"))?;
        std::fs::write(place.path().join("fieldstone/stacks.h"), HEADER)?;
        for (name, text) in SOURCES {
            std::fs::write(place.path().join(name), text)?;
        }
        Ok(Ok(Self { place, driver }))
    }

    /// Builds a program with its functions at place `layout`.
    pub(crate) fn build(&self, name: &str, options: &[&str], kind: Kind, layout: usize) -> anyhow::Result<PathBuf> {
        let out = self.place.path().join(format!("{name}{}-{kind:?}-{layout}", options.concat()));
        let mut compiler = match kind {
            Kind::Plain => Command::new("gcc"),
            Kind::Blocks => Command::new(&self.driver),
        };
        // Places that are spread over 256 bytes, so that each alignment comes.
        let pad = layout * 53 % 256;
        compiler
            .env("FIELDSTONE_CC", "gcc")
            .arg("-O2")
            .arg(format!("-DPAD=\"{pad}\""))
            .arg("-I")
            .arg(self.place.path());
        let made = compiler.arg("-o").arg(&out).arg(self.place.path().join(name).with_extension("c")).output();
        let made = made.with_context(|| format!("the compiler of {name} cannot be started"))?;
        if !made.status.success() {
            bail!("{name} cannot be built: {}", String::from_utf8_lossy(&made.stderr));
        }
        Ok(out)
    }
}

/// Runs a program; the first number that it prints.
pub(crate) fn run(program: &Path, arguments: &[&str]) -> anyhow::Result<f64> {
    // The plain side has a stack that is large enough for everything here.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -s 1000000; exec \"$0\" \"$@\""]).arg(program).args(arguments);
    let ran = command.output().with_context(|| format!("{} cannot be started", program.display()))?;
    if !ran.status.success() {
        bail!("{} ended with {}: {}", program.display(), ran.status, String::from_utf8_lossy(&ran.stderr));
    }
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    let number = printed.split_whitespace().next().and_then(|word| word.parse().ok());
    number.with_context(|| format!("{} printed no number: {printed}", program.display()))
}
