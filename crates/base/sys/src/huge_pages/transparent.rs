//! Transparent huge pages: `/sys/kernel/mm/transparent_hugepage/`.
//!
//! The file `enabled` at the top is the global mode. Each folio size has its own
//! `hugepages-*kB/enabled`, which may say `inherit`. A size is used when *its* mode allows it.
//! Kernels before 6.8 have only the global mode, for the one huge size.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::kernel_file;

const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage";

/// Which memory a folio size is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ThpMode {
    /// All memory.
    Always,
    /// Memory advised by `MADV_HUGEPAGE`.
    Madvise,
    /// No memory.
    Never,
}

impl ThpMode {
    /// The kernel's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        [Self::Always, Self::Madvise, Self::Never].into_iter().find(|mode| mode.name() == word)
    }
}

/// One folio size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FolioMode {
    /// Folio size in bytes.
    pub folio_bytes: u64,
    /// Its mode, with `inherit` resolved.
    pub mode: ThpMode,
    /// Whether the mode is the global one, by `inherit`.
    pub inherited: bool,
}

/// Settings of khugepaged, the daemon that collapses small pages into huge ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Khugepaged {
    /// Whether it compacts memory to allocate them.
    pub defrag: bool,
    /// Pages scanned per pass.
    pub pages_to_scan: u64,
    /// Sleep between passes in milliseconds.
    pub scan_sleep_ms: u64,
    /// Missing pages of a huge range that it may fill when it collapses the rest.
    pub max_missing_pages: u64,
}

/// The settings of transparent huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Transparent {
    /// Bytes that one entry of the page table's second level maps (2 MiB on x86-64); `None` without
    /// such pages.
    pub huge_bytes: Option<u64>,
    /// The global mode; `None` without transparent huge pages.
    pub global: Option<ThpMode>,
    /// How a page fault obtains a huge page: `always`, `defer`, `defer+madvise`, `madvise`,
    /// `never`.
    pub defrag: Option<String>,
    /// The mode of shared memory.
    pub shmem: Option<String>,
    /// Each anonymous folio size, smallest first. On older kernels only the huge one.
    pub folios: Vec<FolioMode>,
    /// The daemon's settings.
    pub khugepaged: Option<Khugepaged>,
}

impl Transparent {
    /// The mode of one folio size; `None` if the kernel does not offer it.
    #[must_use]
    pub fn mode_of(&self, folio_bytes: u64) -> Option<ThpMode> {
        self.folios.iter().find(|folio| folio.folio_bytes == folio_bytes).map(|folio| folio.mode)
    }
}

/// Reads the settings.
#[must_use]
pub fn transparent() -> Transparent {
    transparent_in(Path::new(TRANSPARENT))
}

/// The file that sets the mode of one folio size. It is missing on kernels with only a global mode.
#[must_use]
pub fn mode_path(folio_bytes: u64) -> PathBuf {
    PathBuf::from(format!("{TRANSPARENT}/hugepages-{}kB/enabled", folio_bytes >> 10))
}

/// The file that sets the global mode, which sizes with `inherit` follow.
#[must_use]
pub fn global_mode_path() -> PathBuf {
    Path::new(TRANSPARENT).join("enabled")
}

fn transparent_in(root: &Path) -> Transparent {
    let global = kernel_file::choice(root.join("enabled")).and_then(|word| ThpMode::from_word(&word));
    let huge_bytes = global.and_then(|_| kernel_file::number(root.join("hpage_pmd_size")));
    let mut folios = folio_modes(root, global);
    if let (true, Some(mode), Some(folio_bytes)) = (folios.is_empty(), global, huge_bytes) {
        folios.push(FolioMode { folio_bytes, mode, inherited: true });
    }
    Transparent {
        huge_bytes,
        global,
        defrag: kernel_file::choice(root.join("defrag")),
        shmem: kernel_file::choice(root.join("shmem_enabled")),
        folios,
        khugepaged: khugepaged(&root.join("khugepaged")),
    }
}

fn folio_modes(root: &Path, global: Option<ThpMode>) -> Vec<FolioMode> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut folios: Vec<FolioMode> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let kilobytes: u64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            // The file is missing for a size that only shared memory can use.
            let word = kernel_file::choice(entry.path().join("enabled"))?;
            let inherited = word == "inherit";
            let mode = if inherited { global? } else { ThpMode::from_word(&word)? };
            Some(FolioMode { folio_bytes: kilobytes << 10, mode, inherited })
        })
        .collect();
    folios.sort_unstable_by_key(|folio| folio.folio_bytes);
    folios
}

fn khugepaged(root: &Path) -> Option<Khugepaged> {
    let number = |name: &str| kernel_file::number(root.join(name));
    Some(Khugepaged {
        defrag: number("defrag")? == 1,
        pages_to_scan: number("pages_to_scan")?,
        scan_sleep_ms: number("scan_sleep_millisecs")?,
        max_missing_pages: number("max_ptes_none")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn inherit_is_resolved_and_sizes_are_sorted() {
        let root = tree(&[
            ("enabled", "always [madvise] never\n"),
            ("hpage_pmd_size", "2097152\n"),
            ("defrag", "always defer defer+madvise [madvise] never\n"),
            ("shmem_enabled", "always within_size advise [never] deny force\n"),
            ("hugepages-2048kB/enabled", "always [inherit] madvise never\n"),
            ("hugepages-64kB/enabled", "[always] inherit madvise never\n"),
            ("hugepages-8kB/shmem_enabled", "always [never]\n"),
            ("khugepaged/defrag", "1\n"),
            ("khugepaged/pages_to_scan", "4096\n"),
            ("khugepaged/scan_sleep_millisecs", "10000\n"),
            ("khugepaged/max_ptes_none", "511\n"),
        ]);
        let found = transparent_in(root.path());
        assert_eq!((found.huge_bytes, found.global), (Some(2 << 20), Some(ThpMode::Madvise)));
        assert_eq!((found.defrag.as_deref(), found.shmem.as_deref()), (Some("madvise"), Some("never")));
        assert_eq!(
            found.folios,
            [
                FolioMode { folio_bytes: 64 << 10, mode: ThpMode::Always, inherited: false },
                FolioMode { folio_bytes: 2 << 20, mode: ThpMode::Madvise, inherited: true },
            ]
        );
        assert_eq!((found.mode_of(64 << 10), found.mode_of(8 << 10)), (Some(ThpMode::Always), None));
        let daemon = found.khugepaged.unwrap();
        assert!(daemon.defrag && daemon.pages_to_scan == 4096 && daemon.max_missing_pages == 511);
    }

    #[test]
    fn an_older_kernel_has_the_global_mode_only() {
        let root = tree(&[("enabled", "[always] madvise never\n"), ("hpage_pmd_size", "2097152\n")]);
        let found = transparent_in(root.path());
        assert_eq!((found.mode_of(2 << 20), found.folios.len(), found.khugepaged), (Some(ThpMode::Always), 1, None));
    }

    #[test]
    fn a_kernel_without_them_offers_nothing() {
        assert_eq!(transparent_in(Path::new("/nowhere")), Transparent::default());
    }
}
