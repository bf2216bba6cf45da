//! The parsers applied to leaves recorded on real CPUs.

use super::*;

/// Leaves by number and sub-leaf; others read as zeros.
struct RecordedLeaves<'a>(&'a [(u32, u32, Leaf)]);

impl RecordedLeaves<'_> {
    fn cpu(&self) -> Cpu {
        read(|leaf, sub_leaf| {
            let found = self.0.iter().find(|(number, sub, _)| (*number, *sub) == (leaf, sub_leaf));
            found.map_or_else(Leaf::default, |(_, _, registers)| *registers)
        })
    }
}

const fn leaf(number: u32, eax: u32, ebx: u32, ecx: u32, edx: u32) -> (u32, u32, Leaf) {
    (number, 0, Leaf::new(eax, ebx, ecx, edx))
}

const fn intel(last: u32) -> (u32, u32, Leaf) {
    leaf(0, last, 0x756e_6547, 0x6c65_746e, 0x4965_6e69)
}

/// Ryzen 5 3600X (Zen 2).
const MATISSE: RecordedLeaves<'static> = RecordedLeaves(&[
    leaf(0, 0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65),
    leaf(1, 0x0087_0f10, 0, 0, 0),
    leaf(0x8000_0000, 0x8000_0020, 0, 0, 0),
    leaf(0x8000_0005, 0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140),
    leaf(0x8000_0006, 0x4800_6400, 0x6800_6400, 0x0200_6140, 0x0100_9140),
    leaf(0x8000_0019, 0xf040_f040, 0, 0, 0),
]);

/// Xeon Gold 6252 (Cascade Lake): all TLBs as descriptors.
const CASCADE_LAKE: RecordedLeaves<'static> =
    RecordedLeaves(&[intel(0x16), leaf(1, 0x0005_0657, 0, 0, 0), leaf(2, 0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000)]);

/// Emerald Rapids under a hypervisor that refers to leaf 0x18 and clears it.
const HIDDEN: RecordedLeaves<'static> =
    RecordedLeaves(&[intel(0x20), leaf(1, 0x000c_06f2, 0, 0, 0), leaf(2, 0x00fe_ff01, 0x0000_00f0, 0, 0)]);

/// Leaf 0x18 as in the manual: two second-level arrays that share the small pages.
const BY_FIELDS: RecordedLeaves<'static> = RecordedLeaves(&[
    intel(0x20),
    leaf(1, 0x0009_0672, 0, 0, 0),
    leaf(2, 0x00fe_ff01, 0x0000_00f0, 0, 0),
    (0x18, 0, Leaf::new(5, 0, 0, 0)),
    (0x18, 1, Leaf::new(0, 0x0008_0001, 0x20, 0x4022)),
    (0x18, 2, Leaf::new(0, 0x0010_000f, 1, 0x4125)),
    (0x18, 3, Leaf::new(0, 0x0006_0001, 0x10, 0x4024)),
    (0x18, 4, Leaf::new(0, 0x0008_0007, 0x80, 0x4043)),
    (0x18, 5, Leaf::new(0, 0x0008_0009, 0x80, 0x4043)),
]);

fn tlb(level: u8, serves: TlbUse, pages: &[u64], entries: u32, ways: Ways) -> Tlb {
    Tlb { level, serves, pages: pages.to_vec(), entries, ways }
}

#[test]
fn zen_2_reports_both_levels_for_each_page_size() {
    let cpu = MATISSE.cpu();
    assert_eq!((cpu.vendor.as_str(), cpu.family, cpu.model), ("AuthenticAMD", 0x17, 0x71));
    assert!(cpu.tlbs.contains(&tlb(1, TlbUse::Data, &[PAGE_4K], 64, Ways::Full)), "{cpu:?}");
    assert!(cpu.tlbs.contains(&tlb(1, TlbUse::Data, &[PAGE_1G], 64, Ways::Full)));
    assert!(cpu.tlbs.contains(&tlb(2, TlbUse::Data, &[PAGE_4K], 2048, Ways::Of(8))));
    assert!(cpu.tlbs.contains(&tlb(2, TlbUse::Data, &[PAGE_2M], 2048, Ways::Of(4))));
    assert!(cpu.tlbs.contains(&tlb(2, TlbUse::Instructions, &[PAGE_4K], 1024, Ways::Of(8))));
    assert_eq!(cpu.tlbs.len(), 10, "an absent second level of 1 GiB is not listed");
    assert_eq!(cpu.reach_bytes(PAGE_4K), Some(8 << 20));
    assert_eq!(cpu.reach_bytes(PAGE_1G), Some(64 << 30));
}

