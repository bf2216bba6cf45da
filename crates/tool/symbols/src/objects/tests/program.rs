//! The program, built and started.

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

/// The compilers that are there.
pub(super) fn compilers() -> Vec<&'static str> {
    let there = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    ["cc", "clang"].into_iter().filter(there).collect()
}

/// The program that runs, and what it said.
pub(super) struct Running {
    child: Child,
    said: Vec<(String, u64, u64)>,
    room: TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds a source; false where the compiler cannot (static libraries may be missing).
pub(super) fn build(compiler: &str, options: &str, source: &Path, output: &Path) -> bool {
    let mut command = Command::new(compiler);
    command.args(options.split_whitespace()).arg("-pthread").arg("-o").arg(output).arg(source);
    let built = command.output().unwrap();
    if !built.status.success() {
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(options.contains("-static"), "{compiler} {options}: {said}");
        println!("SKIP {compiler} {options}: {}", said.lines().last().unwrap_or(""));
    }
    built.status.success()
}

/// A sample's registers as those who rewrite code have them.
fn registers(sampled: &fieldstone_sys::sampling::Registers) -> Registers {
    let fieldstone_sys::sampling::Registers { gpr, rip, rflags, fs_base, gs_base } = *sampled;
    Registers { gpr, rip, rflags, fs_base, gs_base }
}

/// Registers of the threads of a process that run, some of each; none where it may not be sampled.
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

impl Running {
    /// Builds and starts the program, and waits until it has said everything.
    pub(super) fn start(compiler: &str, options: &str, arguments: &[&str]) -> Option<Self> {
        let room = tempfile::tempdir().unwrap();
        let program = room.path().join("program");
        let mut options = options.to_owned();
        if !options.contains("-static") {
            let (source, library) = (room.path().join("shared.c"), room.path().join("libshared.so"));
            std::fs::write(&source, LIBRARY).unwrap();
            build(compiler, &format!("{options} -shared -fPIC").replace("-no-pie", ""), &source, &library)
                .then_some(())?;
            options = format!("{options} -DLIBRARY=\"{}\"", library.display());
        }
        build(compiler, &options, Path::new(SOURCE), &program).then_some(())?;
        let mut child =
            Command::new(&program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let said = lines.map(|line| parse(&line)).take_while(|(name, ..)| name != "end").collect();
        Some(Self { child, said, room })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn objects(&self) -> Objects {
        Objects::of(self.pid()).unwrap()
    }

    pub(super) fn file(&self) -> PathBuf {
        self.room.path().join("program")
    }

    /// All addresses and sizes that were said under a name.
    pub(super) fn all(&self, name: &str) -> Vec<(u64, u64)> {
        let named = self.said.iter().filter(|(said, ..)| said == name);
        named.map(|&(_, address, bytes)| (address, bytes)).collect()
    }

    /// The first.
    pub(super) fn said(&self, name: &str) -> (u64, u64) {
        *self.all(name).first().unwrap_or_else(|| panic!("nothing was said of {name}: {:?}", self.said))
    }
}

fn parse(line: &str) -> (String, u64, u64) {
    let mut words = line.rsplitn(3, ' ');
    let bytes = words.next().unwrap().parse().unwrap();
    let address = words.next().unwrap().trim_start_matches("0x");
    let address = if address == "(nil)" { 0 } else { u64::from_str_radix(address, 16).unwrap() };
    (words.next().unwrap().to_owned(), address, bytes)
}
