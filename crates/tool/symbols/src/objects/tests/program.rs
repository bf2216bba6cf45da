//! Builds and starts the test program, and parses its output.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fieldstone_rewrite::Registers;
use fieldstone_sys::sampling::Sampler;
use tempfile::TempDir;

use crate::objects::Objects;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/objects/tests/program.c");
const LIBRARY: &str = "struct pair { int left, right; } shared_table[5] = {{1, 2}};\n";

/// The installed compilers.
pub(super) fn compilers() -> Vec<&'static str> {
    let is_installed =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    ["cc", "clang"].into_iter().filter(is_installed).collect()
}

/// The running program, and its output: name, address and size.
pub(super) struct TestProgram {
    child: Child,
    reported: Vec<(String, u64, u64)>,
    directory: TempDir,
}

impl Drop for TestProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles a source. False if static libraries are missing; any other failure panics.
pub(super) fn build(compiler: &str, options: &str, source: &Path, output: &Path) -> bool {
    let mut command = Command::new(compiler);
    command.args(options.split_whitespace()).arg("-pthread").arg("-o").arg(output).arg(source);
    let built = command.output().unwrap();
    if !built.status.success() {
        let reported = String::from_utf8_lossy(&built.stderr);
        assert!(options.contains("-static"), "{compiler} {options}: {reported}");
        println!("SKIP {compiler} {options}: {}", reported.lines().last().unwrap_or(""));
    }
    built.status.success()
}

/// Converts the registers of a sample.
fn registers(sampled: &fieldstone_sys::sampling::SampledRegisters) -> Registers {
    let fieldstone_sys::sampling::SampledRegisters { gpr, rip, rflags, fs_base, gs_base } = *sampled;
    Registers { gpr, rip, rflags, fs_base, gs_base }
}

/// At least `least` samples of the running threads; `None` if the process may not be sampled.
pub(super) fn samples(pid: u32, least: usize) -> Option<Vec<Registers>> {
    let mut sampler = match Sampler::open(pid, 1000) {
        Ok(sampler) => sampler,
        Err(why) => {
            println!("SKIP another process cannot be sampled here: {why}");
            return None;
        }
    };
    let (mut taken, start) = (Vec::new(), Instant::now());
    while taken.len() < least {
        assert!(start.elapsed() < Duration::from_secs(60), "no samples: {taken:?}");
        std::thread::sleep(Duration::from_millis(5));
        sampler.drain(&mut taken).unwrap();
    }
    Some(taken.iter().map(|sample| registers(&sample.registers)).collect())
}

impl TestProgram {
    /// Builds and starts the program, and waits for the end of its output. `None` if it cannot be
    /// built.
    pub(super) fn start(compiler: &str, options: &str, arguments: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        let mut options = options.to_owned();
        if !options.contains("-static") {
            let (source, library) = (directory.path().join("shared.c"), directory.path().join("libshared.so"));
            std::fs::write(&source, LIBRARY).unwrap();
            build(compiler, &format!("{options} -shared -fPIC").replace("-no-pie", ""), &source, &library)
                .then_some(())?;
            options = format!("{options} -DLIBRARY=\"{}\"", library.display());
        }
        build(compiler, &options, Path::new(SOURCE), &program).then_some(())?;
        let mut child =
            Command::new(&program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let reported = lines.map(|line| parse(&line)).take_while(|(name, ..)| name != "end").collect();
        Some(Self { child, reported, directory })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn objects(&self) -> Objects {
        Objects::open(self.pid()).unwrap()
    }

    pub(super) fn file(&self) -> PathBuf {
        self.directory.path().join("program")
    }

    /// All addresses and sizes with this name.
    pub(super) fn all(&self, name: &str) -> Vec<(u64, u64)> {
        let named = self.reported.iter().filter(|(reported, ..)| reported == name);
        named.map(|&(_, address, bytes)| (address, bytes)).collect()
    }

    /// The first address and size with this name.
    pub(super) fn reported(&self, name: &str) -> (u64, u64) {
        *self.all(name).first().unwrap_or_else(|| panic!("{name} is missing in the output: {:?}", self.reported))
    }
}

fn parse(line: &str) -> (String, u64, u64) {
    let mut words = line.rsplitn(3, ' ');
    let bytes = words.next().unwrap().parse().unwrap();
    let address = words.next().unwrap().trim_start_matches("0x");
    let address = if address == "(nil)" { 0 } else { u64::from_str_radix(address, 16).unwrap() };
    (words.next().unwrap().to_owned(), address, bytes)
}
