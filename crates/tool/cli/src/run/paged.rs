//! `fieldstone run --resident`: starts a program with a bound on its resident memory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use fieldstone_heap_errors::StackNames;
use fieldstone_launch::launch::Injection;
use fieldstone_launch::shared_record::SharedRecord;
use fieldstone_launch::{AgentFile, Program};
use fieldstone_report::PagingStats;
use fieldstone_report::paging::{PageStore, PagedProcess};
use fieldstone_sys::userfault::userfault;
use fieldstone_wire::paging::{
    DIRECTORY_BYTES, FILE, LZ4, NO_STORE, PAGING_VARIABLE, PagingConfig, PagingProcess, PagingSession, RECORD_BYTES,
    REDIS, STORE_NAMES, STORES, ZSTD,
};
use fieldstone_wire::{PageKind, Remedy};
use rustix::fs::{Mode, OFlags};

use crate::interval;
use crate::run::page_server::PageServer;
use crate::run::paging_samples::Sampler;
use crate::size;

/// The paging agent, a shared library; empty in a cross build without a linker.
const AGENT: &[u8] = include_bytes!(env!("PAGING_AGENT"));

/// The page size.
pub(super) const PAGE: u64 = 4096;
/// What `--page-store` accepts.
const STORE_FORMS: &str =
    "give lz4[:SIZE], zstd[:SIZE], file:DIRECTORY, redis://HOST:PORT or redis+cluster://HOST:PORT";
/// How long a process waits for the command beyond the time in which that tries to reach the server.
const EXCHANGE_MARGIN: Duration = Duration::from_secs(2);
/// The smallest memory of a store.
const LEAST_STORE: u64 = 64 << 10;
/// The smallest bound: below it a program would only wait for its pages.
const LEAST_BOUND: u64 = 4 << 20;

/// A store of `--page-store`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StoreOption {
    /// Memory for compressed pages; `None` for a quarter of the bound.
    Lz4(Option<u64>),
    /// As `Lz4`.
    Zstd(Option<u64>),
    File(PathBuf),
    /// The address of a server or a cluster.
    Redis(String),
}

impl StoreOption {
    /// Its index in [`STORE_NAMES`].
    const fn index(&self) -> usize {
        match self {
            Self::Lz4(_) => LZ4,
            Self::Zstd(_) => ZSTD,
            Self::File(_) => FILE,
            Self::Redis(_) => REDIS,
        }
    }
}

/// Parses the memory of a store.
fn memory_limit(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0..LEAST_STORE => Err("a store needs at least 64K".to_owned()),
        bytes => Ok(bytes),
    }
}

impl FromStr for StoreOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("lz4", limit) => Ok(Self::Lz4(limit.map(memory_limit).transpose()?)),
            ("zstd", limit) => Ok(Self::Zstd(limit.map(memory_limit).transpose()?)),
            ("file", Some(directory)) if !directory.is_empty() => Ok(Self::File(directory.into())),
            ("redis" | "redis+cluster", Some(_)) => Ok(Self::Redis(text.to_owned())),
            ("file" | "redis" | "redis+cluster", _) => Err(format!("{name} needs a value: {STORE_FORMS}")),
            _ => Err(format!("there is no store {name:?}: {STORE_FORMS}")),
        }
    }
}

/// The stores of `--page-store`, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreList(Vec<StoreOption>);

impl FromStr for StoreList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let stores = text.split(',').map(str::parse).collect::<Result<Vec<StoreOption>, _>>()?;
        let twice =
            |(at, store): &(usize, &StoreOption)| stores[..*at].iter().any(|other| other.index() == store.index());
        match stores.iter().enumerate().find(twice) {
            Some((_, store)) => Err(format!("give {} once", STORE_NAMES[store.index()])),
            None => Ok(Self(stores)),
        }
    }
}

