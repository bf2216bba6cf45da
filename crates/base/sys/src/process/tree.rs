//! The descendants of a process.
//!
//! `/proc/PID/task/TID/children` lists the children of each thread (some kernels lack the file);
//! otherwise the parents of all processes are read. Neither is a snapshot. When a process ends
//! during the listing, its children move to init or a subreaper and are missed. A supervisor should
//! therefore be a subreaper and list *its own* descendants.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::stat;
use crate::{Error, Result};

/// The children of a process, unordered.
///
/// # Errors
/// [`Error::NoSuchProcess`] when it has ended and been reaped; [`Error::File`] if `/proc` cannot be
/// listed.
pub fn children(pid: u32) -> Result<Vec<u32>> {
    stat(pid)?;
    match listed_children(pid) {
        Some(children) => Ok(children),
        None => Ok(by_parent()?.remove(&pid).unwrap_or_default()),
    }
}

/// The present threads of a process, unordered.
///
/// # Errors
/// As [`children`].
pub fn threads(pid: u32) -> Result<Vec<u32>> {
    let path = PathBuf::from(format!("/proc/{pid}/task"));
    let entries = fs::read_dir(&path).map_err(|source| Error::process_file(pid, "list", &path, source))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// All descendants of `root`, parents before their children, without `root`.
///
/// # Errors
/// As [`children`], for `root` only; descendants that end meanwhile are skipped.
pub fn descendants(root: u32) -> Result<Vec<u32>> {
    stat(root)?;
    let scanned = if listed_children(root).is_none() { Some(by_parent()?) } else { None };
    let children_of = |pid: u32| match &scanned {
        Some(tree) => tree.get(&pid).cloned().unwrap_or_default(),
        None => listed_children(pid).unwrap_or_default(),
    };
    let mut found = children_of(root);
    let mut next = 0;
    while next < found.len() {
        for child in children_of(found[next]) {
            // A child whose parent changed during the listing appears twice.
            if child != root && !found.contains(&child) {
                found.push(child);
            }
        }
        next += 1;
    }
    Ok(found)
}

/// From the kernel's list; `None` without such a list, or when the process has ended.
fn listed_children(pid: u32) -> Option<Vec<u32>> {
    let mut children = Vec::new();
    let mut kept = false;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        if let Ok(list) = fs::read_to_string(task.path().join("children")) {
            kept = true;
            children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    kept.then_some(children)
}

/// From the parents of all processes.
fn by_parent() -> Result<BTreeMap<u32, Vec<u32>>> {
    let mut tree: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").map_err(|source| Error::file("list", "/proc", source))?;
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Ok(process) = stat(pid) {
            tree.entry(process.ppid).or_default().push(pid);
        }
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn both_methods_find_children_and_grandchildren() {
        // A shell with a sleeping child; its output says that the child exists.
        let mut shell =
            Command::new("sh").args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        let us = std::process::id();

        assert!(children(us).unwrap().contains(&shell.id()));
        assert!(!children(us).unwrap().contains(&grandchild));
        let all = descendants(us).unwrap();
        let place = |pid| all.iter().position(|found| *found == pid).unwrap();
        assert!(place(shell.id()) < place(grandchild));
        assert_eq!(descendants(shell.id()).unwrap(), [grandchild]);
        assert_eq!(by_parent().unwrap()[&shell.id()], [grandchild]);

        let grandchild_pid = rustix::process::Pid::from_raw(i32::try_from(grandchild).unwrap()).unwrap();
        rustix::process::kill_process(grandchild_pid, rustix::process::Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert!(matches!(descendants(shell.id()), Err(Error::NoSuchProcess { .. })));
    }
}
