//! The goals of `goals.toml` at the root.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use serde::Deserialize;

const TEXT: &str = include_str!("../../../goals.toml");

/// Sections without a measurement. Each must be listed here, so that none is forgotten.
pub(crate) const NOT_MEASURED_YET: [&str; 5] = ["sharing-code", "gc", "dsm", "handles", "bare"];

/// All goals, by section and name.
#[derive(Debug)]
pub(crate) struct Goals(BTreeMap<String, BTreeMap<String, Bound>>);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    max: Option<f64>,
    min: Option<f64>,
    #[serde(default)]
    what: String,
}

/// A goal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Goal {
    pub(crate) name: String,
    pub(crate) what: String,
    pub(crate) limit: Limit,
}

/// The bound of a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    /// Whether a measured value meets the bound, including the bound itself.
    pub(crate) fn allows(self, value: f64) -> bool {
        match self {
            Self::AtMost(maximum) => value <= maximum,
            Self::AtLeast(minimum) => value >= minimum,
        }
    }
}

impl Goals {
    pub(crate) fn read() -> anyhow::Result<Self> {
        Ok(Self(toml::from_str(TEXT).context("goals.toml")?))
    }

    /// The sections to measure: `only`, or all.
    pub(crate) fn sections(&self, only: Option<&str>) -> anyhow::Result<Vec<String>> {
        match only {
            Some(name) if !self.0.contains_key(name) => {
                let names: Vec<_> = self.0.keys().map(String::as_str).collect();
                bail!("goals.toml has no section {name}; it has {}", names.join(", "))
            }
            Some(name) => Ok(vec![name.to_owned()]),
            None => Ok(self.0.keys().cloned().collect()),
        }
    }

    /// The goals of a section.
    pub(crate) fn of(&self, section: &str) -> impl Iterator<Item = Goal> {
        let bounds = self.0.get(section).cloned().unwrap_or_default();
        bounds.into_iter().filter_map(|(name, bound)| {
            let limit = bound.max.map(Limit::AtMost).or(bound.min.map(Limit::AtLeast))?;
            Some(Goal { name, what: bound.what, limit })
        })
    }

    /// The goal of this name.
    pub(crate) fn get(&self, section: &str, name: &str) -> anyhow::Result<Goal> {
        self.of(section).find(|goal| goal.name == name).with_context(|| format!("goals.toml has no {section}.{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_goal_has_one_bound() {
        let goals = Goals::read().unwrap();
        let sections = goals.sections(None).unwrap();
        assert!(sections.contains(&"region".to_owned()));
        for section in sections {
            for bound in goals.0[&section].values() {
                assert!(bound.max.is_some() != bound.min.is_some(), "{section}: {bound:?}");
            }
        }
        assert_eq!(goals.get("region", "gups_2g_vs_4k").unwrap().limit, Limit::AtMost(0.6));
    }
}
