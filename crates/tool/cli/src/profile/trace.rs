//! The options of `fieldstone profile --trace`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use fieldstone_launch::AgentFile;
use fieldstone_profile::trace::QemuTracer;
use fieldstone_profile::{TraceCoverage, TraceOptions};
use fieldstone_sys::cpuid::{self, Cpu, Tlb, TlbUse, Ways};
use fieldstone_translation::{Configuration, Machine, PageSize, Told};
use fieldstone_wire::{Mixture, PageKind};

use crate::input;

const PLUGIN: &[u8] = include_bytes!(env!("TRACE_AGENT"));
const RECORDER: &[u8] = include_bytes!(env!("SITES_AGENT"));

/// How many times longer than a run a traced one may take.
const SLOWER: f64 = 50.0;

/// Entries of the range TLB, as in Redundant Memory Mappings (Karakostas et al.).
const RANGES: u32 = 32;

/// Hundredths of the region that lie on larger pages in the mosaics.
const PERCENTS: [u32; 3] = [25, 50, 75];

/// Of these each needs `--trace`. The group has a name of its own, as `profile`'s arguments have theirs.
#[derive(Debug, Args)]
#[group(id = "tracing")]
pub(crate) struct Arguments {
    /// The processor that is modelled: `host`, a TOML file, or one of nehalem, sandy-bridge, skylake, golden-cove, zen3, zen4, neoverse-v2;
    /// `fieldstone tlb NAME` prints one as such a file
    #[arg(long, value_name = "PROCESSOR", default_value = "host", requires = "trace")]
    tlb: String,
    /// Record every access, not bursts of them: slower, and exact. Programs that take no more than 2 s are recorded so anyway
    #[arg(long, requires = "trace")]
    full: bool,
    /// Record bursts of so many accesses, 1000000 if only --period is given; the first quarter warms the models up
    #[arg(long, value_name = "ACCESSES", requires = "trace", conflicts_with = "full", value_parser = clap::value_parser!(u64).range(1000..))]
    burst: Option<u64>,
    /// Accesses from the start of one burst to that of the next: 20 bursts if only --burst is given, else what fits the run
    #[arg(long, value_name = "ACCESSES", requires = "trace", conflicts_with = "full", value_parser = clap::value_parser!(u64).range(1000..))]
    period: Option<u64>,
    /// What the accesses are run through beside 4 KiB pages, separated by commas
    #[arg(
        long,
        value_enum,
        ignore_case = true,
        value_name = "MODELS",
        value_delimiter = ',',
        default_value = "2m,1g,direct-segment",
        requires = "trace"
    )]
    models: Vec<Model>,
    /// Do not record allocations: for a program that does not bear a preloaded library, or to trace faster
    #[arg(long, requires = "trace")]
    no_sites: bool,
}

/// What can be modelled beside 4 KiB pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Model {
    /// The region on pages of 2 MiB
    #[value(name = "2m")]
    Large,
    /// The region on pages of 1 GiB; left out where the processor has no TLB for them
    #[value(name = "1g")]
    Huge,
    /// The region in a direct segment
    DirectSegment,
    /// 32 range TLBs beside the second level
    Ranges,
    /// A quarter, a half and three quarters of the region on pages of 2 MiB; with thp among --pages, run for real too, which tells by
    /// the measured times what a walk costs
    Mosaics,
    /// 4 KiB and 2 MiB pages of a guest whose host has 4 KiB ones
    Nested,
    /// No translation at all
    None,
}

impl Model {
    fn configurations(self, machine: &Machine) -> Vec<Configuration> {
        let paged = |size| Configuration::paged(machine, size);
        match self {
            Self::Large => vec![paged(PageSize::Large2m)],
            Self::Huge if !machine.has_pages(PageSize::Huge1g) => Vec::new(),
            Self::Huge => vec![paged(PageSize::Huge1g)],
            Self::DirectSegment => vec![Configuration::direct_segment(machine)],
            Self::Ranges => vec![Configuration::range_tlb(machine, RANGES)],
            Self::Mosaics => {
                PERCENTS.map(|percent| Configuration::mosaic(machine, f64::from(percent) / 100.0)).to_vec()
            }
            Self::Nested => {
                [PageSize::Small4k, PageSize::Large2m].map(|size| paged(size).on_host(PageSize::Small4k)).to_vec()
            }
            Self::None => vec![Configuration::no_translation(machine)],
        }
    }
}

