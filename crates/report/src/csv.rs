//! Summaries as CSV (RFC 4180, a heading, one line a page kind): numbers in full, in the units of their headings, for a
//! spreadsheet or a script. Empty where there is none; without a `confidence`, `low` and `high` are only a range.
//!
//! Where the program was traced, the lines are longer, and a line a modelled configuration follows: its `kind` is empty.

use crate::diff::{ConfigurationDiff, PriceDiff};
use crate::stats::Estimate;
use crate::translation::summary::ConfigurationSummary;
use crate::translation::{Mixture, Range};
use crate::{Diff, KindDiff, KindSummary, Summary};

const SUMMARY: &str = "kind,verdict,runs,failed,value_s,value_low_s,value_high_s,ratio,ratio_low,ratio_high,ratio_confidence,\
                       wall_s,user_s,system_s,minor_faults,major_faults,max_resident_bytes";
const MODELLED: &str = "configuration,misses_per_1000,walks_per_1000,instruction_walks_per_1000,references_per_walk,far_share,\
                        data_share,data_share_low,data_share_high,instruction_share,instruction_share_low,\
                        instruction_share_high,predicted_ratio,predicted_ratio_low,predicted_ratio_high,\
                        mosaic_walks,mosaic_measured_s,mosaic_measured_low_s,mosaic_measured_high_s,mosaic_priced_s,\
                        mosaic_priced_low_s,mosaic_priced_high_s,mosaic_fitted_s,mosaic_left_out_s";
const DIFF: &str = "kind,change,a_s,b_s,ratio,ratio_low,ratio_high,ratio_confidence";
const WALK_DIFF: &str = "configuration,a_walks_per_1000,b_walks_per_1000,walks_ratio,price,a_walk_ns,b_walk_ns";

/// The summary, a line for each page kind; then one for each modelled configuration.
pub fn summary(summary: &Summary) -> String {
    let kinds = summary.kinds.iter().map(kind_fields).collect();
    let modelled = summary.translation.iter().flat_map(|traced| {
        let all = traced.configurations.iter();
        all.map(|of| [modelled_fields(of), mixture_fields(traced.mixture(&of.name))].concat())
    });
    lines(SUMMARY, kinds, MODELLED, modelled.collect())
}

/// The difference of two profiles, a line for each page kind; then one for each modelled configuration, and one for
/// each way to know what a walk costs.
pub fn diff(diff: &Diff) -> String {
    let kind = |kind: &KindDiff| {
        let median = |estimate: Option<Estimate>| full(estimate.map(|value| value.median));
        let mut fields = vec![quote(&kind.name), kind.change.to_string(), median(kind.a_s), median(kind.b_s)];
        fields.extend(estimate(kind.ratio.as_ref()));
        fields
    };
    let walks = |of: &ConfigurationDiff| {
        let walks = [full(of.a_walks_per_thousand), full(of.b_walks_per_thousand), full(of.ratio())];
        [vec![quote(&of.name)], walks.to_vec(), vec![String::new(); 3]].concat()
    };
    let price = |of: &PriceDiff| {
        let likely = |range: Option<Range>| full(range.map(|of| of.likely));
        [vec![String::new(); 4], vec![of.name.to_owned(), likely(of.a_ns), likely(of.b_ns)]].concat()
    };
    let more = diff.configurations.iter().map(walks).chain(diff.prices.iter().map(price));
    lines(DIFF, diff.kinds.iter().map(kind).collect(), WALK_DIFF, more.collect())
}

/// The measured lines and then the modelled ones under one heading, each with the other's fields empty. What was not
/// traced has the measured fields only.
fn lines(heading: &str, measured: Vec<Vec<String>>, more: &str, modelled: Vec<Vec<String>>) -> String {
    if modelled.is_empty() {
        return measured.iter().fold(format!("{heading}\n"), |csv, fields| csv + &fields.join(",") + "\n");
    }
    let empty = |heading: &str| ",".repeat(heading.split(',').count() - 1);
    let mut csv = format!("{heading},{more}\n");
    for fields in measured {
        csv += &format!("{},{}\n", fields.join(","), empty(more));
    }
    for fields in modelled {
        csv += &format!("{},{}\n", empty(heading), fields.join(","));
    }
    csv
}

