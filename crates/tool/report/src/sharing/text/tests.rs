//! What a reader at a terminal needs, on fixtures that are turned a little at a time.

use super::*;
use crate::sharing::fixture;

const NARROW: Style = Style { width: 80, colour: false };

fn is_code(line: &str) -> bool {
    line.starts_with("      ") || line.starts_with("    fieldstone")
}

fn fits(text: &str, width: usize) -> bool {
    text.lines().filter(|line| !is_code(line)).all(|line| line.chars().count() <= width)
}

#[test]
fn it_leads_with_the_verdict_and_fits() {
    for sharing in [fixture::regression(), fixture::clean(), Sharing::default()] {
        for width in [70, 80, 100, 200] {
            let text = text(&sharing, Style { width, colour: false });
            assert!(fits(&text, usize::from(width)), "{width}\n{text}");
            assert!(!text.contains("NaN") && !text.contains("\n\n\n"), "{text}");
        }
    }
    let text = text(&fixture::regression(), Style::default());
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("linear_regression --threads 4"));
    assert!(lines.next().unwrap().starts_with("False sharing: 4 threads fight for different bytes of lreg_args."));
}

#[test]
fn each_line_has_its_map_its_users_and_its_code() {
    let text = text(&fixture::regression(), NARROW);
    for part in [
        "1. lreg_args: ",
        "lreg_args: 256 B of heap memory at 0x555555556010, allocated by main",
        "Line 0x555555556040: false sharing, ",
        "         0       8       16      24      32      40      48      56\n",
        "A 100  AAAAAAAAAAAAAAAA................................................",
        "B 101  ........................bbbbbbbbbbbb....BBBBBBBBBBBBBBBBBBBBBBBB",
        "Capital letters: written; small ones: only read.",
        "[0].SYY … SXY",
        "worker-1 101",
        "regress",
        "linear_regression.c:57",
        "reads, writes",
        "- declare tid with alignas(64)",
        "aligned_alloc(64, …)",
        "    alignas(64) pthread_t tid;",
        "\n    fieldstone run --repair -- linear_regression --threads 4\n",
        "Looked at for 2.00 s: 8,000 samples by perf's software clock at 1000 Hz",
        "AMD EPYC 9R14, 2 processors",
        "What could not be seen",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(text.matches("alignas(64) pthread_t tid;").count(), 1, "one remedy for three lines\n{text}");
}

#[test]
fn a_narrow_terminal_breaks_the_map_and_not_the_bytes() {
    let text = text(&fixture::regression(), Style { width: 50, colour: false });
    for part in [
        "A 100  AAAAAAAAAAAAAAAA................\n",
        "B 101  bbbb....BBBBBBBBBBBBBBBBBBBBBBBB\n",
        "         32      40      48      56\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn what_a_repair_refuses_is_told_where_it_refuses() {
    let mut sharing = fixture::regression();
    sharing.findings[0].refused = Some("an access goes across the border at 0x1008".into());
    let text = text(&sharing, NARROW);
    assert_eq!(text.matches("leaves it as it is: an access goes across").count(), 1, "{text}");
}

#[test]
fn hits_on_modified_lines_are_told_where_the_processor_told_them() {
    let mut sharing = fixture::regression();
    assert!(!text(&sharing, NARROW).contains("HITM"));
    sharing.findings[0].contended = 1234;
    let words = "1,234 sampled loads found it modified in another processor’s cache (HITM).";
    assert!(text(&sharing, NARROW).contains(words), "{}", text(&sharing, NARROW));
    assert!(crate::sharing::page(&sharing).unwrap().contains(words));
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
    let text = text(&sharing, NARROW);
    assert!(text.contains("And 20 more of its lines: 0x") && text.contains(" …."), "{text}");
    assert!(
        text.contains("\n5. object03") && !text.contains("\n6. ") && text.contains("Also shared falsely"),
        "{text}"
    );
    assert!(text.contains("And 6 lines more: 6 false sharing."), "{text}");
    assert!(text.lines().count() < 300, "{text}");
}

#[test]
fn a_pair_of_lines_is_two_maps() {
    let text = text(&fixture::pair(), NARROW);
    assert!(text.contains("only as a pair that the prefetcher fetches"), "{text}");
    assert!(text.contains("\n         64      72 ") && text.contains("\n         0       8 "), "{text}");
}

#[test]
fn negatives_are_told_what_they_are() {
    let text = text(&fixture::clean(), NARROW);
    for part in [
        "No false sharing was found on 5 lines",
        "Looked at, and no false sharing",
        "- true sharing: Several threads write the same bytes. Padding cannot part",
        "- only read: Nobody writes it",
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
    let text = text(&sharing, NARROW);
    assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
    assert!(text.matches("\\x1b[2J").count() > 12, "{text}");
}
