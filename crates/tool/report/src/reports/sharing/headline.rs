//! The conclusion: the object that costs most, and its remedy.

use super::groups::{self, Group};
use super::others::{self, is_true_sharing};
use crate::quantity::{count, plural, seconds};
use crate::sharing::Sharing;
use crate::shell;
use fieldstone_sharing::Verdict;
use serde::Serialize;

/// True sharing with a smaller part of the threads' time than this is not in the conclusion.
const LEAST_SHARE: f64 = 0.05;

/// The conclusion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Headline {
    /// The finding that costs most, or that there is none.
    pub sentence: String,
    /// What to change in the source, a sentence each; of an undecided result, how to decide it.
    pub advice: Vec<String>,
    /// The command that repairs it while the program runs, where one can.
    pub command: Option<String>,
    /// Why that command does nothing for this user, and what allows it.
    pub unavailable: Option<String>,
}

impl Headline {
    /// The conclusion of `sharing`.
    pub fn of(sharing: &Sharing) -> Self {
        let groups = groups::by_object(sharing);
        let Some((first, rest)) = groups.split_first() else {
            let sentence = nothing(sharing);
            let advice = is_undecided(sharing).then(|| decide(sharing)).into_iter().collect();
            return Self { sentence, advice, command: None, unavailable: None };
        };
        let mut sentence = dominant(first);
        if !rest.is_empty() {
            let lines = rest.iter().flat_map(|group| group.lines.iter().copied());
            let verb = if rest.len() == 1 { "is" } else { "are" };
            let cost = groups::cost(&groups::together(lines));
            sentence += &format!(
                " {} {verb} shared falsely too, with {cost} together.",
                plural(rest.len() as u64, "other object")
            );
        }
        sentence += &ignored(sharing);
        let command = command(sharing, &groups);
        let unavailable = sharing.repair_unavailable.clone().filter(|_| command.is_some());
        Self { sentence, advice: first.advice(), command, unavailable }
    }
}

fn dominant(group: &Group<'_>) -> String {
    let lines = match group.lines.len() as u64 {
        // Without an object, the line is named.
        _ if group.places().is_empty() => "it".to_owned(),
        1 => "one of its cache lines".to_owned(),
        more => format!("{} of its cache lines", count(more)),
    };
    let mixed = if group.is_mixed() { " Part of it is truly shared, which no padding changes." } else { "" };
    format!(
        "False sharing: {} contend for different bytes of {}. {} of the threads’ time is spent in code that uses {lines}; separating the bytes saves at most that.{mixed}",
        plural(group.threads().len() as u64, "thread"),
        group.name(),
        groups::cost(&group.cost),
    )
}

/// The conclusion without a finding.
fn nothing(sharing: &Sharing) -> String {
    let lines = sharing.others.len() as u64;
    let blind = match (sharing.sampling.samples, sharing.sampling.accesses) {
        (0, _) => Some("was taken"),
        (_, 0) => Some("showed an access"),
        _ => None,
    };
    if let Some(blind) = blind.filter(|_| lines == 0) {
        return format!("No result: no sample {blind}. The reason is under \"What could not be seen\".");
    }
    if lines == 0 && sharing.ignored > 0 {
        return format!("No other false sharing was found.{}", ignored(sharing));
    }
    if lines == 0 {
        return match sharing.sampling.apart {
            0 => "No false sharing was found: no sample showed a line that several threads use.".to_owned(),
            lines => format!(
                "Undecided: several threads use {}, but the samples do not show whether they run at the same time.",
                plural(lines, "line")
            ),
        };
    }
    let mut sentence = match undecided(sharing) {
        0 => format!("No false sharing was found on {} with samples of several threads.", plural(lines, "line")),
        undecided if undecided == lines => format!(
            "Undecided: {} with samples of several threads, but too few samples to decide whether the threads run at the same time.",
            plural(lines, "line")
        ),
        undecided => format!(
            "Undecided: on {undecided} of {lines} lines with samples of several threads, too few samples show whether the threads run at the same time. No false sharing was found on the other {}.",
            lines - undecided
        ),
    };
    let shared =
        groups::heaviest_first(&sharing.others).into_iter().find(|found| is_true_sharing(&found.judged.verdict));
    if let Some(found) = shared.filter(|found| found.cost.share.likely >= LEAST_SHARE) {
        sentence += &format!(
            " {} of the threads’ time is spent in code that uses {}, which is truly shared. {}",
            groups::cost(&found.cost),
            groups::whose(found),
            others::meaning(&found.judged.verdict)
        );
    }
    sentence + &ignored(sharing)
}