fn kind_fields(kind: &KindSummary) -> Vec<String> {
    let cost = |field: fn(&crate::Cost) -> String| kind.cost.as_ref().map(field).unwrap_or_default();
    let mut fields = vec![
        quote(&kind.name),
        kind.verdict.map_or_else(|| "baseline".to_owned(), |verdict| verdict.to_string()),
        kind.runs.to_string(),
        kind.failed.to_string(),
    ];
    fields.extend(estimate(kind.value_s.as_ref()).into_iter().take(3));
    fields.extend(estimate(kind.ratio.as_ref()));
    fields.extend([
        cost(|cost| cost.wall_s.to_string()),
        cost(|cost| cost.user_s.to_string()),
        cost(|cost| cost.system_s.to_string()),
        cost(|cost| cost.minor_faults.to_string()),
        cost(|cost| cost.major_faults.to_string()),
        cost(|cost| cost.max_resident_bytes.to_string()),
    ]);
    fields
}

fn modelled_fields(of: &ConfigurationSummary) -> Vec<String> {
    let mut fields = vec![
        quote(&of.name),
        full(of.misses_per_thousand),
        full(of.walks_per_thousand),
        full(of.instruction_walks_per_thousand),
        full(of.references_a_walk),
        full(of.far_share),
    ];
    for range in [of.data_share, of.instruction_share, of.time] {
        fields.extend([range.map(|of| of.likely), range.map(|of| of.low), range.map(|of| of.high)].map(full));
    }
    fields
}

/// Real runs on the mixture of pages; empty where there were none.
fn mixture_fields(of: Option<&Mixture>) -> Vec<String> {
    let range = |range: Option<Range>| [range.map(|of| of.likely), range.map(|of| of.low), range.map(|of| of.high)];
    let mut fields = vec![of.map(|of| of.walks)];
    fields.extend(range(of.map(|of| of.measured_s)));
    fields.extend(range(of.and_then(|of| of.priced_s)));
    fields.extend([of.map(|of| of.fitted_s), of.map(|of| of.left_out_s)]);
    fields.into_iter().map(full).collect()
}

/// A number with all its digits.
fn full(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Median, low, high, confidence.
fn estimate(estimate: Option<&Estimate>) -> [String; 4] {
    let Some(estimate) = estimate else { return Default::default() };
    let confidence = estimate.confidence.map(|value| value.to_string()).unwrap_or_default();
    [estimate.median.to_string(), estimate.low.to_string(), estimate.high.to_string(), confidence]
}

fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Diff, Profile, Summary, fixture};

    #[test]
    fn every_line_has_the_heading_s_fields_and_full_numbers() {
        let mut profile = Profile { translation: None, ..fixture::profile() };
        profile.kinds[4].name = "odd, \"kind\"".into();
        let summary = Summary::of(&profile);
        let csv = super::summary(&summary);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 6);
        assert!(lines[1..5].iter().all(|line| line.split(',').count() == lines[0].split(',').count()));
        let thp: Vec<&str> = lines[3].split(',').collect();
        assert_eq!((thp[0], thp[1], thp[2]), ("thp", "gain", "12"));
        assert_eq!(thp[7].parse(), Ok(summary.kind("thp").unwrap().ratio.unwrap().median));
        assert!(lines[5].starts_with("\"odd, \"\"kind\"\"\",unavailable,0,0,,"));

        let diff = super::diff(&Diff::between(&profile, &profile));
        assert!(
            diff.lines().nth(1).is_some_and(|line| line.starts_with("4k,the same,2.") && line.split(',').count() == 8),
            "{diff}"
        );
    }
    #[test]
    fn configurations_follow_under_the_same_heading() {
        let profile = fixture::profile();
        let summary = Summary::of(&profile);
        for csv in [super::summary(&summary), super::diff(&Diff::between(&profile, &profile))] {
            let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
            assert!(lines[1..5].iter().all(|line| line.len() == lines[0].len()), "{csv}");
            let column = |name: &str| lines[0].iter().position(|of| *of == name).unwrap();
            let modelled: Vec<_> = lines.iter().filter(|line| line[0].is_empty()).collect();
            assert!(modelled.len() >= 6, "{csv}");
            assert!(modelled.iter().all(|line| line.len() == lines[0].len()));
            assert_eq!(
                (modelled[3][column("configuration")], lines[1][column("configuration")]),
                ("direct-segment", "")
            );
        }
        let csv = super::diff(&Diff::between(&profile, &profile));
        assert!(csv.contains(",calibrated,30.4,30.4\n") && csv.contains(",mosaics,3.8,3.8\n"), "{csv}");
        let csv = super::summary(&summary);
        let small = csv.lines().find_map(|line| line.split_once(",4k,")).unwrap().1;
        let walks: f64 = small.split(',').nth(1).unwrap().parse().unwrap();
        let measured = csv.lines().find(|line| line.contains(",2m,")).unwrap().split(',').rev().nth(7);
        assert_eq!(measured, Some("1.38"), "{csv}");
        assert_eq!(Some(walks), summary.translation.unwrap().configuration("4k").unwrap().walks_per_thousand);
    }
}
