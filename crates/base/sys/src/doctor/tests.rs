//! Verdicts on constructed machines.

use super::*;
use crate::huge_pages::{FolioMode, HugePagePool, ThpMode, Transparent};
use crate::limits::{CgroupMemory, Limits, Overcommit};
use crate::machine::Machine;
use crate::perf::{Counter, Counters};
use crate::userfault::UserfaultSupport;

const MIB: u64 = 1 << 20;

fn pool(page_bytes: u64, total: u64, free: u64) -> HugePagePool {
    HugePagePool { page_bytes, total, free, reserved: 0, surplus: 0, overcommit: 0 }
}

/// A bare-metal machine in good order, examined by root.
fn good_machine() -> Facts {
    let folio = |folio_bytes, mode| FolioMode { folio_bytes, mode, inherited: folio_bytes == 2 * MIB };
    Facts {
        machine: Machine {
            architecture: "x86_64".into(),
            cpus: 8,
            memory_bytes: 64 << 30,
            memory_available_bytes: 60 << 30,
            page_bytes: 4096,
            root: true,
            ..Machine::default()
        },
        transparent: Transparent {
            huge_bytes: Some(2 * MIB),
            global: Some(ThpMode::Madvise),
            defrag: Some("madvise".into()),
            folios: vec![folio(64 << 10, ThpMode::Madvise), folio(2 * MIB, ThpMode::Madvise)],
            ..Transparent::default()
        },
        pools: vec![pool(2 * MIB, 1024, 1024), pool(1 << 30, 4, 4)],
        userfault: UserfaultSupport {
            user_faults: true,
            kernel_faults: true,
            features: vec!["MOVE".into()],
            ..UserfaultSupport::default()
        },
        counters: Counters {
            cycles: Counter::Available,
            instructions: Counter::Available,
            dtlb_read_misses: Counter::Available,
            page_faults: Counter::Available,
            paranoid: Some(1),
        },
        hardware_sources: Vec::new(),
        limits: Limits { max_map_count: Some(65530), overcommit: Some(Overcommit::Heuristic), ..Limits::default() },
        may_turn_knobs: true,
        frames_visible: true,
        thp_can_be_refused: true,
        emulator: true,
        may_collapse: true,
    }
}

/// The same machine, examined by another user.
fn unprivileged() -> Facts {
    let mut facts = good_machine();
    (facts.may_turn_knobs, facts.frames_visible, facts.machine.root) = (false, false, false);
    facts
}

fn verdict(facts: &Facts, command: &str) -> CommandVerdict {
    verdicts(facts).into_iter().find(|verdict| verdict.command == command).unwrap()
}

#[test]
fn a_good_machine_runs_every_command() {
    let all = verdicts(&good_machine());
    assert!(all.iter().all(|verdict| verdict.level == Level::Works && verdict.remedy.is_none()), "{all:?}");
    let commands: Vec<&str> = all.iter().map(|verdict| verdict.command.as_str()).collect();
    assert_eq!(
        commands,
        [
            "profile",
            "profile --load",
            "profile --trace",
            "run --region --pages hugetlb-1g",
            "run --region --pages hugetlb",
            "run --region --pages thp",
            "run --region --pages folio-64k",
            "run --region --pages 4k",
            "run --region --stats",
            "attach --huge",
            "run --guard",
            "run --resident",
            "sharing",
            "run --repair",
            "attach --repair",
        ]
    );
}

#[test]
fn an_unprivileged_user_gets_the_command_for_root() {
    let mut facts = unprivileged();
    facts.pools[0] = pool(2 * MIB, 0, 0);
    let hugetlb = verdict(&facts, "run --region --pages hugetlb");
    assert_eq!(hugetlb.level, Level::Unavailable);
    let remedy = "echo 1024 | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(hugetlb.remedy.as_deref(), Some(remedy));
    let stats = verdict(&facts, "run --region --stats");
    assert_eq!(stats.level, Level::Limited);
    assert!(stats.remedy.unwrap().starts_with("sudo fieldstone"));
    let folio = verdict(&facts, "run --region --pages folio-64k");
    assert_eq!(folio.level, Level::Unavailable);
    let knobs = "/sys/kernel/mm/transparent_hugepage";
    assert_eq!(folio.remedy.unwrap(), format!("echo never | sudo tee {knobs}/hugepages-2048kB/enabled"));
    // Other commands are unaffected.
    assert_eq!(verdict(&facts, "profile").level, Level::Works);
    assert_eq!(verdict(&facts, "run --region --pages thp").level, Level::Works);
}

