//! What each primitive is done with here, what would be used without that, what is lost, and what it costs: for `fieldstone doctor`.
//!
//! Costs are measured on a few hundred pages: medians of small batches, by one thread. They tell the order of size;
//! `fieldstone reproduce appel-li` measures.

#![allow(unsafe_code, reason = "touches memory under control; runs handlers in signals")]

use std::time::Instant;

use serde::Serialize;

use crate::choice::{IN_SIGNAL, IN_THREAD, TRACKING};
use crate::error::Result;
use crate::fault::{Fault, Outcome};
use crate::filling::Filling;
use crate::guard::GuardMechanism;
use crate::memory::Memory;
use crate::region::{Loss, Mechanism, Watch};
use crate::tracking::Tracking;
use crate::trapping::Trapping;

/// Pages that are measured on.
const PAGES: usize = 256;
/// Batches that the median is of.
const BATCHES: usize = 7;

/// One primitive, as this machine and this user have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Primitive {
    /// What it does, in Appel and Li's word where they have one.
    pub name: &'static str,
    /// What it is done with; `None` where it is not to be had.
    pub mechanism: Option<&'static str>,
    /// What would be used where that is refused.
    pub fallback: Option<&'static str>,
    /// Nanoseconds a page.
    pub cost_ns: Option<f64>,
    /// What another mechanism would give, or why there is none.
    pub lost: Vec<Lost>,
}

/// Something that a primitive does not give here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Lost {
    /// In a word or two.
    pub name: &'static str,
    /// What that means, and what helps.
    pub meaning: String,
}

impl From<Loss> for Lost {
    fn from(loss: Loss) -> Self {
        Self { name: loss.name(), meaning: loss.to_string() }
    }
}

impl From<crate::Error> for Lost {
    fn from(error: crate::Error) -> Self {
        Self { name: "refused", meaning: error.to_string() }
    }
}

/// Tries and measures each primitive. Takes some ten milliseconds and a few MiB, and changes nothing but its own memory.
#[must_use]
pub fn survey() -> Vec<Primitive> {
    let parts = [
        traps("TRAP, in a thread", &IN_THREAD),
        traps("TRAP, in a signal", &IN_SIGNAL),
        protections(),
        dirty(),
        second_view(),
        guards(),
        fills(),
    ];
    parts.concat()
}

/// A region for a survey: how it is done, what is lost, and what would come next.
struct Got<T> {
    it: T,
    mechanism: Mechanism,
    losses: Vec<Loss>,
    fallback: Option<Mechanism>,
}

impl<T> Got<T> {
    /// The best of a list, and the next that would do.
    fn first(wanted: &[Mechanism], set_up: impl Fn(Mechanism) -> Result<(T, Vec<Loss>)>) -> Result<Self> {
        let mut tried = wanted.iter().map(|&mechanism| (mechanism, set_up(mechanism)));
        let mut refusal = None;
        let got = tried.by_ref().find_map(|(mechanism, done)| match done {
            Ok(done) => Some((mechanism, done)),
            Err(error) => {
                refusal = Some(error);
                None
            }
        });
        let fallback = tried.find_map(|(mechanism, done)| done.is_ok().then_some(mechanism));
        match (got, refusal) {
            (Some((mechanism, (it, losses))), _) => Ok(Self { it, mechanism, losses, fallback }),
            (None, Some(error)) => Err(error),
            (None, None) => Err(crate::Error::Unsupported { what: "a primitive", why: "no mechanism was named" }),
        }
    }

    fn row(&self, name: &'static str, cost: Result<f64>) -> Primitive {
        let (mechanism, fallback) = (Some(self.mechanism.name()), self.fallback.map(Mechanism::name));
        let lost = self.losses.iter().copied().map(Lost::from).collect();
        row(name, mechanism, fallback, lost, cost)
    }
}

fn row(
    name: &'static str,
    mechanism: Option<&'static str>,
    fallback: Option<&'static str>,
    mut lost: Vec<Lost>,
    cost: Result<f64>,
) -> Primitive {
    let cost_ns = cost.map_err(|error| lost.push(error.into())).ok();
    Primitive { name, mechanism, fallback, cost_ns, lost }
}

