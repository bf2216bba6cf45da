//! MariaDB with a database like that of TPC-C, created once for all runs of a cell, in its own
//! folder.
//!
//! The owner of the database connects by the socket in the folder, as the user of this process.
//! Terminals connect over the loopback and may only call the transactions.

use std::fs::File;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::folder::Folder;
use crate::sibling_programs::{Missing, end_with_parent, find, free_port};

use super::server::{Load, ProfiledCommand, is_root};

const SCHEMA: &str = include_str!("tpcc.sql");

/// Time limit of its start and of its end.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Creates the database in `folder`. The measured program is the server; its load is a number of
/// transactions from four terminals.
pub(super) fn prepare(folder: &Folder, warehouses: u32, transactions: u32) -> Result<ProfiledCommand> {
    let server = find("mariadbd", "mariadb-server-core")?;
    let client = find("mariadb", "mariadb-client")?;
    let slap = find("mariadb-slap", "mariadb-client")?;
    let port = free_port()?;
    let path = folder.path();
    install(path)?;
    let command = command(&server, path, port);
    let mut running = start(&command)?;
    let filled = wait_ready(&mut running, port).and_then(|()| fill(&client, path, warehouses));
    stop(&mut running)?;
    filled?;
    let load = format!(
        "{} --no-defaults --protocol=tcp --host=127.0.0.1 --port={port} --user=terminal --create-schema=tpcc --no-drop \
         --concurrency=4 --number-of-queries={transactions} --query='CALL one()'",
        slap.display()
    );
    Ok(ProfiledCommand { command, load: Some(Load { command: load, port }) })
}

/// Creates the server's own tables.
fn install(folder: &Path) -> Result<()> {
    let mut install = Command::new(find("mariadb-install-db", "mariadb-server-core")?);
    install.arg("--no-defaults").arg(format!("--datadir={}", folder.join("data").display()));
    install.args(["--auth-root-authentication-method=socket", "--skip-test-db"]).args(user());
    install.arg(format!("--auth-root-socket-user={}", owner()?));
    succeed(&install.stdin(Stdio::null()).output().context("cannot start mariadb-install-db")?, "mariadb-install-db")
}

/// The command line of the server. Its pool of 256 MiB is as large as the data. It reserves no
/// address space for a larger pool, because an emulator records each reserved page. It does no
/// native asynchronous I/O, which an emulator lacks.
fn command(server: &Path, folder: &Path, port: u16) -> Vec<String> {
    let at = |name: &str| folder.join(name).display().to_string();
    let mut words = vec![
        server.display().to_string(),
        "--no-defaults".to_owned(),
        format!("--datadir={}", at("data")),
        format!("--tmpdir={}", at("")),
        format!("--socket={}", at("socket")),
        format!("--pid-file={}", at("pid")),
        format!("--port={port}"),
    ];
    words.extend(user());
    let fixed = [
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        "--innodb-use-native-aio=0",
        "--innodb-buffer-pool-size=256M",
        "--loose-innodb-buffer-pool-size-max=256M",
        "--innodb-log-file-size=64M",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-buffer-pool-dump-at-shutdown=0",
        "--innodb-buffer-pool-load-at-startup=0",
    ];
    words.extend(fixed.map(str::to_owned));
    words
}

/// The option without which it refuses to run as root.
fn user() -> Option<String> {
    is_root().then(|| "--user=root".to_owned())
}

/// The name of the user of this process.
fn owner() -> Result<String> {
    let output = Command::new("id").arg("-un").output().context("cannot start id")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn start(command: &[String]) -> Result<Child> {
    let mut server = Command::new(&command[0]);
    server.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    end_with_parent(&mut server).spawn().context("cannot start mariadbd")
}

fn wait_ready(server: &mut Child, port: u16) -> Result<()> {
    let since = Instant::now();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if let Some(status) = server.try_wait()? {
            return Err(Missing(format!("cannot run mariadbd: {status}")).into());
        }
        if since.elapsed() > TIME_LIMIT {
            bail!("cannot use mariadbd: it does not open its port");
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Creates tables, rows and transactions.
fn fill(client: &Path, folder: &Path, warehouses: u32) -> Result<()> {
    let script = folder.join("tpcc.sql");
    std::fs::write(&script, SCHEMA.replace("{warehouses}", &warehouses.to_string()))?;
    let mut client = Command::new(client);
    client.args(["--no-defaults", "--batch"]).arg(format!("--socket={}", folder.join("socket").display()));
    client.arg(format!("--user={}", owner()?)).stdin(File::open(&script)?);
    succeed(&client.output().context("cannot start mariadb")?, "creating the database")
}

fn stop(server: &mut Child) -> Result<()> {
    if let Some(pid) = i32::try_from(server.id()).ok().and_then(Pid::from_raw) {
        // Fails if the server has ended already.
        let _ = kill_process(pid, Signal::TERM);
    }
    let since = Instant::now();
    while server.try_wait()?.is_none() {
        if since.elapsed() > TIME_LIMIT {
            server.kill()?;
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn succeed(output: &Output, what: &str) -> Result<()> {
    if !output.status.success() {
        bail!("{what}: {}; {}", String::from_utf8_lossy(&output.stderr).trim(), output.status);
    }
    Ok(())
}
