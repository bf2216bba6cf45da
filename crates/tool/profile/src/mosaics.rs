//! Estimate the cost of a page walk from real runs on mosaics of 4 KiB and 2 MiB pages.
//!
//! ```text
//!   user time   |                    x 4k
//!               |            x  25 %              slope of the line: nanoseconds per walk
//!               |       x  50 %                   check: the distance of a mixture from the line
//!               |  x  75 %                        through the other mixtures
//!               | x thp
//!               +----------------------- walks of a run, from the models
//! ```
//! Source: Mosalloc (Agbarya and others, MICRO 2020). The times are user time only, because page
//! faults also cost less on larger pages. Each round of runs gives one line. The fitted price is
//! the median of their slopes, with its interval.
//!
//! The calibrated price has no influence on the fit. It predicts the same times from the one on 4
//! KiB pages, so each price checks the other.

use fieldstone_report::MeasuredRun;
use fieldstone_report::translation::{Mosaics, ReportedMixture, Translation};
use fieldstone_stats::{Estimate, Interval};
use fieldstone_translation::{MosaicFit, MosaicRun, Result};
use fieldstone_wire::{Mixture, PageKind};

/// User times of the runs on one mixture, in the order of the rounds.
struct MixtureTimes {
    mixture: ReportedMixture,
    user_s: Vec<f64>,
}

/// Fits the mixtures that were both run and modelled; `None` if there is no mosaic among them.
/// `scale` is the number of accesses of the run per counted access. `native_s` is the CPU time of a
/// run, in seconds.
///
/// # Errors
/// Fewer than four mixtures, or no line fits them.
/// Fewer than four mixtures, or no line through them.
pub(super) fn fit(
    kinds: &[Mixture],
    samples: &[MeasuredRun],
    translation: &Translation,
    scale: f64,
    native_s: f64,
) -> Option<Result<Mosaics>> {
    let mut kinds: Vec<Mixture> = kinds.to_vec();
    kinds.sort_by_key(|&kind| percent(kind));
    let mut timed: Vec<MixtureTimes> =
        kinds.iter().filter_map(|&kind| mixture_times(kind, samples, translation, scale)).collect();
    if !timed.iter().any(|timed| timed.mixture.kind.contains(':')) {
        return None;
    }
    let small_s = timed.first().filter(|first| first.mixture.share == 0.0).map(|first| first.mixture.measured_s.likely);
    for timed in timed.iter_mut().filter(|timed| timed.mixture.share > 0.0) {
        let saved = translation
            .configuration(&timed.mixture.configuration)
            .and_then(|modelled| modelled.time)
            .map(Interval::rest);
        timed.mixture.priced_s = small_s.zip(saved).map(|(small_s, saved)| {
            let after = |saved: f64| (small_s - saved * native_s).max(0.0);
            Interval { low: after(saved.high), likely: after(saved.likely), high: after(saved.low) }
        });
    }
    Some(fit_lines(timed))
}

/// Fits a line through the medians of all mixtures, and one through each round.
fn fit_lines(timed: Vec<MixtureTimes>) -> Result<Mosaics> {
    let runs = |seconds: &dyn Fn(&MixtureTimes) -> Option<f64>| -> Vec<MosaicRun> {
        let run = |timed: &MixtureTimes| Some(MosaicRun { walks: timed.mixture.walks, ns: seconds(timed)? * 1e9 });
        timed.iter().filter_map(run).collect()
    };
    let medians = runs(&|timed| Some(timed.mixture.measured_s.likely));
    let (line, best) = (MosaicFit::line(&medians)?, MosaicFit::fit(&medians)?);
    let rounds = timed.iter().map(|timed| timed.user_s.len()).min().unwrap_or(0);
    let slope =
        |round: usize| MosaicFit::line(&runs(&|timed| timed.user_s.get(round).copied())).map(|line| line.walk_ns());
    let slopes: Vec<f64> = (0..rounds).filter_map(|round| slope(round).ok()).collect();
    let mut mixtures: Vec<ReportedMixture> = timed.into_iter().map(|timed| timed.mixture).collect();
    for (mixture, left_out_ns) in mixtures.iter_mut().zip(line.left_out_ns()) {
        mixture.fitted_s = line.ns(mixture.walks).likely / 1e9;
        mixture.left_out_s = left_out_ns / 1e9;
    }
    Ok(Mosaics {
        mixtures,
        fitted_ns: median_range(&slopes).unwrap_or_default(),
        worst_error: line.error(),
        best_degree: u32::try_from(best.degree()).unwrap_or(u32::MAX),
        best_error: best.error(),
    })
}

/// The user times of the successful runs of a kind; `None` if its mixture was not modelled.
fn mixture_times(
    kind: Mixture,
    samples: &[MeasuredRun],
    translation: &Translation,
    scale: f64,
) -> Option<MixtureTimes> {
    let percent = percent(kind)?;
    let configuration = match percent {
        0 => "4K".to_owned(),
        100 => "2M".to_owned(),
        percent => format!("{percent} % on 2M"),
    };
    let walks = translation.configuration(&configuration)?.data.walks as f64 * scale;
    let name = kind.to_string();
    let usual = samples.iter().find(|sample| sample.kind == PageKind::Small4k.name()).map(|sample| &sample.outcome);
    let counts = |sample: &&MeasuredRun| sample.kind == name && Some(&sample.outcome) == usual;
    let mut own: Vec<&MeasuredRun> = samples.iter().filter(counts).collect();
    own.sort_by_key(|sample| sample.round);
    let user_s: Vec<f64> = own.iter().map(|sample| sample.user_s).collect();
    let mixture = ReportedMixture {
        kind: name,
        configuration,
        share: f64::from(percent) / 100.0,
        walks,
        runs: u32::try_from(user_s.len()).unwrap_or(u32::MAX),
        measured_s: median_range(&user_s)?,
        ..ReportedMixture::default()
    };
    Some(MixtureTimes { mixture, user_s })
}

