//! Memory and faults of a run over time.

use crate::document::{Axis, Chart, Colour, Curves, Legend, Plot, Series, SeriesForm};
use crate::paging::{PagingSample, PagingStats};
use crate::quantity::{bytes, count};

const RESIDENT: Colour = Colour(86, 180, 233);
const STORED: Colour = Colour(214, 120, 30);
const BOUND: Colour = Colour(148, 154, 163);

/// The plots; none for a run that was too short to be watched.
pub(super) fn over_time(stats: &PagingStats) -> Vec<Plot> {
    if stats.samples.len() < 3 { Vec::new() } else { vec![memory(stats), faults(&stats.samples)] }
}

fn memory(stats: &PagingStats) -> Plot {
    let samples = &stats.samples;
    let largest = |of: fn(&PagingSample) -> u64| samples.iter().map(of).max().unwrap_or(0);
    let (resident, stored) = (largest(|sample| sample.resident_bytes), largest(|sample| sample.stored_bytes));
    let curve = |colour, form, height: &dyn Fn(&PagingSample) -> u64| {
        series(colour, form, samples.iter().map(|sample| (seconds(sample), height(sample) as f64)).collect())
    };
    Plot {
        id: "plot-paging-memory".into(),
        title: "Memory over time, all processes".into(),
        description: format!("At most {} resident, and {} in stores.", bytes(resident), bytes(stored)),
        caption: String::new(),
        legend: vec![RESIDENT.named("resident"), STORED.named("in stores"), BOUND.named("bound")],
        chart: Some(curves(
            samples,
            Axis::of_bytes(resident.max(stored).max(stats.bound_bytes)),
            vec![
                curve(RESIDENT, SeriesForm::Area, &|sample| sample.resident_bytes),
                curve(STORED, SeriesForm::Line, &|sample| sample.stored_bytes),
                curve(BOUND, SeriesForm::Line, &|_| stats.bound_bytes),
            ],
        )),
    }
}

fn faults(samples: &[PagingSample]) -> Plot {
    let rate = |pair: &[PagingSample]| {
        let elapsed = seconds(&pair[1]) - seconds(&pair[0]);
        pair[1].faults.saturating_sub(pair[0].faults) as f64 / elapsed.max(0.001)
    };
    let rates: Vec<_> = samples.windows(2).map(|pair| (seconds(&pair[1]), rate(pair))).collect();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count divided by milliseconds")]
    let largest = rates.iter().fold(0.0, |most, (_, rate)| f64::max(most, *rate)) as u64;
    Plot {
        id: "plot-paging-faults".into(),
        title: "Faults per second over time".into(),
        description: format!("At most {} per second.", count(largest)),
        caption: String::new(),
        legend: Vec::<Legend>::new(),
        chart: Some(curves(samples, Axis::of_count(largest), vec![series(RESIDENT, SeriesForm::Area, rates)])),
    }
}

fn curves(samples: &[PagingSample], y: Axis, series: Vec<Series>) -> Chart {
    let end = samples.last().map_or(0.0, seconds);
    Chart::Curves(Curves { x: Axis::of_seconds(end), y: y.with_room(0.06), labels: (8, 4), size: (1520, 340), series })
}

const fn series(colour: Colour, form: SeriesForm, points: Vec<(f64, f64)>) -> Series {
    Series { colour, form, points, intervals: Vec::new() }
}

fn seconds(sample: &PagingSample) -> f64 {
    sample.t_ms as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_drawn_per_second() {
        let sample = |t_ms, faults| PagingSample { t_ms, faults, resident_bytes: 1 << 20, stored_bytes: 1 << 21 };
        let samples = vec![sample(0, 0), sample(500, 1000), sample(1000, 1000)];
        let stats = PagingStats { samples, bound_bytes: 1 << 20, ..PagingStats::default() };
        let plots = over_time(&stats);
        assert_eq!(plots[0].description, "At most 1 MiB resident, and 2 MiB in stores.");
        assert_eq!(plots[1].description, "At most 2,000 per second.");
        let Some(Chart::Curves(curves)) = &plots[1].chart else { panic!("{plots:?}") };
        assert_eq!(curves.series[0].points, [(0.5, 2000.0), (1.0, 0.0)]);
        assert!(over_time(&PagingStats::default()).is_empty());
    }
}
