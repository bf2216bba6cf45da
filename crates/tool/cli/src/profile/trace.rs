//! The options of `fieldstone profile --trace`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use fieldstone_launch::AgentFile;
use fieldstone_profile::trace::QemuTracer;
use fieldstone_profile::{TraceCoverage, TraceOptions};
use fieldstone_sys::cpuid::{self, Cpu, Tlb, TlbUse, Ways};
use fieldstone_translation::{Configuration, Mmu, PageSize, TlbDescription};
use fieldstone_wire::{Mixture, PageKind, Remedy};

use crate::text_file;

const PLUGIN: &[u8] = include_bytes!(env!("TRACE_AGENT"));
const RECORDER: &[u8] = include_bytes!(env!("SITES_AGENT"));

/// The time limit of a traced run as a multiple of `--timeout`.
const SLOWDOWN: f64 = 50.0;

/// Entries of the range TLB, as in Redundant Memory Mappings (Karakostas et al.).
const RANGE_TLB_ENTRIES: u32 = 32;

/// Percentages of the region on larger pages, one for each mosaic.
const MOSAIC_PERCENTS: [u32; 3] = [25, 50, 75];

/// The options that need `--trace`.
#[derive(Debug, Args)]
#[group(id = "tracing")]
pub(crate) struct Arguments {
    /// Model this processor: `host`, a TOML file, or one of nehalem, sandy-bridge, skylake,
    /// golden-cove, zen3, zen4, neoverse-v2; `fieldstone tlb NAME` prints such a file
    #[arg(long, value_name = "PROCESSOR", default_value = "host", requires = "trace")]
    tlb: String,
    /// Record every access instead of bursts: slower, and exact. Programs of at most 2 s are always
    /// recorded in full
    #[arg(long, requires = "trace")]
    full: bool,
    /// Record bursts of ACCESSES accesses [default with --period: 1000000]; the first quarter warms
    /// the models up
    #[arg(long, value_name = "ACCESSES", requires = "trace", conflicts_with = "full", value_parser = clap::value_parser!(u64).range(1000..))]
    burst: Option<u64>,
    /// Start a burst every ACCESSES accesses [default with --burst: 20 bursts long; otherwise
    /// fitted to the run]
    #[arg(long, value_name = "ACCESSES", requires = "trace", conflicts_with = "full", value_parser = clap::value_parser!(u64).range(1000..))]
    period: Option<u64>,
    /// Replay the accesses through these models beside 4 KiB pages, separated by commas
    #[arg(
        long,
        value_enum,
        ignore_case = true,
        value_name = "MODELS",
        value_delimiter = ',',
        default_value = "2m,1g,direct-segment",
        requires = "trace"
    )]
    models: Vec<TranslationModel>,
    /// Do not record allocations: faster, and for programs that cannot load a preloaded library
    #[arg(long, requires = "trace")]
    no_sites: bool,
}

/// A model of address translation, compared with 4 KiB pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TranslationModel {
    /// The region on pages of 2 MiB
    #[value(name = "2m")]
    Large,
    /// The region on pages of 1 GiB; omitted if the processor has no TLB for them
    #[value(name = "1g")]
    Huge,
    /// The region in a direct segment
    DirectSegment,
    /// 32 range TLBs beside the second level
    Ranges,
    /// A quarter, a half and three quarters of the region on pages of 2 MiB; with thp in --pages
    /// also measured, to derive the cost of a walk from the times
    Mosaics,
    /// 4 KiB and 2 MiB pages of a guest on a host with 4 KiB pages
    Nested,
    /// No translation at all
    None,
}

impl TranslationModel {
    fn configurations(self, machine: &Mmu) -> Vec<Configuration> {
        let paged = |size| Configuration::paged(machine, size);
        match self {
            Self::Large => vec![paged(PageSize::Large2m)],
            Self::Huge if !machine.has_pages(PageSize::Huge1g) => Vec::new(),
            Self::Huge => vec![paged(PageSize::Huge1g)],
            Self::DirectSegment => vec![Configuration::direct_segment(machine)],
            Self::Ranges => vec![Configuration::range_tlb(machine, RANGE_TLB_ENTRIES)],
            Self::Mosaics => {
                MOSAIC_PERCENTS.map(|percent| Configuration::mosaic(machine, f64::from(percent) / 100.0)).to_vec()
            }
            Self::Nested => {
                [PageSize::Small4k, PageSize::Large2m].map(|size| paged(size).on_host(PageSize::Small4k)).to_vec()
            }
            Self::None => vec![Configuration::no_translation(machine)],
        }
    }
}

/// The mosaics to measure beside `pages`: those that are modelled, if transparent pages are
/// compared.
pub(crate) fn mosaics(arguments: &Arguments, pages: &[Mixture]) -> Vec<Mixture> {
    let is_requested = arguments.models.contains(&TranslationModel::Mosaics) && pages.contains(&PageKind::Thp.into());
    if is_requested { MOSAIC_PERCENTS.into_iter().filter_map(Mixture::mosaic).collect() } else { Vec::new() }
}

