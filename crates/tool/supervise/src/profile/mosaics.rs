//! What a walk costs by real runs on mosaics (Mosalloc's way, Agbarya and others, MICRO 2020).
//!
//! ```text
//!   user time   |                    x 4k
//!               |            x  25 %              slope of the line: nanoseconds a walk
//!               |       x  50 %                   a mixture's distance from the line through the *others*: the check
//!               |  x  75 %
//!               | x thp
//!               +----------------------- walks of a run, by the models
//! ```
//! Times are those in user mode: faults cost less on larger pages too, and that is no matter of walks. Each round of runs has a line
//! of its own; the median of their slopes is the fitted price, and has an interval. The calibrated price is not looked at,
//! other than to foretell the same times from the one on 4 KiB pages: so each is a check of the other.

use fieldstone_report::Sample;
use fieldstone_report::stats::Estimate;
use fieldstone_report::translation::{Mixture as Told, Mosaics, Range, Translation};
use fieldstone_translation::{MosaicFit, MosaicRun, Result};
use fieldstone_wire::{Mixture, PageKind};

/// Times in user mode of the runs of one mixture, in the order of the rounds.
struct Timed {
    told: Told,
    user_s: Vec<f64>,
}

/// Fits the mixtures that were both run and modelled. `scale` makes a run of what was counted; `native_s` is the processor time
/// that shares of time are of. Nothing, where no mosaic was among them.
///
/// # Errors
/// Fewer than four mixtures, or no line through them.
pub(super) fn fit(
    kinds: &[Mixture],
    samples: &[Sample],
    told: &Translation,
    scale: f64,
    native_s: f64,
) -> Option<Result<Mosaics>> {
    let mut kinds: Vec<Mixture> = kinds.to_vec();
    kinds.sort_by_key(|&kind| percent(kind));
    let mut timed: Vec<Timed> = kinds.iter().filter_map(|&kind| time(kind, samples, told, scale)).collect();
    if !timed.iter().any(|timed| timed.told.kind.contains(':')) {
        return None;
    }
    let small_s = timed.first().filter(|first| first.told.share == 0.0).map(|first| first.told.measured_s.likely);
    for timed in timed.iter_mut().filter(|timed| timed.told.share > 0.0) {
        let saved = told.configuration(&timed.told.configuration).and_then(|modelled| modelled.time).map(Range::rest);
        timed.told.priced_s = small_s.zip(saved).map(|(small_s, saved)| {
            let after = |saved: f64| (small_s - saved * native_s).max(0.0);
            Range { low: after(saved.high), likely: after(saved.likely), high: after(saved.low) }
        });
    }
    Some(draw(timed))
}

/// The line through all mixtures, and through each round's runs of them.
fn draw(timed: Vec<Timed>) -> Result<Mosaics> {
    let runs = |seconds: &dyn Fn(&Timed) -> Option<f64>| -> Vec<MosaicRun> {
        let run = |timed: &Timed| Some(MosaicRun { walks: timed.told.walks, ns: seconds(timed)? * 1e9 });
        timed.iter().filter_map(run).collect()
    };
    let medians = runs(&|timed| Some(timed.told.measured_s.likely));
    let (line, best) = (MosaicFit::line(&medians)?, MosaicFit::fit(&medians)?);
    let rounds = timed.iter().map(|timed| timed.user_s.len()).min().unwrap_or(0);
    let slope =
        |round: usize| MosaicFit::line(&runs(&|timed| timed.user_s.get(round).copied())).map(|line| line.walk_ns());
    let slopes: Vec<f64> = (0..rounds).filter_map(|round| slope(round).ok()).collect();
    let mut mixtures: Vec<Told> = timed.into_iter().map(|timed| timed.told).collect();
    for (mixture, left_out_ns) in mixtures.iter_mut().zip(line.left_out_ns()) {
        mixture.fitted_s = line.ns(mixture.walks).likely / 1e9;
        mixture.left_out_s = left_out_ns / 1e9;
    }
    Ok(Mosaics {
        mixtures,
        fitted_ns: middle(&slopes).unwrap_or_default(),
        worst_error: line.error(),
        best_degree: u32::try_from(best.degree()).unwrap_or(u32::MAX),
        best_error: best.error(),
    })
}

/// Runs of a kind that ended well on a mixture that was modelled.
fn time(kind: Mixture, samples: &[Sample], told: &Translation, scale: f64) -> Option<Timed> {
    let percent = percent(kind)?;
    let configuration = match percent {
        0 => "4K".to_owned(),
        100 => "2M".to_owned(),
        percent => format!("{percent} % on 2M"),
    };
    let walks = told.configuration(&configuration)?.data.walks as f64 * scale;
    let name = kind.to_string();
    let usual = samples.iter().find(|sample| sample.kind == PageKind::Small4k.name()).map(|sample| &sample.outcome);
    let counts = |sample: &&Sample| sample.kind == name && Some(&sample.outcome) == usual;
    let mut own: Vec<&Sample> = samples.iter().filter(counts).collect();
    own.sort_by_key(|sample| sample.round);
    let user_s: Vec<f64> = own.iter().map(|sample| sample.user_s).collect();
    let told = Told {
        kind: name,
        configuration,
        share: f64::from(percent) / 100.0,
        walks,
        runs: u32::try_from(user_s.len()).unwrap_or(u32::MAX),
        measured_s: middle(&user_s)?,
        ..Told::default()
    };
    Some(Timed { told, user_s })
}

