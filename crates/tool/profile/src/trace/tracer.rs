//! What traces: QEMU's user mode with our plugin.
//!
//! Every instruction of the program is translated, so it runs several times slower, and arithmetic in floating point
//! much slower still: QEMU computes that in software.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use fieldstone_launch::agent::AgentFile;
use fieldstone_launch::launch::{Injection, Treatment};
use fieldstone_launch::program::Program;

use super::{Records, SharedSites, target};

const QEMU: &str = "qemu-x86_64";
const INSTALL: &str = "install QEMU's user mode (on Debian: apt-get install qemu-user)";
/// The versions whose plugin interface is the one that the plugin speaks.
const VERSIONS: std::ops::RangeInclusive<u32> = 6..=8;

/// QEMU and the plugin, ready to be started.
#[derive(Clone, Debug)]
pub struct Tracer {
    qemu: PathBuf,
    version: String,
    plugin: AgentFile,
    /// Preloaded into the program, to tell who allocates.
    recorder: Option<AgentFile>,
}

impl Tracer {
    /// Looks for QEMU in the path.
    ///
    /// # Errors
    /// [`Error::Tracer`] where there is none, or none that takes the plugin.
    pub fn find(plugin: AgentFile, recorder: Option<AgentFile>) -> Result<Self> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Error::Tracer { why: "the plugin is for x86-64 machines".to_owned() });
        }
        let found = Program::find(&[QEMU.into()]);
        let absent = |_| Error::Tracer { why: format!("there is no {QEMU} in the path: {INSTALL}") };
        let qemu = found.map_err(absent)?.file;
        let version = version(&qemu)?;
        Ok(Self { qemu, version, plugin, recorder })
    }

    /// What traces, for a report.
    #[must_use]
    pub fn words(&self) -> String {
        format!("QEMU {}, user mode", self.version)
    }

    /// `program` under QEMU, traced into `records`.
    ///
    /// # Errors
    /// [`Error::Tracer`] for a program that QEMU cannot run.
    pub(crate) fn treatment(&self, program: &Program, records: &Records) -> Result<Treatment> {
        let (file, arguments) = target::of(program)?;
        let mut plugin = self.plugin.path().as_os_str().to_owned();
        plugin.push(",session=");
        plugin.push(records.trace.path());
        let name = program.command.first().cloned().unwrap_or_default();
        // Without `-cpu max` programs built for newer processors than the first of x86-64 would die.
        let mut words: Vec<OsString> = vec![QEMU.into(), "-cpu".into(), "max".into(), "-plugin".into(), plugin];
        if file == program.file {
            words.extend(["-0".into(), name]);
        }
        for entry in self.preloads(records.sites.as_ref().map(SharedSites::path)) {
            words.extend(["-E".into(), entry]);
        }
        words.push(file.into());
        words.extend(arguments);
        Ok(Treatment::Emulated { file: self.qemu.clone(), arguments: words })
    }

    /// The site recorder, for a real run that fills the sites of `records`.
    ///
    /// # Errors
    /// [`Error::Tracer`] where there is no recorder, or no record for it.
    pub(crate) fn injection(&self, records: &Records) -> Result<Injection> {
        let (recorder, sites) = (self.recorder.as_ref(), records.sites.as_ref());
        let both = recorder.zip(sites).ok_or_else(|| Error::Tracer { why: "there is no site recorder".to_owned() })?;
        Ok(Injection { library: both.0.path().to_owned(), variable: sites_variable(&both.1.path()) })
    }

    /// The program's variables for the recorder: under QEMU they are arguments, so that QEMU itself does not load it.
    fn preloads(&self, sites: Option<String>) -> Vec<OsString> {
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

/// The variable by which the recorder finds its record.
fn sites_variable(path: &str) -> OsString {
    OsString::from(format!("FIELDSTONE_SITES={path}"))
}

/// The version that QEMU tells of itself: `7.2.19`.
fn version(qemu: &Path) -> Result<String> {
    let unusable = |why: String| Error::Tracer { why: format!("{}: {why}", qemu.display()) };
    // Both calls end: QEMU prints and exits, with no input.
    let output = Command::new(qemu).arg("--version").output().map_err(|error| unusable(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    let version = version.ok_or_else(|| unusable("it tells no version".to_owned()))?;
    let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    if !VERSIONS.contains(&major) {
        return Err(unusable(format!(
            "version {version} does not speak the plugin interface that ours does; versions {} to {} do",
            VERSIONS.start(),
            VERSIONS.end()
        )));
    }
    let help = Command::new(qemu).arg("-help").output().map_err(|error| unusable(error.to_string()))?;
    if !String::from_utf8_lossy(&help.stdout).contains("-plugin") {
        return Err(unusable(format!("it was built without plugins: {INSTALL}; a static QEMU takes none")));
    }
    Ok(version.trim_end_matches(['(', ')', ',']).to_owned())
}
