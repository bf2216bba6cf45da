//! Which CPU this is, and the TLBs that it tells of: CPUID on x86-64, `/proc/cpuinfo` elsewhere.
//!
//! ```text
//!   Intel   leaf 2: a byte for each TLB (0xfe: ask leaf 0x18)   leaf 0x18: a sub-leaf for each TLB
//!   AMD     0x8000_0005: level 1    0x8000_0006: level 2    0x8000_0019: pages of 1 GiB on both
//!   Arm     nothing: the numbers of the maker and the part lead to what is written of it
//! ```
//! Source: Intel SDM volume 2A (CPUID, table 3-12 and leaf 18H); AMD APM volume 3, appendix E.4. Traps:
//! - A hypervisor may clear any of these leaves, or show those of another CPU. What is not told is not in the list, and an empty
//!   list is usual in a virtual machine. Nothing here is measured.
//! - A shared second level may be told twice, as data and as instructions (AMD), or once for each set of page sizes (Intel).
//! - Page-walk caches and the number of walkers are told by nobody.
//!
//! The readings are pure functions of the leaves ([`intel`], [`amd`]); [`cpu`] asks the CPU that it happens to run on.

mod amd;
mod arm;
mod intel;

use serde::{Deserialize, Serialize};

/// A page of 4 KiB, as TLBs are told.
pub const PAGE_4K: u64 = 4 << 10;
/// A page of 2 MiB.
pub const PAGE_2M: u64 = 2 << 20;
/// A page of 1 GiB.
pub const PAGE_1G: u64 = 1 << 30;

/// A CPU and its TLBs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cpu {
    /// `GenuineIntel`, `AuthenticAMD`, ...; on Arm the maker's number, such as `0x41`; empty where it is unknown.
    pub vendor: String,
    /// The family, extended part added; 0 on Arm.
    pub family: u32,
    /// The model, extended part in front; on Arm the part number.
    pub model: u32,
    /// What it tells of its TLBs.
    pub tlbs: Vec<Tlb>,
}

/// One TLB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tlb {
    /// 1 for the nearest.
    pub level: u8,
    /// What it translates for.
    pub serves: Serves,
    /// The sizes of page that it holds, smallest first, in bytes.
    pub pages: Vec<u64>,
    /// How many translations it holds.
    pub entries: u32,
    /// How they are looked up.
    pub ways: Ways,
}

/// What a TLB translates for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Serves {
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

impl Serves {
    /// Whether loads are looked up there.
    #[must_use]
    pub const fn loads(self) -> bool {
        matches!(self, Self::Data | Self::Loads | Self::All)
    }
}

/// In how many places of a TLB a translation may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ways {
    /// So many.
    Of(u32),
    /// In any.
    Full,
    /// It is not told.
    Untold,
}

impl Cpu {
    /// Translations of a page size that loads find at `level`, all its arrays together; 0 where nothing is told.
    #[must_use]
    pub fn load_entries(&self, level: u8, page_bytes: u64) -> u32 {
        let holds = |tlb: &&Tlb| tlb.level == level && tlb.serves.loads() && tlb.pages.contains(&page_bytes);
        self.tlbs.iter().filter(holds).map(|tlb| tlb.entries).sum()
    }

    /// Bytes that the last level translates for loads at once on pages of that size; `None` where it is not told.
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

/// The CPU of this machine; on one with several kinds of core, the kind that the thread is on.
#[must_use]
pub fn cpu() -> Cpu {
    here()
}

#[cfg(target_arch = "x86_64")]
fn here() -> Cpu {
    read(|leaf, sub_leaf| {
        let found = std::arch::x86_64::__cpuid_count(leaf, sub_leaf);
        Leaf::new(found.eax, found.ebx, found.ecx, found.edx)
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn here() -> Cpu {
    arm::read(&crate::kernel_file::text("/proc/cpuinfo").unwrap_or_default())
}

/// The CPU of which `leaf(number, sub-leaf)` tells: a real one, or one that was recorded.
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
