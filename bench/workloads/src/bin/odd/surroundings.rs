//! The environment that a program sees at its start; it must look the same under `run`.

use std::{
    collections::BTreeMap,
    io,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

/// Prints the arguments, the environment in order, and each open descriptor with its target.
pub(crate) fn print(rest: &[String]) -> ExitCode {
    rest.iter().for_each(|argument| println!("argument {argument}"));
    for (name, value) in std::env::vars_os().collect::<BTreeMap<_, _>>() {
        println!("environment {}={}", name.display(), value.display());
    }
    // The descriptor of the listing itself is closed before its link is read, so it does not
    // appear.
    let listing = std::fs::read_dir("/proc/self/fd").map(|entries| entries.flatten().map(|e| e.path()).collect());
    let mut paths: Vec<_> = listing.unwrap_or_default();
    paths.sort();
    for path in paths {
        if let (Some(number), Ok(target)) = (path.file_name(), std::fs::read_link(&path)) {
            // The names of pipes and sockets contain a number that changes.
            let target = target.display().to_string();
            let kind = target.split(":[").next().unwrap_or_default();
            println!("descriptor {} {kind}", number.display());
        }
    }
    ExitCode::SUCCESS
}

/// Prints the time in nanoseconds and the process number.
pub(crate) fn random_output() -> ExitCode {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    println!("{} {}", since.as_nanos(), std::process::id());
    ExitCode::SUCCESS
}

/// Copies stdin to stdout.
pub(crate) fn echo() -> ExitCode {
    match io::copy(&mut io::stdin().lock(), &mut io::stdout().lock()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("odd: copying stdin failed: {error}");
            ExitCode::from(2)
        }
    }
}
