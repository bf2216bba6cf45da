//! Programs of several languages and run times give the same results with a half and a quarter of
//! their memory resident.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::{can_page, counted, largest, stderr, stdout, with_new_memory};

/// Runs a program alone and with each bound; the outputs are equal and the bounds are kept.
fn same_with_bounds(program: &[&str], bounds_mib: &[u64]) {
    let alone = Command::new(program[0]).args(&program[1..]).stdin(Stdio::null()).output().unwrap();
    assert!(alone.status.success() && !alone.stdout.is_empty(), "{program:?}: {}", stderr(&alone));
    for &bound_mib in bounds_mib {
        let (output, stats) = counted(&format!("--resident {bound_mib}M"), program);
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), stdout(&alone)), "{}", stderr(&output));
        let process = largest(&stats);
        assert!(process.peak_resident_bytes <= with_new_memory(bound_mib), "{process:?}");
        assert!(process.stores.iter().map(|store| store.loaded_pages).sum::<u64>() > 500, "{process:?}");
    }
}

/// Whether a program can be started; printed as a skip otherwise.
fn has(program: &str, version: &str) -> bool {
    let has =
        Command::new(program).arg(version).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if has.is_err() {
        println!("SKIP {program} is not installed");
    }
    has.is_ok() && can_page()
}

/// A file of a temporary directory with this text.
fn source(directory: &Path, name: &str, text: &str) -> String {
    let file = directory.join(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn sqlite_has_the_same_rows_and_sound_indexes() {
    if !has("sqlite3", "--version") {
        return;
    }
    let script = "
        create table items (id integer primary key, name text, price real, note text);
        with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < 100000)
        insert into items select n, printf('item %08d', n * 7919 % 100003), n % 997 / 7.0,
            printf('%0200d', n * n % 65537) from numbers;
        create index by_name on items (name);
        create index by_price on items (price, name);
        update items set note = note || name where id % 3 = 0;
        delete from items where id % 11 = 0;
        select count(*), sum(length(note)), round(sum(price), 3), max(name) from items;
        select group_concat(id) from (select id from items order by name desc limit 20);
        select price, count(*) from items group by price order by 2 desc, 1 limit 5;
        pragma integrity_check;";
    same_with_bounds(&["sqlite3", ":memory:", script], &[30, 15]);
}

#[test]
fn python_has_the_same_objects() {
    if !has("/usr/bin/python3", "--version") {
        return;
    }
    let script = "
import hashlib, json, random
random.seed(7)
people = [{'id': i, 'name': '%x' % random.getrandbits(200), 'tags': [str(i % k) for k in range(1, 9)]} for i in range(36000)]
by_name = {p['name']: p for p in people}
random.shuffle(people)
for p in people: by_name[p['name']]['tags'].append('seen')
text = json.dumps(sorted(people, key=lambda p: p['id']))
print(len(text), hashlib.sha256(text.encode()).hexdigest(), all(by_name[p['name']] is p for p in people))";
    same_with_bounds(&["/usr/bin/python3", "-c", script], &[34, 17]);
}

#[test]
fn a_program_in_cpp_has_the_same_containers() {
    if !has("g++", "--version") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let text = r#"
        #include <algorithm>
        #include <cstdio>
        #include <map>
        #include <memory>
        #include <string>
        #include <thread>
        #include <vector>
        struct Node { int value; std::unique_ptr<Node> next; };
        static unsigned long sum(int seed) {
            std::map<std::string, std::vector<int>> words;
            for (int i = 0; i < 100000; i++) words[std::to_string(i * 7919L % 50021 + seed)].push_back(i);
            std::unique_ptr<Node> list;
            for (int i = 0; i < 150000; i++) list.reset(new Node{i, std::move(list)});
            std::vector<long> numbers;
            for (auto &[word, places] : words) numbers.push_back(word.size() * 131 + places.back());
            for (Node *node = list.get(); node; node = node->next.get()) numbers.push_back(node->value ^ seed);
            std::sort(numbers.begin(), numbers.end());
            unsigned long sum = 0;
            for (size_t i = 0; i < numbers.size(); i++) sum = sum * 31 + numbers[i] * i;
            while (list) list = std::move(list->next);
            return sum;
        }
        int main() {
            unsigned long results[2];
            std::thread other([&] { results[1] = sum(7); });
            results[0] = sum(3);
            other.join();
            std::printf("%lx %lx\n", results[0], results[1]);
        }"#;
    let file = source(directory.path(), "containers.cpp", text);
    let program = file.trim_end_matches(".cpp");
    let built = Command::new("g++").args(["-std=c++17", "-O1", "-pthread", "-o", program, &file]).status().unwrap();
    assert!(built.success());
    same_with_bounds(&[program], &[16, 8]);
}

/// The collector of the run time moves objects, and has handlers of SIGSEGV and guards of its own.
#[test]
fn java_has_the_same_objects() {
    if !has("java", "-version") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let text = r#"
        import java.util.*;
        public class Records {
            record Item(int id, String name, long[] values) {}
            public static void main(String[] arguments) {
                var items = new TreeMap<String, Item>();
                long sum = 0;
                for (int round = 0; round < 3; round++) {
                    for (int i = 0; i < 40000; i++) {
                        var values = new long[32];
                        Arrays.setAll(values, at -> at * 31L);
                        values[i % 32] += i + round;
                        items.put("item " + (i * 7919L % 40009), new Item(i, "n" + i, values));
                    }
                    for (var item : items.values()) sum = sum * 31 + item.id() + Arrays.stream(item.values()).sum();
                    System.gc();
                }
                System.out.println(items.size() + " " + Long.toHexString(sum));
            }
        }"#;
    let file = source(directory.path(), "Records.java", text);
    let out = directory.path().to_str().unwrap();
    if !Command::new("javac").args(["-d", out, &file]).status().is_ok_and(|status| status.success()) {
        println!("SKIP no javac");
        return;
    }
    for (collector, bounds_mib) in [("-XX:+UseSerialGC", &[24][..]), ("-XX:+UseG1GC", &[48])] {
        same_with_bounds(&["java", collector, "-Xms64m", "-Xmx64m", "-cp", out, "Records"], bounds_mib);
    }
}
