//! Other tools that find memory errors, on one C program: the time of a guarded object, and the
//! cost of a whole program.
//!
//! ```text
//! pairs 1 N 0        malloc, a write, free: one live object
//! pairs 8000 N 0     the same, at random among 8,000 live objects
//! pairs 100 N W      the same with arithmetic: processor time relative to the plain program
//! ```
//! A preloaded tool replaces malloc. `pairs.c` is compiled here, and a second time with
//! AddressSanitizer. The tools guard each object, apart from the two that sample: they have no time
//! for a guarded object.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use fieldstone_stats::median;
use fieldstone_sys::process::wait4;
use tempfile::TempDir;

const SOURCE: &str = include_str!("pairs.c");
/// Printed for a program that a tool ended: Electric Fence and DUMA run out of mappings.
const FAILED: &str = "failed";
/// Runs of each measurement.
const RUNS: usize = 3;
/// Pairs of a run that measures one pair.
const PAIRS: &str = "20000";
/// Arguments of the whole program: about 1.5 s, with 7 µs of arithmetic for each pair.
const WHOLE: [&str; 3] = ["100", "200000", "5000"];

/// How a tool gets into the program.
enum Loading {
    /// A prefix of the command, whose first word is in the directory of this program.
    Prefix(&'static [&'static str]),
    /// A library, by its file name, and the Debian package that has it.
    Preload { library: &'static str, package: &'static str, environment: &'static [(&'static str, &'static str)] },
    /// An option of the compiler.
    Compile(&'static [&'static str]),
}

struct Tool {
    name: &'static str,
    loading: Loading,
    /// Whether it guards a sample only.
    is_sampled: bool,
}

const fn tool(name: &'static str, loading: Loading) -> Tool {
    Tool { name, loading, is_sampled: false }
}

const SCUDO: &str = "libclang_rt.scudo_standalone";

const TOOLS: [Tool; 8] = [
    tool("none", Loading::Compile(&[])),
    tool("run --guard=all", Loading::Prefix(&["fieldstone", "run", "--guard=all", "--"])),
    Tool { is_sampled: true, ..tool("run --guard", Loading::Prefix(&["fieldstone", "run", "--guard", "--"])) },
    tool(
        "GWP-ASan of scudo, each object",
        Loading::Preload {
            library: SCUDO,
            package: "libclang-rt-14-dev",
            environment: &[("SCUDO_OPTIONS", "GWP_ASAN_SampleRate=1:GWP_ASAN_MaxSimultaneousAllocations=9000")],
        },
    ),
    Tool {
        is_sampled: true,
        ..tool(
            "GWP-ASan of scudo, 1 in 5,000",
            Loading::Preload {
                library: SCUDO,
                package: "libclang-rt-14-dev",
                environment: &[("SCUDO_OPTIONS", "GWP_ASAN_SampleRate=5000")],
            },
        )
    },
    tool(
        "Electric Fence",
        Loading::Preload {
            library: "libefence.so",
            package: "electric-fence",
            environment: &[("EF_DISABLE_BANNER", "1")],
        },
    ),
    tool(
        "DUMA",
        Loading::Preload { library: "libduma.so", package: "duma", environment: &[("DUMA_DISABLE_BANNER", "1")] },
    ),
    tool("AddressSanitizer", Loading::Compile(&["-fsanitize=address"])),
];

/// Prints a line for each tool.
pub(super) fn measure() -> anyhow::Result<()> {
    let directory = TempDir::new()?;
    std::fs::write(directory.path().join("pairs.c"), SOURCE)?;
    println!("# {:32} {:>12} {:>12} {:>14}", "malloc, write, free; tool", "1 live", "8,000 live", "whole program");
    let mut plain_s = None;
    for tool in &TOOLS {
        match tool.prepare(directory.path()) {
            Err(error) => println!("# {:32} SKIP {error:#}", tool.name),
            Ok(command) => {
                let us = |live: &str| match tool.is_sampled {
                    true => "-".to_owned(),
                    false => {
                        let us = repeat(|| Ok(command.run(&[live, PAIRS, "0"])?.pair_ns / 1e3));
                        us.map_or(FAILED.to_owned(), |us| format!("{us:.2} µs"))
                    }
                };
                let cpu_s = repeat(|| Ok(command.run(&WHOLE)?.cpu_s));
                let ratio = cpu_s.map(|cpu_s| cpu_s / *plain_s.get_or_insert(cpu_s));
                let ratio = ratio.map_or(FAILED.to_owned(), |ratio| format!("{ratio:.2}"));
                println!("# {:32} {:>12} {:>12} {ratio:>14}", tool.name, us("1"), us("8000"));
            }
        }
    }
    Ok(())
}

