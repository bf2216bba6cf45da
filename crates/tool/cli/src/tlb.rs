//! `fieldstone tlb`: prints the description of a processor as TOML, a template for descriptions by
//! hand.

use clap::Args;
use fieldstone_translation::Mmu;
use serde_json::Value;

use crate::output::print;
use crate::profile::trace;

/// Print the TLBs and page walk costs of a processor as TOML, the format that `profile --tlb FILE`
/// reads
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone tlb
  fieldstone tlb zen4 > mine.toml
  fieldstone profile --trace --tlb mine.toml -- PROGRAM")]
pub(crate) struct Arguments {
    /// The processor: `host`, a TOML file (checked and reprinted), or one of nehalem, sandy-bridge,
    /// skylake, golden-cove, zen3, zen4, neoverse-v2
    #[arg(value_name = "PROCESSOR", default_value = "host")]
    processor: String,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    // A preset is printed from its source file, with comments.
    let text = match Mmu::preset_text(&arguments.processor) {
        Some(text) => text.to_owned(),
        None => to_toml(&serde_json::to_value(trace::machine(&arguments.processor)?)?),
    };
    print(&text)?;
    Ok(0)
}

/// A machine as TOML: one line for each field, and one for each level of TLBs.
fn to_toml(machine: &Value) -> String {
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

/// A value on one line. Strings, numbers and lists have the same syntax in JSON and TOML.
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
    fn a_machine_survives_a_round_trip_through_toml() {
        for machine in Mmu::presets() {
            let expected = Mmu { source: "a \"quoted\" source\nof two lines: Größe".into(), ..machine };
            let text = to_toml(&serde_json::to_value(&expected).unwrap());
            assert_eq!(Mmu::from_toml(&text).map_err(|error| format!("{error}: {text}")), Ok(expected));
        }
    }
}
