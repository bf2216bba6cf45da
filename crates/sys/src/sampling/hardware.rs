//! What the processor itself tells beside the clock's samples, where it has counters for that: which address an instruction touched, whether
//! another processor's cache had the line modified (a hit on a modified line, HITM), and where jumps led that only the run knows.
//!
//! | [`Hardware`] | event | tells |
//! |---|---|---|
//! | [`Hardware::Ibs`] | AMD's `ibs_op`: one micro-operation of so many | addresses, HITM |
//! | [`Hardware::Loads`], [`Hardware::Stores`] | Intel's `cpu/mem-loads/` and `cpu/mem-stores/`, by PEBS | addresses; of loads that took long HITM |
//! | [`Hardware::Jumps`] | cycles with branch records (LBR), of indirect jumps | from where to where |
//!
//! Each is one more event a thread and CPU, at the clock's rate, with rings of its own ([`super::perf`]). They only add: the clock tells where the
//! time goes, and what is not there is left out. Virtual machines have none of them, as a rule. Arm's SPE tells the same, but registers are
//! known on x86-64 alone, here and in all that follows. Where loads need a second event beside theirs (`mem-loads-aux`), stores alone tell.
//!
//! Source: what Cachekata was told by, section 6.2, and `perf c2c`.

use std::path::Path;
use std::{fmt, io};

use perf_event::events::{self, Dynamic};
use perf_event::{Builder, SampleBranchFlag, SampleFlag, SampleSkid};
use serde::Serialize;

use crate::perf::Counter;

/// Where the kernel describes what it can sample.
const DEVICES: &str = "/sys/bus/event_source/devices";
/// Loads that take fewer cycles hit a cache of their own: `perf c2c` leaves out the same.
const LEAST_LOAD_CYCLES: u64 = 30;
/// An address, and where its line was.
pub(super) const TOUCHED: SampleFlag = SampleFlag::ADDR.union(SampleFlag::DATA_SRC);

/// What processors tell by, where they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Hardware {
    /// AMD's instruction-based sampling.
    Ibs,
    /// Intel's precise events of loads.
    Loads,
    /// Intel's precise events of stores.
    Stores,
    /// Branch records.
    Jumps,
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ibs => "IBS",
            Self::Loads => "PEBS of loads",
            Self::Stores => "PEBS of stores",
            Self::Jumps => "branch records",
        })
    }
}

impl Hardware {
    /// All that is tried.
    pub const ALL: [Self; 4] = [Self::Ibs, Self::Loads, Self::Stores, Self::Jumps];

    /// Whether this machine and kernel let this user have it, tried on this process.
    #[must_use]
    pub fn tried(self) -> Counter {
        let absent = Counter::Absent("this processor, or what of it we have, has none".into());
        let better = |one: Counter, other: Counter| if one.is_available() { one } else { other };
        self.kinds(1).iter().map(|kind| Counter::from_result(kind.build())).fold(absent, better)
    }

    /// Events that do for it, best first.
    pub(super) fn kinds(self, hertz: u32) -> Vec<Builder<'static>> {
        self.kinds_of(Path::new(DEVICES), hertz)
    }

    fn kinds_of(self, devices: &Path, hertz: u32) -> Vec<Builder<'static>> {
        let ibs = |more| event(&devices.join("ibs_op"), None, more);
        // Micro-operations are counted, not cycles; kernels before 6.13 cannot leave out those of the kernel (`swfilt`).
        let mut kinds: Vec<_> = match self {
            Self::Ibs => [ibs(&[("cnt_ctl", 1), ("swfilt", 1)]), ibs(&[("cnt_ctl", 1)]).map(with_kernel)]
                .into_iter()
                .flatten()
                .collect(),
            Self::Loads => {
                event(&devices.join("cpu"), Some("mem-loads"), &[("ldlat", LEAST_LOAD_CYCLES)]).into_iter().collect()
            }
            Self::Stores => event(&devices.join("cpu"), Some("mem-stores"), &[]).into_iter().collect(),
            Self::Jumps => vec![Builder::new(events::Hardware::CPU_CYCLES)],
        };
        for kind in &mut kinds {
            kind.sample_frequency(hertz.into()).inherit_thread(true);
            match self {
                Self::Ibs => kind.sample(TOUCHED),
                Self::Loads | Self::Stores => kind.sample(TOUCHED).precise_ip(SampleSkid::RequestZero),
                Self::Jumps => kind
                    .sample(SampleFlag::BRANCH_STACK)
                    .branch_sample_type(SampleBranchFlag::USER | SampleBranchFlag::IND_JUMP),
            };
        }
        kinds
    }
}