#[test]
fn a_missing_prerequisite_has_a_remedy() {
    let mut facts = Facts { emulator: false, may_collapse: false, ..unprivileged() };
    for (command, remedy) in
        [("profile --trace", "apt-get install qemu-user"), ("attach --huge", "sudo fieldstone attach --huge")]
    {
        let verdict = verdict(&facts, command);
        assert_eq!(verdict.level, Level::Unavailable);
        assert!(verdict.remedy.unwrap().contains(remedy), "{command}");
    }
    facts.machine.root = true;
    assert_eq!(verdict(&facts, "attach --huge").remedy, None, "sudo gives root no capability");
}

#[test]
fn root_gets_commands_without_sudo() {
    let mut facts = good_machine();
    facts.transparent.defrag = Some("never".into());
    facts.counters.cycles = Counter::Denied("Permission denied".into());
    (facts.emulator, facts.userfault, facts.pools) = (false, UserfaultSupport::default(), vec![pool(2 * MIB, 0, 0)]);
    let remedies: Vec<String> = verdicts(&facts).into_iter().filter_map(|verdict| verdict.remedy).collect();
    assert!(remedies.len() > 5 && remedies.iter().all(|remedy| !remedy.contains("sudo")), "{remedies:?}");
    assert!(remedies.contains(&"sysctl vm.unprivileged_userfaultfd=1".to_owned()), "{remedies:?}");
}

#[test]
fn an_empty_pool_is_filled_by_root_or_on_demand() {
    let mut facts = good_machine();
    facts.pools = vec![pool(2 * MIB, 10, 0), pool(1 << 30, 0, 0)];
    facts.machine.memory_available_bytes = 1 << 30;
    let hugetlb = verdict(&facts, "run --region --pages hugetlb");
    assert_eq!(hugetlb.level, Level::Limited);
    assert!(hugetlb.why.contains("has no free page"), "{}", hugetlb.why);
    // The 10 existing pages, and half of the gigabyte.
    assert!(hugetlb.remedy.unwrap().starts_with("echo 266 | "));
    // The 1 GiB pool is left to the administrator.
    let gigantic = verdict(&facts, "run --region --pages hugetlb-1g");
    assert_eq!(gigantic.level, Level::Unavailable);
    assert!(gigantic.remedy.unwrap().starts_with("echo 1 | "));

    facts.may_turn_knobs = false;
    assert_eq!(verdict(&facts, "run --region --pages hugetlb").level, Level::Unavailable);
    facts.pools[0].overcommit = 5;
    assert_eq!(verdict(&facts, "run --region --pages hugetlb").level, Level::Limited);
}

#[test]
fn reserved_pages_are_not_free() {
    let mut facts = unprivileged();
    facts.pools[0].reserved = 1024;
    assert_eq!(verdict(&facts, "run --region --pages hugetlb").level, Level::Unavailable);
}

#[test]
fn a_disabled_mode_names_its_own_setting() {
    let mut facts = unprivileged();
    for folio in &mut facts.transparent.folios {
        folio.mode = ThpMode::Never;
    }
    let knobs = "/sys/kernel/mm/transparent_hugepage";
    let thp = verdict(&facts, "run --region --pages thp");
    assert_eq!(thp.level, Level::Unavailable);
    assert_eq!(thp.remedy.unwrap(), format!("echo madvise | sudo tee {knobs}/enabled"));
    let folio = verdict(&facts, "run --region --pages folio-64k");
    assert_eq!(folio.remedy.unwrap(), format!("echo madvise | sudo tee {knobs}/hugepages-64kB/enabled"));
    facts.transparent.folios[1].inherited = false;
    let own = verdict(&facts, "run --region --pages thp").remedy.unwrap();
    assert!(own.ends_with("/hugepages-2048kB/enabled"), "{own}");
    facts.transparent.folios[0].mode = ThpMode::Always;
    assert_eq!(verdict(&facts, "run --region --pages folio-64k").level, Level::Works, "and none larger is on");
}

