//! The files that a process runs: where each is loaded, and which of its addresses an address in memory is.
//!
//! ```text
//!   mapping   7f12_3400_0000  offset 0        libx.so        address in memory = address in the file + bias
//!             7f12_3400_1000  offset 0x1000   libx.so        the bias is where the first mapping is, less where the
//!             7f12_3400_3000  offset 0x2df0   libx.so          file wants its first byte
//!             7f12_3400_5000  anonymous                      the end of its last segment (bss) has no file behind it
//! ```
//! A file is opened as the kernel has it, through `/proc/PID`, where this user may: it may be in another namespace, or deleted.

use std::fs::File;
use std::path::{Path, PathBuf};

use fieldstone_sys::smaps::Mapping;

use super::image::Image;
use super::maps::Maps;

const PAGE_BYTES: u64 = 4096;
const DELETED: &str = " (deleted)";

/// The files, by address.
#[derive(Debug, Default)]
pub(super) struct Modules(Vec<Module>);

/// A file in memory.
#[derive(Debug)]
pub(super) struct Module {
    /// The name of its file.
    pub(super) name: String,
    pub(super) bias: u64,
    pub(super) image: Image,
    mapping: (u64, u64),
}

impl Modules {
    /// Those of process `pid` that have code. `before` is what is known already.
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
            let known = before.iter().position(|module: &Module| module.mapping == mapping && module.name == name);
            match known {
                Some(place) => modules.push(before.swap_remove(place)),
                None => modules.extend(load(pid, first, name)),
            }
        }
        Self(modules)
    }

    /// The file that an address belongs to, its bss too; its number among them.
    pub(super) fn at(&self, address: u64) -> Option<(usize, &Module)> {
        self.0.iter().enumerate().find(|(_, module)| {
            let own = address.wrapping_sub(module.bias);
            module.image.segments.iter().any(|segment| segment.addresses.contains(&own))
        })
    }

    pub(super) fn get(&self, number: usize) -> Option<&Module> {
        self.0.get(number)
    }

    /// Those whose file has this name, with or without a version behind it; all where there is none.
    pub(super) fn called<'a>(&'a self, name: Option<&'a str>) -> impl Iterator<Item = &'a Module> {
        let is = move |module: &&Module| {
            name.is_none_or(|name| {
                module.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        self.0.iter().filter(is)
    }

    /// The one whose file is `path`, as the kernel tells both.
    pub(super) fn program(&self, maps: &Maps, path: &Path) -> Option<&Module> {
        let named = |mapping: &&Mapping| Path::new(&mapping.name) == path;
        let first = maps.0.iter().find(named)?;
        self.0.iter().find(|module| module.mapping == (first.start, first.inode))
    }
}

/// The mappings of each file, as often as it is loaded: offsets in it only grow.
fn groups(mappings: &[Mapping]) -> Vec<Vec<&Mapping>> {
    let mut groups: Vec<Vec<&Mapping>> = Vec::new();
    let files = mappings.iter().filter(|mapping| mapping.inode != 0 && mapping.name.starts_with('/'));
    for mapping in files {
        let same =
            |last: &&Mapping| last.inode == mapping.inode && last.name == mapping.name && last.offset <= mapping.offset;
        match groups.last_mut() {
            Some(group) if group.last().is_some_and(same) => group.push(mapping),
            _ => groups.push(vec![mapping]),
        }
    }
    groups
}

fn load(pid: u32, first: &Mapping, name: String) -> Option<Module> {
    let (file, path) = open(pid, first)?;
    let image = Image::open(file, &path)?;
    let down = |address: u64| address - address % PAGE_BYTES;
    let starts_here = image.segments.iter().find(|segment| {
        let from = down(segment.offset);
        (from..segment.offset.saturating_add(segment.file_bytes)).contains(&first.offset)
    })?;
    let wanted = down(starts_here.addresses.start).checked_add(first.offset - down(starts_here.offset))?;
    Some(Module { name, bias: first.start.wrapping_sub(wanted), image, mapping: (first.start, first.inode) })
}

/// The file of a mapping, and a path beside which its neighbours are.
fn open(pid: u32, mapping: &Mapping) -> Option<(File, PathBuf)> {
    let path = Path::new(mapping.name.trim_end_matches(DELETED));
    let inside = PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").ok()?);
    let by_kernel = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end));
    let deleted = mapping.name.ends_with(DELETED);
    let by_path = [inside.clone(), path.to_owned()].into_iter().filter(|_| !deleted);
    let mut opened = std::iter::once(by_kernel).chain(by_path).filter_map(|path| {
        // A device may do anything when it is opened.
        std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
        File::open(path).ok()
    });
    Some((opened.next()?, inside))
}

fn base_name(path: &str) -> String {
    let path = path.trim_end_matches(DELETED);
    path.rsplit('/').next().unwrap_or(path).to_owned()
}