/// The mosaics that are to be run for real, beside `pages`: those that are modelled, where transparent pages are compared.
pub(crate) fn mosaics(arguments: &Arguments, pages: &[Mixture]) -> Vec<Mixture> {
    let asked = arguments.models.contains(&Model::Mosaics) && pages.contains(&PageKind::Thp.into());
    if asked { PERCENTS.into_iter().filter_map(Mixture::mosaic).collect() } else { Vec::new() }
}

/// What to trace, and with which models.
pub(crate) fn plan(arguments: &Arguments, timeout_s: f64) -> anyhow::Result<TraceOptions> {
    if PLUGIN.is_empty() {
        bail!("this command was built without its tracing plugin");
    }
    let tracer = QemuTracer::find(AgentFile::install("trace", PLUGIN)?, Some(AgentFile::install("sites", RECORDER)?))?;
    let (machine, foreign) = modelled(&arguments.tlb)?;
    let recording = recording(arguments)?;
    let models = arguments.models.iter().enumerate().filter(|&(at, model)| !arguments.models[..at].contains(model));
    let asked = models.flat_map(|(_, model)| model.configurations(&machine));
    let configurations = [Configuration::paged(&machine, PageSize::Small4k)].into_iter().chain(asked).collect();
    Ok(TraceOptions {
        tracer,
        recording,
        machine,
        foreign,
        configurations,
        sites: !arguments.no_sites,
        timeout: Duration::from_secs_f64(timeout_s * SLOWER),
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
        bail!("a burst of {burst} accesses does not fit in a period of {period}: give a longer --period, or --full");
    }
    Ok(TraceCoverage::bursts(burst, period))
}

fn presets() -> String {
    let presets: Vec<_> = Machine::presets().into_iter().map(|machine| machine.name).collect();
    presets.join(", ")
}

/// The processor of that name, and whether it is another one than this machine's. One of a file is called after it too.
fn modelled(name: &str) -> anyhow::Result<(Machine, bool)> {
    let machine = machine(name)?;
    let is_named = name == "host" || Machine::preset(name).is_some();
    // A preset lacks no more of this processor than what CPUID corrects.
    let foreign = !host().is_ok_and(|host| if is_named { host.name == machine.name } else { host == machine });
    if is_named {
        return Ok((machine, foreign));
    }
    let file = Path::new(name).file_name().unwrap_or_default().to_string_lossy();
    Ok((Machine { name: format!("{} of {file}", machine.name), ..machine }, foreign))
}

/// The processor of that name: a preset, this one, or a file's.
pub(crate) fn machine(name: &str) -> anyhow::Result<Machine> {
    if name == "host" {
        return host();
    }
    if let Some(machine) = Machine::preset(name) {
        return Ok(machine);
    }
    if !Path::new(name).exists() {
        bail!("no processor is called {name:?}, and no file: give host, a TOML file, or one of {}", presets());
    }
    Machine::from_toml(&input::read(Path::new(name))?).with_context(|| name.to_owned())
}

/// The preset of this processor, with what it tells of itself.
fn host() -> anyhow::Result<Machine> {
    let cpu = cpuid::cpu();
    let told: Vec<Told> = cpu.tlbs.iter().filter_map(told).collect();
    let Cpu { vendor, family, model, .. } = &cpu;
    let known = Machine::for_cpu(vendor, *family, *model);
    let preset = known.or_else(|| Machine::nearest_to_cpu(vendor, *family, *model)).with_context(|| {
        format!(
            "no preset for this processor ({vendor} family {family}, model {model}): give --tlb one of {}, or a file",
            presets()
        )
    })?;
    Ok(preset.corrected(&told))
}

fn told(tlb: &Tlb) -> Option<Told> {
    let smallest = *tlb.pages.first()?;
    Some(Told {
        fetch: matches!(tlb.serves, TlbUse::Instructions | TlbUse::All),
        data: tlb.serves.loads(),
        rank: usize::from(tlb.level.checked_sub(1)?),
        page: PageSize::ALL.into_iter().find(|size| size.bytes() == smallest)?,
        entries: tlb.entries,
        ways: match tlb.ways {
            Ways::Of(ways) => ways,
            Ways::Full => tlb.entries,
            Ways::Unknown => 0,
        },
        is_a_part: tlb.pages.len() == 1,
    })
}
