//! Verdicts on variants of one made-up trace.

use super::*;
use crate::translation::Translation;
use crate::{Profile, Summary, fixture};

fn verdict(turn: impl FnOnce(&mut Profile)) -> WalkVerdict {
    let mut profile = fixture::profile();
    turn(&mut profile);
    Summary::of(&profile).translation.unwrap().verdict
}

fn traced(turn: impl FnOnce(&mut Translation)) -> WalkVerdict {
    verdict(|profile| turn(profile.translation.as_mut().unwrap()))
}

fn shares(of: &mut Translation, share: f64) {
    let range = Some(Interval { low: share / 2.0, likely: share, high: share * 1.5 });
    (of.configurations[0].data_share, of.configurations[0].instruction_share) = (range, None);
}

#[test]
fn prediction_and_measurement_stand_side_by_side_and_the_measurement_decides() {
    let verdict = traced(|_| ());
    let (words, command) = verdict.parts();
    assert_eq!(command, None, "the advice has it");
    for part in [
        "34.0 % (21.0–47.1) of the time",
        "62.0 % of the walks",
        "build_graph",
        "measured, which decides; predicted: 33.0 % (17.0–42.0) less",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let WalkVerdict::Costly { cure: Cure::Pages { kind, evidence: Evidence::Measured { gain }, .. }, .. } = &verdict
    else {
        panic!("{verdict:?}")
    };
    assert!(
        kind == "thp" && words.contains(&format!("On thp it took {} less time", percent(*gain))),
        "{kind}: {words}"
    );
}

/// A share from nearly 0 to nearly 1 recommends nothing, whatever its middle.
#[test]
fn an_estimate_with_wide_bounds_is_reported_as_unclear() {
    let wide = |of: &mut Translation| {
        of.configurations[0].data_share = Some(Interval { low: 0.08, likely: 0.97, high: 1.0 });
    };
    let measured = traced(wide);
    let WalkVerdict::Unclear { measured: Some((kind, gain)), .. } = &measured else { panic!("{measured:?}") };
    let words = measured.to_string();
    for part in ["from 8.0 % to 100.0 %".to_owned(), format!("on {kind} it took {} less", percent(*gain))] {
        assert!(words.contains(&part), "{part}: {words}");
    }
    let all = traced(|of| of.configurations[0].data_share = Some(Interval { low: 0.9, likely: 1.0, high: 1.0 }));
    assert!(matches!(all, WalkVerdict::Unclear { .. }), "a program does something between its walks: {all:?}");
    let little = |high| {
        traced(move |of| {
            of.configurations[0].data_share = Some(Interval { low: 0.0, likely: 0.001, high });
            of.configurations[0].instruction_share = None;
        })
    };
    assert!(matches!(little(0.05), WalkVerdict::Cheap { .. }));
    assert!(matches!(little(0.15), WalkVerdict::Unclear { .. }), "it may well be worth having");
    let unmeasured = verdict(|profile| {
        wide(profile.translation.as_mut().unwrap());
        profile.samples.retain(|sample| sample.kind == "4k");
    });
    assert!(unmeasured.to_string().contains("--runs"), "{unmeasured}");
}

/// The few accesses of a script are no statement about the program that it runs.
#[test]
fn a_run_that_was_hardly_traced_has_no_verdict() {
    let started = Some("/usr/lib/real/python3".to_owned());
    let wrapper = |of: &mut Translation| {
        shares(of, 0.0001);
        (of.instructions, of.started) = (2_000_000, started.clone());
    };
    for gone in [
        traced(wrapper),
        traced(|of| (of.configurations[0].data.accesses, of.started) = (0, started.clone())),
        traced(|of| {
            wrapper(of);
            (of.configurations[0].data.walks, of.configurations[0].instruction.walks) = (0, 0);
        }),
    ] {
        let words = gone.to_string();
        assert!(matches!(gone, WalkVerdict::Elsewhere { .. }), "{gone:?}");
        for part in ["/usr/lib/real/python3", "Trace the last program", "Measured runs decide: on hugetlb it took"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(!words.contains("nothing to gain"), "{words}");
    }
    let chain = |largest: &str| {
        verdict(|profile| {
            wrapper(profile.translation.as_mut().unwrap());
            profile.program.primary = largest.into();
        })
        .to_string()
    };
    assert!(chain("python3").contains("Trace that one by itself"), "{}", chain("python3"));
    assert!(chain("python3.11").contains("Trace python3.11 by itself"), "{}", chain("python3.11"));
    let helper = traced(|of| {
        shares(of, 0.0001);
        (of.instructions, of.started) = (20_000_000_000, started.clone());
    });
    assert!(matches!(helper, WalkVerdict::Cheap { .. }), "most of it was traced: {helper:?}");
    let costly = traced(|of| (of.instructions, of.started) = (2_000_000, started.clone()));
    assert!(matches!(costly, WalkVerdict::Costly { .. }), "its own walks explain the time: {costly:?}");
}

#[test]
fn a_prediction_that_may_be_no_saving_recommends_nothing() {
    let open = |retain: fn(&str, u32) -> bool, low: f64| {
        verdict(move |profile| {
            profile.samples.retain(|sample| retain(&sample.kind, sample.round));
            let large = &mut profile.translation.as_mut().unwrap().configurations[1];
            large.time = Some(Interval { low: 0.5, likely: 0.65, high: 1.0 - low });
        })
    };
    let undecided = |of: &WalkVerdict| {
        matches!(of, WalkVerdict::Costly { cure: Cure::Pages { evidence: Evidence::Undecided, .. }, .. })
    };
    let nothing = open(|kind, _| kind == "4k", 0.0);
    assert!(undecided(&nothing) && nothing.to_string().contains("--runs"), "{nothing}");
    let few = open(|kind, round| kind == "4k" || round < 2, 0.1);
    assert!(undecided(&few) && few.parts().1.is_none(), "{few}");
    assert!(open(|kind, _| kind == "4k", 0.1).parts().1.is_some());
}

#[test]
fn without_a_measurement_the_prediction_recommends() {
    let unmeasured = verdict(|profile| profile.samples.retain(|sample| sample.kind == "4k"));
    let (words, command) = unmeasured.parts();
    assert!(words.ends_with("Run it like this:"), "{words}");
    assert_eq!(command, Some("fieldstone run --region --pages thp -- gups 2G"));
}

#[test]
fn a_kind_that_fails_fast_has_no_gain() {
    let failed = verdict(|profile| {
        profile.samples.retain(|sample| sample.kind != "hugetlb");
        for sample in profile.samples.iter_mut().filter(|sample| sample.kind == "thp") {
            sample.outcome = "signal 11 (SIGSEGV)".into();
        }
    });
    let (words, command) = failed.parts();
    assert!(words.contains("on it failed") && command.is_none(), "{words}");
}

#[test]
fn one_gib_pages_must_be_worth_their_reserve() {
    let one_gib = traced(|of| {
        of.configurations[1].time = Some(Interval { low: 0.9, likely: 0.95, high: 1.0 });
        of.configurations[2].time = Some(Interval { low: 0.6, likely: 0.7, high: 0.8 });
    });
    assert!(one_gib.parts().1.unwrap().contains("--pages hugetlb-1g"));
}

#[test]
fn walks_that_larger_pages_do_not_save_are_reported() {
    let none = Some(Interval { low: 0.99, likely: 1.0, high: 1.0 });
    let segment = traced(|of| of.configurations[1..3].iter_mut().for_each(|of| of.time = none));
    assert!(segment.to_string().contains("A direct segment would take 33.7 %"), "{segment}");
    let nothing = traced(|of| of.configurations[1..].iter_mut().for_each(|of| of.time = none));
    assert!(nothing.to_string().contains("No modelled configuration saves it"), "{nothing}");
    assert!(segment.parts().1.is_none() && nothing.parts().1.is_none());
}

#[test]
fn little_or_nothing_to_gain_is_reported() {
    let unmeasured = verdict(|profile| {
        profile.samples.retain(|sample| sample.kind == "4k");
        shares(profile.translation.as_mut().unwrap(), 0.019);
    });
    assert!(unmeasured.to_string().contains("nothing to gain"), "{unmeasured}");
    let gained = traced(|of| shares(of, 0.019)).to_string();
    assert!(gained.contains("what hugetlb gained") && !gained.contains("nothing to gain"), "{gained}");
    assert!(matches!(traced(|of| shares(of, 0.021)), WalkVerdict::Costly { .. }));
    let no_walks = traced(|of| (of.configurations[0].data.walks, of.configurations[0].instruction.walks) = (0, 0));
    assert_eq!(no_walks, WalkVerdict::NoWalks);
    let unpriced =
        traced(|of| of.configurations.iter_mut().for_each(|of| (of.data_share, of.instruction_share) = (None, None)));
    assert!(unpriced.to_string().starts_with("Of 1,000 accesses 331 walk"), "{unpriced}");
    assert_eq!(traced(|of| of.configurations.clear()), WalkVerdict::Uncounted);
    assert_eq!(traced(|of| of.configurations[0].data.accesses = 0), WalkVerdict::Uncounted);
}

#[test]
fn memory_of_no_site_is_named_where_it_dominates() {
    let stacks = traced(|of| fixture::stacks(of).walks = 90_000_000);
    assert!(stacks.to_string().contains("for memory of stacks"), "{stacks}");
}

#[test]
fn walks_for_instructions_are_not_attributed_to_an_allocation() {
    let fetches =
        traced(|of| of.configurations[0].instruction_share = Some(Interval { low: 0.3, likely: 0.4, high: 0.5 }));
    assert!(
        fetches.to_string().contains("most of it for instructions") && !fetches.to_string().contains("build_graph")
    );
}

/// This machine does not spend walks of another processor's TLBs.
#[test]
fn another_processor_s_walks_are_not_this_machine_s() {
    let foreign = traced(|of| of.processor.foreign = true);
    let (words, command) = foreign.parts();
    assert!(words.contains("that was modelled, page walks would take 34.0 %") && command.is_none(), "{words}");
}
