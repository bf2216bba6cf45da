//! `fieldstone repair`: false sharing in a process that already runs, found and mended while it goes on.

use std::io::{self, Write};
use std::sync::atomic::Ordering::Relaxed;

use clap::Args;
use fieldstone_supervise::sharing::{Event, Happened, repair};
use fieldstone_supervise::signals::asked_to_end;

/// Finds false sharing in a process that already runs, and parts the bytes that fight
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone repair --pid 4242
  fieldstone repair --pid 4242 --events | jq .

The process goes on as before, with the same results. Ctrl-C puts everything back and lets go of it; so does SIGTERM.")]
pub(crate) struct Arguments {
    /// The process
    #[arg(long, value_name = "PID")]
    pid: u32,
    /// Print what happens as JSON, a line for each event
    #[arg(long)]
    events: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let stop = asked_to_end()?;
    let mut broken = None;
    repair(arguments.pid, &stop, &mut |event| {
        if let Err(error) = tell(&event, arguments.events) {
            // Nobody listens: then nobody wants it mended.
            broken = Some(error);
            stop.store(true, Relaxed);
        }
    })?;
    match broken {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(0),
    }
}

fn tell(event: &Event, as_json: bool) -> io::Result<()> {
    let mut output = io::stdout().lock();
    if as_json {
        serde_json::to_writer(&mut output, event)?;
        return writeln!(output);
    }
    writeln!(output, "{}", words(event))
}

/// An event in a line.
pub(crate) fn words(event: &Event) -> String {
    let words = match &event.what {
        Happened::Found { line, share } => {
            format!("line {line:#x}: false sharing, {:.0} % of the threads' time at most", share * 100.0)
        }
        Happened::Moved { page, views, lines } => {
            format!("page {page:#x}: {} lines parted, over {views} pages", lines.len())
        }
        Happened::Refused { page, why } => format!("page {page:#x} stays as it is: {why}"),
        Happened::Undone { page, why } => format!("page {page:#x} is back where it was: {why}"),
        Happened::Led { ip, thread } => format!("thread {thread}: the access at {ip:#x} leads to its new place"),
        Happened::Exec => "another program runs in it now: all begins anew".to_owned(),
        Happened::Over(seen) => {
            format!(
                "{} samples, {} of them walked, {} of those showed no access",
                seen.samples, seen.walked, seen.blind
            )
        }
    };
    format!("{:>9.1} ms  {words}", event.at_ms)
}
