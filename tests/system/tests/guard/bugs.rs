//! Each memory error is found as what it is, with the lines of the error, the allocation and the
//! free.

use std::os::unix::process::ExitStatusExt;

use fieldstone_report::heap_error::StackFrame;

use crate::fixture::{compiled, findings, marked_line, stderr};

/// How a program ends after a finding.
const SEGMENTATION_FAULT: i32 = 11;
const ABORT: i32 = 6;

fn has_line(stack: &[StackFrame], source: &str, line: u32) -> bool {
    stack
        .iter()
        .any(|frame| frame.line == Some(line) && frame.file.as_deref().is_some_and(|file| file.ends_with(source)))
}

/// Runs the bug `name` and compares the report with the marks in the source.
fn check(source: &str, name: &str, kind: &str, signal: i32) {
    let side = if kind == "heap-buffer-underflow" { "left" } else { "right" };
    let program = compiled(source, if source.ends_with(".cpp") { "-std=c++17" } else { "" });
    let (output, found) = findings(&format!("--guard=all --guard-side {side}"), &[&program, name]);
    let text = stderr(&output);
    let ended = output.status.signal().or(output.status.code().map(|code| code - 128));
    assert_eq!(ended, Some(signal), "{name}: {:?} {text}", output.status);
    assert_eq!(found.len(), 1, "{name}: {text}");
    let error = &found[0];
    assert_eq!(error.kind, kind, "{name}: {text}");
    assert!(text.starts_with(&format!("fieldstone: {kind} in ")), "{name}: {text}");
    for (mark, stack) in [("error", &error.stack), ("allocated", &error.allocated), ("freed", &error.freed)] {
        if let Some(line) = marked_line(source, &format!("{name} {mark}")) {
            assert!(has_line(stack, source, line), "{name} {mark} {line}: {text}");
        }
    }
    assert!(marked_line(source, &format!("{name} error")).is_some(), "{name} has no mark");
}

#[test]
fn accesses_past_the_end_are_found() {
    for name in [
        "past_end",
        "copy_too_much",
        "copy_text",
        "read_past",
        "unterminated",
        "wrapped_size",
        "in_thread",
        "in_handler",
        "on_signal_stack",
        "in_child",
        "at_exit",
        "write_what_where",
        "format_text",
        "wrong_length",
    ] {
        check("bugs.c", name, "heap-buffer-overflow", SEGMENTATION_FAULT);
    }
}

#[test]
fn an_access_far_past_the_end_is_reported_with_the_nearest_object() {
    let program = compiled("far.c", "");
    let (output, found) = findings("--guard=all --guard-side right", &[&program]);
    let text = stderr(&output);
    assert_eq!((found.len(), output.status.signal()), (1, Some(SEGMENTATION_FAULT)), "{text}");
    assert!(text.contains("write of 1 byte, 99,936 bytes after an object of 64 bytes"), "{text}");
    for (mark, stack) in [("far error", &found[0].stack), ("far allocated", &found[0].allocated)] {
        assert!(has_line(stack, "far.c", marked_line("far.c", mark).unwrap()), "{text}");
    }
    let (output, found) = findings("--guard=all --guard-side right --keep-going", &[&program]);
    assert_eq!((found.len(), output.status.code()), (1, Some(1)), "{}", stderr(&output));
}

#[test]
fn the_width_of_a_vector_is_not_the_size_of_an_overflow() {
    let program = compiled("far.c", "-DVECTOR");
    let (output, found) = findings("--guard=all --guard-side right", &[&program]);
    let text = stderr(&output);
    assert!(text.contains("write by an instruction of 16 bytes, 0 bytes after an object of 64 bytes"), "{text}");
    assert!(found[0].is_vector, "{text}");
}

#[test]
fn accesses_before_the_start_are_found() {
    for name in ["before_start", "read_before"] {
        check("bugs.c", name, "heap-buffer-underflow", SEGMENTATION_FAULT);
    }
}

#[test]
fn a_write_into_the_padding_is_found_at_the_free() {
    check("bugs.c", "off_by_one", "heap-buffer-overflow", ABORT);
}

#[test]
fn accesses_after_the_free_are_found() {
    for name in ["after_free", "write_after_free", "freed_list", "old_pointer", "late_callback", "moved_array"] {
        check("bugs.c", name, "use-after-free", SEGMENTATION_FAULT);
    }
}

#[test]
fn wrong_frees_are_found() {
    for name in ["double_free", "freed_by_realloc", "realloc_of_freed"] {
        check("bugs.c", name, "double-free", ABORT);
    }
    for name in ["moved_pointer", "stack_free", "global_free"] {
        check("bugs.c", name, "invalid-free", ABORT);
    }
}

#[test]
fn system_calls_with_wrong_buffers_are_found() {
    for name in [
        "read_call",
        "write_call",
        "recv_call",
        "readv_call",
        "preadv_call",
        "readlink_call",
        "getrandom_call",
        "fread_call",
        "fwrite_call",
        "read_chk",
        "recvfrom_chk",
        "fread_chk",
    ] {
        check("bugs.c", name, "heap-buffer-overflow", SEGMENTATION_FAULT);
    }
    check("bugs.c", "write_freed", "use-after-free", SEGMENTATION_FAULT);
}

#[test]
fn errors_of_cpp_are_found() {
    for name in
        ["vector_index", "array_write", "aligned_new", "nothrow_new", "in_destructor", "small_array", "wrong_object"]
    {
        check("bugs.cpp", name, "heap-buffer-overflow", SEGMENTATION_FAULT);
    }
    for name in [
        "stale_iterator",
        "dangling_view",
        "deleted_object",
        "captured_reference",
        "in_std_thread",
        "erased_iterator",
        "map_node",
        "late_function",
        "shared_gone",
    ] {
        check("bugs.cpp", name, "use-after-free", SEGMENTATION_FAULT);
    }
    check("bugs.cpp", "double_delete", "double-free", ABORT);
}

#[test]
fn sampling_finds_an_error_at_a_new_site() {
    let program = compiled("bugs.c", "");
    for options in ["--guard --guard-side right", "--guard=1/5000 --guard-side right"] {
        let (output, found) = findings(options, &[&program, "past_end"]);
        assert_eq!(found.len(), 1, "{options}: {}", stderr(&output));
    }
}

#[test]
fn sampling_finds_an_error_on_a_path_that_runs_ten_times_among_others() {
    let program = compiled("bugs.c", "");
    // A read past the end: only an object at the right side of its pages finds it.
    for run in 0..5 {
        let (output, found) = findings("--guard", &[&program, "read_past", "10", "100000"]);
        assert_eq!(found.len(), 1, "run {run}: {}", stderr(&output));
    }
}

#[test]
fn a_stripped_program_has_files_and_offsets() {
    let program = compiled("bugs.c", "-s");
    let (output, found) = findings("--guard=all --guard-side right", &[&program, "past_end"]);
    let text = stderr(&output);
    assert_eq!(found.len(), 1, "{text}");
    let name = program.rsplit('/').next().unwrap();
    assert!(found[0].stack.iter().any(|frame| frame.function.starts_with(&format!("{name}+0x"))), "{text}");
}
