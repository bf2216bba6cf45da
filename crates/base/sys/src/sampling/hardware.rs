//! What the processor itself tells beside the clock's samples, where it has counters for that: which address an instruction touched, whether
//! another processor's cache had the line modified (a hit on a modified line, HITM), and where jumps led that only the run knows.
//!
//! | [`Hardware`] | event | tells |
//! |---|---|---|
//! | [`Hardware::Ibs`] | AMD's `ibs_op`: one micro-operation of so many | addresses; from Zen 4 on HITM |
//! | [`Hardware::Loads`], [`Hardware::Stores`] | Intel's `cpu/mem-loads/` and `cpu/mem-stores/`, by PEBS | addresses; of loads that took long HITM |
//! | [`Hardware::Jumps`] | cycles with branch records (LBR), of indirect jumps | from where to where |
//!
//! Each is one more event a thread and CPU, with rings of its own ([`super::perf`]). They only add: the clock tells where the time goes, and what
//! cannot be had is left out. Virtual machines have none of them, as a rule. Left out too are processors with cores of two kinds (`cpu_core`), loads
//! that need a second event beside theirs (`mem-loads-aux`, Sapphire Rapids), and IBS before Linux 6.2, which had it for whole CPUs alone; Arm's SPE,
//! since registers are known on x86-64 alone, here and in all that follows.
//!
//! Source: what Cachekata was told by, section 6.2, and `perf c2c`.

use std::fmt;
use std::path::Path;

use perf_event::events::{self, Raw};
use perf_event::{Builder, SampleBranchFlag, SampleFlag, SampleSkid};
use serde::Serialize;

use crate::kernel_file;
use crate::perf::Counter;

