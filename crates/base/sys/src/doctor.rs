//! What this machine, kernel, container and user allow: facts, and from them a verdict for each command.
//!
//! [`Facts::gather`] asks the system; [`verdicts()`] is a pure function of the facts, so that a machine without huge pages or a user
//! without rights is a value in a test.

mod facts;
mod page_kinds;
mod sharing;
mod verdicts;

use std::collections::BTreeMap;

use serde::Serialize;

pub use facts::Facts;
pub use sharing::{REPAIR, RUN_REPAIR, repair_verdict};
pub use verdicts::verdicts;

/// The facts and what follows from them.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Doctor {
    /// What was found.
    pub facts: Facts,
    /// A verdict for each command.
    pub verdicts: Vec<Verdict>,
}

impl Doctor {
    /// Asks the system and judges. Costs some dozens of small files and a few system calls; changes nothing.
    #[must_use]
    pub fn examine() -> Self {
        let facts = Facts::gather();
        let verdicts = verdicts(&facts);
        Self { facts, verdicts }
    }

    /// The level of the command that works least. One with several kinds of pages works as well as its best kind.
    #[must_use]
    pub fn worst(&self) -> Level {
        let mut commands = BTreeMap::<&str, Level>::new();
        for verdict in &self.verdicts {
            let command = verdict.command.split(" --pages").next().unwrap_or_default();
            let level = commands.entry(command).or_insert(verdict.level);
            *level = verdict.level.min(*level);
        }
        commands.into_values().max().unwrap_or(Level::Works)
    }
}

/// How well a command works here, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// All of it.
    Works,
    /// It runs, but gives less than it could.
    Limited,
    /// It cannot do what it is for.
    Unavailable,
}

impl Level {
    /// The word of the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Limited => "limited",
            Self::Unavailable => "unavailable",
        }
    }
}

/// What can be expected of one command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The command's words, without `fieldstone`.
    pub command: String,
    /// How well it works.
    pub level: Level,
    /// Why so, in one line.
    pub why: String,
    /// The exact shell command that would improve it, where there is one.
    pub remedy: Option<String>,
    /// The reasons in [`Self::why`] for which the command is unavailable.
    #[serde(skip)]
    pub obstacles: Vec<String>,
}

impl Verdict {
    fn new(command: &str, level: Level, why: impl Into<String>, remedy: Option<String>) -> Self {
        Self { command: command.to_owned(), level, why: why.into(), remedy, obstacles: Vec::new() }
    }

    /// Adds a reason, and lowers the verdict to its level. The worst reason stands first, and the remedy shown is that of the
    /// worst which has one.
    fn lower(&mut self, level: Level, why: impl Into<String>, remedy: Option<String>) {
        let why = why.into();
        if level == Level::Unavailable {
            self.obstacles.push(why.clone());
        }
        let (worse, kept) = (level > self.level, self.remedy.take());
        self.why = if worse { format!("{why}; {}", self.why) } else { format!("{}; {why}", self.why) };
        self.remedy = if worse { remedy.or(kept) } else { kept.or(remedy) };
        self.level = self.level.max(level);
    }
}

#[cfg(test)]
mod tests;
