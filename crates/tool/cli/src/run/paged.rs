//! `fieldstone run --resident`: starts a program with a bound on its resident memory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::bail;
use clap::Args;
use fieldstone_launch::launch::Injection;
use fieldstone_launch::shared_record::SharedRecord;
use fieldstone_launch::{AgentFile, Program};
use fieldstone_report::PagingStats;
use fieldstone_report::paging::{PageStore, PagedProcess};
use fieldstone_wire::paging::{
    DIRECTORY_BYTES, PAGING_VARIABLE, PagingConfig, PagingProcess, PagingSession, STORE_NAMES,
};
use fieldstone_wire::{PageKind, Remedy};

use crate::size;

/// The paging agent, a shared library; empty in a cross build without a linker.
const AGENT: &[u8] = include_bytes!(env!("PAGING_AGENT"));

/// The page size.
const PAGE: u64 = 4096;
/// The smallest bound: below it a program would only wait for its pages.
const LEAST_BOUND: u64 = 4 << 20;

/// The stores of `--page-store`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreList {
    /// `None` without that store; the limit is `None` for a quarter of the bound.
    lz4: Option<Option<u64>>,
    file: Option<PathBuf>,
}

impl FromStr for StoreList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut list = Self::default();
        for store in text.split(',') {
            let (name, value) = store.split_once(':').map_or((store, None), |(name, value)| (name, Some(value)));
            match (name, value) {
                ("lz4", _) if list.lz4.is_some() || list.file.is_some() => {
                    return Err("give lz4 once, before file".to_owned());
                }
                ("lz4", limit) => list.lz4 = Some(limit.map(size::parse).transpose()?),
                ("file", Some(directory)) if list.file.is_none() => list.file = Some(PathBuf::from(directory)),
                ("file", _) => return Err("give file:DIRECTORY once".to_owned()),
                _ => return Err(format!("there is no store {name}: give lz4, lz4:SIZE or file:DIRECTORY")),
            }
        }
        Ok(list)
    }
}

/// The options of `--resident`.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Bound the resident private memory of each process, like 256M; pages above it are compressed,
    /// or written to a file
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["pid", "children"])]
    resident: Option<u64>,
    /// With --resident: where pages go, hottest first: `lz4[:SIZE],file:DIRECTORY`; default: lz4 with
    /// a quarter of the bound, then a file in $TMPDIR
    #[arg(long, value_name = "LIST", requires = "resident")]
    page_store: Option<StoreList>,
}

impl Arguments {
    /// The requested bound.
    pub(super) const fn bound(&self) -> Option<u64> {
        self.resident
    }

    /// Fails if a bound is requested beside a repair.
    pub(super) fn check_without_repair(&self) -> anyhow::Result<()> {
        if self.resident.is_some() {
            bail!(
                "cannot combine --repair with --resident: a repair moves pages with false sharing to other addresses, \
                 and a pager takes them away{}",
                Remedy(Some("fieldstone run --region --resident SIZE -- PROGRAM, or --repair alone"))
            );
        }
        Ok(())
    }

    /// Fails if a bound is requested beside hugetlb pages.
    pub(super) fn check_pages(&self, kind: PageKind) -> anyhow::Result<()> {
        if self.resident.is_some() && matches!(kind, PageKind::Hugetlb2m | PageKind::Hugetlb1g) {
            bail!(
                "cannot combine --pages {kind} with --resident: the kernel moves no hugetlb page out of a program{}",
                Remedy(Some("--pages thp"))
            );
        }
        Ok(())
    }

    /// Prepares a bound for a program; `None` if none is requested.
    pub(super) fn start(&self, program: &Program) -> anyhow::Result<Option<Bound>> {
        if self.resident.is_none() {
            return Ok(None);
        }
        if AGENT.is_empty() || cfg!(not(target_arch = "x86_64")) {
            bail!("cannot bound the memory of a program on this machine: --resident works on x86-64 only");
        }
        let config = self.config()?;
        program.check_pageable()?;
        let record = SharedRecord::<PagingSession>::create_with(|session| session.config = config)?;
        let variable = OsString::from(format!("{}={}", PAGING_VARIABLE.to_string_lossy(), record.path()));
        let library = AgentFile::install("paging", AGENT)?.path().to_owned();
        Ok(Some(Bound { config, record, injection: Injection { library, variable } }))
    }

