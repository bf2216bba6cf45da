//! The section `[translation]`: what a trace costs, how well bursts stand for all of it, and how well it foretells real runs.
//!
//! Everything is measured as a user would: each round is a `fieldstone profile --trace`, and what it saved is read. A round has
//! runs on 4 KiB pages and the traced run in it, so that both saw the machine in the same mood.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_launch::Program;
use fieldstone_report::{Profile, Sample, Saved, Translation};
use fieldstone_stats::{Estimate, FEWEST_FOR_INTERVAL, median};

use crate::cell::{Cell, is_settled};
use crate::goals::{Goal, Goals};

const SECTION: &str = "translation";

/// A program whose bursts are held against its full trace: each runs for longer than what is recorded in full anyway.
const TRACED: [(&str, &[&str]); 6] = [
    ("gups", &["1G"]),
    ("chase", &["512M"]),
    ("rbtree", &["1000000"]),
    ("bfs", &["20"]),
    ("cg", &["256M", "3"]),
    ("bt", &["128M", "3"]),
];

/// A program whose saving is foretold. None of them takes part in the pricing of another.
const FORETOLD: [(&str, &[&str]); 5] =
    [("gups", &["1G"]), ("chase", &["1G"]), ("rbtree", &["1500000"]), ("bfs", &["19"]), ("cg", &["512M", "2"])];

/// Measures the section's cells.
pub(crate) fn measure(goals: &Goals, limit: Duration, only: &str, show: &mut dyn FnMut(Cell)) -> anyhow::Result<()> {
    let directory = std::env::current_exe()?.parent().context("this program lies in a directory")?.to_owned();
    let place = Place { directory, limit };
    let wanted = |cell: &str, name: &str| format!("{cell} {name}").contains(only);
    if wanted("full_sim_slowdown", "gups") {
        show(place.slowdown(goals.get(SECTION, "full_sim_slowdown")?)?);
    }
    if wanted("burst_slowdown_memcached", "memcached") {
        show(place.server(goals.get(SECTION, "burst_slowdown_memcached")?)?);
    }
    for (name, arguments) in TRACED.into_iter().filter(|(name, _)| wanted("burst_miss_error", name)) {
        show(place.bursts(goals.get(SECTION, "burst_miss_error")?, name, arguments)?);
    }
    for (name, arguments) in FORETOLD.into_iter().filter(|(name, _)| wanted("prediction_error", name)) {
        show(place.prediction(goals.get(SECTION, "prediction_error")?, name, arguments)?);
    }
    Ok(())
}

struct Place {
    directory: PathBuf,
    limit: Duration,
}

impl Place {
    /// GUPS on 512 MiB, every access through four models, by the clock.
    fn slowdown(&self, goal: Goal) -> anyhow::Result<Cell> {
        let options = ["--full", "--no-sites", "--tlb", "zen4", "--runs", "1", "--pages", "4k"];
        self.repeat(goal, "gups 512M", "by the clock", || {
            let profile = self.profile(&options, "gups", &["512M"])?;
            let native = profile.samples.first().context("one run was measured")?.wall_s;
            Ok(translation(&profile)?.traced_s / native)
        })
    }