#[test]
fn descriptors_are_looked_up() {
    let cpu = CASCADE_LAKE.cpu();
    assert_eq!((cpu.vendor.as_str(), cpu.family, cpu.model), ("GenuineIntel", 6, 0x55));
    let expected = [
        tlb(1, TlbUse::Data, &[PAGE_2M], 32, Ways::Of(4)),
        tlb(1, TlbUse::Data, &[PAGE_1G], 4, Ways::Of(4)),
        tlb(1, TlbUse::Data, &[PAGE_4K], 64, Ways::Of(4)),
        tlb(1, TlbUse::Instructions, &[PAGE_2M], 8, Ways::Full),
        tlb(1, TlbUse::Instructions, &[PAGE_4K], 64, Ways::Of(8)),
        tlb(2, TlbUse::All, &[PAGE_4K, PAGE_2M], 1536, Ways::Of(6)),
        tlb(2, TlbUse::All, &[PAGE_1G], 16, Ways::Of(4)),
    ];
    assert_eq!(cpu.tlbs, expected);
    assert_eq!(cpu.reach_bytes(PAGE_2M), Some(3 << 30));
}

#[test]
fn a_hidden_leaf_yields_no_tlb() {
    let cpu = HIDDEN.cpu();
    assert_eq!((cpu.family, cpu.model, cpu.tlbs.len()), (6, 0xcf, 0));
    assert_eq!(cpu.reach_bytes(PAGE_4K), None);
}

#[test]
fn leaf_18_is_read_field_by_field() {
    let cpu = BY_FIELDS.cpu();
    let all = [PAGE_4K, PAGE_2M, PAGE_1G];
    let expected = [
        tlb(1, TlbUse::Instructions, &[PAGE_4K], 256, Ways::Of(8)),
        tlb(1, TlbUse::Stores, &all, 16, Ways::Full),
        tlb(1, TlbUse::Loads, &[PAGE_4K], 96, Ways::Of(6)),
        tlb(2, TlbUse::All, &[PAGE_4K, PAGE_2M], 1024, Ways::Of(8)),
        tlb(2, TlbUse::All, &[PAGE_4K, PAGE_1G], 1024, Ways::Of(8)),
    ];
    assert_eq!(cpu.tlbs, expected);
    assert_eq!(
        (cpu.load_entries(1, PAGE_4K), cpu.load_entries(2, PAGE_4K), cpu.load_entries(2, PAGE_2M)),
        (96, 2048, 1024)
    );
}

#[test]
fn old_families_have_no_extended_model() {
    assert_eq!(signature(0x0000_0f43), (0xf, 4));
    assert_eq!(signature(0x0002_0f43), (0xf, 0x24));
    assert_eq!(signature(0x0001_0543), (5, 4));
}

#[test]
fn invalid_registers_and_a_low_last_leaf_are_skipped() {
    let half = RecordedLeaves(&[intel(2), leaf(1, 0x0002_06d7, 0, 0, 0), leaf(2, 0x7603_6301, 0x80ca_caca, 0, 0)]);
    assert_eq!(half.cpu().load_entries(2, PAGE_4K), 0, "bit 31 marks EBX as invalid");
    assert_eq!(RecordedLeaves(&[intel(1)]).cpu().tlbs, []);
}

#[test]
fn arm_is_identified_by_its_part() {
    let cpu = arm::read("processor : 0\nCPU implementer : 0x41\nCPU variant : 0x0\nCPU part : 0xd4f\n");
    assert_eq!((cpu.vendor.as_str(), cpu.family, cpu.model), ("0x41", 0, 0xd4f));
    assert_eq!(arm::read(""), Cpu::default());
}

#[test]
fn this_cpu_matches_the_kernel() {
    let (cpu, cpuinfo) = (cpu(), crate::kernel_file::text("/proc/cpuinfo").unwrap());
    let field = |name| crate::kernel_file::field(&cpuinfo, name);
    let Some(vendor) = field("vendor_id") else {
        assert_eq!(cpu.vendor, field("CPU implementer").unwrap_or_default());
        return;
    };
    let number = |name| field(name).unwrap().parse::<u32>().unwrap();
    assert_eq!((cpu.vendor.as_str(), cpu.family, cpu.model), (vendor, number("cpu family"), number("model")));
    assert!(
        cpu.tlbs.iter().all(|tlb| tlb.entries > 0 && !tlb.pages.is_empty() && (1..=3).contains(&tlb.level)),
        "{cpu:?}"
    );
}