/// The options of `--resident`.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Bound the resident private memory of the program and its children together, like 256M; pages
    /// above it are compressed, or stored elsewhere
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["pid", "children"])]
    resident: Option<u64>,
    /// With --resident: where pages go, hottest first: `lz4[:SIZE]`, `zstd[:SIZE]`, `file:DIRECTORY`,
    /// `redis://[USER:PASSWORD@]HOST:PORT`, `redis+cluster://HOST:PORT`; default: lz4 with a quarter of the bound, then a file in $TMPDIR
    #[arg(long, value_name = "LIST", requires = "resident")]
    page_store: Option<StoreList>,
    /// With --page-store: for how long a server that cannot be reached is tried again, like 30s
    #[arg(long, value_name = "INTERVAL", requires = "page_store", default_value = "10s", value_parser = interval::parse)]
    page_store_timeout: Duration,
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

    /// Prepares a bound for a program; `None` if none is requested. With `is_watched`, the run is
    /// sampled for its statistics.
    pub(super) fn start(&self, program: &Program, is_watched: bool) -> anyhow::Result<Option<Bound>> {
        if self.resident.is_none() {
            return Ok(None);
        }
        if AGENT.is_empty() || cfg!(not(target_arch = "x86_64")) {
            bail!("cannot bound the memory of a program on this machine: --resident works on x86-64 only");
        }
        check_userfaultfd()?;
        let (config, server) = self.config()?;
        program.check_pageable()?;
        let record = Arc::new(SharedRecord::<PagingSession>::create_with(|session| session.config = config)?);
        let sampler = is_watched.then(|| Sampler::start(Arc::clone(&record))).flatten();
        let variable = OsString::from(format!("{}={}", PAGING_VARIABLE.to_string_lossy(), record.path()));
        let library = AgentFile::install("paging", AGENT)?.path().to_owned();
        Ok(Some(Bound { config, record, sampler, injection: Injection { library, variable }, _server: server }))
    }

    /// The settings, and the server that keeps pages if there is one.
    fn config(&self) -> anyhow::Result<(PagingConfig, Option<PageServer>)> {
        let Some(bound_bytes) = self.resident.filter(|&bound| bound >= LEAST_BOUND) else {
            bail!("cannot use a bound of less than 4M{}", Remedy(Some("--resident 4M")));
        };
        let default = || vec![StoreOption::Lz4(None), StoreOption::File(std::env::temp_dir())];
        let stores = self.page_store.as_ref().map_or_else(default, |list| list.0.clone());
        let timeout = self.page_store_timeout;
        let mut config = PagingConfig {
            bound_bytes,
            lz4_bytes: 0,
            zstd_bytes: 0,
            directory: [0; DIRECTORY_BYTES],
            exchange: [0; RECORD_BYTES],
            exchange_timeout_ms: u32::try_from((timeout + EXCHANGE_MARGIN).as_millis()).unwrap_or(u32::MAX),
            order: [NO_STORE; STORES],
        };
        let mut server = None;
        for (store, place) in stores.iter().zip(&mut config.order) {
            *place = u8::try_from(store.index())?;
            match store {
                StoreOption::Lz4(limit) => config.lz4_bytes = limit.unwrap_or(bound_bytes / 4),
                StoreOption::Zstd(limit) => config.zstd_bytes = limit.unwrap_or(bound_bytes / 4),
                StoreOption::File(path) => config.directory = directory(path)?,
                StoreOption::Redis(url) => {
                    let started = PageServer::start(url, timeout)?;
                    let path = started.path();
                    config.exchange[..path.len()].copy_from_slice(path.as_bytes());
                    server = Some(started);
                }
            }
        }
        Ok((config, server))
    }
}

