//! A profile as records for CSV: a record for each page kind, numbers in the units of their fields.
//!
//! Empty where there is none; without a `confidence`, `low` and `high` are only a range. Where the
//! program was traced, a record for each modelled configuration follows, and then one for each
//! allocation site and for memory of no site (it has no bytes and no allocations).

use crate::render::csv::{Records, full};
use crate::translation::ReportedMixture;
use crate::translation::sites::SiteLine;
use crate::translation::summary::ConfigurationSummary;
use crate::{KindSummary, Summary, TranslationSummary};
use fieldstone_stats::{Estimate, Interval};

const SUMMARY: &str = "kind,verdict,runs,failed,value_s,value_low_s,value_high_s,ratio,ratio_low,ratio_high,ratio_confidence,\
                       wall_s,user_s,system_s,minor_faults,major_faults,max_resident_bytes,resident_peak_bytes,resident_growth";
const MODELLED: &str = "configuration,misses_per_1000,walks_per_1000,instruction_walks_per_1000,references_per_walk,far_share,\
                        data_share,data_share_low,data_share_high,instruction_share,instruction_share_low,\
                        instruction_share_high,predicted_ratio,predicted_ratio_low,predicted_ratio_high,\
                        mosaic_walks,mosaic_measured_s,mosaic_measured_low_s,mosaic_measured_high_s,mosaic_priced_s,\
                        mosaic_priced_low_s,mosaic_priced_high_s,mosaic_fitted_s,mosaic_left_out_s";
const SITES: &str = "site,site_place,site_stack,site_walks_share,site_walks_share_left_on_2m,site_walks_per_1000,site_bytes,\
                     site_allocations";
/// The beginning of a field that ends with a page kind.
const SITE_HUGE: &str = "site_huge_on_";
/// The summary as records: one for each page kind; then one for each modelled configuration, and
/// for each site.
pub fn records(summary: &Summary) -> Vec<Records> {
    let traced = summary.translation.as_ref();
    let modelled = traced.into_iter().flat_map(|traced| {
        let all = traced.configurations.iter();
        all.map(|of| [modelled_fields(of, traced.is_unclear()), mixture_fields(traced.mixture(&of.name))].concat())
    });
    vec![
        Records::new(SUMMARY).with(summary.kinds.iter().map(kind_fields)),
        Records::new(MODELLED).with(modelled),
        traced.map(sites).unwrap_or_default(),
    ]
}

fn kind_fields(kind: &KindSummary) -> Vec<String> {
    let cost = |field: fn(&crate::Cost) -> String| kind.cost.as_ref().map(field).unwrap_or_default();
    let mut fields = vec![
        kind.name.clone(),
        kind.verdict.map_or_else(|| "baseline".to_owned(), |verdict| verdict.to_string()),
        kind.runs.to_string(),
        kind.failed.to_string(),
    ];
    fields.extend(estimate_fields(kind.value_s.as_ref()).into_iter().take(3));
    fields.extend(estimate_fields(kind.ratio.as_ref()));
    fields.extend([
        cost(|cost| cost.wall_s.to_string()),
        cost(|cost| cost.user_s.to_string()),
        cost(|cost| cost.system_s.to_string()),
        cost(|cost| cost.minor_faults.to_string()),
        cost(|cost| cost.major_faults.to_string()),
        cost(|cost| cost.max_resident_bytes.to_string()),
    ]);
    let resident = kind.resident.as_ref();
    fields.push(resident.map(|of| of.peak_bytes.to_string()).unwrap_or_default());
    fields.push(full(resident.and_then(|of| of.growth)));
    fields
}

/// Without the middles of estimates where only their bounds are known.
fn modelled_fields(of: &ConfigurationSummary, is_unclear: bool) -> Vec<String> {
    let mut fields = vec![
        of.name.clone(),
        full(of.misses_per_thousand),
        full(of.walks_per_thousand),
        full(of.instruction_walks_per_thousand),
        full(of.references_a_walk),
        full(of.far_share),
    ];
    for range in [of.data_share, of.instruction_share, of.time] {
        let likely = range.filter(|_| !is_unclear).map(|of| of.likely);
        fields.extend([likely, range.map(|of| of.low), range.map(|of| of.high)].map(full));
    }
    fields
}

/// Real runs on the mixture of pages; empty where there were none.
fn mixture_fields(of: Option<&ReportedMixture>) -> Vec<String> {
    let range = |range: Option<Interval>| [range.map(|of| of.likely), range.map(|of| of.low), range.map(|of| of.high)];
    let mut fields = vec![of.map(|of| of.walks)];
    fields.extend(range(of.map(|of| of.measured_s)));
    fields.extend(range(of.and_then(|of| of.priced_s)));
    fields.extend([of.map(|of| of.fitted_s), of.map(|of| of.left_out_s)]);
    fields.into_iter().map(full).collect()
}

