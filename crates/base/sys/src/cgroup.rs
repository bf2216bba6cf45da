//! The memory limit of this process's control group, v2 or v1.
//!
//! The group's path is in `/proc/self/cgroup`, the mount of its hierarchy in
//! `/proc/self/mountinfo`. In a container the mount often shows only a part of the hierarchy. So
//! the path is taken relative to the mount's root; where it does not exist, the mount itself is the
//! group. Limits of ancestors apply too: the smallest counts. Hugetlb pages are *not* charged to
//! this limit, unless a v2 mount says `memory_hugetlb_accounting`. Source: cgroups(7),
//! admin-guide/cgroup-v2.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::kernel_file;

/// v1 reports "no limit" as the largest number of pages; this and larger values mean unlimited.
const V1_UNLIMITED: u64 = 1 << 60;

/// The state of the memory controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CgroupMemory {
    /// 1 or 2.
    pub version: u8,
    /// The smallest limit of the group and its ancestors; `None` without a limit.
    pub limit_bytes: Option<u64>,
    /// Bytes that the group uses, page cache included.
    pub usage_bytes: Option<u64>,
}

/// The memory controller of this process; `None` without one.
#[must_use]
pub(crate) fn cgroup_memory() -> Option<CgroupMemory> {
    let groups = kernel_file::text("/proc/self/cgroup")?;
    let mounts = kernel_file::text("/proc/self/mountinfo")?;
    memory_of(&groups, &mounts)
}

fn memory_of(groups: &str, mounts: &str) -> Option<CgroupMemory> {
    // v1 first: when both are mounted, one of them has the memory controller, and v2 then has no
    // memory files.
    let v1 = || read(1, &hierarchy(mounts, "cgroup", Some("memory"))?, group(groups, "memory")?);
    let v2 = || read(2, &hierarchy(mounts, "cgroup2", None)?, group(groups, "")?);
    v1().or_else(v2)
}

/// The group's path in the hierarchy of `controller`; the v2 hierarchy names none: `0::/path`.
fn group<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        controllers.split(',').any(|have| have == controller).then_some(path)
    })
}

/// The mount point of a hierarchy, and the part of it that is mounted.
struct Hierarchy {
    mounted_at: PathBuf,
    root: String,
}

/// Parses `36 35 98:0 /part /mounted/at rw - cgroup source rw,memory`.
fn hierarchy(mounts: &str, kind: &str, option: Option<&str>) -> Option<Hierarchy> {
    mounts.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut filesystem = filesystem.split(' ');
        let fits = filesystem.next()? == kind
            && option.is_none_or(|option| {
                filesystem.nth(1).is_some_and(|options| options.split(',').any(|have| have == option))
            });
        let mut fields = mount.split(' ').skip(3);
        let (root, mounted_at) = (fields.next()?, fields.next()?);
        fits.then(|| Hierarchy { mounted_at: mounted_at.into(), root: root.to_owned() })
    })
}

fn read(version: u8, hierarchy: &Hierarchy, group: &str) -> Option<CgroupMemory> {
    let (limit_file, usage_file) = match version {
        1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        _ => ("memory.max", "memory.current"),
    };
    let below_root = Path::new(group).strip_prefix(&hierarchy.root).unwrap_or(Path::new(""));
    let mut own = hierarchy.mounted_at.join(below_root);
    if !own.is_dir() {
        own.clone_from(&hierarchy.mounted_at);
    }
    let above = own.ancestors().take_while(|path| path.starts_with(&hierarchy.mounted_at));
    let limits = above.filter_map(|path| kernel_file::number(path.join(limit_file)));
    let limit_bytes = limits.filter(|limit| *limit < V1_UNLIMITED).min();
    let usage_bytes = kernel_file::number(own.join(usage_file));
    // The v2 root, and a v2 hierarchy without the controller, have neither file.
    (limit_bytes.is_some() || usage_bytes.is_some()).then_some(CgroupMemory { version, limit_bytes, usage_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_smallest_limit_above_a_v2_group_counts() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        write(mount, "a/memory.max", "1000\n");
        write(mount, "a/b/memory.max", "max\n");
        write(mount, "a/b/memory.current", "70\n");
        let mounts =
            format!("1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {} rw,relatime - cgroup2 cgroup2 rw\n", mount.display());
        let found = memory_of("0::/a/b\n", &mounts);
        assert_eq!(found, Some(CgroupMemory { version: 2, limit_bytes: Some(1000), usage_bytes: Some(70) }));
    }

    #[test]
    fn a_container_reads_its_part_of_v1() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        write(mount, "memory.limit_in_bytes", "500\n");
        write(mount, "memory.usage_in_bytes", "7\n");
        let mounts = format!("2 1 0:2 /docker/x {} rw - cgroup cgroup rw,memory\n", mount.display());
        let expected = Some(CgroupMemory { version: 1, limit_bytes: Some(500), usage_bytes: Some(7) });
        assert_eq!(memory_of("4:cpu,memory:/docker/x\n0::/\n", &mounts), expected);
        // The host's path, which this mount does not show.
        assert_eq!(memory_of("4:memory:/elsewhere\n", &mounts), expected);
        write(mount, "memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(memory_of("4:memory:/docker/x\n", &mounts).unwrap().limit_bytes, None);
    }

    #[test]
    fn no_controller_is_none() {
        assert_eq!(memory_of("0::/\n", "2 1 0:2 / /nowhere rw - cgroup2 cgroup2 rw\n"), None);
        assert_eq!(memory_of("", ""), None);
    }
}
