//! The page in a real browser, without a window: it renders, logs nothing, asks for nothing, and
//! shows the numbers of the JSON that it was made from. The picture stays in the system's temporary
//! folder, to be looked at.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixture;

use fieldstone_report::quantity::{bytes, count, estimate, hundredths, percent, rate, ratio, seconds, share};
use fieldstone_report::{Profile, SavedFile, Summary, html, reports, saved};
use std::path::Path;
use std::process::{Command, Output};

const CHROMIUM: &str = "/usr/bin/chromium";

/// Runs the browser on `page` with a profile folder of its own. None if there is no browser.
fn chromium(page: &Path, wanted: &[&str]) -> Option<Output> {
    if !Path::new(CHROMIUM).exists() {
        println!("SKIP chromium not installed");
        return None;
    }
    let user_data = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .args(["120", CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", "--v=0", "--hide-scrollbars"])
        .arg(format!("--user-data-dir={}", user_data.path().display()))
        .args(wanted)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

/// What the page's console said.
fn console(output: &Output) -> Vec<String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    stderr.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect()
}

/// The numbers of the profile's trace, and the words that must stand beside them.
fn of_translation(profile: &Profile) -> Vec<String> {
    let summary = Summary::of(profile).translation.unwrap();
    let mut numbers = vec![share(summary.region_share.unwrap())];
    for of in &summary.configurations {
        numbers.extend([of.name.clone(), rate(of.misses_per_thousand.unwrap()), rate(of.walks_per_thousand.unwrap())]);
        numbers.extend([estimate(&of.data_share.unwrap(), share), estimate(&of.time.unwrap(), hundredths)]);
        numbers.push(estimate(&of.share().unwrap(), share));
    }
    for line in summary.sites.iter().chain(&summary.rest) {
        numbers.extend([share(line.share), rate(line.walks_per_thousand.unwrap())]);
        numbers.extend(line.bytes.map(bytes).into_iter().chain(line.allocations.map(count)));
        numbers.extend(
            [&line.name, &line.place].map(|name| name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")),
        );
    }
    numbers.extend(summary.predictions.iter().map(|of| percent(of.error())));
    numbers.push(profile.translation.as_ref().unwrap().unseen[0].clone());
    numbers
}

/// Saves `profile`, reads it back and makes the page from what was read.
fn write_page(profile: &Profile, folder: &Path) -> (Profile, String) {
    let json = folder.join("profile.json");
    saved::save(profile, &json).unwrap();
    let read = SavedFile::load_profile(&json).unwrap();
    let page = html::render(&reports::profile::document(&read, &Summary::of(&read))).unwrap();
    std::fs::write(folder.join("page.html"), &page).unwrap();
    (read, page)
}

#[test]
fn the_page_shows_the_json_s_numbers_and_logs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (profile, _) = write_page(&fixture::profile(), folder.path());
    let Some(output) = chromium(&folder.path().join("page.html"), &["--dump-dom"]) else { return };
    assert_eq!(console(&output), [] as [String; 0]);
    let dom = String::from_utf8(output.stdout).unwrap();
    let mut numbers = Vec::new();
    for sample in &profile.samples {
        numbers.extend([seconds(sample.value), seconds(sample.user_s), count(sample.minor_faults)]);
    }
    for footprint in &profile.footprints {
        let peak = footprint.peak().unwrap();
        numbers.extend([bytes(peak.resident_bytes), bytes(peak.huge_2m_bytes), bytes(footprint.swap_peak_bytes())]);
        numbers.extend(footprint.permissions.iter().map(|of| bytes(of.bytes)));
        numbers.push(share(footprint.read_write_share().unwrap()));
    }
    for kind in Summary::of(&profile).kinds.iter().filter(|kind| kind.ratio.is_some()) {
        let estimate = kind.ratio.unwrap();
        numbers.extend([ratio(estimate.median), ratio(estimate.low), ratio(estimate.high)]);
        numbers.push(percent(kind.gain().unwrap()));
    }
    numbers.extend(of_translation(&profile));
    for number in numbers {
        assert!(dom.contains(&format!(">{number}<")) || dom.contains(&number), "{number} is not on the page");
    }
    for part in ["<svg role=\"img\"", "fieldstone run --region --pages thp -- gups 2G", "more than 99 %"] {
        assert!(dom.contains(part), "{part}");
    }
    for plot in ["shares", "reach", "moments", "sites"] {
        assert!(dom.contains(&format!("<title id=\"plot-translation-{plot}-title\">")), "{plot}");
    }
}

#[test]
fn a_hostile_command_line_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut profile = fixture::profile();
    profile.program.command.push("<script>document.title = 'run'</script><img src=http://127.0.0.1:9/x>".into());
    let (_, page) = write_page(&profile, folder.path());
    let Some(output) = chromium(&folder.path().join("page.html"), &["--dump-dom"]) else { return };
    let dom = String::from_utf8_lossy(&output.stdout);
    assert!(dom.contains("&lt;script&gt;") && !dom.contains("<script") && !dom.contains("<img"));
    assert_eq!(console(&output), [] as [String; 0]);

    // The counter-proof: were markup to get through, the policy would stop it and this test would
    // hear of it.
    let breached =
        page.replace("</main>", "<img src=\"http://127.0.0.1:9/x\"><script>document.title = 'run'</script></main>");
    let path = folder.path().join("breached.html");
    std::fs::write(&path, breached).unwrap();
    let output = chromium(&path, &["--dump-dom"]).unwrap();
    assert!(console(&output).len() >= 2, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("<title>run</title>"));
}

#[test]
fn a_picture_can_be_taken() {
    let folder = tempfile::tempdir().unwrap();
    write_page(&fixture::profile(), folder.path());
    let picture = std::env::temp_dir().join("fieldstone-report-page.png");
    let wanted = [format!("--screenshot={}", picture.display()), "--window-size=1000,4000".into()];
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let Some(_) = chromium(&folder.path().join("page.html"), &wanted) else { return };
    let png = std::fs::read(&picture).unwrap();
    assert!(png.starts_with(b"\x89PNG"));
    // A blank picture of this size packs into a few kilobytes.
    assert!(png.len() > 50_000, "{} bytes", png.len());
}
