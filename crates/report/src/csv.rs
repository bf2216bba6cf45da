//! Summaries as CSV (RFC 4180, a heading, one line a page kind): numbers in full, in the units of their headings, for a
//! spreadsheet or a script. Empty where there is none; without a `confidence`, `low` and `high` are only a range.

use crate::stats::Estimate;
use crate::{Diff, Summary};

/// The summary, a line for each page kind.
pub fn summary(summary: &Summary) -> String {
    let mut csv = String::from(
        "kind,verdict,runs,failed,value_s,value_low_s,value_high_s,ratio,ratio_low,ratio_high,ratio_confidence,\
         wall_s,user_s,system_s,minor_faults,major_faults,max_resident_bytes\n",
    );
    for kind in &summary.kinds {
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
        csv += &(fields.join(",") + "\n");
    }
    csv
}

/// The difference of two profiles, a line for each page kind.
pub fn diff(diff: &Diff) -> String {
    let mut csv = String::from("kind,change,a_s,b_s,ratio,ratio_low,ratio_high,ratio_confidence\n");
    for kind in &diff.kinds {
        let median = |estimate: Option<Estimate>| estimate.map(|value| value.median.to_string()).unwrap_or_default();
        let mut fields = vec![quote(&kind.name), kind.change.to_string(), median(kind.a_s), median(kind.b_s)];
        fields.extend(estimate(kind.ratio.as_ref()));
        csv += &(fields.join(",") + "\n");
    }
    csv
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
    use crate::{Diff, Summary, fixture};

    #[test]
    fn every_line_has_the_heading_s_fields_and_full_numbers() {
        let mut profile = fixture::profile();
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
}