/// Number of lines whose verdict is undecided.
fn undecided(sharing: &Sharing) -> u64 {
    sharing.others.iter().filter(|found| found.judged.verdict == Verdict::Undecided).count() as u64
}

/// Whether nothing was found, and a longer run might find something.
fn is_undecided(sharing: &Sharing) -> bool {
    let is_apart = sharing.others.is_empty() && sharing.ignored == 0 && sharing.sampling.apart > 0;
    undecided(sharing) > 0 || is_apart && sharing.sampling.accesses > 0
}

/// How to decide an undecided result.
fn decide(sharing: &Sharing) -> String {
    let longer = if sharing.pid.is_some() {
        format!("a longer --duration than {}", seconds(sharing.duration_s))
    } else {
        "a longer run of the program".to_owned()
    };
    format!("to decide, sample again with {longer}, or with a higher --hertz, and with a processor for each thread")
}

fn ignored(sharing: &Sharing) -> String {
    let file = sharing.ignore_file.as_deref().map_or_else(|| "the ignore file".to_owned(), shell::quote);
    match sharing.ignored {
        0 => String::new(),
        number => format!(" {} not reported, because of {file}.", were(number)),
    }
}

fn were(number: u64) -> String {
    format!("{} {}", plural(number, "finding"), if number == 1 { "is" } else { "are" })
}