/// Where the kernel describes what it can sample.
const DEVICES: &str = "/sys/bus/event_source/devices";
/// Loads that take fewer cycles hit a cache of their own: `perf c2c` leaves out the same.
const LEAST_LOAD_CYCLES: u64 = 30;
/// Samples a second and thread at most: of accesses, and of jumps, which bring up to 32 each.
const MOST_HERTZ: u32 = 200;
const MOST_JUMPS_HERTZ: u32 = 50;
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

    /// Events that do for it, best first, at the clock's rate or at less.
    pub(super) fn kinds(self, hertz: u32) -> Vec<Builder<'static>> {
        self.kinds_of(Path::new(DEVICES), hertz)
    }

    fn kinds_of(self, devices: &Path, hertz: u32) -> Vec<Builder<'static>> {
        let cpu = |name, more| event(&devices.join("cpu"), Some(name), more);
        let ibs = |more| event(&devices.join("ibs_op"), None, more);
        // Micro-operations are counted, not cycles; kernels before 6.13 cannot leave out those of the kernel (`swfilt`).
        let kinds = match self {
            Self::Ibs => [ibs(&[("cnt_ctl", 1), ("swfilt", 1)]), ibs(&[("cnt_ctl", 1)]).map(with_kernel)],
            Self::Loads => [cpu("mem-loads", &[("ldlat", LEAST_LOAD_CYCLES)]), None],
            Self::Stores => [cpu("mem-stores", &[]), None],
            Self::Jumps => [Some(Builder::new(events::Hardware::CPU_CYCLES)), None],
        };
        kinds.into_iter().flatten().map(|kind| self.sampled(kind, hertz)).collect()
    }

    /// What is to be told of an event, and how often.
    fn sampled(self, mut kind: Builder<'static>, hertz: u32) -> Builder<'static> {
        let most = if self == Self::Jumps { MOST_JUMPS_HERTZ } else { MOST_HERTZ };
        kind.sample_frequency(hertz.min(most).into()).inherit(true).inherit_thread(true);
        match self {
            Self::Ibs => kind.sample(TOUCHED),
            Self::Loads | Self::Stores => kind.sample(TOUCHED).precise_ip(SampleSkid::RequestZero),
            Self::Jumps => kind
                .sample(SampleFlag::BRANCH_STACK)
                .branch_sample_type(SampleBranchFlag::USER | SampleBranchFlag::IND_JUMP),
        };
        kind
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

/// An event of a device as the kernel describes it (`format`, `events`), with these fields besides those that it names: all else is 0, for fields
/// of different events lie on the same bits.
fn event(device: &Path, name: Option<&str>, fields: &[(&str, u64)]) -> Option<Builder<'static>> {
    let named = name
        .map(|name| kernel_file::text(device.join("events").join(name)))
        .map_or(Some(String::new()), |text| text)?;
    let of_name = named.split(',').filter(|term| !term.is_empty()).map(term).collect::<Option<Vec<_>>>()?;
    let more = of_name.into_iter().filter(|(field, _)| !fields.iter().any(|(other, _)| other == field));
    let mut config = [0; 3];
    for (field, value) in more.chain(fields.iter().copied()) {
        put(&kernel_file::text(device.join("format").join(field))?, value, &mut config)?;
    }
    let [config, config1, config2] = config;
    let mut builder = Builder::new(Raw::new(config).config1(config1).config2(config2));
    builder.attrs_mut().type_ = kernel_file::number(device.join("type"))?.try_into().ok()?;
    Some(builder)
}

/// `umask=0x1`; a name alone is 1.
fn term(text: &str) -> Option<(&str, u64)> {
    let (name, value) = text.split_once('=').unwrap_or((text, "1"));
    let number = value.strip_prefix("0x").map_or_else(|| value.parse(), |digits| u64::from_str_radix(digits, 16));
    Some((name, number.ok()?))
}

/// Puts a value where a format says, such as `config1:0-15` or `config:8-15,40-47`; `None` where it says otherwise or has no room.
fn put(format: &str, mut value: u64, config: &mut [u64; 3]) -> Option<()> {
    let (word, places) = format.split_once(':')?;
    let word = config.get_mut(["config", "config1", "config2"].iter().position(|name| *name == word)?)?;
    for place in places.split(',') {
        let (first, last) = place.split_once('-').unwrap_or((place, place));
        for bit in first.parse::<u32>().ok()?..=last.parse().ok().filter(|last| *last < u64::BITS)? {
            *word |= (value & 1) << bit;
            value >>= 1;
        }
    }
    (value == 0).then_some(())
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

    /// Of an event that virtual machines have too.
    #[test]
    fn what_is_asked_for_is_taken_by_the_kernel() {
        let clock = || Builder::new(events::Software::CPU_CLOCK);
        match Counter::from_result(clock().build()) {
            Counter::Available => {}
            other => return println!("SKIP no perf events: {other:?}"),
        }
        let asked = Hardware::Ibs.sampled(clock(), 1000);
        assert_eq!(Counter::from_result(asked.build()), Counter::Available, "{:?}", asked.attrs());
        // The clock has no records of branches: what is refused is told as absent.
        let refused = Counter::from_result(Hardware::Jumps.sampled(clock(), 1000).build());
        assert!(matches!(refused, Counter::Absent(_)), "{refused:?}");
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
        // Two more fields lie where that of the loads does; the umask is in two pieces.
        let format = [
            ("event", "config:0-7"),
            ("umask", "config:8-15,40-47"),
            ("edge", "config:18"),
            ("ldlat", "config1:0-15"),
            ("offcore_rsp", "config1:0-63"),
            ("frontend", "config1:0-23"),
            ("acr_mask", "config2:0-63"),
            ("newer", "config3:0-7"),
        ];
        let events = [("mem-loads", "event=0xcd,umask=0x301,ldlat=3"), ("mem-stores", "event=0xd0,umask=0x82,edge")];
        device(devices, "cpu", &format, &events);
        assert_eq!(told_of(&Hardware::Loads.kinds_of(devices, 1)), [(3 << 40 | 0x1cd, LEAST_LOAD_CYCLES, 0, true, 2)]);
        assert_eq!(told_of(&Hardware::Stores.kinds_of(devices, 1)), [(1 << 18 | 0x82d0, 0, 0, true, 2)]);
        // What does not fit, or is not understood, is no event.
        let mut config = [0; 3];
        assert_eq!(put("config1:0-3", 16, &mut config), None);
        assert_eq!((put("config9:0", 1, &mut config), put("config:60-64", 1, &mut config)), (None, None));
        assert_eq!((term("umask=?"), term("any")), (None, Some(("any", 1))));
        // An older kernel's has no filter: then with the kernel's own.
        let old = tempfile::tempdir().unwrap();
        device(old.path(), "ibs_op", &[("cnt_ctl", "config:19")], &[]);
        assert_eq!(told_of(&Hardware::Ibs.kinds_of(old.path(), 1)), [(1 << 19, 0, 0, false, 0)]);
    }
}