/// Primitives that are not to be had.
fn refused(names: &[&'static str], error: crate::Error) -> Vec<Primitive> {
    let lost = vec![Lost::from(error)];
    let row = |&name| Primitive { name, mechanism: None, fallback: None, cost_ns: None, lost: lost.clone() };
    names.iter().map(row).collect()
}

fn anonymous() -> Result<Memory> {
    let memory = Memory::anonymous(PAGES * rustix::param::page_size())?;
    memory.populate()?;
    Ok(memory)
}

fn open(fault: &Fault<'_>) -> Outcome {
    if fault.unprotect().is_err() { Outcome::Chain } else { Outcome::Resolved }
}

fn trapping(mechanism: Mechanism) -> Result<(Trapping, Vec<Loss>)> {
    // SAFETY: the handler makes a system call.
    let trapping = unsafe { Trapping::with(anonymous()?, Watch::Writes, mechanism, open) }?;
    let losses = trapping.losses();
    Ok((trapping, losses))
}

/// The median cost of `work` for one of `count` things, in nanoseconds; `prepare` is not measured.
fn cost(count: usize, mut prepare: impl FnMut() -> Result<()>, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut batches = [0.0; BATCHES];
    for batch in &mut batches {
        prepare()?;
        let start = Instant::now();
        work()?;
        *batch = start.elapsed().as_secs_f64() * 1e9 / count as f64;
    }
    batches.sort_by(f64::total_cmp);
    Ok(batches[BATCHES / 2])
}

fn write_each(start: *mut u8, page_bytes: usize) {
    for page in 0..PAGES {
        // SAFETY: all callers pass the start of so many pages.
        unsafe { start.add(page * page_bytes).write_volatile(1) };
    }
}

/// A write that is refused, its handler, the page opened, the write done.
fn traps(name: &'static str, wanted: &[Mechanism]) -> Vec<Primitive> {
    let got = match Got::first(wanted, trapping) {
        Ok(got) => got,
        Err(error) => return refused(&[name], error),
    };
    let memory = got.it.memory();
    let cost = cost(
        PAGES,
        || got.it.protect(0..memory.bytes()),
        || {
            write_each(memory.as_ptr(), memory.page_bytes());
            Ok(())
        },
    );
    vec![got.row(name, cost)]
}

/// Every second page alone, and all pages at once.
fn protections() -> Vec<Primitive> {
    const NAMES: [&str; 3] = ["PROT1", "PROTN", "UNPROT"];
    let got = match Got::first(&IN_THREAD, trapping) {
        Ok(got) => got,
        Err(error) => return refused(&NAMES, error),
    };
    let (bytes, page_bytes) = (got.it.memory().bytes(), got.it.memory().page_bytes());
    let alone = (0..PAGES).step_by(2).map(|page| page * page_bytes..(page + 1) * page_bytes);
    let (all, each) = (0..bytes, alone.collect::<Vec<_>>());
    let costs = [
        cost(
            each.len(),
            || got.it.unprotect(all.clone()),
            || each.iter().try_for_each(|one| got.it.protect(one.clone())),
        ),
        cost(PAGES, || got.it.unprotect(all.clone()), || got.it.protect(all.clone())),
        cost(
            each.len(),
            || got.it.protect(all.clone()),
            || each.iter().try_for_each(|one| got.it.unprotect(one.clone())),
        ),
    ];
    NAMES.into_iter().zip(costs).map(|(name, cost)| got.row(name, cost)).collect()
}

/// A look at pages that nobody wrote, and at pages that somebody did, which makes them clean.
fn dirty() -> Vec<Primitive> {
    const NAMES: [&str; 2] = ["DIRTY, a clean page", "DIRTY, a dirty page"];
    let got = Got::first(&TRACKING, |mechanism| {
        let tracking = Tracking::with(anonymous()?, mechanism)?;
        let losses = tracking.losses();
        Ok((tracking, losses))
    });
    let got = match got {
        Ok(got) => got,
        Err(error) => return refused(&NAMES, error),
    };
    let memory = got.it.memory();
    let look = || got.it.dirty()?.try_for_each(|range| range.map(drop));
    let clean = cost(PAGES, look, look);
    let written = cost(
        PAGES,
        || {
            write_each(memory.as_ptr(), memory.page_bytes());
            Ok(())
        },
        look,
    );
    vec![got.row(NAMES[0], clean), got.row(NAMES[1], written)]
}

/// The first touch of each page through a second view.
fn second_view() -> Vec<Primitive> {
    let page_bytes = rustix::param::page_size();
    let touched = Memory::shared(PAGES * page_bytes).and_then(|memory| {
        memory.populate()?;
        let views = (0..BATCHES).map(|_| memory.alias()).collect::<Result<Vec<_>>>()?;
        let mut next = views.iter();
        let touch = || {
            if let Some(view) = next.next() {
                write_each(view.as_ptr(), page_bytes);
            }
            Ok(())
        };
        cost(PAGES, || Ok(()), touch)
    });
    vec![row("MAP2", touched.is_ok().then_some("memfd"), None, Vec::new(), touched)]
}

/// Every second page of memory that was never touched.
fn guards() -> Vec<Primitive> {
    let page_bytes = rustix::param::page_size();
    let plain = || Memory::anonymous(PAGES * page_bytes);
    let is_marked =
        plain().is_ok_and(|memory| memory.guard(0..page_bytes).is_ok_and(|done| done == GuardMechanism::Marker));
    let cost = plain().and_then(|memory| {
        let guard = |page| memory.guard(page * page_bytes..(page + 1) * page_bytes).map(drop);
        cost(PAGES / 2, || memory.unguard(0..memory.bytes()), || (0..PAGES).step_by(2).try_for_each(guard))
    });
    let (mechanism, fallback) = if is_marked { ("guard-marker", Some("mprotect")) } else { ("mprotect", None) };
    let lost = if is_marked { Vec::new() } else { vec![Loss::Mappings.into()] };
    vec![row("guard", cost.is_ok().then_some(mechanism), fallback, lost, cost)]
}

/// A read of a page that is missing, its handler, the page filled with a copy.
fn fills() -> Vec<Primitive> {
    let page_bytes = rustix::param::page_size();
    let got = Got::first(&IN_THREAD, |mechanism| {
        let contents = vec![1; page_bytes];
        let fill = move |fault: &Fault<'_>| {
            if fault.fill(&contents).is_err() { Outcome::Chain } else { Outcome::Resolved }
        };
        // SAFETY: the handlers run in a thread.
        let filling = unsafe { Filling::with(Memory::shared(PAGES * page_bytes)?, false, mechanism, fill) }?;
        let losses = filling.losses();
        Ok((filling, losses))
    });
    let got = match got {
        Ok(got) => got,
        Err(error) => return refused(&["fill"], error),
    };
    let memory = got.it.memory();
    let cost = cost(
        PAGES,
        || got.it.evict(0..memory.bytes()),
        || {
            write_each(memory.as_ptr(), page_bytes);
            Ok(())
        },
    );
    vec![got.row("fill", cost)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_primitive_is_told_with_its_cost() {
        let told = survey();
        let names: Vec<_> = told.iter().map(|primitive| primitive.name).collect();
        let expected = ["TRAP, in a thread", "TRAP, in a signal", "PROT1", "PROTN", "UNPROT"];
        let others = ["DIRTY, a clean page", "DIRTY, a dirty page", "MAP2", "guard", "fill"];
        assert_eq!(names, [expected, others].concat());
        for primitive in &told {
            let cost = primitive.cost_ns.unwrap_or_else(|| panic!("mprotect is always there: {primitive:?}"));
            assert!(cost > 0.0 && primitive.mechanism.is_some() && primitive.mechanism != primitive.fallback);
        }
        let cost = |name| told.iter().find(|primitive| primitive.name == name).and_then(|found| found.cost_ns);
        assert!(cost("PROTN") < cost("PROT1"), "a batch is cheaper a page: {told:?}");
    }

    #[test]
    fn what_no_mechanism_does_says_why() {
        let refused = Got::<()>::first(&IN_THREAD, |_| Err(crate::Error::Forked));
        let rows = super::refused(&["TRAP", "PROT1"], refused.err().unwrap());
        assert!(rows.iter().all(|row| row.mechanism.is_none() && row.lost[0].meaning.contains("fork")), "{rows:?}");
    }
}
