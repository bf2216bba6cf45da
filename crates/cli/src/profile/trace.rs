//! The options of `fieldstone profile --trace`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use fieldstone_supervise::AgentFile;
use fieldstone_supervise::profile::{Bursts, Tracing};
use fieldstone_supervise::trace::Tracer;
use fieldstone_sys::cpuid;
use fieldstone_translation::{Configuration, Machine, PageSize};

const PLUGIN: &[u8] = include_bytes!(env!("TRACE_AGENT"));
const RECORDER: &[u8] = include_bytes!(env!("SITES_AGENT"));

/// How many times longer than a run a traced one may take.
const SLOWER: f64 = 50.0;

/// Part of each burst that only warms the models up.
const WARM_UP: u64 = 4;

/// Of these each needs `--trace`. The group has a name of its own, as `profile`'s arguments have theirs.
#[derive(Debug, Args)]
#[group(id = "tracing")]
pub(crate) struct Arguments {
    /// The processor that is modelled: `host`, the name of a preset, or a TOML file
    #[arg(long, value_name = "PROCESSOR", default_value = "host", requires = "trace")]
    tlb: String,
    /// Record every access, not bursts of them: slower, and exact
    #[arg(long, requires = "trace")]
    full: bool,
    /// Accesses of a burst; the first quarter warms the models up
    #[arg(long, value_name = "ACCESSES", default_value_t = 1_000_000, requires = "trace", conflicts_with = "full", value_parser = clap::value_parser!(u64).range(1000..))]
    burst: u64,
    /// Accesses from the start of one burst to that of the next
    #[arg(long, value_name = "ACCESSES", default_value_t = 20_000_000, requires = "trace", conflicts_with = "full", value_parser = clap::value_parser!(u64).range(1000..))]
    period: u64,
    /// Do not record allocations: for a program that does not bear a preloaded library, or to trace faster
    #[arg(long, requires = "trace")]
    no_sites: bool,
}

/// What to trace, and with which models.
pub(crate) fn plan(arguments: &Arguments, timeout_s: f64) -> anyhow::Result<Tracing> {
    if PLUGIN.is_empty() {
        bail!("this command was built without its tracing plugin");
    }
    let tracer = Tracer::find(AgentFile::place("trace", PLUGIN)?, Some(AgentFile::place("sites", RECORDER)?))?;
    let machine = machine(&arguments.tlb)?;
    let bursts = bursts(arguments)?;
    let configurations = vec![
        Configuration::paged(&machine, PageSize::Small4k),
        Configuration::paged(&machine, PageSize::Large2m),
        Configuration::paged(&machine, PageSize::Huge1g),
        Configuration::direct_segment(&machine),
    ];
    Ok(Tracing {
        tracer,
        bursts,
        machine,
        configurations,
        sites: !arguments.no_sites,
        timeout: Duration::from_secs_f64(timeout_s * SLOWER),
    })
}

fn bursts(arguments: &Arguments) -> anyhow::Result<Bursts> {
    if arguments.full {
        return Ok(Bursts::default());
    }
    let Arguments { burst, period, .. } = *arguments;
    if burst > period {
        bail!("a burst of {burst} accesses does not fit in a period of {period}: give a longer --period, or --full");
    }
    Ok(Bursts { burst, warm_up: burst / WARM_UP, period })
}

fn presets() -> String {
    let presets: Vec<_> = Machine::presets().into_iter().map(|machine| machine.name).collect();
    presets.join(", ")
}

fn machine(name: &str) -> anyhow::Result<Machine> {
    if name == "host" {
        let cpu = cpuid::cpu();
        return Machine::for_cpu(&cpu.vendor, cpu.family, cpu.model).with_context(|| {
            format!(
                "no preset for this processor ({} family {}, model {}): give --tlb one of {}, or a file",
                cpu.vendor,
                cpu.family,
                cpu.model,
                presets()
            )
        });
    }
    if let Some(machine) = Machine::preset(name) {
        return Ok(machine);
    }
    if !Path::new(name).exists() {
        bail!("no processor is called {name:?}, and no file: give host, a TOML file, or one of {}", presets());
    }
    let text = fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
    Machine::from_toml(&text).with_context(|| name.to_owned())
}