/// The larger pages' part of the region; none for pages of other sizes.
fn percent(kind: Mixture) -> Option<u32> {
    match kind.kind() {
        PageKind::Small4k => Some(0),
        PageKind::Thp => Some(kind.percent()),
        PageKind::Folio64k | PageKind::Hugetlb2m | PageKind::Hugetlb1g => None,
    }
}

fn middle(values: &[f64]) -> Option<Range> {
    let Estimate { low, median, high, .. } = Estimate::of_median(values)?;
    Some(Range { low, likely: median, high })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_report::translation::{ModelledConfiguration, Side};

    /// Walks fall with the share; a run of 10 s has none, and each costs `ns`. The rounds drift.
    fn measured(kinds: &[Mixture], ns: f64) -> (Vec<Sample>, Translation) {
        let (mut samples, mut told) = (Vec::new(), Translation::default());
        for &kind in kinds {
            let percent = percent(kind).unwrap();
            let walks = 1_000_000 * u64::from(100 - percent);
            let name = match percent {
                0 => "4K".to_owned(),
                100 => "2M".to_owned(),
                percent => format!("{percent} % on 2M"),
            };
            let time = Range { low: 0.9, likely: 0.9, high: 0.9 };
            let data = Side { walks: walks / 10, ..Side::default() };
            told.configurations.push(ModelledConfiguration {
                name,
                data,
                time: Some(time),
                ..ModelledConfiguration::default()
            });
            for round in 0..8 {
                let user_s = 10.0 + walks as f64 * ns / 1e9 + f64::from(round) * 0.1;
                samples.push(Sample { kind: kind.to_string(), round, user_s, ..Sample::default() });
            }
        }
        (samples, told)
    }

    fn kinds(percents: &[u32]) -> Vec<Mixture> {
        let kind = |&percent: &u32| match percent {
            0 => PageKind::Small4k.into(),
            percent => Mixture::mosaic(percent).unwrap_or_else(|| PageKind::Thp.into()),
        };
        percents.iter().map(kind).collect()
    }

    #[test]
    fn the_price_that_was_put_in_comes_out() {
        let kinds = kinds(&[0, 100, 25, 50, 75]);
        let (samples, told) = measured(&kinds, 40.0);
        let found = fit(&kinds, &samples, &told, 10.0, 20.0).unwrap().unwrap();
        let names: Vec<&str> = found.mixtures.iter().map(|mixture| mixture.kind.as_str()).collect();
        assert_eq!(names, ["4k", "thp:25%", "thp:50%", "thp:75%", "thp"]);
        assert!((found.fitted_ns.likely - 40.0).abs() < 1e-6 && found.worst_error < 1e-9, "{found:?}");
        assert!((found.fitted_ns.high - found.fitted_ns.low).abs() < 1e-6, "drift is all rounds' alike: {found:?}");
        let half = &found.mixtures[2];
        assert_eq!((half.runs, half.share, half.walks), (8, 0.5, 5e7));
        for seconds in [half.fitted_s, half.left_out_s, half.measured_s.likely] {
            assert!((seconds - 12.35).abs() < 1e-6, "{half:?}");
        }
        // A tenth of 20 s is saved by the calibrated price, which is not the one that was put in.
        assert!((half.priced_s.unwrap().likely - (found.mixtures[0].measured_s.likely - 2.0)).abs() < 1e-9);
        assert_eq!(found.mixtures[0].priced_s, None);
    }

    #[test]
    fn the_calibrated_price_has_no_part_in_the_fit() {
        let kinds = kinds(&[0, 25, 50, 75, 100]);
        let (samples, mut told) = measured(&kinds, 40.0);
        let with = fit(&kinds, &samples, &told, 10.0, 20.0).unwrap().unwrap();
        told.configurations.iter_mut().for_each(|modelled| modelled.time = None);
        let without = fit(&kinds, &samples, &told, 10.0, 99.0).unwrap().unwrap();
        assert_eq!((with.fitted_ns, with.worst_error), (without.fitted_ns, without.worst_error));
        assert!(without.mixtures.iter().all(|mixture| mixture.priced_s.is_none()));
    }

    #[test]
    fn without_mosaics_there_is_nothing_and_with_too_few_no_line() {
        let (samples, told) = measured(&kinds(&[0, 100]), 40.0);
        assert!(fit(&kinds(&[0, 100]), &samples, &told, 1.0, 1.0).is_none());
        let (samples, told) = measured(&kinds(&[0, 25, 100]), 40.0);
        let error = fit(&kinds(&[0, 25, 100]), &samples, &told, 1.0, 1.0).unwrap().unwrap_err();
        assert!(error.to_string().contains("at least four"), "{error}");
        let unmodelled = Translation::default();
        assert!(fit(&kinds(&[0, 25, 50, 75, 100]), &samples, &unmodelled, 1.0, 1.0).is_none());
    }
}
