//! Sampling hardware of the processor: addresses of accesses, hits on lines that another
//! processor's cache has modified (HITM), and targets of indirect branches.
//!
//! | [`HardwareSource`] | event | samples |
//! |---|---|---|
//! | [`HardwareSource::Ibs`] | AMD's `ibs_op`: one in n micro-operations | addresses; from Zen 4 on HITM |
//! | [`HardwareSource::Loads`], [`HardwareSource::Stores`] | Intel's `cpu/mem-loads/` and `cpu/mem-stores/`, by PEBS | addresses; HITM of slow loads |
//! | [`HardwareSource::Jumps`] | cycles with branch records (LBR) of indirect branches | source and target |
//!
//! Each takes one more event per thread and CPU, with its own rings (`sources::perf`). They are
//! optional: the clock's samples show where the time goes. Limits: virtual machines usually have
//! none of them. Not supported are processors with two kinds of core (`cpu_core`), loads that need
//! a second event (`mem-loads-aux`, Sapphire Rapids), IBS before Linux 6.2, which supported it for
//! whole CPUs only, and Arm's SPE, because sampling needs x86-64.
//!
//! Source: the counters of Cachekata, section 6.2, and `perf c2c`.

use std::fmt;
use std::path::Path;

use perf_event::events::{self, Raw};
use perf_event::{Builder, SampleBranchFlag, SampleFlag, SampleSkid};
use serde::Serialize;

use crate::kernel_file;
use crate::perf::Counter;

/// The kernel's descriptions of event sources.
const DEVICES: &str = "/sys/bus/event_source/devices";
/// Faster loads hit the core's own caches; `perf c2c` uses the same threshold.
const LEAST_LOAD_CYCLES: u64 = 30;
/// Upper limits of samples per second and thread: accesses, and branches, up to 32 per sample.
const MAX_HERTZ: u32 = 200;
const MAX_BRANCH_HERTZ: u32 = 50;
/// An address and the data source of its line.
pub(super) const ACCESS_FIELDS: SampleFlag = SampleFlag::ADDR.union(SampleFlag::DATA_SRC);

/// A kind of sampling hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HardwareSource {
    /// AMD's instruction-based sampling.
    Ibs,
    /// Intel's precise load events.
    Loads,
    /// Intel's precise store events.
    Stores,
    /// Branch records.
    Jumps,
}

impl fmt::Display for HardwareSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ibs => "IBS",
            Self::Loads => "PEBS of loads",
            Self::Stores => "PEBS of stores",
            Self::Jumps => "branch records",
        })
    }
}

impl HardwareSource {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Ibs, Self::Loads, Self::Stores, Self::Jumps];

    /// Whether this user can use it on this machine, tested on this process.
    #[must_use]
    pub fn probe(self) -> Counter {
        let absent = Counter::Absent("this processor or virtual machine has none".into());
        let better = |one: Counter, other: Counter| if one.is_available() { one } else { other };
        self.kinds(1).iter().map(|kind| Counter::from_result(kind.build())).fold(absent, better)
    }

    /// Events that implement it, best first, at the clock's rate or less.
    pub(super) fn kinds(self, hertz: u32) -> Vec<Builder<'static>> {
        self.kinds_of(Path::new(DEVICES), hertz)
    }

    fn kinds_of(self, devices: &Path, hertz: u32) -> Vec<Builder<'static>> {
        let cpu = |name, more| event(&devices.join("cpu"), Some(name), more);
        let ibs = |more| event(&devices.join("ibs_op"), None, more);
        // Counts micro-operations, not cycles. Kernels before 6.13 cannot exclude the kernel's
        // (`swfilt`).
        let kinds = match self {
            Self::Ibs => [ibs(&[("cnt_ctl", 1), ("swfilt", 1)]), ibs(&[("cnt_ctl", 1)]).map(with_kernel)],
            Self::Loads => [cpu("mem-loads", &[("ldlat", LEAST_LOAD_CYCLES)]), None],
            Self::Stores => [cpu("mem-stores", &[]), None],
            Self::Jumps => [Some(Builder::new(events::Hardware::CPU_CYCLES)), None],
        };
        kinds.into_iter().flatten().map(|kind| self.sampled(kind, hertz)).collect()
    }

    /// Sets the sampled fields of an event and its rate.
    fn sampled(self, mut kind: Builder<'static>, hertz: u32) -> Builder<'static> {
        let most = if self == Self::Jumps { MAX_BRANCH_HERTZ } else { MAX_HERTZ };
        kind.sample_frequency(hertz.min(most).into()).inherit(true).inherit_thread(true);
        match self {
            Self::Ibs => kind.sample(ACCESS_FIELDS),
            Self::Loads | Self::Stores => kind.sample(ACCESS_FIELDS).precise_ip(SampleSkid::RequestZero),
            Self::Jumps => kind
                .sample(SampleFlag::BRANCH_STACK)
                .branch_sample_type(SampleBranchFlag::USER | SampleBranchFlag::IND_JUMP),
        };
        kind
    }
}

