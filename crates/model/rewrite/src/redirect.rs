//! The redirect of one access in a clone.

use serde::{Deserialize, Serialize};

use crate::page::RemapRule;

/// The redirect of an access by a rule of its page, or by a piece of the page's home copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirect {
    /// Address of the instruction.
    pub ip: u64,
    /// Where its bytes are.
    pub rule: RemapRule,
    /// The likely address in each iteration, for an access of
    /// [`Flow::slot_accesses`](crate::Flow::slot_accesses). The clone serves that address only.
    #[serde(rename = "seen")]
    pub expected: Option<u64>,
}
