//! `fieldstone run --resident`: starts a program with a bound on its resident memory.

use std::ffi::OsString;
use std::path::Path;
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
    DIRECTORY_BYTES, NO_STORE, PAGING_VARIABLE, PagingConfig, PagingProcess, PagingSession, RECORD_BYTES, STORE_NAMES,
    STORES,
};
use fieldstone_wire::{PageKind, Remedy};
use rustix::fs::{Mode, OFlags};

use crate::interval;
use crate::run::page_server::PageServer;
use crate::run::page_stores::{StoreList, StoreOption};
use crate::run::paging_samples::Sampler;
use crate::run::remote_pages::RemotePages;
use crate::size;

/// The paging agent, a shared library; empty in a cross build without a linker.
const AGENT: &[u8] = include_bytes!(env!("PAGING_AGENT"));

/// The page size.
pub(super) const PAGE: u64 = 4096;
/// How long a process waits for the command beyond the time in which that tries to reach the server.
const EXCHANGE_MARGIN: Duration = Duration::from_secs(2);
/// The smallest bound: below it a program would only wait for its pages.
const LEAST_BOUND: u64 = 4 << 20;

/// The options of `--resident`.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Bound the resident private memory of the program and its children together, like 256M; pages
    /// above it are compressed, or stored elsewhere
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["pid", "children"])]
    resident: Option<u64>,
    /// With --resident: where pages go, hottest first: `lz4[:SIZE]`, `zstd[:SIZE]`, `file:DIRECTORY`,
    /// `redis://[USER:PASSWORD@]HOST[:PORT]`, `redis+cluster://HOST[:PORT]`, `opendal:ADDRESS`; default: lz4 with a quarter of the bound, then a file in $TMPDIR
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
        let mut remote = None;
        for (store, place) in stores.iter().zip(&mut config.order) {
            *place = u8::try_from(store.index())?;
            match store {
                StoreOption::Lz4(limit) => config.lz4_bytes = limit.unwrap_or(bound_bytes / 4),
                StoreOption::Zstd(limit) => config.zstd_bytes = limit.unwrap_or(bound_bytes / 4),
                StoreOption::File(path) => config.directory = directory(path)?,
                StoreOption::Redis(url) => remote = Some(RemotePages::on_redis(url, timeout)?),
                StoreOption::Objects(address) => remote = Some(RemotePages::in_objects(address, timeout)?),
            }
        }
        let server = remote.map(PageServer::start).transpose()?;
        if let Some(server) = &server {
            let path = server.path();
            config.exchange[..path.len()].copy_from_slice(path.as_bytes());
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
        Ok(_) => bail!("cannot store pages in {shown}: it is no directory{}", Remedy(Some("its directory"))),
        Err(error) => {
            let remedy = Remedy(Some("--page-store file:DIRECTORY, or TMPDIR, with a directory that exists"));
            bail!("cannot store pages in {shown}: {}{remedy}", fieldstone_wire::Cause(&error))
        }
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
