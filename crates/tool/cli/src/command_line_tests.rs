//! Tests of the command line: which options a mode accepts, and the form of the help.

use clap::{Command, CommandFactory, Parser};

use super::Arguments;

/// An option with its value, and the modes in which it has an effect.
type ModeOption = (&'static str, &'static [&'static str]);

const RUN: [ModeOption; 18] = [
    ("--rules rules", &["--repair"]),
    ("--consolidate", &["--repair"]),
    ("--pages thp", &["--region"]),
    ("--reserve 1M", &["--region"]),
    ("--prefault", &["--region"]),
    ("--process name", &["--region"]),
    ("--also stacks", &["--region"]),
    ("--guard-memory 1M", &["--guard"]),
    ("--guard-side left", &["--guard"]),
    ("--guard-report file", &["--guard"]),
    ("--keep-going", &["--guard"]),
    ("--page-store lz4", &["--resident 64M"]),
    ("--page-store-timeout 5 --page-store lz4", &["--resident 64M"]),
    ("--stats file", &["--region", "--repair", "--guard", "--resident 64M"]),
    ("--stats-every 1s --stats file", &["--guard", "--resident 64M"]),
    ("--pid 1", &[]),
    ("--children", &[]),
    ("--help", &[]),
];

const ATTACH: [ModeOption; 7] = [
    ("--children", &["--huge 1"]),
    ("--stats file", &["--huge 1", "--repair 1"]),
    ("--events", &["--repair 1"]),
    ("--rules rules", &["--repair 1"]),
    ("--consolidate", &["--repair 1"]),
    ("--guard 1", &[]),
    ("--help", &[]),
];

/// Options that the mode `--trace` of `profile` has, and profiling without it has not.
const PROFILE: [&str; 6] = ["--tlb host", "--full", "--burst 1000", "--period 1000", "--models 2m", "--no-sites"];

fn is_accepted(line: &str) -> bool {
    Arguments::try_parse_from(line.split_whitespace()).is_ok()
}

fn subcommands() -> Vec<Command> {
    let mut command = Arguments::command();
    command.build();
    command.get_subcommands().cloned().collect()
}

#[test]
fn each_accepted_option_has_an_effect_in_its_mode() {
    for (command, program, modes, options) in [
        ("run", "-- true", ["--region", "--repair", "--guard", "--resident 64M"].as_slice(), RUN.as_slice()),
        ("attach", "", &["--huge 1", "--repair 1"], &ATTACH),
    ] {
        for mode in modes {
            assert!(is_accepted(&format!("fieldstone {command} {mode} {program}")), "{mode}");
            for (option, effective) in options {
                let line = format!("fieldstone {command} {mode} {option} {program}");
                assert_eq!(is_accepted(&line), effective.contains(mode), "{line}");
            }
        }
        let found = subcommands().into_iter().find(|found| found.get_name() == command).unwrap();
        for known in found.get_opts().filter_map(|known| known.get_long()) {
            let is_in = |words: &&str| words.trim_start_matches('-').split(' ').next() == Some(known);
            let is_listed = modes.iter().chain(options.iter().map(|(option, _)| option)).any(is_in);
            assert!(is_listed, "{command} --{known} has no modes");
        }
    }
    for option in PROFILE {
        assert!(is_accepted(&format!("fieldstone profile --trace {option} -- true")), "{option}");
        assert!(!is_accepted(&format!("fieldstone profile {option} -- true")), "{option}");
    }
}

/// The text behind the options, as it is written in the source.
fn after_help(command: &Command) -> String {
    command.get_after_help().map(ToString::to_string).unwrap_or_default()
}

#[test]
fn help_fits_80_columns_and_wraps_between_sentences_only() {
    let nested = subcommands().iter().flat_map(|command| command.get_subcommands().cloned()).collect::<Vec<_>>();
    for command in subcommands().into_iter().chain(nested).chain([Arguments::command()]) {
        let name = command.get_name().to_owned();
        let text = after_help(&command);
        for line in text.lines().filter(|line| line.starts_with(' ')) {
            assert!(line.chars().count() <= 80, "{name}: an example is broken with a backslash: {line}");
        }
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2) {
            let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
            assert!(!(is_text(pair[0]) && is_text(pair[1])), "{name}: a paragraph is one line: {pair:?}");
        }
        let help = command.term_width(80).render_long_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
    }
}
