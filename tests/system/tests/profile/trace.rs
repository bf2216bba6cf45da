//! `fieldstone profile --trace`: counts that can be derived by hand, and programs that are hard to
//! trace.

use std::fs;
use std::sync::{Mutex, PoisonError};

use fieldstone_report::translation::Translation;
use fieldstone_report::{Finding, Profile};
use fieldstone_workloads::gups::{SEED, updates};

use crate::fixture::{Fixture, workload};

/// One TLB of 64 entries for all page sizes, and no other cache.
const SMALL: &str = r#"
name = "small"
source = "the test"
walkers = 1
l2_hit_cycles = 0
data = [{ arrays = [{ name = "L1", entries = 64, pages = ["4K", "2M", "1G"] }] }]
instruction = [{ arrays = [{ name = "I", entries = 64, pages = ["4K", "2M", "1G"] }] }]
walk_caches = { pml4e = 0, pdpte = 0, pde = 0, pte_lines = 0 }
"#;

/// Whether QEMU is installed.
pub(crate) fn has_tracer() -> bool {
    let found = std::process::Command::new("qemu-x86_64").arg("--version").output().is_ok();
    if !found {
        println!("SKIP no qemu-x86_64: nothing can be traced");
    }
    found
}

/// A traced program and its models use two processors, so traces run one at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Traces `program` with the small TLB. Returns the profile and its translation part.
pub(crate) fn trace(fixture: &Fixture, options: &str, program: &[&str]) -> (Profile, Translation) {
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (tlb, json) = (fixture.path("small.toml"), fixture.path("traced.json"));
    fs::write(&tlb, SMALL).unwrap();
    let options = format!("--trace --tlb {} --runs 1 --pages 4k --json {} {options}", tlb.display(), json.display());
    let output = fixture.profile(&options, program);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile: Profile = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let translation = profile.translation.clone().expect("it was traced");
    (profile, translation)
}

/// Misses of an LRU TLB of `entries` entries, by a naive model.
fn misses(entries: usize, pages: impl Iterator<Item = usize>) -> u64 {
    let mut held: Vec<usize> = Vec::new();
    let mut missed = 0;
    for page in pages {
        if let Some(at) = held.iter().position(|&there| there == page) {
            held.remove(at);
        } else {
            missed += 1;
            held.truncate(entries - 1);
        }
        held.insert(0, page);
    }
    missed
}

#[test]
fn gups_has_the_misses_of_its_access_sequence() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    const PAGES: usize = 1024;
    const UPDATES: u64 = 200_000;
    let (_, translation) =
        trace(&fixture, "--full", &[&workload("gups").display().to_string(), "4M", &UPDATES.to_string()]);
    // The table is on 1024 pages or, with malloc's header before it, 1025. It is filled,
    // updated, and read twice.
    let random = || updates(PAGES * 512, UPDATES, SEED).map(|(word, _)| word / 512);
    let sequential = 3 * PAGES as u64;
    // The program's stack and code sometimes take entries of the 64, never more than 8.
    let (least, most) = (misses(64, random()) + sequential, misses(56, random()) + sequential + 3 + 2000);
    assert_eq!((translation.processor.name.as_str(), translation.processor.foreign), ("small of small.toml", true));
    let small = &translation.configurations[0];
    assert_eq!(small.name, "4K");
    let walks = small.data.walks;
    assert!((least..=most).contains(&walks), "{walks} walks, not {least} to {most}");
    assert!(small.data.region_walks > walks - 2500, "the table is in the primary region");
    let large = translation.configuration("2M").unwrap();
    assert!(large.data.walks < 3000, "the table lies on three large pages: {}", large.data.walks);
    let segment = translation.configuration("direct segment").unwrap();
    assert!(segment.data.walks < 2500 && segment.data.region_walks == 0, "{segment:?}");
    assert!(segment.data.in_segment > UPDATES);
    assert!(
        translation.accesses >= 3 * PAGES as u64 * 512 + UPDATES,
        "every word was touched three times: {}",
        translation.accesses
    );
    assert_eq!(translation.accesses, translation.counted_accesses, "all of it was counted");
}

