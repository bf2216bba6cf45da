//! The cell `sampled_cost`: processor time of programs under `fieldstone run --guard` at the default
//! rate.
//!
//! Each program is a bash script with a fixed amount of work. The word `cpu` in front of the
//! measured command writes its user and system time to a file. The arguments of the script are the
//! prefix of that command: nothing, or `fieldstone run --guard --`, whose own time is included. Load
//! generators are not measured. Both sides must print the same, and no finding is allowed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use fieldstone_launch::Program;
use fieldstone_stats::{Estimate, Rounds};
use tempfile::TempDir;

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::stop_rule::StopRule;

/// Pairs of a program without a goal.
const PAIRS_WITHOUT_GOAL: usize = 8;

/// Before each script: `cpu COMMAND...` writes the seconds of the command to the file `times`.
const PRELUDE: &str = r#"
set -eo pipefail
directory=$1
shift
cpu() {
    local TIMEFORMAT='%U %S'
    { time "$@" 2>&3; } 3>&2 2> "$directory/times"
}
"#;

/// A program, as a script that prints the result of its work.
struct SampledProgram {
    name: &'static str,
    /// Required commands.
    needs: &'static [&'static str],
    has_goal: bool,
    script: &'static str,
}

const PROGRAMS: [SampledProgram; 4] = [
    SampledProgram {
        name: "redis-server",
        needs: &["redis-server", "redis-benchmark", "redis-cli"],
        has_goal: true,
        script: r#"
            cpu "$@" redis-server --port 0 --unixsocket "$directory/socket" --save '' --appendonly no \
                --dir "$directory" > /dev/null & server=$!
            ask="redis-cli -s $directory/socket"
            until $ask ping > /dev/null 2>&1; do sleep 0.02; done
            redis-benchmark -s "$directory/socket" -q -n 300000 -r 100000 -P 16 -t set,get,lpush,lpop,zadd > /dev/null
            $ask shutdown nosave
            wait $server"#,
    },
    SampledProgram {
        name: "sqlite3",
        needs: &["sqlite3"],
        has_goal: true,
        script: r#"
            cpu "$@" sqlite3 :memory: "
                CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c TEXT);
                WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1200000)
                    INSERT INTO t SELECT x, x * 7919 % 1000003, printf('%x-%d', x * 7919 % 1000003, x) FROM n;
                CREATE INDEX i ON t(b);
                CREATE INDEX j ON t(c);
                SELECT count(*), sum(a), max(c) FROM t WHERE b BETWEEN 1000 AND 500000;
                SELECT count(*), sum(length(s)) FROM
                    (SELECT group_concat(c) AS s FROM t GROUP BY substr(c, 1, 3));""#,
    },
    SampledProgram {
        name: "python3",
        needs: &["python3"],
        has_goal: true,
        script: r#"
            # The interpreter itself: the command may be a script that selects one.
            python=$(python3 -c 'import sys; print(sys.executable)')
            cpu "$@" "$python" -c '
import json, re
total = 0
for lap in range(170):
    records = [{"id": n, "name": "user %d" % n, "tags": ["t%d" % (n % 7), "x" * (n % 900)]} for n in range(4000)]
    text = json.dumps(records)
    found = json.loads(text)
    names = sorted(record["name"] + record["tags"][0] for record in found)
    total += len(text) + sum(map(len, names)) + len(re.findall("user [0-9]*7", text))
print(total)'"#,
    },
    SampledProgram {
        name: "java",
        needs: &["java"],
        has_goal: false,
        script: r#"
            cat > "$directory/Records.java" <<'END'
import java.util.*;
public class Records {
    public static void main(String[] arguments) {
        long total = 0;
        for (int lap = 0; lap < 60; lap++) {
            Map<String, List<Integer>> groups = new TreeMap<>();
            for (int n = 0; n < 40000; n++)
                groups.computeIfAbsent("group " + n * 7919 % 1009, name -> new ArrayList<>()).add(n);
            for (Map.Entry<String, List<Integer>> group : groups.entrySet())
                total += group.getKey().hashCode() ^ group.getValue().hashCode();
        }
        System.out.println(total);
    }
}
END
            cpu "$@" java "$directory/Records.java""#,
    },
];

/// Measures each program; those without a goal are printed as comments.
pub(super) fn measure(goal: &Goal, limit: Duration, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let fieldstone =
        std::env::current_exe()?.parent().context("the path of this program has a directory")?.join("fieldstone");
    for program in &PROGRAMS {
        let obstacle = program.obstacle(&fieldstone);
        match (program.has_goal, obstacle) {
            (true, Some(why)) => show(GoalCell::skipped_case(goal.clone(), program.name, &why)),
            (false, Some(why)) => println!("# {} {}: SKIP {why}", goal.name, program.name),
            (true, None) => show(program.compare(goal, limit, &fieldstone)?),
            (false, None) => program.print(goal, &fieldstone),
        }
    }
    Ok(())
}

