//! Results as CSV (RFC 4180): a line for each number, in full.

use crate::summary::Summary;

/// All results, under one heading.
#[must_use]
pub fn csv(summaries: &[Summary]) -> String {
    let mut text =
        String::from("experiment,table,row,column,cell,shows,median,low,high,confidence,samples,value,paper,skipped\n");
    for summary in summaries {
        for (table, line) in summary.lines() {
            for (column, entry) in table.columns.iter().zip(&line.entries) {
                let Some(entry) = entry else { continue };
                let ours = |field: fn(&fieldstone_stats::Estimate) -> String| {
                    entry.ours.as_ref().map(field).unwrap_or_default()
                };
                let fields = [
                    summary.name.to_owned(),
                    quote(table.heading),
                    quote(&line.row),
                    quote(column),
                    entry.cell.clone(),
                    format!("{:?}", line.shows).to_lowercase(),
                    ours(|estimate| estimate.median.to_string()),
                    ours(|estimate| estimate.low.to_string()),
                    ours(|estimate| estimate.high.to_string()),
                    ours(|estimate| estimate.confidence.map(|of| of.to_string()).unwrap_or_default()),
                    ours(|estimate| estimate.n.to_string()),
                    entry.value.map(|value| value.to_string()).unwrap_or_default(),
                    entry.paper.as_ref().map(|paper| quote(&paper.value)).unwrap_or_default(),
                    entry.skipped.as_deref().map(quote).unwrap_or_else(|| quote(&entry.instead.join(" "))),
                ];
                text += &(fields.join(",") + "\n");
            }
        }
    }
    text
}

fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
