//! Records as CSV (RFC 4180): one heading, a line for each record, numbers with all their digits,
//! in the units of their headings.
//!
//! Records of different kinds stand under one heading, group by group: the fields of the other
//! groups are empty. The first group is always in the heading; another one only if it has records.

/// Records with the same fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// The names of the fields.
    pub fields: Vec<String>,
    /// A value for each field; empty where there is none.
    pub records: Vec<Vec<String>>,
}

impl Records {
    /// No record yet of fields that are separated by commas.
    pub fn new(fields: &str) -> Self {
        Self { fields: fields.split(',').map(str::to_owned).collect(), records: Vec::new() }
    }

    /// The same, with these records.
    #[must_use]
    pub fn with(self, records: impl IntoIterator<Item = Vec<String>>) -> Self {
        Self { records: records.into_iter().collect(), ..self }
    }
}

/// `groups` of records under one heading.
pub fn render(groups: &[Records]) -> String {
    let shown = groups.iter().enumerate().filter(|(at, group)| *at == 0 || !group.records.is_empty());
    let shown: Vec<&Records> = shown.map(|(_, group)| group).collect();
    let mut csv = line(shown.iter().flat_map(|group| group.fields.iter().map(String::as_str)));
    for (at, group) in shown.iter().enumerate() {
        let before: usize = shown[..at].iter().map(|group| group.fields.len()).sum();
        let after: usize = shown[at + 1..].iter().map(|group| group.fields.len()).sum();
        for record in &group.records {
            let values = record.iter().map(String::as_str);
            csv += &line(std::iter::repeat_n("", before).chain(values).chain(std::iter::repeat_n("", after)));
        }
    }
    csv
}

/// A number with all its digits; empty if there is none.
pub fn full(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn line<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    fields.map(quote).collect::<Vec<_>>().join(",") + "\n"
}

fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_stand_under_one_heading_and_those_without_records_do_not() {
        let record = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        let groups = [
            Records::new("kind,a"),
            Records::new("unused"),
            Records::new("site").with([record(&["odd, \"name\""])]),
            Records::new("b,c").with([record(&["1", full(None).as_str()])]),
        ];
        assert_eq!(render(&groups), "kind,a,site,b,c\n,,\"odd, \"\"name\"\"\",,\n,,,1,\n");
        assert_eq!(full(Some(0.1)), "0.1");
    }
}
