//! Programs that people use, under `fieldstone run --repair` and without it: the same output, and what it costs to look on.
//!
//! Each is a script for bash. It is given a number, which says how much is done, and the words to run the program by: none, or those
//! of the repair. What it prints has to be the same both ways; what a load generator prints is thrown away.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use fieldstone_launch::Program;

use super::compete;
use super::contests::{CLEAN, Contest, Expects, Size, Time};
use super::repair::Repaired;
use super::workload::{HANGS, Place, Run, record, run};
use crate::cell::Cell;
use crate::goals::Goal;

/// A program in use.
pub(super) struct Used {
    pub(super) name: &'static str,
    /// Commands that the script needs.
    needs: &'static [&'static str],
    script: &'static str,
    /// Where to begin; it grows until the script takes long enough.
    number: u64,
}

pub(super) const USED: [Used; 5] = [
    Used {
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
    Used {
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
    Used {
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
    Used {
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
    Used {
        name: "xz -T2",
        needs: &["xz"],
        script: r#"seq "$number" | "$@" xz -T2 --block-size=512KiB --stdout | sha256sum"#,
        number: 300_000,
    },
];

impl Used {
    /// Pairs of runs, whose output has to be the same.
    pub(super) fn hold(&self, place: &Place, goal: Goal, limit: Duration) -> anyhow::Result<Cell> {
        let is_lacking = |name: &&&str| Program::find(&[(**name).into()]).is_err();
        if let Some(lacking) = self.needs.iter().find(is_lacking) {
            return Ok(Cell::skipped_part(goal, self.name, &format!("there is no {lacking}: make packages")));
        }
        let contest = Contest {
            goal: CLEAN,
            part: self.name,
            program: self.name,
            repaired: "",
            plain: "",
            size: Size { option: "", number: self.number },
            time: Time::Clock,
            expects: Expects::Anything,
        };
        // What it printed for each number first, which was without the repair.
        let known = RefCell::new(BTreeMap::new());
        let check = |size: Size, run: &Run| {
            let mut known = known.borrow_mut();
            let expected = known.entry(size.number).or_insert_with(|| run.output.clone());
            ensure!(run.output == *expected, "{} printed {:?}, and before that {expected:?}", self.name, run.output);
            Ok(())
        };
        let plain = |size: Size| {
            let run = self.plain(size.number)?;
            check(size, &run).map(|()| run)
        };
        let repaired = |size: Size| {
            let repaired = self.repaired(&place.path("fieldstone"), size.number)?;
            check(size, &repaired.run).map(|()| repaired)
        };
        compete(&contest, goal, limit, &plain, &repaired)
    }

    fn plain(&self, number: u64) -> anyhow::Result<Run> {
        run(&mut self.command(number, &[]), HANGS)?.successful(self.name)
    }

    fn repaired(&self, fieldstone: &Path, number: u64) -> anyhow::Result<Repaired> {
        let stats = tempfile::NamedTempFile::new()?;
        let words = [fieldstone, "run".as_ref(), "--repair".as_ref(), "--stats".as_ref(), stats.path(), "--".as_ref()];
        let run = run(&mut self.command(number, &words), HANGS)?;
        let stats = record(stats.path(), &run)?;
        Ok(Repaired { run: run.successful(&format!("{}, repaired", self.name))?, stats })
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
        for used in &USED {
            if used.needs.iter().any(|name| Program::find(&[name.into()]).is_err()) {
                println!("SKIP {}: not all of {:?} are here", used.name, used.needs);
                continue;
            }
            let output = |number| used.plain(number).unwrap().output;
            let first = output(2000);
            assert!(first.len() > 10, "{}: {first:?}", used.name);
            assert_eq!(first, output(2000), "{}", used.name);
        }
    }
}