/// The plan of the traced run: tracer, recording and models.
pub(crate) fn plan(arguments: &Arguments, timeout_s: f64) -> anyhow::Result<TraceOptions> {
    if PLUGIN.is_empty() {
        bail!("cannot trace: this command was built without the tracing plugin");
    }
    let tracer = QemuTracer::find(AgentFile::install("trace", PLUGIN)?, Some(AgentFile::install("sites", RECORDER)?))?;
    let (machine, foreign) = modelled_machine(&arguments.tlb)?;
    let recording = recording(arguments)?;
    let models = arguments.models.iter().enumerate().filter(|&(at, model)| !arguments.models[..at].contains(model));
    let requested = models.flat_map(|(_, model)| model.configurations(&machine));
    let configurations = [Configuration::paged(&machine, PageSize::Small4k)].into_iter().chain(requested).collect();
    Ok(TraceOptions {
        tracer,
        recording,
        machine,
        foreign,
        configurations,
        sites: !arguments.no_sites,
        timeout: Duration::from_secs_f64(timeout_s * SLOWDOWN),
    })
}

fn recording(arguments: &Arguments) -> anyhow::Result<TraceCoverage> {
    let (burst, period) = match (arguments.burst, arguments.period) {
        _ if arguments.full => return Ok(TraceCoverage::Full),
        (None, None) => return Ok(TraceCoverage::Automatic),
        (burst, period) => {
            let burst = burst.unwrap_or(1_000_000);
            (burst, period.unwrap_or(burst.saturating_mul(20)))
        }
    };
    if burst > period {
        bail!(
            "cannot record bursts of {burst} accesses in a period of {period}{}",
            Remedy(Some("a longer --period, or --full"))
        );
    }
    Ok(TraceCoverage::bursts(burst, period))
}

fn presets() -> String {
    let presets: Vec<_> = Mmu::presets().into_iter().map(|machine| machine.name).collect();
    presets.join(", ")
}

/// The processor called `name`, and whether it differs from this machine's. A processor from a file
/// gets the file name as a suffix.
fn modelled_machine(name: &str) -> anyhow::Result<(Mmu, bool)> {
    let machine = machine(name)?;
    let is_named = name == "host" || Mmu::preset(name).is_some();
    // A preset of this processor differs from the host only in what CPUID corrects.
    let foreign = !host().is_ok_and(|host| if is_named { host.name == machine.name } else { host == machine });
    if is_named {
        return Ok((machine, foreign));
    }
    let file = Path::new(name).file_name().unwrap_or_default().to_string_lossy();
    Ok((Mmu { name: format!("{} of {file}", machine.name), ..machine }, foreign))
}

/// The processor called `name`: `host`, a preset or a TOML file.
pub(crate) fn machine(name: &str) -> anyhow::Result<Mmu> {
    if name == "host" {
        return host();
    }
    if let Some(machine) = Mmu::preset(name) {
        return Ok(machine);
    }
    if !Path::new(name).exists() {
        bail!(
            "cannot find a processor or a file called {name:?}{}",
            Remedy(Some(format_args!("host, a TOML file, or one of {}", presets())))
        );
    }
    Mmu::from_toml(&text_file::read(Path::new(name))?).with_context(|| name.to_owned())
}

/// The preset of this processor, corrected by CPUID.
fn host() -> anyhow::Result<Mmu> {
    let cpu = cpuid::cpu();
    let reported: Vec<TlbDescription> = cpu.tlbs.iter().filter_map(reported_tlb).collect();
    let Cpu { vendor, family, model, .. } = &cpu;
    let known = Mmu::for_cpu(vendor, *family, *model);
    let preset = known.or_else(|| Mmu::nearest_to_cpu(vendor, *family, *model)).with_context(|| {
        format!(
            "cannot find a preset for this processor ({vendor} family {family}, model {model}){}",
            Remedy(Some(format_args!("--tlb with a file, or one of {}", presets())))
        )
    })?;
    Ok(preset.corrected(&reported))
}

/// A TLB that CPUID describes, in the terms of the model; `None` if the model has no such TLB.
fn reported_tlb(tlb: &Tlb) -> Option<TlbDescription> {
    let smallest = *tlb.pages.first()?;
    Some(TlbDescription {
        fetch: matches!(tlb.serves, TlbUse::Instructions | TlbUse::All),
        data: tlb.serves.loads(),
        level: usize::from(tlb.level.checked_sub(1)?),
        page: PageSize::ALL.into_iter().find(|size| size.bytes() == smallest)?,
        entries: tlb.entries,
        ways: match tlb.ways {
            Ways::Of(ways) => ways,
            Ways::Full => tlb.entries,
            Ways::Unknown => 0,
        },
        is_partition: tlb.pages.len() == 1,
    })
}
