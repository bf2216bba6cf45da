//! The part of the page that tells what translation costs.

use super::view::Key;
use crate::plots::{self, SIZES, colour_of, css};
use crate::tables::{Table, translation as tables};
use crate::translation::Mosaics;
use crate::translation::sites::{SiteLine, shortened};
use crate::translation::sources::sources;
use crate::{Error, Translation, TranslationSummary};
use minijinja::Value;
use serde::Serialize;

/// Sites in the table and in the list of callers; the others are one line.
const MOST_SITES: usize = 100;

/// The section, from top to bottom.
#[derive(Debug, Serialize)]
pub(super) struct TranslationView {
    processor: String,
    measured: Option<String>,
    verdict: String,
    /// Whether the verdict is the headline: where no measurement stands above it and no noise is in it.
    is_bold: bool,
    noisy: Option<String>,
    command: Option<String>,
    caveat: Option<String>,
    is_unclear: bool,
    recorder: Option<&'static str>,
    region: Option<String>,
    shares_plot: Option<Value>,
    priced: Table,
    predictions: Table,
    mosaics: Option<MosaicsView>,
    modelled: Table,
    reach_plot: Option<Value>,
    moments_plot: Option<Value>,
    moments_key: Vec<Key>,
    sites_plot: Option<Value>,
    sites_key: Vec<Key>,
    sites: Table,
    callers: Vec<Callers>,
    sources: Vec<(&'static str, String)>,
    unseen: Vec<String>,
}

/// Real runs on mosaics.
#[derive(Debug, Serialize)]
struct MosaicsView {
    plot: Option<Value>,
    key: Vec<Key>,
    table: Table,
    sentences: Vec<String>,
}

impl MosaicsView {
    fn of(mosaics: &Mosaics, traced: &Translation) -> Result<Self, Error> {
        let key = plots::MOSAIC_KEY.map(|(name, colour)| Key { colour: css(colour), name: name.to_owned() });
        Ok(Self {
            plot: plots::mosaics(mosaics)?.map(Value::from_safe_string),
            key: key.into(),
            table: tables::mosaics(mosaics),
            sentences: mosaics.sentences(traced.walk_cost.as_ref()),
        })
    }
}

/// A site with its full name and who called it.
#[derive(Debug, Serialize)]
struct Callers {
    short: String,
    name: String,
    stack: Vec<String>,
}

impl TranslationView {
    pub(super) fn of(traced: &Translation, summary: &TranslationSummary) -> Result<Self, Error> {
        let (verdict, command) = summary.verdict.parts();
        let large = summary.sites.iter().chain(&summary.rest).any(|line| line.share_large > 0.0);
        let sites_key = [("on 4 KiB pages", css(SIZES[0].1)), ("left on 2 MiB pages", css(SIZES[2].1))];
        let sites_key = sites_key.into_iter().take(if large { 2 } else { 1 });
        let colour = |name: &String| Key { colour: css(colour_of(name)), name: name.clone() };
        Ok(Self {
            processor: traced.processor.name.clone(),
            measured: summary.measured.clone(),
            verdict,
            is_bold: summary.measured.is_none() && summary.noisy.is_none(),
            noisy: summary.noisy_sentence(),
            command: command.map(str::to_owned),
            caveat: summary.caveat.clone(),
            is_unclear: summary.is_unclear(),
            recorder: traced.recorder_sentence(),
            region: summary.region_sentence(),
            shares_plot: plots::shares(summary)?.map(Value::from_safe_string),
            priced: tables::priced(summary),
            predictions: tables::predictions(summary),
            mosaics: summary.mosaics.as_ref().map(|of| MosaicsView::of(of, traced)).transpose()?,
            modelled: tables::modelled(summary),
            reach_plot: plots::reach(&traced.reach)?.map(Value::from_safe_string),
            moments_plot: plots::moments(traced)?.map(Value::from_safe_string),
            moments_key: traced.configurations.iter().map(|of| colour(&of.name)).collect(),
            sites_plot: plots::sites(summary)?.map(Value::from_safe_string),
            sites_key: sites_key.map(|(name, colour)| Key { colour, name: name.to_owned() }).collect(),
            sites: tables::sites(summary, MOST_SITES, None),
            callers: summary.sites.iter().take(MOST_SITES).filter(|site| !site.stack.is_empty()).map(callers).collect(),
            sources: sources(traced, summary),
            unseen: traced.unseen.clone(),
        })
    }
}

fn callers(site: &SiteLine) -> Callers {
    Callers { short: shortened(&site.name, 72), name: site.name.clone(), stack: site.stack.clone() }
}