/// Compiles one of `tests/programs`; `None`, printed as a skip, on failure. A name with `.cpp` is
/// C++.
pub(crate) fn compile(fixture: &Fixture, name: &str, options: &[&str]) -> Option<String> {
    let (compiler, source) =
        if name.ends_with(".cpp") { ("c++", name.to_owned()) } else { ("cc", format!("{name}.c")) };
    let source = format!("{}/tests/programs/{source}", env!("CARGO_MANIFEST_DIR"));
    let program = fixture.path(name).with_extension("").display().to_string();
    let mut command = std::process::Command::new(compiler);
    let compiled = command.args(["-O1", "-pthread", "-o", &program, &source]).args(options).output();
    match compiled {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(options.contains(&"-static"), "cc {options:?}: {message}");
            println!("SKIP cc {options:?}: {}", message.lines().next().unwrap_or_default());
            None
        }
        Err(error) => {
            println!("SKIP cc {error}");
            None
        }
    }
}

/// More pages than the small TLB has entries, in rounds: each access misses. If calloc has to clear
/// reused memory, there is one more round.
const THREADS_MISS: u64 = 64 * 20 * 256;

#[test]
fn each_thread_has_its_own_tlb() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let Some(program) = compile(&fixture, "threads", &["-g"]) else { return };
    let (profile, translation) = trace(&fixture, "--full", &[&program]);
    assert_eq!(profile.samples[0].outcome, "exit 0");
    let walks = translation.configurations[0].data.walks;
    assert!((THREADS_MISS..THREADS_MISS + THREADS_MISS / 10).contains(&walks), "{walks} of {THREADS_MISS}");
    let first = &translation.sites[0];
    assert_eq!((first.function.as_str(), first.line, first.allocations, first.bytes), ("work", Some(9), 64, 64 << 20));
    assert!(first.file.as_ref().is_some_and(|file| file.ends_with("threads.c")), "{first:?}");
    // A block may be recorded as freed by one thread after it was recorded as allocated by
    // another.
    assert!(first.walks > THREADS_MISS / 20 * 19 && first.walks <= walks, "{first:?}");
    // With fragmented memory there are no huge pages to derive the cost of a walk from.
    let unseen: Vec<&String> =
        translation.unseen.iter().filter(|words| !words.contains("memory is too fragmented")).collect();
    assert!(unseen.is_empty(), "{unseen:?}");
}

/// More threads than those with a state of their own in the plugin (4096).
#[test]
fn threads_with_high_numbers_are_traced() {
    const THREADS: u64 = 4160;
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let Some(program) = compile(&fixture, "chain", &[]) else { return };
    let (_, translation) = trace(&fixture, "--full --no-sites", &[&program, &THREADS.to_string()]);
    let walks = translation.configurations[0].data.walks;
    assert!(walks >= THREADS * 160, "{walks} of {}", THREADS * 160);
    assert!(!translation.unseen.iter().any(|words| words.contains("threads")), "{:?}", translation.unseen);
}

#[test]
fn switching_translations_does_not_change_the_program_s_flags() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let Some(program) = compile(&fixture, "flags", &[]) else { return };
    let (profile, translation) = trace(&fixture, "--burst 20000 --period 200000 --no-sites", &[&program]);
    assert_eq!(profile.samples[0].outcome, "exit 0");
    assert!(
        translation.bursts > 10 && translation.counted_accesses < translation.accesses / 2,
        "{} bursts",
        translation.bursts
    );
}

#[test]
fn a_static_and_stripped_program_is_traced_without_names() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let Some(program) = compile(&fixture, "threads", &["-static", "-s"]) else { return };
    let (_, translation) = trace(&fixture, "--full", &[&program]);
    let walks = translation.configurations[0].data.walks;
    assert!((THREADS_MISS..THREADS_MISS + THREADS_MISS / 10).contains(&walks), "{walks} of {THREADS_MISS}");
    assert!(
        translation.unseen.iter().any(|words| words.contains("recorder was not loaded")),
        "{:?}",
        translation.unseen
    );
    assert!(translation.sites.iter().all(|site| site.allocations == 0), "{:?}", translation.sites);
}