/// What a processor told of a thread in user mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The thread.
    pub tid: u32,
    /// When, by `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The instruction that touched memory; of jumps, where the thread was.
    pub ip: u64,
    /// What it touched.
    pub touched: Option<Touched>,
    /// Jumps that it took, the last one first: from where to where.
    pub jumps: Vec<(u64, u64)>,
}

/// An access, as a processor tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The first byte.
    pub address: u64,
    /// Another processor's cache had the line, modified.
    pub is_contended: bool,
}

/// An event of a device as the kernel describes it, with these fields besides those that it names, all others 0.
fn event(device: &Path, name: Option<&str>, fields: &[(&str, u64)]) -> io::Result<Builder<'static>> {
    let mut event = Dynamic::builder(device)?;
    if let Some(name) = name {
        event.event(name)?;
    }
    for (field, value) in fields {
        event.field(field, *value).map_err(io::Error::other)?;
    }
    let unset: Vec<String> = event.params().map(str::to_owned).collect();
    for field in unset {
        event.field(&field, 0).map_err(io::Error::other)?;
    }
    Ok(Builder::new(event.build().map_err(io::Error::other)?))
}

fn with_kernel(mut kind: Builder<'static>) -> Builder<'static> {
    kind.include_kernel().include_hv();
    kind
}

#[cfg(test)]
#[allow(unsafe_code, reason = "the attributes of an event are partly a union")]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    /// A device as the kernel describes one, of type 11.
    fn device(devices: &Path, name: &str, format: &[(&str, &str)], events: &[(&str, &str)]) {
        let at = devices.join(name);
        write_all(&at.join("format"), format);
        write_all(&at.join("events"), events);
        write(at.join("type"), "11\n").unwrap();
    }

    fn write_all(directory: &Path, files: &[(&str, &str)]) {
        create_dir_all(directory).unwrap();
        files.iter().for_each(|(name, text)| write(directory.join(name), format!("{text}\n")).unwrap());
    }

    /// Configuration, whether the kernel is left out, precision.
    fn told_of(kinds: &[Builder<'_>]) -> Vec<(u64, u64, u64, bool, u64)> {
        let of = |kind: &Builder<'_>| {
            let of = kind.attrs();
            assert_eq!((of.type_, of.sample_type), (11, TOUCHED.bits()));
            // SAFETY: plain numbers, all of which are set.
            let (config1, config2) = unsafe { (of.__bindgen_anon_3.config1, of.__bindgen_anon_4.config2) };
            (of.config, config1, config2, of.exclude_kernel() != 0, of.precise_ip())
        };
        kinds.iter().map(of).collect()
    }

    #[test]
    fn events_are_made_as_the_kernel_describes_them() {
        let devices = tempfile::tempdir().unwrap();
        let devices = devices.path();
        assert!(Hardware::Ibs.kinds_of(devices, 1).is_empty(), "no such device");
        device(
            devices,
            "ibs_op",
            &[("cnt_ctl", "config:19"), ("l3missonly", "config:16"), ("swfilt", "config2:0")],
            &[],
        );
        let ibs = [(1 << 19, 0, 1, true, 0), (1 << 19, 0, 0, false, 0)];
        assert_eq!(told_of(&Hardware::Ibs.kinds_of(devices, 1)), ibs);
        let format =
            [("event", "config:0-7"), ("umask", "config:8-15"), ("edge", "config:18"), ("ldlat", "config1:0-15")];
        let events = [("mem-loads", "event=0xcd,umask=0x1,ldlat=3"), ("mem-stores", "event=0xd0,umask=0x82")];
        device(devices, "cpu", &format, &events);
        assert_eq!(told_of(&Hardware::Loads.kinds_of(devices, 1)), [(0x1cd, LEAST_LOAD_CYCLES, 0, true, 2)]);
        assert_eq!(told_of(&Hardware::Stores.kinds_of(devices, 1)), [(0x82d0, 0, 0, true, 2)]);
        // An older kernel's has no filter: then with the kernel's own.
        let old = tempfile::tempdir().unwrap();
        device(old.path(), "ibs_op", &[("cnt_ctl", "config:19")], &[]);
        assert_eq!(told_of(&Hardware::Ibs.kinds_of(old.path(), 1)), [(1 << 19, 0, 0, false, 0)]);
    }
}
