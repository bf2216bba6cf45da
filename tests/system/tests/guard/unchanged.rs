//! Correct programs, small and large, do the same with guards, and nothing is reported.

use crate::fixture::{MODES, compiled, same};

#[test]
fn each_function_of_the_malloc_family_keeps_its_contract() {
    same(&MODES, &[&compiled("family.c", "")]);
}

#[test]
fn operators_of_the_program_are_called_by_those_of_the_library() {
    same(&MODES, &[&compiled("own_operators.cpp", "-O0")]);
}

#[test]
fn blocks_of_other_threads_are_freed_after_the_memory_limit() {
    same(&["--guard=all --guard-memory 1M"], &[&compiled("late_frees.c", "")]);
}

#[test]
fn wide_loads_up_to_the_end_of_a_block_are_no_errors() {
    same(&MODES, &[&compiled("wide_loads.c", "")]);
    same(&["--guard=all"], &[&compiled("wide_loads.c", "-O3 -march=native")]);
}

#[test]
fn sqlite_does_the_same() {
    let script = "create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000) \
        insert into t select i, hex(i * 7919 % 1000) from n; create index x on t(b); \
        select b, count(*), sum(a) from t group by b order by 2 desc, 1 limit 20;";
    same(&MODES, &["sqlite3", ":memory:", script]);
}

#[test]
fn the_tests_of_a_python_module_pass() {
    let script = "import json, unittest, textwrap
class Json(unittest.TestCase):
    def test_round_trip(self):
        for depth in range(1, 60):
            value = {'k' * depth: [depth] * depth, 'n': {'m': 'é' * depth}}
            self.assertEqual(json.loads(json.dumps(value)), value)
    def test_errors(self):
        for text in ['{', '[1,', 'nul', '\"']:
            self.assertRaises(json.JSONDecodeError, json.loads, text)
    def test_wrap(self):
        self.assertEqual(len(textwrap.wrap('word ' * 500, 50)), 50)
import sys
result = unittest.TextTestRunner(stream=open('/dev/null', 'w')).run(unittest.TestLoader().loadTestsFromTestCase(Json))
print(result.testsRun, result.wasSuccessful())";
    same(&MODES, &["/usr/bin/python3", "-c", script]);
    // Each object of Python has a block of its own.
    same(
        &["--guard=all"],
        &["env", "PYTHONMALLOC=malloc", "/usr/bin/python3", "-c", "print(sum(map(len, map(str, range(9999)))))"],
    );
}

#[test]
fn libraries_loaded_for_themselves_find_the_agent() {
    // The extensions of PHP are loaded with RTLD_DEEPBIND.
    same(&["--guard=all"], &["php", "-r", "echo strlen(serialize(array_map('strval', range(1, 9999)))), \"\\n\";"]);
}
