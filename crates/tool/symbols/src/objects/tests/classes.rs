//! C++: the declarations of class members are valid source code.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::program::build;
use crate::objects::Objects;

const SOURCE: &str = r"
#include <atomic>
#include <cstdio>
namespace app {
struct Base { int first; };
struct Point { int x, y; };
struct Derived : Base { int more; };
struct Queue { std::atomic<long> head; Point at; Derived both; Queue *next; struct Inner { char c; } inner; };
Queue queue;
}
int main() { std::printf(%p\n, (void *)&app::queue); std::fflush(stdout); std::getchar(); return (int)app::queue.head; }
";

#[test]
fn members_of_classes_are_declared_in_cpp_syntax() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("queue.cc"), directory.path().join("queue"));
    std::fs::write(&source, SOURCE.replace(r"%p\n", r#""%p\n""#)).unwrap();
    if !build("c++", "-g -O1", &source, &program) {
        return;
    }
    let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = u64::from_str_radix(line.trim().trim_start_matches("0x"), 16).unwrap();
    let object = Objects::open(child.id()).unwrap().describe(address, 64).object.unwrap();
    let declared: Vec<(&str, &str)> =
        object.members.iter().map(|member| (member.name.as_str(), member.declaration.as_str())).collect();
    let expected = [
        ("head", "std::atomic<long int> head"),
        ("at.x", "int at_x"),
        ("at.y", "int at_y"),
        ("both", "app::Derived both"),
        ("next", "app::Queue *next"),
        ("inner.c", "char inner_c"),
    ];
    // Other compilers write `atomic<long>`.
    let plain = |text: &str| text.replace("<long>", "<long int>");
    assert_eq!(
        declared.iter().map(|(name, text)| (*name, plain(text))).collect::<Vec<_>>(),
        expected.map(|(name, text)| (name, text.to_owned()))
    );
    drop(child.stdin.take());
    child.wait().unwrap();
}
