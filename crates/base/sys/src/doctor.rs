//! What this machine, kernel, container and user allow: facts, and a verdict for each command.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `facts` | the facts |
//! | `verdicts` | the verdict on each command |
//! | `page_kinds` | the verdict on each page kind |
//! | `sharing` | the verdicts on detection and repair of false sharing |
//! | `size` | sizes as text |
//!
//! [`Facts::gather`] queries the system. [`verdicts()`] is a pure function of the facts, so tests
//! can describe a machine without huge pages or a user without privileges.

mod facts;
mod page_kinds;
mod sharing;
mod size;
mod verdicts;

use serde::Serialize;

pub use facts::Facts;
pub use sharing::{REPAIR, RUN_REPAIR, repair_verdict};
pub use verdicts::verdicts;

/// The facts and the verdicts derived from them.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Doctor {
    /// The facts.
    pub facts: Facts,
    /// A verdict for each command.
    pub verdicts: Vec<CommandVerdict>,
}

impl Doctor {
    /// Queries the system and judges. Reads a few dozen small files and makes a few system calls;
    /// changes nothing.
    #[must_use]
    pub fn examine() -> Self {
        let facts = Facts::gather();
        let verdicts = verdicts(&facts);
        Self { facts, verdicts }
    }

    /// Whether a command, or one of its page kinds, is unavailable.
    #[must_use]
    pub fn has_unavailable(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.level == Level::Unavailable)
    }
}

/// How well a command works, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Fully.
    Works,
    /// It runs, but with reduced function.
    Limited,
    /// It does not do what it is for. `run` starts the program without it.
    Unavailable,
}

impl Level {
    /// The word in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Limited => "limited",
            Self::Unavailable => "unavailable",
        }
    }
}

/// The expectation for one command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CommandVerdict {
    /// The command's words, without `fieldstone`.
    pub command: String,
    /// How well it works.
    pub level: Level,
    /// The reasons, in one line.
    pub why: String,
    /// A shell command that improves it, if there is one.
    pub remedy: Option<String>,
    /// The reasons in [`Self::why`] that make the command unavailable.
    #[serde(skip)]
    pub obstacles: Vec<String>,
}

impl CommandVerdict {
    fn new(command: &str, level: Level, why: impl Into<String>, remedy: Option<String>) -> Self {
        Self { command: command.to_owned(), level, why: why.into(), remedy, obstacles: Vec::new() }
    }

    /// The verdict for a user: root types its remedy without sudo.
    fn for_user(self, is_root: bool) -> Self {
        let remedy = self.remedy.map(|command| if is_root { without_sudo(&command) } else { command });
        Self { remedy, ..self }
    }

    /// Adds a reason and lowers the verdict to its level. The worst reason comes first. The remedy
    /// is that of the worst reason that has one.
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

/// A shell command as root types it.
#[must_use]
pub fn without_sudo(command: &str) -> String {
    command.replace("sudo ", "")
}

#[cfg(test)]
mod tests;
