//! MariaDB with a database like TPC-C's, made once for all runs of a cell, on a data folder of its own.
//!
//! The database's owner comes through the socket in our folder, as the user that we are; terminals come over the loopback and may
//! call the transactions, nothing else.

use std::fs::File;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::beside::{Missing, ends_with_us};
use crate::folder::Folder;

use super::server::{Load, Started, find, free_port, is_root};

const SCHEMA: &str = include_str!("tpcc.sql");

/// How long it may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the database in `folder`. The measured program is the server; its load is a number of transactions from four terminals.
pub(super) fn prepare(folder: &Folder, warehouses: u32, transactions: u32) -> Result<Started> {
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
    Ok(Started { command, load: Some(Load { command: load, port }) })
}

/// The server's own tables.
fn install(folder: &Path) -> Result<()> {
    let mut install = Command::new(find("mariadb-install-db", "mariadb-server-core")?);
    install.arg("--no-defaults").arg(format!("--datadir={}", folder.join("data").display()));
    install.args(["--auth-root-authentication-method=socket", "--skip-test-db"]).args(user());
    install.arg(format!("--auth-root-socket-user={}", owner()?));
    succeed(&install.stdin(Stdio::null()).output().context("cannot start mariadb-install-db")?, "mariadb-install-db")
}

/// A pool of 256 MiB, as much as the data, and no address space for more: it would take terabytes, for which an emulator keeps books.
/// Nothing that asks the kernel for input and output in ways that an emulator lacks.
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

/// It refuses to run as root without this option.
fn user() -> Option<String> {
    is_root().then(|| "--user=root".to_owned())
}

/// The name of the user that we are.
fn owner() -> Result<String> {
    let output = Command::new("id").arg("-un").output().context("cannot start id")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn start(command: &[String]) -> Result<Child> {
    let mut server = Command::new(&command[0]);
    server.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    ends_with_us(&mut server).spawn().context("cannot start mariadbd")
}

fn wait_ready(server: &mut Child, port: u16) -> Result<()> {
    let since = Instant::now();
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if let Some(status) = server.try_wait()? {
            return Err(Missing(format!("mariadbd does not run here: {status}")).into());
        }
        if since.elapsed() > PATIENCE {
            bail!("mariadbd does not open its port");
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Tables, rows and transactions.
fn fill(client: &Path, folder: &Path, warehouses: u32) -> Result<()> {
    let script = folder.join("tpcc.sql");
    std::fs::write(&script, SCHEMA.replace("{warehouses}", &warehouses.to_string()))?;
    let mut client = Command::new(client);
    client.args(["--no-defaults", "--batch"]).arg(format!("--socket={}", folder.join("socket").display()));
    client.arg(format!("--user={}", owner()?)).stdin(File::open(&script)?);
    succeed(&client.output().context("cannot start mariadb")?, "making the database")
}

fn stop(server: &mut Child) -> Result<()> {
    if let Some(pid) = i32::try_from(server.id()).ok().and_then(Pid::from_raw) {
        // That it has ended already is no error.
        let _ = kill_process(pid, Signal::TERM);
    }
    let since = Instant::now();
    while server.try_wait()?.is_none() {
        if since.elapsed() > PATIENCE {
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
