//! What the template is given: every word and number of the page, already written.

use super::paper;
use super::translation::TranslationView;
use crate::plots::{self, SIZES, colour_of, css};
use crate::quantity::{bytes, moment, percent, share};
use crate::tables::{self, Table};
use crate::{Error, Footprint, Profile, Summary, shell};
use minijinja::Value;
use serde::Serialize;

/// The page, from top to bottom.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    command: String,
    primary: String,
    /// What was measured, where and when: names and what they say.
    facts: Vec<(&'static str, String)>,
    advice: String,
    advice_command: Option<String>,
    notes: Vec<String>,
    noun: &'static str,
    baseline: String,
    time_plot: Option<Value>,
    comparison: Table,
    costs: Table,
    translation: Option<TranslationView>,
    footprint_key: Vec<Key>,
    footprint_plots: Vec<FootprintPlot>,
    footprints: Table,
    regions: Table,
    /// What those of its columns are that speak for themselves the least.
    regions_words: String,
    /// Where the pages really got were read, such as `smaps`.
    regions_source: String,
    permissions: Option<Permissions>,
    swap: Swap,
    samples: Table,
    tool_version: String,
}

/// A line of a key: a colour and what it stands for.
#[derive(Debug, Serialize)]
pub(super) struct Key {
    pub(super) colour: String,
    pub(super) name: String,
}

#[derive(Debug, Serialize)]
struct FootprintPlot {
    kind: String,
    /// None if the run was too short to be watched.
    plot: Option<Value>,
    caption: String,
}

#[derive(Debug, Serialize)]
struct Permissions {
    kind: String,
    plot: Option<Value>,
    table: Table,
    /// Ours, as the paper's table puts it.
    read_write: String,
    paper_sentence: &'static str,
    paper_sense: &'static str,
    paper_table: [(&'static str, &'static str); 6],
}

#[derive(Debug, Serialize)]
struct Swap {
    plot: Option<Value>,
    sentence: String,
    key: Vec<Key>,
}

impl Page {
    pub(super) fn of(profile: &Profile, summary: &Summary) -> Result<Self, Error> {
        let (advice, command) = summary.advice.parts();
        let regions = tables::regions(profile);
        let warnings = profile.warnings.iter().cloned();
        Ok(Self {
            command: shell::join(&profile.program.command),
            primary: profile.program.primary.clone(),
            facts: facts(profile, summary),
            advice,
            advice_command: command.map(str::to_owned),
            notes: warnings.chain(summary.notes.iter().map(ToString::to_string)).collect(),
            noun: profile.metric.noun(),
            baseline: profile.baseline.clone(),
            time_plot: plots::time(profile, summary)?.map(Value::from_safe_string),
            comparison: tables::comparison(profile, summary),
            costs: tables::costs(summary),
            translation: translation(profile, summary)?,
            footprint_key: footprint_key(&profile.footprints),
            footprint_plots: footprint_plots(&profile.footprints)?,
            footprints: tables::footprints(profile),
            regions_words: regions_words(&regions),
            regions,
            regions_source: regions_source(&profile.footprints),
            permissions: permissions(profile)?,
            swap: swap(&profile.footprints)?,
            samples: tables::samples(profile),
            tool_version: profile.tool_version.clone(),
        })
    }
}

fn facts(profile: &Profile, summary: &Summary) -> Vec<(&'static str, String)> {
    let machine = &profile.machine;
    let virtual_machine = if machine.virtual_machine { ", a virtual machine" } else { "" };
    let runs = format!("{} a page kind, in alternating order", summary.baseline_runs());
    let mut facts = vec![
        ("Measured", moment(profile.taken_at_unix_s)),
        ("Processor", machine.cpu.clone()),
        ("Processors", format!("{}{virtual_machine}", machine.cpus)),
        ("Memory", format!("{}, and {} of swap", bytes(machine.memory_bytes), bytes(machine.swap_bytes))),
        ("Kernel", format!("{} {}", machine.kernel, machine.architecture)),
        ("Transparent huge pages", machine.thp_enabled.clone()),
        ("Runs", runs),
    ];
    facts.extend(
        summary
            .noise
            .map(|noise| ("Noise", format!("{} between neighbouring runs on {}", percent(noise), profile.baseline))),
    );
    facts.extend(profile.program.load.clone().map(|load| ("Load", load)));
    facts.retain(|(_, fact)| !fact.trim().is_empty());
    facts
}