/// A hardware sample of a thread in user mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardwareSample {
    /// Thread id.
    pub tid: u32,
    /// Time by `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The instruction that accessed memory; for branches, the sampled instruction.
    pub ip: u64,
    /// Its memory access, if sampled.
    pub access: Option<MemoryAccess>,
    /// Taken branches, newest first: source and target.
    pub jumps: Vec<(u64, u64)>,
}

/// A sampled memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAccess {
    /// The first byte's address.
    pub address: u64,
    /// Whether another processor's cache had the line modified.
    pub is_contended: bool,
}

/// Builds an event from the kernel's description of the device (`format`, `events`), with
/// additional `fields`. All other bits are 0, because fields of different events share bits.
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

/// Parses `umask=0x1`; a name alone has the value 1.
fn term(text: &str) -> Option<(&str, u64)> {
    let (name, value) = text.split_once('=').unwrap_or((text, "1"));
    let number = value.strip_prefix("0x").map_or_else(|| value.parse(), |digits| u64::from_str_radix(digits, 16));
    Some((name, number.ok()?))
}

/// Stores a value in the bits of a format such as `config1:0-15` or `config:8-15,40-47`; `None` for
/// another format or too large a value.
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

    /// Creates a device description as the kernel has it, of type 11.
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

    /// Configuration words, kernel exclusion and precision.
    fn configurations(kinds: &[Builder<'_>]) -> Vec<(u64, u64, u64, bool, u64)> {
        let of = |kind: &Builder<'_>| {
            let of = kind.attrs();
            assert_eq!((of.type_, of.sample_type), (11, ACCESS_FIELDS.bits()));
            // SAFETY: both union members are integers that are always initialised.
            let (config1, config2) = unsafe { (of.__bindgen_anon_3.config1, of.__bindgen_anon_4.config2) };
            (of.config, config1, config2, of.exclude_kernel() != 0, of.precise_ip())
        };
        kinds.iter().map(of).collect()
    }

    /// Tests the fields with an event that virtual machines support too.
    #[test]
    fn the_kernel_accepts_the_sampled_fields() {
        let clock = || Builder::new(events::Software::CPU_CLOCK);
        match Counter::from_result(clock().build()) {
            Counter::Available => {}
            other => return println!("SKIP no perf events: {other:?}"),
        }
        let builder = HardwareSource::Ibs.sampled(clock(), 1000);
        assert_eq!(Counter::from_result(builder.build()), Counter::Available, "{:?}", builder.attrs());
        // The clock has no branch records; the refusal is reported as absent.
        let refused = Counter::from_result(HardwareSource::Jumps.sampled(clock(), 1000).build());
        assert!(matches!(refused, Counter::Absent(_)), "{refused:?}");
    }

    #[test]
    fn events_follow_the_kernel_s_description() {
        let devices = tempfile::tempdir().unwrap();
        let devices = devices.path();
        assert!(HardwareSource::Ibs.kinds_of(devices, 1).is_empty(), "no such device");
        device(
            devices,
            "ibs_op",
            &[("cnt_ctl", "config:19"), ("l3missonly", "config:16"), ("swfilt", "config2:0")],
            &[],
        );
        let ibs = [(1 << 19, 0, 1, true, 0), (1 << 19, 0, 0, false, 0)];
        assert_eq!(configurations(&HardwareSource::Ibs.kinds_of(devices, 1)), ibs);
        // Two more fields share bits with that of the loads; the umask has two parts.
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
        assert_eq!(
            configurations(&HardwareSource::Loads.kinds_of(devices, 1)),
            [(3 << 40 | 0x1cd, LEAST_LOAD_CYCLES, 0, true, 2)]
        );
        assert_eq!(configurations(&HardwareSource::Stores.kinds_of(devices, 1)), [(1 << 18 | 0x82d0, 0, 0, true, 2)]);
        // A value or format that does not fit yields no event.
        let mut config = [0; 3];
        assert_eq!(put("config1:0-3", 16, &mut config), None);
        assert_eq!((put("config9:0", 1, &mut config), put("config:60-64", 1, &mut config)), (None, None));
        assert_eq!((term("umask=?"), term("any")), (None, Some(("any", 1))));
        // An older kernel has no filter: the event then includes the kernel.
        let old = tempfile::tempdir().unwrap();
        device(old.path(), "ibs_op", &[("cnt_ctl", "config:19")], &[]);
        assert_eq!(configurations(&HardwareSource::Ibs.kinds_of(old.path(), 1)), [(1 << 19, 0, 0, false, 0)]);
    }
}
