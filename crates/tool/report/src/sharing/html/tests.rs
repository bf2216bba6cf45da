//! The page: complete, closed to what names may say, coloured by thread.

use super::page;
use crate::sharing::{Sharing, fixture};
use proptest::prelude::*;

fn all() -> [Sharing; 4] {
    [fixture::regression(), fixture::clean(), fixture::pair(), Sharing::default()]
}

/// With slashes as they were: escaping takes them too.
fn page_of(sharing: &Sharing) -> String {
    page(sharing).unwrap().replace("&#x2f;", "/")
}

#[test]
fn head_style_and_policy_are_the_profile_s() {
    for sharing in all() {
        let page = page(&sharing).unwrap();
        assert!(page.starts_with("<!doctype html>\n<html lang=\"en\">\n<head>"), "{}", &page[..200]);
        for part in ["default-src 'none'", "prefers-color-scheme: dark", "– Fieldstone sharing</title>", "</html>"] {
            assert_eq!(page.matches(part).count(), 1, "{part}");
        }
        assert!(!page.contains("NaN") && !page.contains("{{") && !page.contains("{%"));
    }
}

#[test]
fn nothing_is_fetched() {
    let page = page(&fixture::regression()).unwrap();
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
        "<td style=\"\" title=\"byte 16: nobody’s\"></td>",
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
fn it_has_what_the_terminal_has() {
    let page = page_of(&fixture::regression());
    for part in [
        "False sharing: 4 threads fight for different bytes of lreg_args.",
        "<li>declare tid with alignas(64)</li>",
        "alignas(64) pthread_t tid;",
        "src/sharing/linear_regression.c:57",
        "[0].SYY … SXY",
        "Looked at, and no false sharing",
        "could not be decoded",
        ">work<",
        "8,000 samples by perf",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn whatever_a_file_says_stays_text() {
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
    let page = page(&sharing).unwrap();
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
        prop_assert!(page(&sharing).unwrap().contains("</html>"));
        prop_assert!(!crate::sharing::text(&sharing, crate::text::Style::default()).is_empty());
    }
}