    /// Processor time of memcached, under a load of gets.
    fn server(&self, goal: Goal) -> anyhow::Result<Cell> {
        for needed in ["memcached", "memcaslap"] {
            if Program::find(&[needed.into()]).is_err() {
                return Ok(Cell::skipped(goal, &format!("there is no {needed}: make packages")));
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

    /// Walks an access on 4 KiB pages: bursts against the full trace.
    fn bursts(&self, goal: Goal, name: &str, arguments: &[&str]) -> anyhow::Result<Cell> {
        if !self.directory.join(name).exists() {
            return Ok(Cell::skipped_part(goal, name, "it is not built"));
        }
        let rate = |options: &[&str], full: bool| {
            let profile = self.profile(options, name, arguments)?;
            let told = translation(&profile)?;
            if full != (told.counted_accesses == told.accesses) {
                bail!("{name} {arguments:?} was not recorded as asked: it runs too short a time here for bursts");
            }
            let data = &told.configuration("4K").context("4K is always modelled")?.data;
            anyhow::Ok(data.walks as f64 / data.accesses.max(1) as f64)
        };
        let common = ["--no-sites", "--tlb", "zen4", "--runs", "1", "--pages", "4k"];
        let full = rate(&[&common[..], &["--full"]].concat(), true)?;
        self.repeat(goal, name, "bursts against all accesses", || Ok((rate(&common, false)? / full - 1.0).abs()))
    }

    /// The saving of 2 MiB pages: what each trace foretold against what the real runs of all rounds saved, as a share of the run. Each
    /// round's foretelling is one that a user would have got; the real saving of one round alone is too noisy to be its judge.
    /// Translation happens in user mode; what first touches cost the kernel is not foretold, and not counted as saved.
    fn prediction(&self, goal: Goal, name: &str, arguments: &[&str]) -> anyhow::Result<Cell> {
        if !self.directory.join(name).exists() {
            return Ok(Cell::skipped_part(goal, name, "it is not built"));
        }
        let options = ["--no-sites", "--runs", "2", "--pages", "thp", "--metric", "cpu"];
        let once = || {
            let profile = self.profile(&options, name, arguments)?;
            let large = translation(&profile)?.configuration("2M").and_then(|large| large.time);
            let foretold = 1.0 - large.context("a walk has a price")?.likely;
            Ok((foretold, saved(&profile)))
        };
        self.repeat_for(goal, name, "a share of the run", once, foretelling_errors)
    }

    /// Measures until the verdict stands, or the time is over.
    fn repeat(
        &self,
        goal: Goal,
        part: &str,
        note: &str,
        once: impl FnMut() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Cell> {
        self.repeat_for(goal, part, note, once, <[f64]>::to_vec)
    }

    /// The same where a round's value is only known with those of the others.
    fn repeat_for<T>(
        &self,
        goal: Goal,
        part: &str,
        note: &str,
        mut once: impl FnMut() -> anyhow::Result<T>,
        values: impl Fn(&[T]) -> Vec<f64>,
    ) -> anyhow::Result<Cell> {
        let since = Instant::now();
        let mut rounds = Vec::new();
        loop {
            rounds.push(once().with_context(|| format!("{} {part}", goal.name))?);
            let found = values(&rounds);
            let estimate = Estimate::of_median(&found);
            let enough = found.len() >= FEWEST_FOR_INTERVAL;
            if enough && (is_settled(goal.limit, estimate) || since.elapsed() > self.limit) {
                let mut cell = Cell::measured(goal, part, estimate, note);
                cell.samples = vec![(part.to_owned(), found)];
                return Ok(cell);
            }
        }
    }

    /// One `fieldstone profile --trace`.
    fn profile(&self, options: &[&str], name: &str, arguments: &[&str]) -> anyhow::Result<Profile> {
        let room = tempfile::tempdir()?;
        let json = room.path().join("profile.json");
        let bundled = self.directory.join(name);
        let program: OsString = if bundled.exists() { bundled.into() } else { name.into() };
        let mut command = Command::new(self.directory.join("fieldstone"));
        command.args(["profile", "--trace", "--json"]).arg(&json).args(options).arg("--").arg(program).args(arguments);
        // `profile` bounds its runs by `--timeout`.
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
        if output.status.code() != Some(0) {
            bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        match Saved::load(&json)? {
            Saved::Profile(profile) => Ok(*profile),
            _ => bail!("{name}: what was saved is no profile"),
        }
    }
}

/// What the runs on 2 MiB pages saved in user mode, as a share of a run on 4 KiB pages.
fn saved(profile: &Profile) -> f64 {
    let sum = |kind: &str, of: fn(&Sample) -> f64| -> f64 {
        profile.samples.iter().filter(|sample| sample.kind == kind).map(of).sum()
    };
    let user = |kind| sum(kind, |sample| sample.user_s);
    (user("4k") - user("thp")) / sum("4k", |sample| sample.user_s + sample.system_s)
}

/// How far each round's foretold saving is from the real one, which is the median of all rounds.
fn foretelling_errors(rounds: &[(f64, f64)]) -> Vec<f64> {
    let real: Vec<f64> = rounds.iter().map(|&(_, saved)| saved).collect();
    let real = median(&real).unwrap_or(f64::NAN);
    rounds.iter().map(|&(foretold, _)| (foretold - real).abs()).collect()
}

fn translation(profile: &Profile) -> anyhow::Result<&Translation> {
    profile.translation.as_ref().context("it was traced")
}

#[cfg(test)]
mod tests {
    use super::foretelling_errors;

    #[test]
    fn each_foretelling_is_held_against_the_saving_of_all_rounds() {
        // Real: 0.1, 0.3, 0.2; their median judges all three.
        let errors = foretelling_errors(&[(0.25, 0.1), (0.2, 0.3), (0.5, 0.2)]);
        let expected = [0.05, 0.0, 0.3];
        assert!(errors.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-12), "{errors:?}");
    }
}
