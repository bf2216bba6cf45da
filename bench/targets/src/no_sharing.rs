//! The section [sharing] on other processors than x86-64: each goal is skipped.

use crate::cell::GoalCell;
use crate::request::Request;

/// A skipped cell for each goal.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    crate::unmeasured(request.goals, "sharing", request.only).for_each(show);
    Ok(())
}
