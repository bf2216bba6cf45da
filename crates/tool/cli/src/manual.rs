//! `fieldstone man` and `fieldstone completions`: man pages and shell completions, generated from
//! the clap definitions.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use fieldstone_report::Error;

use crate::output::print;

/// Write the man pages of all subcommands to a directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone man ~/.local/share/man/man1
  sudo fieldstone man /usr/local/share/man/man1")]
pub(crate) struct ManArguments {
    /// The directory; created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Print the completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone completions fish > ~/.config/fish/completions/fieldstone.fish
  fieldstone completions bash \\
      > ~/.local/share/bash-completion/completions/fieldstone")]
pub(crate) struct CompletionArguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn man(arguments: &ManArguments, mut command: Command) -> anyhow::Result<u8> {
    let directory = &arguments.directory;
    fs::create_dir_all(directory).map_err(|cause| Error::Write { path: directory.clone(), cause })?;
    command.build();
    write_pages(directory, "fieldstone", &command)?;
    Ok(0)
}

/// Writes the page of a command, and those of its subcommands.
fn write_pages(directory: &Path, name: &str, command: &Command) -> anyhow::Result<()> {
    write_page(directory, name, command.clone().name(name.to_owned()))?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        write_pages(directory, &format!("{name}-{}", sub.get_name()), sub)?;
    }
    Ok(())
}

fn write_page(directory: &Path, name: &str, command: Command) -> anyhow::Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    let path = directory.join(format!("{name}.1"));
    Ok(fs::write(&path, page).map_err(|cause| Error::Write { path, cause })?)
}

pub(crate) fn completions(arguments: &CompletionArguments, mut command: Command) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "fieldstone", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
