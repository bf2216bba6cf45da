//! The CPU model and the TLBs it reports: CPUID on x86-64, `/proc/cpuinfo` elsewhere.
//!
//! ```text
//!   Intel   leaf 2: one byte per TLB (0xfe: see leaf 0x18)   leaf 0x18: one sub-leaf per TLB
//!   AMD     0x8000_0005: level 1    0x8000_0006: level 2    0x8000_0019: pages of 1 GiB on both
//!   Arm     no register; the implementer and part numbers identify the documentation
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `intel`, `amd`, `arm` | the TLBs by the leaves or registers of this maker |
//! | `this_machine` | the leaves of this processor |
//!
//! The parsers are pure functions of the leaves ([`intel`], [`amd`]); [`cpu`] reads the CPU that
//! the thread runs on. Source: Intel SDM volume 2A (CPUID, table 3-12 and leaf 18H); AMD APM volume
//! 3, appendix E.4. Limits:
//! - A hypervisor may clear these leaves or show those of another CPU. A TLB that is not reported
//!   is not in the list; an empty list is usual in a virtual machine. Nothing here is measured.
//! - A shared second level may be listed twice, as data and as instructions (AMD), or once per set
//!   of page sizes (Intel).
//! - No leaf reports page-walk caches or the number of walkers.

mod amd;
mod arm;
mod intel;
#[cfg_attr(not(target_arch = "x86_64"), path = "cpuid/this_machine_by_cpuinfo.rs")]
mod this_machine;

use serde::{Deserialize, Serialize};

pub use arm::read as read_cpuinfo;

/// A page of 4 KiB, in bytes.
pub const PAGE_4K: u64 = 4 << 10;
/// A page of 2 MiB.
pub const PAGE_2M: u64 = 2 << 20;
/// A page of 1 GiB.
pub const PAGE_1G: u64 = 1 << 30;

/// A CPU and its TLBs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cpu {
    /// `GenuineIntel`, `AuthenticAMD`, ...; on Arm the implementer's number, such as `0x41`; empty
    /// if unknown.
    pub vendor: String,
    /// The family with the extended part added; 0 on Arm.
    pub family: u32,
    /// The model with the extended part in front; on Arm the part number.
    pub model: u32,
    /// The TLBs it reports.
    pub tlbs: Vec<Tlb>,
}

/// One TLB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tlb {
    /// 1 for the nearest.
    pub level: u8,
    /// What it translates for.
    pub serves: TlbUse,
    /// The sizes of page that it holds, smallest first, in bytes.
    pub pages: Vec<u64>,
    /// How many translations it holds.
    pub entries: u32,
    /// Associativity.
    pub ways: Ways,
}

/// The accesses a TLB translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlbUse {
    /// Loads and stores.
    Data,
    /// Loads only.
    Loads,
    /// Stores only.
    Stores,
    /// Instruction fetches.
    Instructions,
    /// All of them.
    All,
}

impl TlbUse {
    /// Whether loads use it.
    #[must_use]
    pub const fn loads(self) -> bool {
        matches!(self, Self::Data | Self::Loads | Self::All)
    }
}

/// Associativity of a TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ways {
    /// Set-associative with this many ways.
    Of(u32),
    /// Fully associative.
    Full,
    /// Not reported.
    #[serde(rename = "untold")]
    Unknown,
}

impl Cpu {
    /// Entries for pages of `page_bytes` that loads use at `level`, summed over arrays; 0 if none
    /// is reported.
    #[must_use]
    pub fn load_entries(&self, level: u8, page_bytes: u64) -> u32 {
        let holds = |tlb: &&Tlb| tlb.level == level && tlb.serves.loads() && tlb.pages.contains(&page_bytes);
        self.tlbs.iter().filter(holds).map(|tlb| tlb.entries).sum()
    }

    /// Bytes that the last level translates for loads at once with such pages; `None` if not
    /// reported.
    #[must_use]
    pub fn reach_bytes(&self, page_bytes: u64) -> Option<u64> {
        let levels = [3, 2, 1].into_iter();
        let entries = levels.map(|level| self.load_entries(level, page_bytes)).find(|entries| *entries > 0)?;
        Some(u64::from(entries) * page_bytes)
    }
}

/// The four registers of one leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

impl Leaf {
    /// A leaf by its registers.
    #[must_use]
    pub const fn new(eax: u32, ebx: u32, ecx: u32, edx: u32) -> Self {
        Self { eax, ebx, ecx, edx }
    }
}

/// The CPU of this machine. With several kinds of core, it is the one the thread runs on.
#[must_use]
pub fn cpu() -> Cpu {
    this_machine::cpu()
}

/// Parses the leaves that `leaf(number, sub-leaf)` returns, from hardware or recorded.
pub fn read(leaf: impl Fn(u32, u32) -> Leaf) -> Cpu {
    let first = leaf(0, 0);
    let vendor: Vec<u8> = [first.ebx, first.edx, first.ecx].into_iter().flat_map(u32::to_le_bytes).collect();
    let vendor = String::from_utf8_lossy(&vendor).into_owned();
    let (family, model) = signature(leaf(1, 0).eax);
    let tlbs = match vendor.as_str() {
        "AuthenticAMD" | "HygonGenuine" => amd::tlbs(&leaf),
        "GenuineIntel" => intel::tlbs(first.eax, &leaf),
        _ => Vec::new(),
    };
    Cpu { vendor, family, model, tlbs }
}

/// Family and model in EAX of leaf 1.
const fn signature(eax: u32) -> (u32, u32) {
    let (family, model) = (eax >> 8 & 0xf, eax >> 4 & 0xf);
    let extended_model = (eax >> 16 & 0xf) << 4;
    match family {
        0xf => (family + (eax >> 20 & 0xff), extended_model | model),
        6 => (family, extended_model | model),
        _ => (family, model),
    }
}

#[cfg(test)]
mod tests;
