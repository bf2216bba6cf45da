//! A profile for a terminal: what was measured, the comparison, what a run costs, what memory it got,
//! what translation costs where it was traced, and the advice.

use super::{Style, translation::translation};
use crate::quantity::{bytes, moment, percent};
use crate::tables;
use crate::{Profile, Summary, shell};

/// `profile` and its `summary`, for a terminal.
pub fn profile(profile: &Profile, summary: &Summary, style: Style) -> String {
    let mut text = style.heading(&shell::join(&profile.program.command));
    text += &style.paragraph(&circumstances(profile, summary));
    text.push('\n');
    text += &style.rows(&tables::comparison(profile, summary));
    if summary.kinds.iter().any(|kind| kind.cost.is_some()) {
        text.push('\n');
        text += &style.heading("What a run costs (faults: first touch; kernel: that, and system calls)");
        text += &style.rows(&tables::costs(summary));
    }
    if profile.footprints.iter().any(|footprint| footprint.peak().is_some()) {
        text.push('\n');
        text += &style.heading("Memory at its largest, in one watched run of each kind");
        text += &style.rows(&tables::footprints(profile));
    }
    if let (Some(traced), Some(of)) = (&profile.translation, &summary.translation) {
        text.push('\n');
        text += &translation(traced, of, style);
    }
    text.push('\n');
    let (sentence, command) = summary.advice.parts();
    text += &style.heading("Advice");
    text += &style.paragraph(&sentence);
    if let Some(command) = command {
        text += &format!("\n    {command}\n");
    }
    let notes: Vec<String> =
        profile.warnings.iter().cloned().chain(summary.notes.iter().map(ToString::to_string)).collect();
    if !notes.is_empty() {
        text.push('\n');
        text += &style.heading("Notes");
        text += &style.list(notes);
    }
    text
}

/// One paragraph: machine, time, number of rounds, noise.
fn circumstances(profile: &Profile, summary: &Summary) -> String {
    let machine = &profile.machine;
    let mut facts = vec![machine.cpu.clone(), format!("{} processors", machine.cpus), bytes(machine.memory_bytes)];
    facts.push(format!("{} {}", machine.kernel, machine.architecture));
    facts.push(format!("transparent huge pages: {}", machine.thp_enabled));
    facts.extend(machine.virtual_machine.then(|| "virtual machine".to_owned()));
    facts.retain(|fact| !fact.trim().is_empty());
    let load = profile.program.load.as_deref().map(|load| format!(" Load: {load}.")).unwrap_or_default();
    let noise = summary.noise.map_or_else(String::new, |noise| {
        format!(" Two neighbouring runs on {} usually differ by {}.", summary.baseline, percent(noise))
    });
    let runs = summary.baseline_runs();
    format!(
        "{}. {}. {runs} run{} on {}.{load}{noise}",
        moment(profile.taken_at_unix_s),
        facts.join(", "),
        if runs == 1 { "" } else { "s" },
        summary.baseline
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::quantity::{ratio, seconds};

    fn widths(text: &str) -> usize {
        text.lines().filter(|line| !line.starts_with("    fieldstone")).map(|line| line.chars().count()).max().unwrap()
    }

    #[test]
    fn it_shows_the_numbers_and_the_command_within_the_width() {
        let fixture = fixture::profile();
        let summary = Summary::of(&fixture);
        for width in [70, 80, 100, 200] {
            let text = profile(&fixture, &summary, Style { width, colour: false });
            assert!(widths(&text) <= usize::from(width), "{width}\n{text}");
            assert!(text.contains("\n    fieldstone run --region --pages thp -- gups 2G\n"));
            assert!(!text.contains('\x1b'));
        }
        let text = profile(&fixture, &summary, Style::default());
        let thp = summary.kind("thp").unwrap();
        for number in
            [seconds(thp.value_s.unwrap().median), ratio(thp.ratio.unwrap().median), percent(thp.gain().unwrap())]
        {
            assert!(text.contains(&number), "{number}\n{text}");
        }
        assert!(profile(&fixture, &summary, Style { colour: true, ..Style::default() }).starts_with("\x1b[1mgups 2G"));
    }

    #[test]
    fn what_is_not_ours_cannot_steer_the_terminal() {
        let mut fixture = fixture::profile();
        fixture.program.command[1] = "\x1b[2J".into();
        fixture.program.load = Some("\x1b]0;".into());
        fixture.kinds[4].unavailable = Some("\x07".into());
        fixture.warnings[0] = "\x1b[31m".into();
        let text = profile(&fixture, &Summary::of(&fixture), Style::default());
        assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
    }

    #[test]
    fn a_load_s_time_is_shown_a_request_too() {
        let mut fixture = fixture::profile();
        fixture.metric = crate::Metric::Throughput;
        fixture.program.requests = Some(100_000);
        let summary = Summary::of(&fixture);
        let a_request = seconds(summary.kind("thp").unwrap().value_s.unwrap().median / 1e5);
        assert!(a_request.ends_with("µs") && profile(&fixture, &summary, Style::default()).contains(&a_request));
    }
}
