//! The files that a process has loaded, and the bias between addresses in memory and in the file.
//!
//! ```text
//!   mapping   7f12_3400_0000  offset 0        libx.so
//!             7f12_3400_1000  offset 0x1000   libx.so
//!             7f12_3400_3000  offset 0x2df0   libx.so
//!             7f12_3400_5000  anonymous              bss, the end of the last segment
//!
//!   address in memory = address in the file + bias
//!   bias              = start of the first mapping − address of its offset in the file
//! ```
//! If this user may, a file is opened through `/proc/PID`: it may be deleted, or in another
//! namespace.

use std::fs::File;
use std::path::{Path, PathBuf};

use fieldstone_sys::smaps::Mapping;

use super::image::ElfImage;
use super::maps::Maps;

const PAGE_BYTES: u64 = 4096;
const DELETED: &str = " (deleted)";

/// The files, ordered by address.
#[derive(Debug, Default)]
pub(super) struct LoadedModules(Vec<LoadedModule>);

/// A loaded file.
#[derive(Debug)]
pub(super) struct LoadedModule {
    /// The base name of the file.
    pub(super) name: String,
    /// Distance from addresses in the file to addresses in memory.
    pub(super) bias: u64,
    pub(super) image: ElfImage,
    /// Start and inode of the first mapping.
    mapping: (u64, u64),
}

impl LoadedModules {
    /// The files of process `pid` that contain code. Files that are in `before` are not opened
    /// again.
    pub(super) fn of(pid: u32, maps: &Maps, before: Self) -> Self {
        let mut before = before.0;
        let mut modules = Vec::new();
        for group in groups(&maps.0) {
            let Some(first) = group.first() else { continue };
            if !group.iter().any(|mapping| mapping.permissions.execute) {
                continue;
            }
            let mapping = (first.start, first.inode);
            let name = base_name(&first.name);
            let known =
                before.iter().position(|module: &LoadedModule| module.mapping == mapping && module.name == name);
            match known {
                Some(index) => modules.push(before.swap_remove(index)),
                None => modules.extend(load(pid, first, name)),
            }
        }
        Self(modules)
    }

    /// The file whose segments contain an address (bss included), and its index.
    pub(super) fn at(&self, address: u64) -> Option<(usize, &LoadedModule)> {
        self.0.iter().enumerate().find(|(_, module)| {
            let file_address = address.wrapping_sub(module.bias);
            module.image.segments.iter().any(|segment| segment.addresses.contains(&file_address))
        })
    }

    pub(super) fn get(&self, number: usize) -> Option<&LoadedModule> {
        self.0.get(number)
    }

    /// The files with this base name, with or without a version suffix; all files for `None`.
    pub(super) fn with_name<'a>(&'a self, name: Option<&'a str>) -> impl Iterator<Item = &'a LoadedModule> {
        let matches = move |module: &&LoadedModule| {
            name.is_none_or(|name| {
                module.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        self.0.iter().filter(matches)
    }

    /// The file with this path, as `/proc/PID/maps` and `/proc/PID/exe` show it.
    pub(super) fn program(&self, maps: &Maps, path: &Path) -> Option<&LoadedModule> {
        let has_path = |mapping: &&Mapping| Path::new(&mapping.name) == path;
        let first = maps.0.iter().find(has_path)?;
        self.0.iter().find(|module| module.mapping == (first.start, first.inode))
    }
}

/// The mappings of each loaded file. A file that is loaded twice has two groups: offsets grow in a
/// group.
fn groups(mappings: &[Mapping]) -> Vec<Vec<&Mapping>> {
    let mut groups: Vec<Vec<&Mapping>> = Vec::new();
    let files = mappings.iter().filter(|mapping| mapping.inode != 0 && mapping.name.starts_with('/'));
    for mapping in files {
        let is_same_file =
            |last: &&Mapping| last.inode == mapping.inode && last.name == mapping.name && last.offset <= mapping.offset;
        match groups.last_mut() {
            Some(group) if group.last().is_some_and(is_same_file) => group.push(mapping),
            _ => groups.push(vec![mapping]),
        }
    }
    groups
}

fn load(pid: u32, first: &Mapping, name: String) -> Option<LoadedModule> {
    let (file, path) = open(pid, first)?;
    let image = ElfImage::open(file, &path)?;
    let page_start = |address: u64| address - address % PAGE_BYTES;
    let segment = image.segments.iter().find(|segment| {
        let from = page_start(segment.offset);
        (from..segment.offset.saturating_add(segment.file_bytes)).contains(&first.offset)
    })?;
    let file_address = page_start(segment.addresses.start).checked_add(first.offset - page_start(segment.offset))?;
    Some(LoadedModule {
        name,
        bias: first.start.wrapping_sub(file_address),
        image,
        mapping: (first.start, first.inode),
    })
}

/// The file of a mapping, and its path for files that it refers to.
fn open(pid: u32, mapping: &Mapping) -> Option<(File, PathBuf)> {
    let path = Path::new(mapping.name.trim_end_matches(DELETED));
    let inside = PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").ok()?);
    let by_kernel = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end));
    let deleted = mapping.name.ends_with(DELETED);
    let by_path = [inside.clone(), path.to_owned()].into_iter().filter(|_| !deleted);
    let mut opened = std::iter::once(by_kernel).chain(by_path).filter_map(|path| {
        // Opening a device may have side effects.
        std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
        File::open(path).ok()
    });
    Some((opened.next()?, inside))
}

fn base_name(path: &str) -> String {
    let path = path.trim_end_matches(DELETED);
    path.rsplit('/').next().unwrap_or(path).to_owned()
}