#[test]
fn children_access_their_parent_s_memory() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let Some(program) = compile(&fixture, "children", &[]) else { return };
    let (profile, translation) = trace(&fixture, "--full", &[&program]);
    assert_eq!(profile.samples[0].outcome, "exit 0");
    // The parent touches each page once, each child ten times.
    let expected = 2048 * (1 + 4 * 10);
    let small = &translation.configurations[0].data;
    assert!((expected..expected + expected / 20).contains(&small.walks), "{} of {expected}", small.walks);
    assert!(small.region_walks > expected - 100, "the children's memory is in the region too: {small:?}");
    assert_eq!(
        (translation.sites[0].function.as_str(), translation.sites[0].allocations),
        ("main", 1),
        "{:?}",
        translation.sites
    );
    assert!(translation.sites[0].walks >= expected - 100, "{:?}", translation.sites[0]);
}

#[test]
fn dense_mappings_of_a_traced_run_are_on_huge_pages() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let Some(program) = compile(&fixture, "table", &[]) else { return };
    // The largest of all runs: the measured runs have small pages.
    let most_kib = |table: &str| -> u64 {
        let translation = fs::read_to_string(fixture.path(table)).unwrap();
        translation.lines().map(|line| line.parse::<u64>().unwrap()).max().unwrap()
    };
    let file = |table: &str| fixture.path(table).display().to_string();
    let own = std::process::Command::new(&program).args([&file("asked"), "asked"]).status().unwrap();
    assert!(own.success(), "{own}");
    if most_kib("asked") < 32 << 10 {
        println!("SKIP the kernel gave no transparent huge page");
        return;
    }
    for table in ["plain", "sparse"] {
        trace(&fixture, "--full", &[&program, &file(table), table]);
    }
    assert!(most_kib("plain") > 32 << 10, "{} KiB", most_kib("plain"));
    // QEMU has some huge pages for itself.
    assert!(most_kib("sparse") < 16 << 10, "{} KiB", most_kib("sparse"));
}

#[test]
fn a_program_that_ends_differently_under_the_tracer_is_only_timed() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    // A program that behaves differently under QEMU.
    let script = "read name </proc/$$/comm; echo this is $name >&2; [ $name = sh ] || exit 3";
    let profile = fixture.measured("--trace --runs 1 --pages thp", &["/bin/sh", "-c", script], 1);
    assert!(profile.translation.is_none());
    assert_eq!(profile.samples.len(), 2);
    let [Finding::NotTraced { why }] = profile.findings.as_slice() else { panic!("{:?}", profile.findings) };
    assert!(["exit 3", "exit 0", "this is qemu"].iter().all(|words| why.contains(words)), "{why}");
}

#[test]
fn untraced_programs_and_wrong_processors_are_reported() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let (_, translation) = trace(&fixture, "", &["/bin/sh", "-c", "/bin/true; exit 0"]);
    assert!(
        translation.unseen.iter().any(|words| words.contains("programs that it started by exec (1)")),
        "{:?}",
        translation.unseen
    );
    let refused = fixture.profile("--trace --tlb nowhere --runs 1 --pages 4k", &["/bin/true"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && words.contains("zen4"), "{words}");
    let unfit = fixture.path("unfit.toml");
    fs::write(
        &unfit,
        SMALL.replace(
            "entries = 64, pages = [\"4K\", \"2M\", \"1G\"] }] }]\ninst",
            "entries = 0, pages = [\"4K\"] }] }]\ninst",
        ),
    )
    .unwrap();
    let refused = fixture.profile(&format!("--trace --tlb {} --runs 1 --pages 4k", unfit.display()), &["/bin/true"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && words.contains("unfit.toml"), "{words}");
}

#[test]
fn bursts_estimate_the_whole_run() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let gups = workload("gups").display().to_string();
    // Unknown parts are estimated at most one period long: less than 1 % of all.
    let program = [gups.as_str(), "4M", "16000000"];
    let (_, whole) = trace(&fixture, "--full --no-sites", &program);
    let (_, bursts) = trace(&fixture, "--burst 20000 --period 100000 --no-sites", &program);
    assert!(bursts.bursts > 100 && bursts.counted_accesses < whole.accesses / 5, "{bursts:?}");
    assert!(
        bursts.accesses.abs_diff(whole.accesses) < whole.accesses / 100,
        "what passes is counted too: {bursts:?} {whole:?}"
    );
    let rate = |translation: &Translation| {
        translation.configurations[0].data.walks as f64 / translation.configurations[0].data.accesses as f64
    };
    let (one, other) = (rate(&bursts), rate(&whole));
    assert!((one / other - 1.0).abs() < 0.1, "{one} against {other}");
}

