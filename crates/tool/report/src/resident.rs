//! Resident memory on each page kind compared with the baseline: a huge page that is only partly
//! filled costs memory.

use crate::{Footprint, Profile};
use fieldstone_stats::median;
use serde::{Deserialize, Serialize};

/// The resident peak of the program on one page kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resident {
    /// The page kind.
    pub kind: String,
    /// The most that was resident, hugetlb pages included, in bytes.
    pub peak_bytes: u64,
    /// How much more that is than on the baseline, as a part of the baseline's; negative for less.
    /// `None` for the baseline.
    pub growth: Option<f64>,
}

impl Resident {
    /// The kinds of `profile` whose peak is known, in its order.
    pub fn all(profile: &Profile) -> Vec<Self> {
        let baseline = peak_bytes(profile, &profile.baseline).filter(|bytes| *bytes > 0);
        let of = |kind: &str| {
            let peak_bytes = peak_bytes(profile, kind)?;
            let baseline = baseline.filter(|_| kind != profile.baseline);
            let growth = baseline.map(|baseline| peak_bytes as f64 / baseline as f64 - 1.0);
            Some(Self { kind: kind.to_owned(), peak_bytes, growth })
        };
        profile.kinds.iter().filter_map(|kind| of(&kind.name)).collect()
    }

    /// The growth in words, such as `+38 %`; at most `+1000 %`.
    pub fn words(&self) -> Option<String> {
        self.growth.map(|growth| format!("{:+.0} %", (growth * 100.0).clamp(-100.0, 1000.0)))
    }
}

/// The larger of the peak of the watched run and the median of the kernel's counts of the measured
/// runs. The kernel does not count hugetlb pages, so that only the watched run includes these.
fn peak_bytes(profile: &Profile, kind: &str) -> Option<u64> {
    let watched = profile.footprint(kind).and_then(Footprint::peak).map(|peak| peak.resident_bytes);
    let samples = profile.samples.iter().filter(|sample| sample.kind == kind && sample.max_resident_bytes > 0);
    let counted: Vec<f64> = samples.map(|sample| sample.max_resident_bytes as f64).collect();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the median of counts of bytes")]
    let counted = median(&counted).map(|bytes| bytes as u64);
    if kind.starts_with("hugetlb") {
        watched.map(|bytes| bytes.max(counted.unwrap_or(0)))
    } else {
        watched.max(counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FootprintPoint, fixture};

    #[test]
    fn growth_is_of_the_larger_count_on_each_side_and_hugetlb_needs_a_watched_run() {
        let mut profile = fixture::measured(&[("4k", 1.0), ("thp", 0.6), ("hugetlb", 0.5)], 6, 0.0);
        for sample in &mut profile.samples {
            sample.max_resident_bytes = if sample.kind == "thp" { 138 << 20 } else { 100 << 20 };
        }
        let grown: Vec<_> = Resident::all(&profile).iter().map(|of| (of.kind.clone(), of.words())).collect();
        assert_eq!(grown, [("4k".to_owned(), None), ("thp".to_owned(), Some("+38 %".to_owned()))]);
        let point = FootprintPoint { resident_bytes: 150 << 20, ..FootprintPoint::default() };
        profile.footprints.push(Footprint { kind: "hugetlb".into(), points: vec![point], ..Footprint::default() });
        assert_eq!(Resident::all(&profile)[2].words().unwrap(), "+50 %");
    }
}
