//! The report on false sharing, on a terminal and a page.

use super::*;
use crate::sharing::fixture;
use crate::text::{self, Style};
use proptest::prelude::*;

const NARROW: Style = Style { width: 80, colour: false };

fn text_of(sharing: &Sharing, style: Style) -> String {
    text::render(&document(sharing), style)
}

/// With slashes as they were: escaping takes them too.
fn page_of(sharing: &Sharing) -> String {
    crate::html::render(&document(sharing)).unwrap().replace("&#x2f;", "/")
}

fn is_code(line: &str) -> bool {
    line.starts_with("    ")
}

fn fits(text: &str, width: usize) -> bool {
    text.lines().filter(|line| !is_code(line)).all(|line| line.chars().count() <= width)
}

#[test]
fn it_leads_with_the_verdict_and_fits() {
    for sharing in [fixture::regression(), fixture::clean(), Sharing::default()] {
        for width in [70, 80, 100, 200] {
            let text = text_of(&sharing, Style { width, colour: false });
            assert!(fits(&text, usize::from(width)), "{width}\n{text}");
            assert!(!text.contains("NaN") && !text.contains("\n\n\n"), "{text}");
        }
    }
    let text = text_of(&fixture::regression(), Style::default());
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("linear_regression --threads 4"));
    assert!(lines.next().unwrap().starts_with("False sharing: 4 threads contend for different bytes of lreg_args."));
}

