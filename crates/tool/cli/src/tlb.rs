//! `fieldstone tlb`: the description of a processor as a file, to start one of one's own from.

use clap::Args;
use fieldstone_translation::Mmu;
use serde_json::Value;

use crate::output::print;
use crate::profile::trace;

/// Prints the description of a processor, as `profile --tlb FILE` reads it
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  fieldstone tlb zen4 > mine.toml
  $EDITOR mine.toml
  fieldstone profile --trace --tlb mine.toml -- PROGRAM")]
pub(crate) struct Arguments {
    /// `host`, a TOML file, which is checked, or one of nehalem, sandy-bridge, skylake, golden-cove, zen3, zen4, neoverse-v2
    #[arg(value_name = "PROCESSOR", default_value = "host")]
    processor: String,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    // A preset as it was written, with its comments.
    let text = match Mmu::preset_text(&arguments.processor) {
        Some(text) => text.to_owned(),
        None => written(&serde_json::to_value(trace::machine(&arguments.processor)?)?),
    };
    print(&text)?;
    Ok(0)
}

/// A machine as TOML: a line a field, and one a rank of TLBs.
fn written(machine: &Value) -> String {
    let fields = machine.as_object().into_iter().flatten();
    let lines = fields.map(|(name, value)| match value {
        Value::Array(ranks) if !ranks.is_empty() => {
            let ranks: String = ranks.iter().map(|rank| format!("    {},\n", inline(rank))).collect();
            format!("{name} = [\n{ranks}]\n")
        }
        _ => format!("{name} = {}\n", inline(value)),
    });
    lines.collect()
}

/// A value in one line. Strings, numbers and lists are written alike in JSON and TOML.
fn inline(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Object(fields) => {
            format!(
                "{{ {} }}",
                joined(fields.iter().map(|(name, value)| format!("{name} = {}", inline(value))).collect())
            )
        }
        Value::Array(values) => format!("[{}]", joined(values.iter().map(inline).collect())),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_as_the_same_machine() {
        for machine in Mmu::presets() {
            let told = Mmu { source: "a \"quoted\" source\nof two lines: Größe".into(), ..machine };
            let text = written(&serde_json::to_value(&told).unwrap());
            assert_eq!(Mmu::from_toml(&text).map_err(|error| format!("{error}: {text}")), Ok(told));
        }
    }
}
