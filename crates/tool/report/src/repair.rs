//! A saved repair as text and as one page: what is known of the run, and what happened in the order of time.
//!
//! The events are lines here: what they are is known where repairs are made.

/// A repair that is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// What was run.
    pub title: String,
    /// What is known of the whole run: what, and its value.
    pub facts: Vec<(String, String)>,
    /// What happened, a line each.
    pub events: Vec<String>,
}

impl RepairReport {
    /// As text.
    #[must_use]
    pub fn text(&self) -> String {
        let facts = self.facts.iter().map(|(what, value)| format!("  {what}: {value}\n"));
        let events = self.events.iter().map(|event| format!("{event}\n"));
        std::iter::once(format!("{}\n", self.title)).chain(facts).chain(events).collect()
    }

    /// As one self-contained page.
    #[must_use]
    pub fn page(&self) -> String {
        let title = escaped(&self.title);
        let facts = self.facts.iter().fold(String::new(), |rows, (what, value)| {
            rows + &format!("<tr><th>{}</th><td>{}</td></tr>\n", escaped(what), escaped(value))
        });
        let events = escaped(&self.events.join("\n"));
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
             <style>body {{ font: 16px sans-serif; margin: 2em }} th {{ text-align: left; padding-right: 2em }}</style></head>\n\
             <body><h1>{title}</h1>\n<table>\n{facts}</table>\n<h2>Events</h2>\n<pre>{events}</pre></body></html>\n"
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_page_have_every_fact_and_event() {
        let report = RepairReport {
            title: "./a <b>".to_owned(),
            facts: vec![("outcome".to_owned(), "exit 0".to_owned())],
            events: vec!["1.0 ms  page 0x1000: moved".to_owned()],
        };
        let text = report.text();
        assert_eq!(text, "./a <b>\n  outcome: exit 0\n1.0 ms  page 0x1000: moved\n");
        let page = report.page();
        assert!(page.contains("./a &lt;b&gt;") && page.contains("exit 0") && page.contains("0x1000: moved"), "{page}");
    }
}