#[test]
fn transparent_pages_without_defrag_are_limited() {
    let mut facts = good_machine();
    facts.transparent.defrag = Some("never".into());
    let thp = verdict(&facts, "run --region --pages thp");
    assert_eq!(thp.level, Level::Limited);
    assert!(thp.remedy.unwrap().ends_with("/defrag"));
}

#[test]
fn a_profile_needs_a_second_page_kind() {
    let mut facts = unprivileged();
    (facts.transparent, facts.pools) = (Transparent::default(), Vec::new());
    for command in ["profile", "profile --load", "run --region --pages thp", "run --region --pages hugetlb-1g"] {
        let verdict = verdict(&facts, command);
        assert_eq!((verdict.level, verdict.remedy), (Level::Unavailable, None), "{command}");
    }
    facts.pools = vec![pool(2 * MIB, 0, 0)];
    assert!(verdict(&facts, "profile").remedy.unwrap().contains("nr_hugepages"), "the remedy is shown");
    facts.pools = vec![pool(2 * MIB, 1, 1)];
    assert_eq!(verdict(&facts, "profile").level, Level::Works, "a pool is enough");
}

#[test]
fn absent_counters_differ_from_denied_ones() {
    let mut facts = good_machine();
    facts.counters.cycles = Counter::Absent("No such file or directory".into());
    let absent = verdict(&facts, "profile");
    assert_eq!((absent.level, absent.remedy), (Level::Limited, None));
    assert_eq!(absent.why, "run times only: no hardware counters on this machine");
    facts.counters.cycles = Counter::Denied("Permission denied".into());
    assert!(verdict(&facts, "profile").remedy.unwrap().ends_with("perf_event_paranoid"));
}

#[test]
fn sharing_and_repair_list_their_obstacles_with_a_remedy() {
    let levels =
        |facts: &Facts| ["sharing", "run --repair", "attach --repair"].map(|command| verdict(facts, command).level);
    let mut facts = unprivileged();
    facts.limits.ptrace_scope = Some(1);
    assert_eq!(levels(&facts), [Level::Works, Level::Works, Level::Unavailable], "only a started program permits it");
    assert!(verdict(&facts, "attach --repair").remedy.unwrap().ends_with("ptrace_scope=0"));
    facts.machine.root = true;
    assert_eq!(levels(&facts), [Level::Works; 3]);
    facts.counters.page_faults = Counter::Denied("Permission denied".into());
    assert_eq!(levels(&facts), [Level::Limited; 3], "ptrace samples instead");
    facts.limits.ptrace_scope = Some(3);
    assert_eq!(levels(&facts), [Level::Unavailable; 3]);
    let obstacles =
        verdict(&Facts { userfault: UserfaultSupport::default(), ..facts.clone() }, "attach --repair").obstacles;
    let [samples, userfaultfd, ptrace] = &obstacles[..] else { panic!("{obstacles:?}") };
    assert!(samples.contains("perf") && userfaultfd.contains("userfaultfd") && ptrace.contains("ptrace_scope is 3"));
    let facts = Facts { userfault: UserfaultSupport::default(), ..unprivileged() };
    assert_eq!(levels(&facts), [Level::Works, Level::Unavailable, Level::Unavailable]);
    assert!(verdict(&facts, "run --repair").remedy.unwrap().ends_with("unprivileged_userfaultfd=1"));
}