/// Fails if a program may have no userfaultfd that receives faults of the kernel.
fn check_userfaultfd() -> anyhow::Result<()> {
    let support = userfault();
    if !(support.kernel_faults || support.device) {
        bail!(
            "cannot bound the memory of a program: you may not open a userfaultfd that receives faults of the kernel{}",
            Remedy(Some("sudo sysctl vm.unprivileged_userfaultfd=1"))
        );
    }
    if !support.has("MOVE") {
        bail!("cannot bound the memory of a program: the kernel moves no pages{}", Remedy(Some("Linux 6.8 or later")));
    }
    Ok(())
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
    let unnamed = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    if let Err(errno) = rustix::fs::open(&absolute, unnamed, Mode::RUSR | Mode::WUSR) {
        let remedy = Remedy(Some("a directory that you may write, on ext4, xfs, btrfs or tmpfs"));
        bail!("cannot store pages in {shown}: it takes no file without a name: {errno}{remedy}");
    }
    bytes[..text.len()].copy_from_slice(text);
    Ok(bytes)
}

/// A run with a bound.
pub(super) struct Bound {
    config: PagingConfig,
    record: Arc<SharedRecord<PagingSession>>,
    sampler: Option<Sampler>,
    injection: Injection,
    /// Ends behind the program.
    _server: Option<PageServer>,
}

impl Bound {
    /// What loads the agent into the program.
    pub(super) fn injection(&self) -> Injection {
        self.injection.clone()
    }

    /// The counts of the run, after the program has ended with `outcome`.
    pub(super) fn finish(self, program: &Program, outcome: String) -> PagingStats {
        let mut stats = self.counts(program, outcome);
        let watched = self.sampler.map(Sampler::finish).unwrap_or_default();
        let (session, mut names) = (self.record.record(), StackNames::new());
        let counted = |process| {
            let index = session.index_of(process).filter(|_| !watched.samples.is_empty());
            let waits = index.map(|index| watched.waits(index, process, &mut names));
            PagedProcess { waits: waits.unwrap_or_default(), ..counts(process, &self.config) }
        };
        stats.processes = session.claimed_processes().map(counted).collect();
        stats.samples = watched.samples;
        stats
    }

    /// The counts so far.
    pub(super) fn counts(&self, program: &Program, outcome: String) -> PagingStats {
        PagingStats {
            schema: PagingStats::SCHEMA.to_owned(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            command: program.command_line(),
            bound_bytes: self.config.bound_bytes,
            outcome,
            processes: self.record.record().claimed_processes().map(|process| counts(process, &self.config)).collect(),
            samples: Vec::new(),
            guard: None,
        }
    }
}

fn counts(process: &PagingProcess, config: &PagingConfig) -> PagedProcess {
    let counters = &process.counters;
    let get = |counter: &AtomicU64| counter.load(Relaxed);
    let tried = config.order.iter().map(|&index| usize::from(index));
    let stores = tried.filter_map(|index| Some((index, *STORE_NAMES.get(index)?))).map(|(index, name)| PageStore {
        name: name.to_owned(),
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
        waits: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_stores_are_parsed() {
        let (lz4, file) = (StoreOption::Lz4(Some(1 << 30)), StoreOption::File("/var/tmp".into()));
        assert_eq!("lz4:1G,file:/var/tmp".parse(), Ok(StoreList(vec![lz4.clone(), file.clone()])));
        let redis = |url: &str| StoreOption::Redis(url.to_owned());
        let list = "redis+cluster://host:7000,file:/var/tmp,lz4:1G".parse();
        assert_eq!(list, Ok(StoreList(vec![redis("redis+cluster://host:7000"), file, lz4])));
        assert_eq!("lz4,redis://a".parse(), Ok(StoreList(vec![StoreOption::Lz4(None), redis("redis://a")])));
        assert_eq!("zstd:1M".parse(), Ok(StoreList(vec![StoreOption::Zstd(Some(1 << 20))])));
        for wrong in ["", "file", "file:", "brotli", "lz4,lz4", "lz4:x", "redis", "redis://a,redis+cluster://b"] {
            assert!(wrong.parse::<StoreList>().is_err(), "{wrong}");
        }
    }
}