fn translation(profile: &Profile, summary: &Summary) -> Result<Option<TranslationView>, Error> {
    let both = profile.translation.as_ref().zip(summary.translation.as_ref());
    both.map(|(traced, of)| TranslationView::of(traced, of)).transpose()
}

/// The page sizes that any run got.
fn footprint_key(footprints: &[Footprint]) -> Vec<Key> {
    let points = || footprints.iter().flat_map(|footprint| &footprint.points);
    let got = [
        points().any(|point| point.small_bytes > 0),
        points().any(|point| point.folio_bytes > 0),
        points().any(|point| point.huge_2m_bytes > 0),
        points().any(|point| point.huge_1g_bytes > 0),
    ];
    let sizes = SIZES.iter().zip(got).filter(|(_, got)| *got);
    sizes.map(|((name, colour), _)| Key { colour: css(*colour), name: (*name).to_owned() }).collect()
}

/// Explains the columns that are there.
fn regions_words(regions: &Table) -> String {
    let words = [
        ("contiguous", "half of it in physical runs at least as long as “contiguous”"),
        ("pool empty", "memory under “pool empty” found no huge page left"),
        ("moved back", "memory under “moved back” needed the manners of ordinary pages"),
    ];
    let shown = words.iter().filter(|(heading, _)| regions.heading.iter().any(|of| of == heading));
    shown.map(|(_, words)| format!("; {words}")).collect::<String>() + "."
}

fn regions_source(footprints: &[Footprint]) -> String {
    let regions = footprints.iter().filter_map(|footprint| footprint.region.as_ref());
    let mut sources: Vec<&str> = regions.map(|region| region.pages_source.as_str()).collect();
    sources.sort_unstable();
    sources.dedup();
    sources.join(", ")
}

fn end_s(footprints: &[Footprint]) -> f64 {
    footprints.iter().flat_map(|footprint| &footprint.points).map(|point| point.t_s).fold(0.0, f64::max)
}

fn footprint_plots(footprints: &[Footprint]) -> Result<Vec<FootprintPlot>, Error> {
    const IDS: [&str; 6] = [
        "plot-footprint-1",
        "plot-footprint-2",
        "plot-footprint-3",
        "plot-footprint-4",
        "plot-footprint-5",
        "plot-footprint-6",
    ];
    let end_s = end_s(footprints);
    let end_bytes = footprints.iter().filter_map(Footprint::peak).map(|peak| peak.resident_bytes).max().unwrap_or(0);
    let plots = footprints.iter().zip(IDS).map(|(footprint, id)| {
        let plot = plots::footprint(id, footprint, end_s, end_bytes)?.map(Value::from_safe_string);
        let caption = match (footprint.peak(), &plot) {
            (Some(peak), Some(_)) => format!("{} at its largest", bytes(peak.resident_bytes)),
            _ => "too short a run to be watched".to_owned(),
        };
        Ok(FootprintPlot { kind: footprint.kind.clone(), plot, caption })
    });
    plots.collect()
}

/// Permissions on the baseline, where the kernel placed the memory by itself; or on the first kind that has them.
fn permissions(profile: &Profile) -> Result<Option<Permissions>, Error> {
    let has = |footprint: &&Footprint| !footprint.permissions.is_empty();
    let of = profile.footprint(&profile.baseline).filter(has).or_else(|| profile.footprints.iter().find(has));
    let Some(footprint) = of else { return Ok(None) };
    Ok(Some(Permissions {
        kind: footprint.kind.clone(),
        plot: plots::permissions(&footprint.permissions)?.map(Value::from_safe_string),
        table: tables::permissions(&footprint.permissions),
        read_write: footprint.read_write_share().map_or_else(String::new, share),
        paper_sentence: paper::READ_WRITE,
        paper_sense: paper::READ_WRITE_SENSE,
        paper_table: paper::READ_WRITE_TABLE,
    }))
}

fn swap(footprints: &[Footprint]) -> Result<Swap, Error> {
    let most = footprints.iter().max_by_key(|footprint| footprint.swap_peak_bytes());
    let sentence = match most.map(|footprint| (footprint, footprint.swap_peak_bytes())) {
        None => "Nothing was watched.".to_owned(),
        Some((_, 0)) => "Nothing was swapped out in any watched run.".to_owned(),
        Some((footprint, swapped)) => format!("At most {} was swapped out, on {}.", bytes(swapped), footprint.kind),
    };
    let key = footprints.iter().map(|of| Key { colour: css(colour_of(&of.kind)), name: of.kind.clone() }).collect();
    Ok(Swap { plot: plots::swap(footprints, end_s(footprints))?.map(Value::from_safe_string), sentence, key })
}