#[test]
fn a_bound_on_memory_needs_moves_and_the_faults_of_the_kernel() {
    let mut facts = unprivileged();
    facts.userfault.kernel_faults = false;
    let denied = verdict(&facts, "run --resident");
    assert_eq!(denied.level, Level::Unavailable);
    assert_eq!(denied.remedy.as_deref(), Some("sudo sysctl vm.unprivileged_userfaultfd=1"));
    facts.userfault.device = true;
    assert_eq!(verdict(&facts, "run --resident").level, Level::Works, "the device is enough");
    facts.userfault.features = vec!["POISON".into()];
    let old = verdict(&facts, "run --resident");
    assert_eq!((old.level, old.remedy), (Level::Unavailable, None));
    assert!(old.why.contains("Linux 6.8"), "{}", old.why);
}

#[test]
fn resource_limits_limit_the_region() {
    let mut facts = good_machine();
    facts.limits.address_space_bytes = Some(3 << 30);
    let limited = verdict(&facts, "run --region --pages 4k");
    assert_eq!((limited.level, limited.remedy.as_deref()), (Level::Limited, Some("ulimit -v unlimited")));
    assert!(limited.why.contains("3 GiB"));

    facts.limits = Limits { overcommit: Some(Overcommit::Strict), max_map_count: Some(1000), ..Limits::default() };
    let limited = verdict(&facts, "run --region --pages 4k");
    assert!(limited.why.contains("strict overcommit") && limited.why.contains("1000 mappings"), "{}", limited.why);
    assert_eq!(limited.remedy.unwrap(), "echo 0 | tee /proc/sys/vm/overcommit_memory");

    let group = CgroupMemory { version: 2, limit_bytes: Some(512 * MIB), usage_bytes: None };
    facts.limits = Limits { cgroup: Some(group), ..Limits::default() };
    assert!(verdict(&facts, "run --region --pages thp").why.contains("limit of 512 MiB"));
    assert!(!verdict(&facts, "run --region --pages hugetlb").why.contains("512 MiB"), "hugetlb is not charged");
}

#[test]
fn other_architectures_page_sizes_and_cpu_counts_are_judged() {
    let mut facts = good_machine();
    facts.machine.architecture = "aarch64".into();
    facts.machine.page_bytes = 64 << 10;
    facts.machine.cpus = 1;
    assert_eq!(verdict(&facts, "run --region --pages thp").level, Level::Unavailable);
    assert_eq!(verdict(&facts, "run --guard").level, Level::Unavailable);
    assert_eq!(verdict(&facts, "run --resident").level, Level::Unavailable);
    assert!(verdict(&facts, "run --region --pages 4k").why.contains("smallest page of this kernel is 64 KiB"));
    assert_eq!(verdict(&facts, "profile").level, Level::Works);
    assert_eq!(verdict(&facts, "profile --load").level, Level::Limited);
    facts.transparent.global = Some(ThpMode::Always);
    facts.thp_can_be_refused = false;
    assert_eq!(verdict(&facts, "profile").level, Level::Limited);
}

#[test]
fn this_machine_has_a_reason_for_each_verdict() {
    let doctor = Doctor::examine();
    assert_eq!(doctor.verdicts, verdicts(&doctor.facts));
    assert!(doctor.verdicts.iter().all(|verdict| !verdict.why.is_empty()));
}

#[test]
fn one_unavailable_page_kind_counts_and_a_limited_one_does_not() {
    let of = |facts: Facts| Doctor { verdicts: verdicts(&facts), facts }.has_unavailable();
    let with_pools = |pools: Vec<HugePagePool>| Facts { pools, ..good_machine() };
    assert!(!of(with_pools(vec![pool(2 * MIB, 0, 0), pool(1 << 30, 4, 4)])), "hugetlb is limited");
    assert!(of(with_pools(vec![pool(2 * MIB, 1024, 1024), pool(1 << 30, 0, 0)])), "hugetlb-1g is unavailable");
}

#[test]
fn sizes_have_binary_units() {
    let texts = [0, 1, 1023, 4096, 1536, 2 * MIB, 3 << 30, u64::MAX].map(size::size);
    assert_eq!(texts, ["0 B", "1 B", "1023 B", "4 KiB", "1.5 KiB", "2 MiB", "3 GiB", "15.9 EiB"]);
}
