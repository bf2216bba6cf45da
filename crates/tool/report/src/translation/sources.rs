//! The source of each number of a trace: counted, modelled, calibrated, measured.

use super::summary::{TranslationSummary, part};
use super::{CounterReading, ModelledProcessor, Translation};
use crate::quantity::{count, estimate, nanoseconds, rate, share};

/// The name of the entry on the source of the TLBs' sizes.
pub const SIZES: &str = "Sizes of the TLBs";

/// Names and sources, from accesses to time.
pub fn sources(traced: &Translation, summary: &TranslationSummary) -> Vec<(&'static str, String)> {
    let source = Some(&traced.processor.source).filter(|source| !source.is_empty());
    let slowdown = traced.slowdown.filter(|slowdown| slowdown.is_finite());
    let sources = [
        Some(("The trace", accesses(traced))),
        Some(("TLBs", processor(&traced.processor))),
        source.map(|source| (SIZES, format!("from {source}"))),
        Some(("Price of a walk", price(traced, summary))),
        Some(("Hardware counters", counters(traced))),
        slowdown.map(|times| {
            ("Cost of the trace", format!("{} times the processor time of a run on 4 KiB pages", rate(times)))
        }),
    ];
    sources.into_iter().flatten().collect()
}

fn accesses(traced: &Translation) -> String {
    let tracer = if traced.tracer.is_empty() { "a tracer without a name" } else { &traced.tracer };
    let all = format!(
        "{} accesses by {} instructions, recorded by {tracer}",
        count(traced.accesses),
        count(traced.instructions)
    );
    if traced.bursts == 0 {
        return format!("{all}; all of them counted");
    }
    let bursts = if traced.bursts == 1 { "one burst".to_owned() } else { format!("{} bursts", count(traced.bursts)) };
    let of = part(traced.counted_accesses, traced.accesses).map_or_else(String::new, |of| format!(" ({})", share(of)));
    let error = traced.burst_error.map_or_else(String::new, |error| {
        format!("; other bursts would count about {} more or fewer walks", share(error))
    });
    format!("{all}; counted: {bursts} with {} of them{of}{error}", count(traced.counted_accesses))
}

fn processor(ModelledProcessor { name, geometry, .. }: &ModelledProcessor) -> String {
    let geometry = if geometry.is_empty() { String::new() } else { format!(": {geometry}") };
    format!("modelled on {name}{geometry}")
}

fn price(traced: &Translation, summary: &TranslationSummary) -> String {
    if summary.is_of_little() {
        return "not reported: too little was traced".to_owned();
    }
    let Some(cost) = traced.walk_cost.as_ref().filter(|cost| cost.ns.finite().is_some()) else {
        return "not known, so shares of time and predicted times are left out".to_owned();
    };
    let how = if cost.how.is_empty() { &cost.from } else { &cost.how };
    format!("{} on average, an estimate: {how}", estimate(&cost.ns, nanoseconds))
}

fn counters(traced: &Translation) -> String {
    if traced.counted.is_empty() {
        return traced
            .uncounted
            .as_ref()
            .map_or_else(|| "none was read".to_owned(), |why| format!("none was read: {why}"));
    }
    let words = |of: &CounterReading| {
        let walking = of.share().map_or_else(String::new, |part| format!(" in {} of the cycles", share(part)));
        format!("{} walks{walking} on {}", count(of.walks), of.kind)
    };
    format!("{}, in real runs", traced.counted.iter().map(words).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProfiledProgram;
    use crate::translation::WalkCost;
    use fieldstone_stats::Interval;

    fn all(traced: &Translation) -> Vec<(&'static str, String)> {
        sources(traced, &TranslationSummary::of(traced, &[], &ProfiledProgram::default()))
    }

    fn said(traced: &Translation, name: &str) -> String {
        all(traced).into_iter().find(|(of, _)| *of == name).map_or_else(String::new, |(_, said)| said)
    }

    #[test]
    fn missing_sources_are_reported_as_such() {
        let mut traced = Translation::default();
        assert!(said(&traced, "The trace").ends_with("all of them counted"));
        assert!(said(&traced, "Price of a walk").starts_with("not known"));
        assert_eq!(said(&traced, "Hardware counters"), "none was read");
        traced.uncounted = Some("a virtual machine".into());
        assert_eq!(said(&traced, "Hardware counters"), "none was read: a virtual machine");
        assert_eq!(all(&traced).len(), 4);
        traced.walk_cost =
            Some(WalkCost { ns: Interval { high: f64::NAN, ..Interval::default() }, ..WalkCost::default() });
        assert!(said(&traced, "Price of a walk").starts_with("not known"));
    }

    #[test]
    fn the_source_of_sizes_is_an_entry_of_its_own() {
        let processor = ModelledProcessor {
            name: "zen4".into(),
            geometry: "L1 72 full".into(),
            source: "CPUID".into(),
            foreign: false,
        };
        let mut traced = Translation { processor, ..Translation::default() };
        assert_eq!(said(&traced, "TLBs"), "modelled on zen4: L1 72 full");
        assert_eq!(said(&traced, SIZES), "from CPUID");
        traced.processor.source.clear();
        assert!(all(&traced).iter().all(|(name, _)| *name != SIZES));
    }

    #[test]
    fn bursts_counters_and_prices_have_their_numbers() {
        let traced = Translation {
            accesses: 4000,
            counted_accesses: 1000,
            bursts: 1,
            counted: vec![CounterReading { kind: "4k".into(), walks: 1234, walk_cycles: Some(30), cycles: 100 }],
            walk_cost: Some(WalkCost {
                ns: Interval { low: 9.0, likely: 30.0, high: 91.0 },
                how: "replayed".into(),
                ..WalkCost::default()
            }),
            slowdown: Some(5.64),
            ..Translation::default()
        };
        assert!(said(&traced, "The trace").ends_with("counted: one burst with 1,000 of them (25.0 %)"));
        let some = Translation { bursts: 9, burst_error: Some(0.25), ..traced.clone() };
        assert!(said(&some, "The trace").ends_with("about 25.0 % more or fewer walks"));
        assert_eq!(said(&traced, "Hardware counters"), "1,234 walks in 30.0 % of the cycles on 4k, in real runs");
        assert_eq!(said(&traced, "Price of a walk"), "30.0 ns (9.00–91.0) on average, an estimate: replayed");
        assert!(said(&traced, "Cost of the trace").starts_with("5.64 times"));
    }
}