fn repeat(run: impl Fn() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let values = (0..RUNS).map(|_| run()).collect::<anyhow::Result<Vec<_>>>()?;
    median(&values).context("a measurement has runs")
}

impl Tool {
    /// Compiles the program and finds the tool.
    fn prepare(&self, directory: &Path) -> anyhow::Result<ToolCommand> {
        let here = std::env::current_exe()?;
        let options = if let Loading::Compile(options) = &self.loading { *options } else { &[] };
        let mut words = Vec::new();
        let mut environment = Vec::new();
        match &self.loading {
            Loading::Prefix(prefix) => {
                let file = here.with_file_name(prefix[0]);
                ensure!(file.exists(), "{} is not built: make build", prefix[0]);
                words.push(file.into_os_string());
                words.extend(prefix[1..].iter().map(OsString::from));
            }
            Loading::Preload { library, package, environment: options } => {
                let file =
                    find_library(library).with_context(|| format!("{package} is not installed: make packages"))?;
                environment.push(("LD_PRELOAD", file.into_os_string()));
                environment.extend(options.iter().map(|(name, value)| (*name, OsString::from(value))));
            }
            Loading::Compile(_) => {}
        }
        words.push(compile(directory, options)?.into_os_string());
        Ok(ToolCommand { words, environment })
    }
}

/// Compiles the program with options; returns its path.
fn compile(directory: &Path, options: &[&str]) -> anyhow::Result<PathBuf> {
    let program = directory.join(format!("pairs{}", options.concat()));
    if program.exists() {
        return Ok(program);
    }
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-O2", "-std=c11", "-D_GNU_SOURCE"]).args(options);
    let output = command.arg(directory.join("pairs.c")).arg("-o").arg(&program).output();
    let output = output.context("there is no C compiler: set CC")?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(program)
}

/// A shared library whose file name begins with `name`, in the folders where Debian has them.
fn find_library(name: &str) -> Option<PathBuf> {
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let lib = Path::new("/usr/lib");
    let of_clang = entries(lib).into_iter().filter(|path| path.join("lib/clang").exists());
    let of_clang = of_clang.flat_map(|path| entries(&path.join("lib/clang"))).map(|path| path.join("lib/linux"));
    let architecture = std::env::consts::ARCH;
    let folders = [lib.to_owned(), lib.join(format!("{architecture}-linux-gnu"))].into_iter().chain(of_clang);
    let is_wanted = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        // The runtime libraries of Clang have the architecture in their names.
        let is_for_here = !file.starts_with("libclang_rt") || file == format!("{name}-{architecture}.so");
        file.starts_with(name) && file.contains(".so") && is_for_here
    };
    folders.flat_map(|folder| entries(&folder)).find(is_wanted)
}

/// The command of a tool, without the arguments of the program.
struct ToolCommand {
    words: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
}

struct ToolRun {
    /// Nanoseconds of a pair, as the program prints them.
    pair_ns: f64,
    /// Processor time of the whole command.
    cpu_s: f64,
}

impl ToolCommand {
    fn run(&self, arguments: &[&str]) -> anyhow::Result<ToolRun> {
        let output = tempfile::NamedTempFile::new()?;
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).args(arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        let child = command.stdin(Stdio::null()).stdout(output.reopen()?).stderr(Stdio::null()).spawn();
        let child = child.with_context(|| format!("cannot start {command:?}"))?;
        // Terminates: the program does a fixed amount of work.
        let ended = wait4(Some(child.id()), true)?.context("the child has ended")?;
        let text = std::fs::read_to_string(output.path())?;
        if !ended.status.success() {
            bail!("{command:?}: {}", ended.status);
        }
        let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
        let pair_ns = first.with_context(|| format!("{command:?} printed {text:?}"))?;
        Ok(ToolRun { pair_ns, cpu_s: (ended.user_ns + ended.system_ns) as f64 * 1e-9 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_prints_the_time_of_a_pair() {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("pairs.c"), SOURCE).unwrap();
        let plain = tool("none", Loading::Compile(&[]));
        let Ok(command) = plain.prepare(directory.path()) else {
            println!("SKIP there is no C compiler");
            return;
        };
        let run = command.run(&["100", "1000", "10"]).unwrap();
        assert!(run.pair_ns > 0.0 && run.cpu_s > 0.0);
        assert!(command.run(&["100"]).is_err(), "arguments are missing");
    }

    #[test]
    fn a_missing_library_names_its_package() {
        let loading = Loading::Preload { library: "libnone.so", package: "no-such-package", environment: &[] };
        let error = tool("none", loading).prepare(Path::new("/")).err().unwrap().to_string();
        assert!(error.contains("no-such-package"), "{error}");
    }
}