impl SampledProgram {
    /// Why it cannot run; `None` if it can.
    fn obstacle(&self, fieldstone: &Path) -> Option<String> {
        if !fieldstone.exists() {
            return Some("the command fieldstone is not built: make build".to_owned());
        }
        let missing = self.needs.iter().find(|name| Program::find(&[(**name).into()]).is_err());
        missing.map(|name| format!("there is no {name}: make packages"))
    }

    fn compare(&self, goal: &Goal, limit: Duration, fieldstone: &Path) -> anyhow::Result<GoalCell> {
        let mut rule = StopRule::new(goal.limit, limit);
        let rounds = self.rounds(fieldstone, |rounds| rule.is_met(rounds.count(), &rounds.ratios(0, 1)))?;
        let note = "user and system time";
        let mut cell = GoalCell::measured(goal.clone(), self.name, Estimate::of_median(&rounds.ratios(0, 1)), note);
        cell.samples = ["run --guard", "plain"].map(str::to_owned).into_iter().zip(rounds.into_values()).collect();
        Ok(cell)
    }

    fn print(&self, goal: &Goal, fieldstone: &Path) {
        match self.rounds(fieldstone, |rounds| rounds.count() == PAIRS_WITHOUT_GOAL) {
            Err(error) => println!("# {} {}: SKIP {error:#}", goal.name, self.name),
            Ok(rounds) => {
                if let Some(found) = Estimate::of_median(&rounds.ratios(0, 1)) {
                    let (name, low, high) = (self.name, found.low, found.high);
                    println!("# {} {name}: {:.3}, {low:.3} to {high:.3}", goal.name, found.median);
                }
            }
        }
    }

    /// Seconds of processor time, guarded and plain. Drops the first round, and compares all
    /// outputs.
    fn rounds(&self, fieldstone: &Path, is_enough: impl FnMut(&Rounds) -> bool) -> anyhow::Result<Rounds> {
        let guard = [fieldstone, "run".as_ref(), "--guard".as_ref(), "--".as_ref()];
        let expected = self.run(&[])?.output;
        let run = |side: usize| {
            let words = if side == 0 { &guard[..] } else { &[] };
            let run = self.run(words)?;
            ensure!(
                run.output == expected,
                "{} {words:?} printed {:?}, and before {expected:?}",
                self.name,
                run.output
            );
            Ok(run.cpu_s)
        };
        run(0)?;
        Rounds::run(2, run, is_enough).with_context(|| self.name)
    }

    fn run(&self, words: &[&Path]) -> anyhow::Result<ProgramRun> {
        let directory = TempDir::new()?;
        let mut command = Command::new("bash");
        command.args(["-c", &format!("{PRELUDE}{}", self.script), self.name]).arg(directory.path()).args(words);
        // Terminates: the scripts do a fixed amount of work.
        let output = command.stdin(Stdio::null()).output().context("bash cannot be started")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("{} {words:?}: {}: {errors}", self.name, output.status);
        }
        ensure!(!errors.contains("fieldstone: "), "{}: {errors}", self.name);
        let times: PathBuf = directory.path().join("times");
        let times = std::fs::read_to_string(&times).with_context(|| times.display().to_string())?;
        let cpu_s = cpu_seconds(&times).with_context(|| format!("{}: times {times:?}", self.name))?;
        Ok(ProgramRun { cpu_s, output: String::from_utf8_lossy(&output.stdout).into_owned() })
    }
}

struct ProgramRun {
    cpu_s: f64,
    output: String,
}

/// The sum of the user and the system seconds.
fn cpu_seconds(times: &str) -> Option<f64> {
    let seconds = times.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>()?;
    (seconds.len() == 2).then(|| seconds.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(script: &'static str) -> SampledProgram {
        SampledProgram { name: "test", needs: &[], has_goal: false, script }
    }

    #[test]
    fn the_time_of_the_command_is_read_and_that_of_others_is_not() {
        let run = script(
            r#"cpu "$@" bash -c 'for i in {1..20000}; do :; done; echo done; echo note >&2' & wait $!
               for i in {1..400000}; do :; done"#,
        )
        .run(&["env".as_ref()])
        .unwrap();
        assert_eq!(run.output, "done\n");
        assert!(run.cpu_s > 0.0 && run.cpu_s < 0.3, "{}", run.cpu_s);
    }

    #[test]
    fn failures_and_findings_are_errors() {
        assert!(script("cpu false").run(&[]).is_err());
        assert!(script("cpu true; echo 'fieldstone: heap-buffer-overflow' >&2").run(&[]).is_err());
        assert!(script("true").run(&[]).is_err(), "nothing was measured");
    }

    #[test]
    fn seconds_are_added() {
        assert_eq!(cpu_seconds("1.250 0.500\n"), Some(1.75));
        assert_eq!(cpu_seconds("1,25 0,5"), None);
        assert_eq!(cpu_seconds(""), None);
    }
}