/// Whose memory the walks are for: the sites, and then memory of no site. There is a field for each
/// page kind of which it is known how much of a site's memory was on pages of at least that size.
fn sites(traced: &TranslationSummary) -> Records {
    let lines = traced.sites.iter().chain(&traced.rest);
    let kinds = SiteLine::kinds(lines.clone());
    // Walks on 2 MiB pages are unknown if none was attributed.
    let large = lines.clone().any(|line| line.share_large > 0.0);
    let whole = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let records = lines.map(|line| {
        let mut fields = vec![
            line.name.clone(),
            line.place.clone(),
            line.stack.join("; "),
            full(Some(line.share)),
            full(Some(line.share_large).filter(|_| large)),
            full(line.walks_per_thousand),
            whole(line.bytes),
            whole(line.allocations),
        ];
        fields.extend(kinds.iter().map(|kind| full(line.large_on(kind))));
        fields
    });
    let mut all = Records::new(SITES).with(records);
    // A name from elsewhere must not end its field.
    all.fields.extend(kinds.iter().map(|kind| format!("{SITE_HUGE}{}", kind.replace([',', '"'], "_"))));
    all
}

/// Median, low, high, confidence.
pub(in crate::reports) fn estimate_fields(estimate: Option<&Estimate>) -> [String; 4] {
    let Some(estimate) = estimate else { return Default::default() };
    let confidence = full(estimate.confidence);
    [estimate.median.to_string(), estimate.low.to_string(), estimate.high.to_string(), confidence]
}

#[cfg(test)]
mod tests {
    use crate::translation::SitePages;
    use crate::{Diff, Profile, Summary, csv, fixture, reports};

    fn csv_of(summary: &Summary) -> String {
        csv::render(&super::records(summary))
    }

    fn csv_of_diff(a: &Profile, b: &Profile) -> String {
        csv::render(&reports::diff::records(&Diff::between(a, b)))
    }

    /// The lines' fields: a comma between quotation marks ends none.
    fn fields(csv: &str) -> Vec<Vec<&str>> {
        let lines = csv.lines().map(|line| {
            let mut quoted = false;
            let ends = |letter: char| {
                quoted ^= letter == '"';
                letter == ',' && !quoted
            };
            line.split(ends).collect()
        });
        lines.collect()
    }

