//! The machine: CPU, memory, kernel, libc, hypervisor, container.
#![allow(unsafe_code, reason = "gnu_get_libc_version returns a C string")]

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::kernel_file;

/// The machine that this process runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// The kernel's release, as in `uname -r`.
    pub kernel: String,
    /// `x86_64`, `aarch64`, ... as in `uname -m`.
    pub architecture: String,
    /// The CPU's name, or its implementer and part numbers if it has none.
    pub cpu: String,
    /// CPUs that this process may run on.
    pub cpus: usize,
    /// Total memory.
    pub memory_bytes: u64,
    /// Memory available without swapping.
    pub memory_available_bytes: u64,
    /// Base page size.
    pub page_bytes: u64,
    /// Whether page tables have five levels, which adds one step to a walk.
    pub five_level_tables: bool,
    /// The C library's version; `None` unless built for glibc.
    pub glibc: Option<String>,
    /// Whether a hypervisor was detected; page walks then include its tables.
    pub virtual_machine: bool,
    /// The container's kind, if detected: `docker`, `podman`, ...
    pub container: Option<String>,
    /// Whether this process is root in its user namespace.
    pub root: bool,
}

/// Reads the machine's properties.
#[must_use]
pub fn machine() -> Machine {
    let name = rustix::system::uname();
    let cpuinfo = kernel_file::text("/proc/cpuinfo").unwrap_or_default();
    let meminfo = kernel_file::text("/proc/meminfo").unwrap_or_default();
    let flags = kernel_file::field(&cpuinfo, "flags").unwrap_or_default();
    let has_flag = |name| flags.split(' ').any(|flag| flag == name);
    Machine {
        kernel: name.release().to_string_lossy().into_owned(),
        architecture: name.machine().to_string_lossy().into_owned(),
        cpu: cpu_name(&cpuinfo),
        cpus: cpus_allowed(),
        memory_bytes: kernel_file::field_bytes(&meminfo, "MemTotal").unwrap_or(0),
        memory_available_bytes: kernel_file::field_bytes(&meminfo, "MemAvailable").unwrap_or(0),
        page_bytes: rustix::param::page_size() as u64,
        five_level_tables: has_flag("la57"),
        glibc: glibc_version(),
        // The flag is x86's; elsewhere a hypervisor usually appears in the device tree or firmware
        // tables.
        virtual_machine: has_flag("hypervisor") || Path::new("/proc/device-tree/hypervisor").exists(),
        container: container(),
        root: rustix::process::geteuid().is_root(),
    }
}

fn cpu_name(cpuinfo: &str) -> String {
    let field = |name| kernel_file::field(cpuinfo, name);
    match (field("model name"), field("CPU implementer"), field("CPU part")) {
        (Some(name), _, _) => name.to_owned(),
        (None, Some(implementer), Some(part)) => format!("implementer {implementer} part {part}"),
        _ => "unknown".to_owned(),
    }
}

fn cpus_allowed() -> usize {
    // The set of rustix holds 1024 CPUs. On a larger machine the call fails with EINVAL; the
    // standard library then supplies the number.
    rustix::thread::sched_getaffinity(None)
        .map_or_else(|_| std::thread::available_parallelism().map_or(1, usize::from), |set| set.count() as usize)
}

#[cfg(target_env = "gnu")]
fn glibc_version() -> Option<String> {
    // SAFETY: the function takes no argument and returns a pointer to a constant, zero-terminated
    // string of the library.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    Some(version.to_string_lossy().into_owned())
}

#[cfg(not(target_env = "gnu"))]
fn glibc_version() -> Option<String> {
    None
}

/// Detected by the file that Docker creates, the one that Podman creates, and the variable of
/// systemd's container interface.
fn container() -> Option<String> {
    if Path::new("/.dockerenv").exists() {
        return Some("docker".to_owned());
    }
    if Path::new("/run/.containerenv").exists() {
        return Some("podman".to_owned());
    }
    // Readable by root only.
    let environment = fs::read("/proc/1/environ").ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let kind = variables.find_map(|variable| variable.strip_prefix(b"container="))?;
    Some(String::from_utf8_lossy(kind).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_without_a_name_is_identified_by_its_numbers() {
        assert_eq!(cpu_name("processor : 0\nmodel name\t: Zen 4\n"), "Zen 4");
        assert_eq!(cpu_name("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n"), "implementer 0x41 part 0xd40");
        assert_eq!(cpu_name(""), "unknown");
    }

    #[test]
    fn this_machine_is_plausible() {
        let found = machine();
        assert_eq!(found.architecture, std::env::consts::ARCH);
        assert!(found.kernel.starts_with(|first: char| first.is_ascii_digit()));
        // A control group's quota lowers only the second.
        assert!(found.cpus >= std::thread::available_parallelism().unwrap().get());
        assert!(found.memory_available_bytes > 0 && found.memory_available_bytes <= found.memory_bytes);
        assert!(found.page_bytes.is_power_of_two());
        assert_eq!(found.glibc.is_some(), cfg!(target_env = "gnu"));
    }
}
