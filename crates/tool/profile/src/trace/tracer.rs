//! Start a program under QEMU user mode with the tracing plugin.
//!
//! QEMU translates each instruction of the program, so the program runs several times slower.
//! Floating-point arithmetic is slower still, because QEMU computes it in software.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use fieldstone_launch::agent::AgentFile;
use fieldstone_launch::launch::{Injection, Treatment};
use fieldstone_launch::program::Program;
use fieldstone_wire::{Cause, Remedy};

use super::{SharedRecords, SharedSites, executable};
use crate::error::{Error, Result};

const QEMU: &str = "qemu-x86_64";
const INSTALL: Remedy<&str> = Remedy(Some("sudo apt-get install qemu-user (on Debian)"));
/// QEMU versions with the plugin interface that the plugin uses.
const VERSIONS: std::ops::RangeInclusive<u32> = 6..=8;

/// The installed QEMU and the plugin.
#[derive(Clone, Debug)]
pub struct QemuTracer {
    qemu: PathBuf,
    version: String,
    plugin: AgentFile,
    /// The library that records allocation sites; it is preloaded into the program.
    recorder: Option<AgentFile>,
}

impl QemuTracer {
    /// Finds QEMU in `PATH`.
    ///
    /// # Errors
    /// [`Error::Tracer`] if there is no QEMU, or none that supports the plugin.
    pub fn find(plugin: AgentFile, recorder: Option<AgentFile>) -> Result<Self> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(Error::Tracer { why: "the plugin is for x86-64 machines".to_owned() });
        }
        let found = Program::find(&[QEMU.into()]);
        let absent = |_| Error::Tracer { why: format!("there is no {QEMU} in the path{INSTALL}") };
        let qemu = found.map_err(absent)?.file;
        let version = version(&qemu)?;
        Ok(Self { qemu, version, plugin, recorder })
    }

    /// Name and version, for a report.
    #[must_use]
    pub fn description(&self) -> String {
        format!("QEMU {}, user mode", self.version)
    }

    /// The treatment that runs `program` under QEMU and traces it into `records`.
    ///
    /// # Errors
    /// [`Error::Tracer`] if QEMU cannot run the program.
    pub(crate) fn treatment(&self, program: &Program, records: &SharedRecords) -> Result<Treatment> {
        let (file, arguments) = executable::resolve(program)?;
        let mut plugin = self.plugin.path().as_os_str().to_owned();
        plugin.push(",session=");
        plugin.push(records.trace.path());
        let name = program.command.first().cloned().unwrap_or_default();
        // Without `-cpu max`, programs built for newer processors than baseline x86-64 would crash.
        let mut words: Vec<OsString> = vec![QEMU.into(), "-cpu".into(), "max".into(), "-plugin".into(), plugin];
        if file == program.file {
            words.extend(["-0".into(), name]);
        }
        for entry in self.preload_variables(records.sites.as_ref().map(SharedSites::path)) {
            words.extend(["-E".into(), entry]);
        }
        words.push(file.into());
        words.extend(arguments);
        Ok(Treatment::Emulated { file: self.qemu.clone(), arguments: words })
    }

    /// The injection of the site recorder into a real run, which fills the sites of `records`.
    ///
    /// # Errors
    /// [`Error::Tracer`] without a recorder or without a record for it.
    pub(crate) fn injection(&self, records: &SharedRecords) -> Result<Injection> {
        let (recorder, sites) = (self.recorder.as_ref(), records.sites.as_ref());
        let both = recorder.zip(sites).ok_or_else(|| Error::Tracer { why: "there is no site recorder".to_owned() })?;
        Ok(Injection { library: both.0.path().to_owned(), variable: sites_variable(&both.1.path()) })
    }

    /// The environment of the program for the recorder, as QEMU arguments: QEMU itself must not
    /// load the recorder.
    fn preload_variables(&self, sites: Option<String>) -> Vec<OsString> {
        let theirs = std::env::var_os("LD_PRELOAD").filter(|list| !list.is_empty());
        let ours = sites.as_ref().and(self.recorder.as_ref()).map(|file| file.path().as_os_str().to_owned());
        let all: Vec<OsString> = ours.into_iter().chain(theirs).collect();
        let mut entries = Vec::new();
        if !all.is_empty() {
            let mut entry = OsString::from("LD_PRELOAD=");
            entry.push(all.join(OsStr::new(":")));
            entries.push(entry);
        }
        entries.extend(sites.map(|path| sites_variable(&path)));
        entries
    }
}

/// The environment variable that names the recorder's record.
fn sites_variable(path: &str) -> OsString {
    OsString::from(format!("FIELDSTONE_SITES={path}"))
}

/// The version that QEMU prints, such as `7.2.19`.
fn version(qemu: &Path) -> Result<String> {
    let unusable = |why: String| Error::Tracer { why: format!("{}: {why}", qemu.display()) };
    // Both commands terminate: QEMU prints and exits, without input.
    let output = Command::new(qemu).arg("--version").output().map_err(|error| unusable(Cause(error).to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    let version = version.ok_or_else(|| unusable("it prints no version".to_owned()))?;
    let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    if !VERSIONS.contains(&major) {
        return Err(unusable(format!(
            "version {version} does not support the plugin's interface; versions {} to {} do",
            VERSIONS.start(),
            VERSIONS.end()
        )));
    }
    let help = Command::new(qemu).arg("-help").output().map_err(|error| unusable(Cause(error).to_string()))?;
    if !String::from_utf8_lossy(&help.stdout).contains("-plugin") {
        return Err(unusable(format!("it was built without plugins, as a static QEMU is{INSTALL}")));
    }
    Ok(version.trim_end_matches(['(', ')', ',']).to_owned())
}
