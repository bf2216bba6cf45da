//! Common programs with and without `fieldstone run --repair`: the same output, and the overhead of
//! detection.
//!
//! Each program is a bash script. Its arguments are a number, which sets the amount of work, and
//! the prefix of the program's command: nothing, or that of the repair. The output must be equal.
//! Output of load generators is dropped.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use fieldstone_launch::Program;

use super::compare_runs;
use super::comparisons::{CLEAN, Comparison, ExpectedRepair, Time, WorkSize};
use super::program_run::{Programs, RUN_TIME_LIMIT, WorkloadRun, record, run};
use super::repair_record::RepairedRun;
use crate::cell::GoalCell;
use crate::goals::Goal;

/// An application.
pub(super) struct Application {
    pub(super) name: &'static str,
    /// Required commands.
    needs: &'static [&'static str],
    script: &'static str,
    /// Initial amount of work; it grows until a run is long enough.
    number: u64,
}

pub(super) const APPLICATIONS: [Application; 5] = [
    Application {
        name: "redis-server",
        needs: &["redis-server", "redis-benchmark", "redis-cli"],
        script: r#"
            "$@" redis-server --port 21317 --save '' --appendonly no > /dev/null & server=$!
            ask="redis-cli -p 21317"
            until $ask ping > /dev/null 2>&1; do sleep 0.02; done
            redis-benchmark -p 21317 -q -n "$number" -r 10000 -P 16 -t set,get,lpush,lpop,zadd > /dev/null
            $ask flushall > /dev/null
            seq 20000 | sed 's/.*/SET key:& value:&/' | $ask --pipe > /dev/null
            $ask --scan | sort | sha256sum
            $ask get key:17
            $ask shutdown nosave
            wait $server"#,
        number: 100_000,
    },
    Application {
        name: "memcached",
        needs: &["memcached", "memcaslap"],
        script: r#"
            "$@" memcached -p 21319 -l 127.0.0.1 -t 2 -m 256 -u nobody & server=$!
            until (exec 3<> /dev/tcp/127.0.0.1/21319) 2> /dev/null; do sleep 0.02; done
            memcaslap -s 127.0.0.1:21319 -x "$number" -T 1 -c 16 > /dev/null
            exec 3<> /dev/tcp/127.0.0.1/21319
            printf 'set answer 0 0 2\r\n42\r\nget answer\r\nquit\r\n' >&3
            cat <&3
            kill -TERM $server
            wait $server"#,
        number: 50_000,
    },
    Application {
        name: "sqlite3",
        needs: &["sqlite3"],
        script: r#"
            "$@" sqlite3 :memory: "
                CREATE TABLE t(a INTEGER PRIMARY KEY, b);
                WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < $number)
                    INSERT INTO t SELECT x, x * 7919 % 1000003 FROM c;
                CREATE INDEX i ON t(b);
                SELECT count(*), sum(a), max(b) FROM t WHERE b BETWEEN 1000 AND 500000;""#,
        number: 100_000,
    },
    Application {
        name: "python3",
        needs: &["python3"],
        script: r#"
            "$@" python3 -c '
import hashlib, sys, threading
found = {}
def work(name):
    digest, words = name.encode(), {}
    for lap in range(int(sys.argv[1])):
        digest = hashlib.sha256(digest * 1024).digest()
        words[digest[:2]] = words.get(digest[:2], 0) + lap
    found[name] = (digest.hex(), sum(words.values()))
threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(found.items()))' "$number""#,
        number: 2000,
    },
    Application {
        name: "xz -T2",
        needs: &["xz"],
        script: r#"seq "$number" | "$@" xz -T2 --block-size=512KiB --stdout | sha256sum"#,
        number: 300_000,
    },
];

impl Application {
    /// Compares runs, which must have the same output.
    pub(super) fn measure(&self, programs: &Programs, goal: Goal, limit: Duration) -> anyhow::Result<GoalCell> {
        let is_lacking = |name: &&&str| Program::find(&[(**name).into()]).is_err();
        if let Some(lacking) = self.needs.iter().find(is_lacking) {
            return Ok(GoalCell::skipped_case(goal, self.name, &format!("there is no {lacking}: make packages")));
        }
        let comparison = Comparison {
            goal: CLEAN,
            case: self.name,
            program: self.name,
            repaired: "",
            plain: "",
            size: WorkSize { option: "", number: self.number },
            time: Time::Clock,
            expected_repair: ExpectedRepair::Any,
        };
        // The first output for each number, from a run without the repair.
        let known = RefCell::new(BTreeMap::new());
        let check = |size: WorkSize, run: &WorkloadRun| {
            let mut known = known.borrow_mut();
            let expected = known.entry(size.number).or_insert_with(|| run.output.clone());
            ensure!(run.output == *expected, "{} printed {:?}, and before that {expected:?}", self.name, run.output);
            Ok(())
        };
        let plain = |size: WorkSize| {
            let run = self.plain(size.number)?;
            check(size, &run).map(|()| run)
        };
        let repaired = |size: WorkSize| {
            let repaired = self.repaired(&programs.path("fieldstone"), size.number)?;
            check(size, &repaired.run).map(|()| repaired)
        };
        compare_runs(&comparison, goal, limit, &plain, &repaired)
    }

    fn plain(&self, number: u64) -> anyhow::Result<WorkloadRun> {
        run(&mut self.command(number, &[]), RUN_TIME_LIMIT)?.successful(self.name)
    }

    fn repaired(&self, fieldstone: &Path, number: u64) -> anyhow::Result<RepairedRun> {
        let stats = tempfile::NamedTempFile::new()?;
        let words = [fieldstone, "run".as_ref(), "--repair".as_ref(), "--stats".as_ref(), stats.path(), "--".as_ref()];
        let run = run(&mut self.command(number, &words), RUN_TIME_LIMIT)?;
        let stats = record(stats.path(), &run)?;
        Ok(RepairedRun { run: run.successful(&format!("{}, repaired", self.name))?, stats })
    }

    fn command(&self, number: u64, words: &[&Path]) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", &format!("set -o pipefail; number=$1; shift\n{}", self.script), self.name]);
        command.arg(number.to_string()).args(words);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prints_the_same_each_time() {
        for application in &APPLICATIONS {
            if application.needs.iter().any(|name| Program::find(&[name.into()]).is_err()) {
                println!("SKIP {}: not all of {:?} are here", application.name, application.needs);
                continue;
            }
            let output = |number| application.plain(number).unwrap().output;
            let first = output(2000);
            assert!(first.len() > 10, "{}: {first:?}", application.name);
            assert_eq!(first, output(2000), "{}", application.name);
        }
    }
}
