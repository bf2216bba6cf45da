//! The fixture of the tests: the shipped recorder, small programs, and the record of a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::MAGIC;
use fieldstone_wire::sites::{BUILD, LossReason, SITES_VARIABLE, Sites};
use rustix::mm::{MapFlags, ProtFlags};
use tempfile::TempDir;

/// The recorder, built as by the command's build script.
pub(crate) fn recorder() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("recorder");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--profile", "agent", "--package", "fieldstone-agent-sites", "--target-dir"]);
        cargo.arg(&directory).current_dir(env!("CARGO_MANIFEST_DIR"));
        let built = cargo.output().expect("cargo runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        directory.join("agent/libfieldstone_agent_sites.so")
    })
}

/// A directory for the programs of one test.
pub(crate) struct ProgramDirectory(pub(crate) TempDir);

impl ProgramDirectory {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Compiles `programs/SOURCE`. Options are split at spaces; `@` is replaced by this directory.
    pub(crate) fn compile(&self, source: &str, name: &str, options: &str) -> PathBuf {
        let file = self.0.path().join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
        let compiler = if source.extension().is_some_and(|extension| extension == "cpp") { "c++" } else { "cc" };
        let options = options.replace('@', self.0.path().to_str().unwrap());
        let mut command = Command::new(compiler);
        command.args(["-O1", "-pthread", "-w", "-o"]).arg(&file).arg(source).args(options.split_whitespace());
        let output = command.output().unwrap_or_else(|error| panic!("{compiler}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        file
    }
}

/// A record in a file, mapped here and in the programs that get its path.
pub(crate) struct Recording {
    file: tempfile::NamedTempFile,
    sites: &'static Sites,
}

impl Recording {
    pub(crate) fn new() -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut head = MAGIC.to_le_bytes().to_vec();
        head.extend(BUILD.to_le_bytes());
        std::io::Write::write_all(&mut file, &head).unwrap();
        file.as_file().set_len(size_of::<Sites>() as u64).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without an address the kernel picks a free range; the mapping lasts to the end of
        // the process, the file is as long as a record, and all fields that change are atomic.
        let sites = unsafe {
            let mapped = rustix::mm::mmap(std::ptr::null_mut(), size_of::<Sites>(), access, MapFlags::SHARED, &file, 0);
            &*mapped.unwrap().cast::<Sites>()
        };
        Self { file, sites }
    }

    /// A command that runs a program with the recorder.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", recorder()).env(SITES_VARIABLE.to_str().unwrap(), self.file.path());
        command
    }

    /// A command that runs a program in the emulator with the recorder. `None`, printed as a skip,
    /// without the emulator.
    pub(crate) fn emulated(&self, program: &Path) -> Option<Command> {
        let emulator = "qemu-x86_64";
        if Command::new(emulator).arg("--version").output().is_err() {
            println!("SKIP {emulator} is not installed");
            return None;
        }
        let mut command = Command::new(emulator);
        let variables = [
            format!("LD_PRELOAD={}", recorder().display()),
            format!("{}={}", SITES_VARIABLE.to_str().unwrap(), self.file.path().display()),
        ];
        for variable in &variables {
            command.args(["-E", variable]);
        }
        command.arg(program);
        Some(command)
    }

    /// Runs a program, which must succeed.
    pub(crate) fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let output = self.command(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        output
    }

    pub(crate) fn sites(&self) -> &Sites {
        self.sites
    }

    pub(crate) fn lost(&self, why: LossReason) -> u64 {
        self.sites.lost[why as usize].load(Relaxed)
    }

    /// Every site as function names of `file`, innermost first, with allocations and bytes; equal
    /// ones are summed. A frame of another file is `-`.
    pub(crate) fn stacks(&self, file: &Path) -> BTreeMap<String, (u64, u64)> {
        let functions = Functions::of(file);
        let mut stacks = BTreeMap::new();
        for (_, site) in self.sites.sites() {
            let names = site.frames().map(|(address, module)| {
                let module = self.sites.module(module).filter(|module| module.path().eq(path_bytes(file)));
                module.map_or("-", |module| functions.name(address - 1 - module.base.load(Relaxed)))
            });
            let names: Vec<&str> = names.collect();
            let counts: &mut (u64, u64) = stacks.entry(names.join(" ")).or_default();
            counts.0 += site.allocations.load(Relaxed);
            counts.1 += site.bytes.load(Relaxed);
        }
        stacks
    }

    /// Allocations and bytes of all sites whose stack of functions of `file` starts with `stack`.
    pub(crate) fn count(&self, file: &Path, stack: &str) -> (u64, u64) {
        let stacks = self.stacks(file);
        let these = stacks.iter().filter(|(names, _)| format!("{names} ").starts_with(&format!("{stack} ")));
        these.fold((0, 0), |sum, (_, counts)| (sum.0 + counts.0, sum.1 + counts.1))
    }
}

fn path_bytes(path: &Path) -> impl Iterator<Item = u8> {
    let path = fs::canonicalize(path).unwrap();
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec().into_iter()
}

/// The functions of a file, from `nm`, by address.
struct Functions(Vec<(u64, String)>);

impl Functions {
    fn of(file: &Path) -> Self {
        let output = Command::new("nm").arg("-n").arg("--defined-only").arg(file).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let functions = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            (words.next()?.eq_ignore_ascii_case("t")).then_some((address, words.next()?.to_owned()))
        });
        Self(functions.collect())
    }

    fn name(&self, address: u64) -> &str {
        let below = self.0.partition_point(|(start, _)| *start <= address);
        self.0[..below].last().map_or("?", |(_, name)| name)
    }
}
