//! The section `[translation]`: the cost of a trace, the sampling error of bursts, and the error of
//! predictions.
//!
//! Each round runs `fieldstone profile --trace` as a user would, and reads the saved profile. A
//! round has runs on 4 KiB pages and the traced run, so both see the same state of the machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use fieldstone_launch::Program;
use fieldstone_report::{MeasuredRun, Profile, SavedFile, Translation};
use fieldstone_stats::{Estimate, median};

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::request::Request;
use crate::stop_rule::StopRule;

const SECTION: &str = "translation";

/// Programs whose bursts are compared with a full trace. Each runs too long to be recorded in full
/// by default.
const BURST_PROGRAMS: [(&str, &[&str]); 6] = [
    ("gups", &["1G"]),
    ("chase", &["512M"]),
    ("rbtree", &["1000000"]),
    ("bfs", &["20"]),
    ("cg", &["256M", "3"]),
    ("bt", &["128M", "3"]),
];

/// Programs whose saving is predicted. None of them contributes to the price of another.
const PREDICTION_PROGRAMS: [(&str, &[&str]); 5] =
    [("gups", &["1G"]), ("chase", &["1G"]), ("rbtree", &["1500000"]), ("bfs", &["19"]), ("cg", &["512M", "2"])];

/// Measures the cells of the section.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let Request { goals, limit, only, .. } = *request;
    let directory = std::env::current_exe()?.parent().context("the path of this program has a directory")?.to_owned();
    let bench = TranslationBench { directory, limit };
    let wanted = |cell: &str, name: &str| format!("{cell} {name}").contains(only);
    if wanted("full_sim_slowdown", "gups") {
        show(bench.slowdown(goals.get(SECTION, "full_sim_slowdown")?)?);
    }
    if wanted("burst_slowdown_memcached", "memcached") {
        show(bench.server(goals.get(SECTION, "burst_slowdown_memcached")?)?);
    }
    for (name, arguments) in BURST_PROGRAMS.into_iter().filter(|(name, _)| wanted("burst_miss_error", name)) {
        show(bench.bursts(goals.get(SECTION, "burst_miss_error")?, name, arguments)?);
    }
    for (name, arguments) in PREDICTION_PROGRAMS.into_iter().filter(|(name, _)| wanted("prediction_error", name)) {
        show(bench.prediction(goals.get(SECTION, "prediction_error")?, name, arguments)?);
    }
    Ok(())
}

struct TranslationBench {
    directory: PathBuf,
    limit: Duration,
}

impl TranslationBench {
    /// GUPS on 512 MiB, with each access through four models; wall time relative to a native run.
    fn slowdown(&self, goal: Goal) -> anyhow::Result<GoalCell> {
        let options = ["--full", "--no-sites", "--tlb", "zen4", "--runs", "1", "--pages", "4k"];
        self.repeat(goal, "gups 512M", "wall time", || {
            let profile = self.profile(&options, "gups", &["512M"])?;
            let native = profile.samples.first().context("one run was measured")?.wall_s;
            Ok(translation(&profile)?.traced_s / native)
        })
    }

    /// CPU time of memcached under a load of gets, relative to an untraced run.
    fn server(&self, goal: Goal) -> anyhow::Result<GoalCell> {
        for needed in ["memcached", "memcaslap"] {
            if Program::find(&[needed.into()]).is_err() {
                return Ok(GoalCell::skipped(goal, &format!("there is no {needed}: make packages")));
            }
        }
        let load = "memcaslap -s 127.0.0.1:21311 -x 200000 -T 1 -c 16 >/dev/null";
        let options = ["--runs", "1", "--pages", "4k", "--metric", "cpu", "--ready", "21311", "--load", load];
        self.repeat(goal, "memcached", "CPU time of the server", || {
            let profile = self.profile(
                &options,
                "memcached",
                &["-p", "21311", "-l", "127.0.0.1", "-t", "1", "-m", "256", "-u", "nobody"],
            )?;
            translation(&profile)?.slowdown.context("a server's processor time is measured")
        })
    }

    /// Error of the walks per access on 4 KiB pages: bursts against the full trace.
    fn bursts(&self, goal: Goal, name: &str, arguments: &[&str]) -> anyhow::Result<GoalCell> {
        if !self.directory.join(name).exists() {
            return Ok(GoalCell::skipped_case(goal, name, "it is not built"));
        }
        let rate = |options: &[&str], full: bool| {
            let profile = self.profile(options, name, arguments)?;
            let translation = translation(&profile)?;
            if full != (translation.counted_accesses == translation.accesses) {
                bail!(
                    "{name} {arguments:?} was not recorded as requested: its run is too short for bursts on this machine"
                );
            }
            let data = &translation.configuration("4K").context("4K is always modelled")?.data;
            anyhow::Ok(data.walks as f64 / data.accesses.max(1) as f64)
        };
        let common = ["--no-sites", "--tlb", "zen4", "--runs", "1", "--pages", "4k"];
        let full = rate(&[&common[..], &["--full"]].concat(), true)?;
        self.repeat(goal, name, "bursts against all accesses", || Ok((rate(&common, false)? / full - 1.0).abs()))
    }

