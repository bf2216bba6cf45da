//! How results are written: the format that was asked for, the terminal that is there.

use std::io::IsTerminal;

use clap::ValueEnum;
use fieldstone_report::text::Style;

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for people
    Text,
    /// The measurements as they are
    Json,
    /// The summary, a line for each kind of page
    Csv,
}

/// The terminal's width and colours, or plain text of 100 columns.
pub(crate) fn style() -> Style {
    let output = std::io::stdout();
    match rustix::termios::tcgetwinsize(&output) {
        Ok(size) if output.is_terminal() && size.ws_col > 0 => {
            Style { width: size.ws_col, colour: std::env::var_os("NO_COLOR").is_none() }
        }
        _ => Style::default(),
    }
}