#[test]
fn each_line_has_its_map_its_users_and_its_code() {
    let text = text_of(&fixture::regression(), NARROW);
    for part in [
        "1. lreg_args: ",
        "lreg_args: 256 B of heap memory at 0x555555556010, allocated by main",
        "Line 0x555555556040: false sharing, ",
        "         0       8       16      24      32      40      48      56\n",
        "A 100  AAAAAAAAAAAAAAAA................................................",
        "B 101  ........................bbbbbbbbbbbb....BBBBBBBBBBBBBBBBBBBBBBBB",
        "Capital letter: written. Small letter: only read.",
        "[0].SYY … SXY",
        "worker-1 101",
        "regress",
        "linear_regression.c:57",
        "reads, writes",
        "- declare tid with alignas(64)",
        "aligned_alloc(64, …)",
        "    alignas(64) pthread_t tid;",
        "\n    fieldstone run --repair -- linear_regression --threads 4\n",
        "8,000 samples by perf's software clock at 1000 Hz",
        "AMD EPYC 9R14, 2 processors",
        "What could not be seen",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(text.matches("alignas(64) pthread_t tid;").count(), 1, "one remedy for three lines\n{text}");
    assert_eq!(text.matches("declare tid with alignas(64)").count(), 1, "the advice leads, and only there\n{text}");
}

#[test]
fn a_narrow_terminal_breaks_the_map_and_not_the_bytes() {
    let text = text_of(&fixture::regression(), Style { width: 50, colour: false });
    for part in [
        "A 100  AAAAAAAAAAAAAAAA................\n",
        "B 101  bbbb....BBBBBBBBBBBBBBBBBBBBBBBB\n",
        "         32      40      48      56\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn what_a_repair_refuses_is_reported_at_its_line() {
    let mut sharing = fixture::regression();
    sharing.findings[0].refused = Some("an access goes across the border at 0x1008".into());
    let text = text_of(&sharing, NARROW);
    assert_eq!(text.matches("does not change it: an access goes across").count(), 1, "{text}");
}

#[test]
fn hits_on_modified_lines_are_reported_where_the_processor_recorded_them() {
    let mut sharing = fixture::regression();
    assert!(!text_of(&sharing, NARROW).contains("HITM"));
    sharing.findings[0].contended = 1234;
    let words = "1,234 sampled loads found it modified in another processor’s cache (HITM).";
    assert!(text_of(&sharing, NARROW).contains(words), "{}", text_of(&sharing, NARROW));
    assert!(page_of(&sharing).contains(words));
}

#[test]
fn dozens_of_objects_and_lines_stay_readable() {
    let mut sharing = fixture::regression();
    let one = sharing.findings[0].clone();
    sharing.findings.extend((0..20).map(|number| {
        let mut found = one.clone();
        found.places[0].name = format!("object{number:02}");
        found.cost = fieldstone_sharing::LineCost::new(f64::from(20 - number), 8000.0).unwrap();
        found
    }));
    sharing.findings.extend((0..20).map(|number| {
        let mut found = one.clone();
        found.judged.line.address += 0x1000 + number * 64;
        found
    }));
    let text = text_of(&sharing, NARROW);
    assert!(text.contains("More of its lines") && text.contains("And 10 more lines: 10 false sharing."), "{text}");
    assert!(
        text.contains("\n5. object03") && !text.contains("\n6. ") && text.contains("Also shared falsely"),
        "{text}"
    );
    assert!(text.contains("And 6 more lines: 6 false sharing."), "{text}");
    assert!(text.lines().count() < 300, "{text}");
}

#[test]
fn a_pair_of_lines_is_two_maps() {
    let text = text_of(&fixture::pair(), NARROW);
    assert!(text.contains("only as a pair that the prefetcher fetches"), "{text}");
    assert!(text.contains("\n         64      72 ") && text.contains("\n         0       8 "), "{text}");
}

#[test]
fn lines_without_a_finding_have_their_meaning() {
    let text = text_of(&fixture::clean(), NARROW);
    for part in [
        "No false sharing was found on 5 lines",
        "Sampled lines without false sharing",
        "- true sharing: Several threads write the same bytes. Padding cannot separate",
        "- only read: No thread writes it",
        "most likely different bits",
        "one writes, others read",
        "counter",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("What to do"), "{text}");
}

#[test]
fn names_cannot_steer_the_terminal() {
    let evil = "\x1b[2J\n\x07\u{9b}";
    let mut sharing = fixture::regression();
    sharing.program.command.push(evil.into());
    sharing.pid = Some(1);
    sharing.machine.cpu = evil.into();
    sharing.sampling.means = evil.into();
    sharing.ignore_file = Some(evil.into());
    sharing.ignored = 1;
    sharing.unseen = vec![evil.into()];
    sharing.threads[0].name = evil.into();
    for found in sharing.findings.iter_mut().chain(&mut sharing.others) {
        found.refused = Some(evil.into());
        for place in &mut found.places {
            (place.name, place.module) = (evil.into(), Some(evil.into()));
            place.allocated_by = vec![evil.into()];
            if let Some(object) = &mut place.object {
                object.members.iter_mut().for_each(|member| member.name = evil.into());
            }
        }
        for code in &mut found.code {
            (code.function, code.module, code.file) = (evil.into(), evil.into(), Some(evil.into()));
        }
        if let Some(redesign) = &mut found.redesign {
            redesign.text = format!("struct {evil}");
        }
    }
    let text = text_of(&sharing, NARROW);
    assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
    assert!(text.matches("\\x1b[2J").count() > 12, "{text}");
}

#[test]
fn head_style_and_policy_are_those_of_every_page() {
    for sharing in [fixture::regression(), fixture::clean(), fixture::pair(), Sharing::default()] {
        let page = page_of(&sharing);
        assert!(page.starts_with("<!doctype html>\n<html lang=\"en\">\n<head>"), "{}", &page[..200]);
        for part in ["default-src 'none'", "prefers-color-scheme: dark", "– Fieldstone sharing</title>", "</html>"] {
            assert_eq!(page.matches(part).count(), 1, "{part}");
        }
        assert!(!page.contains("NaN") && !page.contains("{{") && !page.contains("{%"));
    }
}

#[test]
fn nothing_is_fetched() {
    let page = page_of(&fixture::regression());
    for address in ["http:", "https:", "src=", "url(", "@import", "<script"] {
        assert!(!page.contains(address), "{address}");
    }
}

#[test]
fn each_byte_has_the_colour_of_its_thread() {
    let mut sharing = fixture::regression();
    let page = page_of(&sharing);
    // Three lines of 64 bytes.
    assert_eq!(page.matches("title=\"byte ").count(), 192);
    for part in [
        "<td style=\"background:#1f73b7;color:#ffffff\" title=\"byte 0: A writes\">A</td>",
        "<td style=\"box-shadow:inset 0 0 0 2px #d6781e\" title=\"byte 24: B reads\">b</td>",
        "<td style=\"\" title=\"byte 16: unused\"></td>",
        "aria-label=\"A writes bytes 0–15; B reads bytes 24–35; B writes bytes 40–63\"",
        "A worker-0 100",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let line = &mut sharing.findings.iter_mut().min_by_key(|found| found.judged.line.address).unwrap().judged.line;
    line.threads[1].written[0] = line.threads[0].written[0];
    let both = "background:linear-gradient(#1f73b7 0.0% 50.0%,#d6781e 50.0% 100.0%);color:#000";
    let page = page_of(&sharing);
    assert!(page.contains(&format!("<td style=\"{both}\" title=\"byte 0: A writes, B writes\">2</td>")), "{page}");
}

#[test]
fn the_page_has_what_the_terminal_has() {
    let page = page_of(&fixture::regression());
    for part in [
        "False sharing: 4 threads contend for different bytes of lreg_args.",
        "<li>declare tid with alignas(64)</li>",
        "alignas(64) pthread_t tid;",
        "src/sharing/linear_regression.c:57",
        "[0].SYY … SXY",
        "Sampled lines without false sharing",
        "could not be decoded",
        ">work<",
        "8,000 samples by perf",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn whatever_a_file_says_stays_text_on_the_page() {
    let evil = "<script>alert('x')</script>\"><img src=x onerror=y>";
    let mut sharing = fixture::regression();
    sharing.program.command = vec!["sh".into(), evil.into()];
    sharing.tool_version = evil.into();
    sharing.machine.cpu = evil.into();
    sharing.machine.kernel = evil.into();
    sharing.sampling.means = evil.into();
    sharing.ignore_file = Some(evil.into());
    sharing.ignored = 1;
    sharing.unseen = vec![evil.into()];
    for thread in &mut sharing.threads {
        (thread.name, thread.start) = (evil.into(), Some(evil.into()));
    }
    for found in sharing.findings.iter_mut().chain(&mut sharing.others) {
        found.refused = Some(evil.into());
        let place = &mut found.places[0];
        (place.name, place.module, place.allocated_by) = (evil.into(), Some(evil.into()), vec![evil.into()]);
        place.object.as_mut().unwrap().members.iter_mut().for_each(|member| member.name = evil.into());
        for code in &mut found.code {
            (code.function, code.file) = (evil.into(), Some(evil.into()));
        }
        found.redesign.iter_mut().for_each(|redesign| redesign.text = evil.into());
    }
    let page = page_of(&sharing);
    assert!(page.matches("&lt;script&gt;").count() > 20, "{}", page.matches("&lt;script&gt;").count());
    assert!(!page.contains("<script") && !page.contains("<img"), "markup got through");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn numbers_that_make_no_sense_make_a_page_too(
        values in prop::collection::vec(prop_oneof![Just(0.0), Just(-1.0), Just(1e300), Just(f64::MAX), -1e9..1e9f64], 12),
        addresses in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], 12),
    ) {
        let mut sharing = fixture::regression();
        (sharing.taken_at_unix_s, sharing.duration_s, sharing.sampling.hertz) = (addresses[0], values[0], values[1]);
        for (at, found) in sharing.findings.iter_mut().chain(&mut sharing.others).enumerate() {
            let line = &mut found.judged.line;
            (line.address, line.weight) = (addresses[at], values[at]);
            line.threads.iter_mut().for_each(|thread| thread.read.truncate(at * 7));
            line.threads.iter_mut().for_each(|thread| thread.written.truncate(at * 11));
            (found.cost.on_line, found.cost.all, found.cost.share.likely) = (values[at], values[at + 1], values[at + 2]);
            let place = &mut found.places[0];
            (place.address, place.bytes) = (addresses[at + 1], addresses[at + 2]);
            let object = place.object.as_mut().unwrap();
            (object.address, object.stride, object.elements) = (addresses[at + 3], addresses[at + 4], addresses[at + 5]);
            object.members[1].bytes = addresses[at + 2];
            found.code.iter_mut().for_each(|code| code.weight = values[at]);
        }
        prop_assert!(page_of(&sharing).contains("</html>"));
        prop_assert!(!text_of(&sharing, Style::default()).is_empty());
    }
}