    /// The field of `line` beneath the heading `name`, which no other column has.
    fn field<'a>(lines: &[Vec<&'a str>], line: &[&'a str], name: &str) -> &'a str {
        let mut columns = lines[0].iter().zip(line).filter(|(heading, _)| **heading == name);
        let (Some((_, field)), None) = (columns.next(), columns.next()) else { panic!("not one {name}: {lines:?}") };
        field
    }

    #[test]
    fn every_line_has_the_heading_s_fields_and_full_numbers() {
        let mut profile = Profile { translation: None, ..fixture::profile() };
        profile.kinds[4].name = "odd, \"kind\"".into();
        let summary = Summary::of(&profile);
        let csv = csv_of(&summary);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 6);
        assert!(lines[1..5].iter().all(|line| line.split(',').count() == lines[0].split(',').count()));
        let thp: Vec<&str> = lines[3].split(',').collect();
        assert_eq!((thp[0], thp[1], thp[2]), ("thp", "gain", "12"));
        assert_eq!(thp[7].parse(), Ok(summary.kind("thp").unwrap().ratio.unwrap().median));
        assert!(lines[5].starts_with("\"odd, \"\"kind\"\"\",unavailable,0,0,,"));

        let diff = csv_of_diff(&profile, &profile);
        assert!(
            diff.lines().nth(1).is_some_and(|line| line.starts_with("4k,the same,2.") && line.split(',').count() == 10),
            "{diff}"
        );
    }
    #[test]
    fn configurations_follow_under_the_same_heading() {
        let profile = fixture::profile();
        let summary = Summary::of(&profile);
        for csv in [csv_of(&summary), csv_of_diff(&profile, &profile)] {
            let lines = fields(&csv);
            assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{csv}");
            let modelled: Vec<_> = lines.iter().filter(|line| line[0].is_empty()).collect();
            assert!(modelled.len() >= 6, "{csv}");
            let named = |line| field(&lines, line, "configuration");
            assert_eq!((named(modelled[3]), named(&lines[1])), ("direct-segment", ""));
        }
        let csv = csv_of_diff(&profile, &profile);
        assert!(csv.contains(",calibrated,30.4,30.4,") && csv.contains(",mosaics,3.8,3.8,"), "{csv}");
        let csv = csv_of(&summary);
        let lines = fields(&csv);
        let of = |configuration: &str, name: &str| {
            let line = lines.iter().find(|line| field(&lines, line, "configuration") == configuration).unwrap();
            field(&lines, line, name)
        };
        assert_eq!(of("2m", "mosaic_measured_s"), "1.38", "{csv}");
        let walks = summary.translation.unwrap().configuration("4k").unwrap().walks_per_thousand;
        assert_eq!(of("4k", "walks_per_1000").parse::<f64>().ok(), walks);
    }

    #[test]
    fn sites_and_memory_of_none_come_last() {
        let mut profile = fixture::profile();
        let summary = Summary::of(&profile);
        let csv = csv_of(&summary);
        let (lines, traced) = (fields(&csv), summary.translation.unwrap());
        let of = |line: &[&str], name: &str| field(&lines, line, name).to_owned();
        let sites: Vec<_> = lines[1..].iter().filter(|line| !of(line, "site").is_empty()).collect();
        assert_eq!(sites.len(), traced.sites.len() + traced.rest.len(), "{csv}");
        assert_eq!(sites.last().copied(), lines.last(), "{csv}");
        assert!(sites.iter().all(|line| of(line, "kind").is_empty() && of(line, "configuration").is_empty()), "{csv}");
        let shares: Vec<f64> = sites.iter().map(|line| of(line, "site_walks_share").parse().unwrap()).collect();
        assert_eq!(shares[0], traced.sites[0].share);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        let first =
            ["site", "site_place", "site_stack", "site_bytes", "site_allocations"].map(|name| of(sites[0], name));
        let stack = "xmalloc; build_graph; main; __libc_start_main";
        assert_eq!(first, ["build_graph", "src/graph/build.c:214", stack, "2147483648", "5"]);
        assert!(of(sites[1], "site").starts_with("\"std::__detail::_Map_base<int, "), "{csv}");
        let globals = sites.iter().find(|line| of(line, "site") == "globals").unwrap();
        assert_eq!(["site_place", "site_bytes", "site_allocations"].map(|name| of(globals, name)), ["", "", ""]);
        assert!(of(globals, "site_walks_share_left_on_2m").parse::<f64>().unwrap() > 0.0, "{csv}");

        let traced = profile.translation.as_mut().unwrap();
        traced.sites.iter_mut().for_each(|site| site.walks_large = 0);
        let csv = csv_of(&Summary::of(&profile));
        let lines = fields(&csv);
        assert!(lines[1..].iter().all(|line| field(&lines, line, "site_walks_share_left_on_2m").is_empty()), "{csv}");
    }

    #[test]
    fn pages_that_sites_really_got_have_a_column_for_each_kind() {
        let mut profile = fixture::profile();
        assert!(!csv_of(&Summary::of(&profile)).contains(super::SITE_HUGE), "nothing was seen");
        let pages = |kind: &str, share| SitePages { kind: kind.into(), share, bytes: 1 << 20, samples: 16 };
        let sites = &mut profile.translation.as_mut().unwrap().sites;
        sites[0].pages = vec![pages("thp", 0.9375)];
        sites[1].pages = vec![pages("odd,kind", 1.0)];
        let csv = csv_of(&Summary::of(&profile));
        let lines = fields(&csv);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{csv}");
        let line = lines.iter().find(|line| field(&lines, line, "site") == "build_graph").unwrap();
        let huge = ["site_huge_on_thp", "site_huge_on_odd_kind"].map(|name| field(&lines, line, name));
        assert_eq!(huge, ["0.9375", ""], "{csv}");
        assert!(lines.iter().any(|line| field(&lines, line, "site_huge_on_odd_kind") == "1"), "{csv}");
    }

    #[test]
    fn changes_of_sites_have_both_shares_or_one() {
        let a = fixture::profile();
        let mut b = a.clone();
        b.translation.as_mut().unwrap().sites[0].function = "build, again".into();
        let csv = csv_of_diff(&a, &b);
        let lines = fields(&csv);
        let shares = |name: &str| {
            let line = lines.iter().find(|line| field(&lines, line, "site") == name).unwrap();
            ["a_walks_share", "b_walks_share"].map(|side| field(&lines, line, side).parse::<f64>().ok())
        };
        let (gone, new, same) = (shares("build_graph"), shares("\"build, again\""), shares("read_edges"));
        assert!(gone[0].is_some() && gone[1].is_none(), "{csv}");
        assert_eq!((new[0], new[1]), (None, gone[0]), "{csv}");
        assert!(same[0].is_some() && same[0] == same[1], "{csv}");
    }
}