#[test]
fn all_models_are_run_in_one_pass() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let gups = workload("gups").display().to_string();
    let options = "--full --no-sites --models 2m,2m,1g,2M,direct-segment,ranges,mosaics,nested,none";
    let (_, translation) = trace(&fixture, options, &[&gups, "4M", "50000"]);
    assert_eq!(
        translation.configurations.iter().filter(|of| of.name == "2M").count(),
        1,
        "named three times: {translation:?}"
    );
    let walks =
        |name: &str| translation.configuration(name).unwrap_or_else(|| panic!("no {name}: {translation:?}")).data.walks;
    // The more of the region is on large pages, the fewer walks; a host with small pages
    // reverses that.
    let order = ["4K", "25 % on 2M", "50 % on 2M", "75 % on 2M", "2M", "direct segment", "no translation"].map(walks);
    assert!(order.is_sorted_by(|more, fewer| more >= fewer) && order[0] > 10 * order[4].max(1), "{order:?}");
    assert_eq!(walks("no translation"), 0);
    assert!(walks("32 ranges") < walks("4K") / 10, "the table is one range");
    assert!(walks("2M on a host with 4K") > walks("4K") / 2, "what the guest joins, the host splits");
}

/// The share of the region on huge pages in the observed run on `kind`.
fn huge_share(profile: &Profile, kind: &str) -> f64 {
    let pages = &profile.footprint(kind).unwrap().region.as_ref().unwrap().pages;
    let bytes = |huge: bool| pages.iter().filter(|of| !huge || of.kind == "thp").map(|of| of.bytes).sum::<u64>() as f64;
    bytes(true) / bytes(false).max(1.0)
}

#[test]
fn mosaics_are_measured_beside_their_models() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let tlb = fixture.path("small.toml");
    fs::write(&tlb, SMALL).unwrap();
    let bursts = "--burst 20000 --period 400000 --no-sites";
    let options = format!("--trace {bursts} --tlb {} --models 2m,mosaics --runs 2 --pages thp", tlb.display());
    let gups = workload("gups").display().to_string();
    let profile = fixture.measured(&options, &[&gups, "32M", "20000000"], 0);
    let names: Vec<&str> = profile.kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(names, ["4k", "thp", "thp:25%", "thp:50%", "thp:75%"]);
    assert!(profile.kinds.iter().all(|kind| kind.unavailable.is_none()), "{:?}", profile.kinds);
    for round in [0, 1] {
        let kinds: Vec<&str> =
            profile.samples.iter().filter(|sample| sample.round == round).map(|sample| sample.kind.as_str()).collect();
        assert_eq!(kinds.len(), 5, "each once a round: {kinds:?}");
    }
    let translation = profile.translation.as_ref().unwrap();
    let mosaics = translation.mosaics.as_ref().unwrap_or_else(|| panic!("no fit: {:?}", translation.unseen));
    let kinds: Vec<&str> = mosaics.mixtures.iter().map(|mixture| mixture.kind.as_str()).collect();
    assert_eq!(kinds, ["4k", "thp:25%", "thp:50%", "thp:75%", "thp"]);
    assert!(mosaics.mixtures.is_sorted_by(|one, other| one.walks > other.walks), "{mosaics:?}");
    for mixture in &mosaics.mixtures {
        let modelled = translation.configuration(&mixture.configuration).unwrap();
        assert!(mixture.walks > modelled.data.walks as f64, "those of a run, not of its bursts: {mixture:?}");
        assert!(mixture.runs == 2 && mixture.measured_s.likely > 0.0 && mixture.left_out_s.is_finite(), "{mixture:?}");
        assert_eq!(mixture.priced_s.is_some(), mixture.share > 0.0 && translation.walk_cost.is_some(), "{mixture:?}");
    }
    assert!(mosaics.fitted_ns.low <= mosaics.fitted_ns.likely && mosaics.fitted_ns.likely <= mosaics.fitted_ns.high);
    assert!(mosaics.worst_error >= mosaics.best_error && mosaics.best_degree >= 1, "{mosaics:?}");
    // A larger share includes all chunks of a smaller one.
    let got = ["thp:25%", "thp:50%", "thp:75%", "thp"].map(|kind| huge_share(&profile, kind));
    assert!(got.is_sorted() && got[0] < got[3], "shares of the region that are huge: {got:?}");
}