    fn config(&self) -> anyhow::Result<PagingConfig> {
        let Some(bound_bytes) = self.resident.filter(|&bound| bound >= LEAST_BOUND) else {
            bail!("cannot use a bound of less than 4M{}", Remedy(Some("--resident 4M")));
        };
        let stores = self.page_store.clone();
        let stores = stores.unwrap_or_else(|| StoreList { lz4: Some(None), file: Some(std::env::temp_dir()) });
        let lz4_bytes = stores.lz4.map_or(0, |limit| limit.unwrap_or(bound_bytes / 4));
        let directory = stores.file.as_deref().map_or(Ok([0; DIRECTORY_BYTES]), directory)?;
        Ok(PagingConfig { bound_bytes, lz4_bytes, directory })
    }
}

/// The directory as the record holds it, after a test that a file can be made there.
fn directory(path: &Path) -> anyhow::Result<[u8; DIRECTORY_BYTES]> {
    let shown = path.display();
    let absolute = match std::fs::canonicalize(path) {
        Ok(absolute) if absolute.is_dir() => absolute,
        Ok(_) => bail!("cannot store pages in {shown}: it is no directory"),
        Err(error) => bail!("cannot store pages in {shown}: {}", fieldstone_wire::Cause(&error)),
    };
    let mut bytes = [0; DIRECTORY_BYTES];
    let text = absolute.as_os_str().as_encoded_bytes();
    if text.len() >= DIRECTORY_BYTES {
        bail!("cannot store pages in {shown}: its path is longer than {DIRECTORY_BYTES} bytes");
    }
    bytes[..text.len()].copy_from_slice(text);
    Ok(bytes)
}

/// A run with a bound.
pub(super) struct Bound {
    config: PagingConfig,
    record: SharedRecord<PagingSession>,
    injection: Injection,
}

impl Bound {
    /// What loads the agent into the program.
    pub(super) fn injection(&self) -> Injection {
        self.injection.clone()
    }

    /// The counts of the run, after the program has ended with `outcome`.
    pub(super) fn finish(&self, program: &Program, outcome: String) -> PagingStats {
        PagingStats {
            schema: PagingStats::SCHEMA.to_owned(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            command: program.command_line(),
            bound_bytes: self.config.bound_bytes,
            outcome,
            processes: self.record.record().claimed_processes().map(counts).collect(),
            guard: None,
        }
    }
}

fn counts(process: &PagingProcess) -> PagedProcess {
    let counters = &process.counters;
    let get = |counter: &AtomicU64| counter.load(Relaxed);
    let stores = STORE_NAMES.iter().enumerate().map(|(index, name)| PageStore {
        name: (*name).to_owned(),
        loaded_pages: get(&counters.loaded[index]),
        load_ns: get(&counters.load_ns[index]),
        bytes: get(&counters.store_bytes[index]),
    });
    PagedProcess {
        pid: process.pid.load(Relaxed),
        name: process.name.to_string(),
        refused_errno: process.refused_errno.load(Relaxed),
        peak_resident_bytes: get(&counters.peak_resident) * PAGE,
        unpaged_bytes: get(&process.unpaged) * PAGE,
        evicted_pages: get(&counters.evicted),
        evicted_zero_pages: get(&counters.evicted_zero),
        evicted_unchanged_pages: get(&counters.evicted_unchanged),
        faults: get(&counters.faults),
        first_accesses: get(&counters.first_accesses),
        unmovable_pages: get(&counters.unmovable),
        refused_pages: get(&counters.refused),
        lost_pages: get(&counters.lost),
        children: get(&counters.children),
        stores: stores.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_stores_are_parsed() {
        let both = StoreList { lz4: Some(Some(1 << 30)), file: Some("/var/tmp".into()) };
        assert_eq!("lz4:1G,file:/var/tmp".parse(), Ok(both));
        assert_eq!("lz4".parse(), Ok(StoreList { lz4: Some(None), file: None }));
        for wrong in ["", "file", "zstd", "file:/a,lz4", "lz4,lz4", "lz4:x"] {
            assert!(wrong.parse::<StoreList>().is_err(), "{wrong}");
        }
    }
}