    /// Error of the predicted saving of 2 MiB pages, as a share of the run. Each trace gives a
    /// prediction. The real saving is the median over all rounds, because that of one round is too
    /// noisy. Only user time counts: the prediction excludes the kernel time of first touches.
    fn prediction(&self, goal: Goal, name: &str, arguments: &[&str]) -> anyhow::Result<GoalCell> {
        if !self.directory.join(name).exists() {
            return Ok(GoalCell::skipped_case(goal, name, "it is not built"));
        }
        let options = ["--no-sites", "--runs", "2", "--pages", "thp", "--metric", "cpu"];
        let measure_round = || {
            let profile = self.profile(&options, name, arguments)?;
            let large = translation(&profile)?.configuration("2M").and_then(|large| large.time);
            let predicted = 1.0 - large.context("a walk has a price")?.likely;
            Ok((predicted, user_time_saved(&profile)))
        };
        self.repeat_for(goal, name, "a share of the run", measure_round, prediction_errors)
    }

    /// Measures rounds until the result settles or time is up.
    fn repeat(
        &self,
        goal: Goal,
        case: &str,
        note: &str,
        measure_round: impl FnMut() -> anyhow::Result<f64>,
    ) -> anyhow::Result<GoalCell> {
        self.repeat_for(goal, case, note, measure_round, <[f64]>::to_vec)
    }

    /// The same, where the values of all rounds depend on each other.
    fn repeat_for<T>(
        &self,
        goal: Goal,
        case: &str,
        note: &str,
        mut measure_round: impl FnMut() -> anyhow::Result<T>,
        values: impl Fn(&[T]) -> Vec<f64>,
    ) -> anyhow::Result<GoalCell> {
        let mut rule = StopRule::new(goal.limit, self.limit).with_one_check().with_unordered_rounds();
        let mut rounds = Vec::new();
        loop {
            rounds.push(measure_round().with_context(|| format!("{} {case}", goal.name))?);
            let found = values(&rounds);
            if rule.is_met(rounds.len(), &found) {
                let mut cell = GoalCell::measured(goal, case, Estimate::of_median(&found), note);
                cell.samples = vec![(case.to_owned(), found)];
                return Ok(cell);
            }
        }
    }

    /// Runs `fieldstone profile --trace` and returns its profile.
    fn profile(&self, options: &[&str], name: &str, arguments: &[&str]) -> anyhow::Result<Profile> {
        let directory = tempfile::tempdir()?;
        let json = directory.path().join("profile.json");
        let bundled = self.directory.join(name);
        let program: OsString = if bundled.exists() { bundled.into() } else { name.into() };
        let mut command = Command::new(self.directory.join("fieldstone"));
        command.args(["profile", "--trace", "--json"]).arg(&json).args(options).arg("--").arg(program).args(arguments);
        // Terminates: `profile` limits its runs by `--timeout`.
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
        if output.status.code() != Some(0) {
            bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        match SavedFile::load(&json)? {
            SavedFile::Profile(profile) => Ok(*profile),
            _ => bail!("{name}: the saved file is no profile"),
        }
    }
}

/// The user time that 2 MiB pages saved, as a share of a run on 4 KiB pages.
fn user_time_saved(profile: &Profile) -> f64 {
    let sum = |kind: &str, of: fn(&MeasuredRun) -> f64| -> f64 {
        profile.samples.iter().filter(|sample| sample.kind == kind).map(of).sum()
    };
    let user = |kind| sum(kind, |sample| sample.user_s);
    (user("4k") - user("thp")) / sum("4k", |sample| sample.user_s + sample.system_s)
}

/// The error of each round's prediction against the median of all real savings.
fn prediction_errors(rounds: &[(f64, f64)]) -> Vec<f64> {
    let real: Vec<f64> = rounds.iter().map(|&(_, saved)| saved).collect();
    let real = median(&real).unwrap_or(f64::NAN);
    rounds.iter().map(|&(predicted, _)| (predicted - real).abs()).collect()
}

fn translation(profile: &Profile) -> anyhow::Result<&Translation> {
    profile.translation.as_ref().context("the profile has no trace")
}

#[cfg(test)]
mod tests {
    use super::prediction_errors;

    #[test]
    fn predictions_are_compared_with_the_median_saving_of_all_rounds() {
        // The real savings are 0.1, 0.3 and 0.2, so their median is 0.2.
        let errors = prediction_errors(&[(0.25, 0.1), (0.2, 0.3), (0.5, 0.2)]);
        let expected = [0.05, 0.0, 0.3];
        assert!(errors.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-12), "{errors:?}");
    }
}