/// Percentage of the region on 2 MiB pages; `None` for pages of other sizes.
fn percent(kind: Mixture) -> Option<u32> {
    match kind.kind() {
        PageKind::Small4k => Some(0),
        PageKind::Thp => Some(kind.percent()),
        PageKind::Folio64k | PageKind::Hugetlb2m | PageKind::Hugetlb1g => None,
    }
}

fn median_range(values: &[f64]) -> Option<Interval> {
    Estimate::of_median(values).map(|found| found.interval())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_report::translation::{ModelledConfiguration, ReportedSide};

    /// Walks decrease with the share, and each costs `ns`. A run without walks takes 10 s. The
    /// rounds drift.
    fn measured(kinds: &[Mixture], ns: f64) -> (Vec<MeasuredRun>, Translation) {
        let (mut samples, mut translation) = (Vec::new(), Translation::default());
        for &kind in kinds {
            let percent = percent(kind).unwrap();
            let walks = 1_000_000 * u64::from(100 - percent);
            let name = match percent {
                0 => "4K".to_owned(),
                100 => "2M".to_owned(),
                percent => format!("{percent} % on 2M"),
            };
            let time = Interval { low: 0.9, likely: 0.9, high: 0.9 };
            let data = ReportedSide { walks: walks / 10, ..ReportedSide::default() };
            translation.configurations.push(ModelledConfiguration {
                name,
                data,
                time: Some(time),
                ..ModelledConfiguration::default()
            });
            for round in 0..8 {
                let user_s = 10.0 + walks as f64 * ns / 1e9 + f64::from(round) * 0.1;
                samples.push(MeasuredRun { kind: kind.to_string(), round, user_s, ..MeasuredRun::default() });
            }
        }
        (samples, translation)
    }

    fn kinds(percents: &[u32]) -> Vec<Mixture> {
        let kind = |&percent: &u32| match percent {
            0 => PageKind::Small4k.into(),
            percent => Mixture::mosaic(percent).unwrap_or_else(|| PageKind::Thp.into()),
        };
        percents.iter().map(kind).collect()
    }

    #[test]
    fn the_fit_finds_the_price_of_synthetic_runs() {
        let kinds = kinds(&[0, 100, 25, 50, 75]);
        let (samples, translation) = measured(&kinds, 40.0);
        let found = fit(&kinds, &samples, &translation, 10.0, 20.0).unwrap().unwrap();
        let names: Vec<&str> = found.mixtures.iter().map(|mixture| mixture.kind.as_str()).collect();
        assert_eq!(names, ["4k", "thp:25%", "thp:50%", "thp:75%", "thp"]);
        assert!((found.fitted_ns.likely - 40.0).abs() < 1e-6 && found.worst_error < 1e-9, "{found:?}");
        assert!((found.fitted_ns.high - found.fitted_ns.low).abs() < 1e-6, "all rounds have the same slope: {found:?}");
        let half = &found.mixtures[2];
        assert_eq!((half.runs, half.share, half.walks), (8, 0.5, 5e7));
        for seconds in [half.fitted_s, half.left_out_s, half.measured_s.likely] {
            assert!((seconds - 12.35).abs() < 1e-6, "{half:?}");
        }
        // The calibrated price saves a tenth of 20 s; it differs from the synthetic one.
        assert!((half.priced_s.unwrap().likely - (found.mixtures[0].measured_s.likely - 2.0)).abs() < 1e-9);
        assert_eq!(found.mixtures[0].priced_s, None);
    }

    #[test]
    fn the_fit_ignores_the_calibrated_price() {
        let kinds = kinds(&[0, 25, 50, 75, 100]);
        let (samples, mut translation) = measured(&kinds, 40.0);
        let with = fit(&kinds, &samples, &translation, 10.0, 20.0).unwrap().unwrap();
        translation.configurations.iter_mut().for_each(|modelled| modelled.time = None);
        let without = fit(&kinds, &samples, &translation, 10.0, 99.0).unwrap().unwrap();
        assert_eq!((with.fitted_ns, with.worst_error), (without.fitted_ns, without.worst_error));
        assert!(without.mixtures.iter().all(|mixture| mixture.priced_s.is_none()));
    }

    #[test]
    fn the_fit_needs_mosaics_and_at_least_four_mixtures() {
        let (samples, translation) = measured(&kinds(&[0, 100]), 40.0);
        assert!(fit(&kinds(&[0, 100]), &samples, &translation, 1.0, 1.0).is_none());
        let (samples, translation) = measured(&kinds(&[0, 25, 100]), 40.0);
        let error = fit(&kinds(&[0, 25, 100]), &samples, &translation, 1.0, 1.0).unwrap().unwrap_err();
        assert!(error.to_string().contains("at least four"), "{error}");
        let unmodelled = Translation::default();
        assert!(fit(&kinds(&[0, 25, 50, 75, 100]), &samples, &unmodelled, 1.0, 1.0).is_none());
    }
}