/// The repair of what could be repaired.
fn command(sharing: &Sharing, groups: &[Group<'_>]) -> Option<String> {
    if !groups.iter().any(Group::is_repairable) {
        return None;
    }
    match sharing.pid {
        Some(pid) => Some(format!("fieldstone attach --repair {pid}")),
        None if sharing.program.command.is_empty() => None,
        None => Some(format!("fieldstone run --repair -- {}", shell::join(&sharing.program.command))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::fixture;

    #[test]
    fn the_heaviest_object_and_its_remedy_come_first() {
        let mut sharing = fixture::regression();
        let headline = Headline::of(&sharing);
        for part in [
            "False sharing: 4 threads contend",
            "bytes of lreg_args",
            "uses 3 of its cache lines",
            "saves at most that",
        ] {
            assert!(headline.sentence.contains(part), "{part}: {}", headline.sentence);
        }
        assert!(headline.advice.iter().any(|advice| advice == "declare tid with alignas(64)"), "{:?}", headline.advice);
        assert_eq!(headline.command.as_deref(), Some("fieldstone run --repair -- linear_regression --threads 4"));
        assert!(!headline.sentence.contains("ignore") && !headline.sentence.contains("other object"));

        sharing.findings[1].places.clear();
        sharing.ignored = 2;
        sharing.ignore_file = Some("ci/ignore me".into());
        let headline = Headline::of(&sharing).sentence;
        assert!(
            headline.contains("1 other object is shared falsely too")
                && headline.contains("2 findings are not reported, because of 'ci/ignore me'."),
            "{headline}"
        );
    }

    #[test]
    fn a_repair_is_offered_only_where_there_is_one() {
        let mut sharing = fixture::regression();
        sharing.pid = Some(4242);
        assert_eq!(Headline::of(&sharing).command.as_deref(), Some("fieldstone attach --repair 4242"));
        for found in &mut sharing.findings {
            found.refused = Some("an access goes across the border at 0x1008".into());
        }
        assert_eq!(Headline::of(&sharing).command, None);
    }

    #[test]
    fn a_repair_that_is_unavailable_is_offered_with_what_allows_it() {
        let mut sharing = fixture::regression();
        let why = "unavailable to this user: no userfaultfd\ntry: sudo sysctl vm.unprivileged_userfaultfd=1";
        sharing.repair_unavailable = Some(why.into());
        assert_eq!(Headline::of(&sharing).unavailable.as_deref(), Some(why));
        let document = crate::reports::sharing::document(&sharing);
        let text = crate::text::render(&document, crate::text::Style::default());
        let page = crate::html::render(&document).unwrap();
        for shown in [text, page] {
            assert!(shown.contains("unavailable to this user") && shown.contains("userfaultfd=1"), "{shown}");
        }
        sharing.findings.iter_mut().for_each(|found| found.refused = Some("an access goes across the border".into()));
        assert_eq!(Headline::of(&sharing).unavailable, None, "no command, no reason");
    }

    #[test]
    fn no_finding_says_what_it_is_instead() {
        let clean = fixture::clean();
        let headline = Headline::of(&clean);
        assert_eq!((headline.advice.len(), headline.command), (0, None));
        for part in ["No false sharing was found on 5 lines", "uses counter, which is truly shared", "Padding"] {
            assert!(headline.sentence.contains(part), "{part}: {}", headline.sentence);
        }
        let calm = Sharing {
            others: clean.others.iter().filter(|found| !is_true_sharing(&found.judged.verdict)).cloned().collect(),
            ..clean
        };
        assert!(!Headline::of(&calm).sentence.contains("truly shared"));
        let nothing = Headline::of(&Sharing::default()).sentence;
        assert!(nothing.contains("no sample was taken"), "{nothing}");
        let sampled = Sharing {
            sampling: crate::sharing::Sampling { samples: 9, accesses: 9, ..Default::default() },
            ignored: 1,
            ..Sharing::default()
        };
        let headline = Headline::of(&sampled).sentence;
        assert!(
            headline == "No other false sharing was found. 1 finding is not reported, because of the ignore file.",
            "{headline}"
        );
        let sampling = crate::sharing::Sampling { samples: 9, accesses: 9, apart: 2, ..Default::default() };
        let headline = Headline::of(&Sharing { sampling, ..Sharing::default() }).sentence;
        assert!(
            headline.starts_with("Undecided: several threads use 2 lines, but the samples do not show"),
            "{headline}"
        );
        let blind = crate::sharing::Sampling { samples: 9, ..Default::default() };
        let headline = Headline::of(&Sharing { sampling: blind, ..Sharing::default() }).sentence;
        assert!(headline.contains("No result: no sample showed an access"), "{headline}");
    }

    #[test]
    fn an_undecided_verdict_leads_with_its_reason_and_how_to_decide() {
        let mut sharing = fixture::clean();
        sharing.others[0].judged.verdict = Verdict::Undecided;
        let headline = Headline::of(&sharing);
        for part in ["Undecided: on 1 of 5 lines", "too few samples", "No false sharing was found on the other 4."] {
            assert!(headline.sentence.contains(part), "{part}: {}", headline.sentence);
        }
        assert!(headline.advice[0].contains("with a longer run of the program"), "{:?}", headline.advice);
        sharing.others.truncate(1);
        (sharing.pid, sharing.duration_s) = (Some(7), 5.0);
        let headline = Headline::of(&sharing);
        assert!(headline.sentence.starts_with("Undecided: 1 line with"), "{}", headline.sentence);
        assert!(!headline.sentence.contains("No false sharing"), "{}", headline.sentence);
        assert!(headline.advice[0].contains("a longer --duration than 5.00 s"), "{:?}", headline.advice);
    }
}
