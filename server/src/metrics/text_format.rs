//! Prometheus' text format 0.0.4, made from OpenMetrics text: parsers of the older format know counters by the sample's
//! name, and none of `# UNIT`, `# EOF`, exemplars and the types that came later. Also decides which of the two a
//! scraper wants.

use axum::http::{HeaderMap, header};

/// The content type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const OPENMETRICS: &str = "application/openmetrics-text";

/// Whether a scraper wants OpenMetrics: it names it, and ranks nothing that matches `text/plain` above it. Without
/// `Accept` the answer is the text format, as vLLM's.
pub fn wants_openmetrics(headers: &HeaderMap) -> bool {
    let mut ranks = [0.0_f32; 2];
    let values = headers.get_all(header::ACCEPT).iter();
    for range in values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
    {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let slot = match kind.to_ascii_lowercase().as_str() {
            OPENMETRICS => 0,
            "text/plain" | "text/*" | "*/*" => 1,
            _ => continue,
        };
        let rank = parts.find_map(|part| part.strip_prefix("q=")?.trim().parse().ok());
        ranks[slot] = rank.unwrap_or(1.0_f32).max(ranks[slot]);
    }
    ranks[0] > 0.0 && ranks[0] >= ranks[1]
}

/// The lines before the samples of a family.
#[derive(Default)]
struct Descriptor<'a> {
    name: &'a str,
    help: Option<&'a str>,
    kind: Option<&'a str>,
}

impl Descriptor<'_> {
    /// Writes it under the name that the family's samples have.
    fn write(&self, out: &mut String) {
        let (suffix, kind) = match self.kind {
            Some("counter") => ("_total", "counter"),
            Some("info") => ("_info", "gauge"),
            Some("stateset") => ("", "gauge"),
            Some(kind @ ("gauge" | "histogram" | "summary")) => ("", kind),
            _ => ("", "untyped"),
        };
        let suffix = if self.name.ends_with(suffix) { "" } else { suffix };
        if let Some(help) = self.help {
            // Quotes are escaped in OpenMetrics only.
            let help = help.replace("\\\"", "\"");
            out.push_str(&format!("# HELP {}{suffix} {help}\n", self.name));
        }
        if self.kind.is_some() {
            out.push_str(&format!("# TYPE {}{suffix} {kind}\n", self.name));
        }
    }
}

/// Rewrites OpenMetrics text. What is text format already stays as it is.
pub fn from_openmetrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut open: Option<Descriptor<'_>> = None;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let Some((field, name, rest)) = descriptor_line(line) else {
            if let Some(descriptor) = open.take() {
                descriptor.write(&mut out);
            }
            if !line.starts_with('#') {
                write_sample(line, &mut out);
            }
            continue;
        };
        if let Some(other) = open.take_if(|descriptor| descriptor.name != name) {
            other.write(&mut out);
        }
        let descriptor = open.get_or_insert(Descriptor {
            name,
            ..Descriptor::default()
        });
        match field {
            "HELP" => descriptor.help = Some(rest),
            "TYPE" => descriptor.kind = Some(rest),
            _ => {}
        }
    }
    if let Some(descriptor) = open {
        descriptor.write(&mut out);
    }
    out
}

/// `# HELP name text`, `# TYPE name kind`, `# UNIT name unit`.
pub(super) fn descriptor_line(line: &str) -> Option<(&str, &str, &str)> {
    let (field, rest) = line.strip_prefix("# ")?.split_once(' ')?;
    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    matches!(field, "HELP" | "TYPE" | "UNIT").then_some((field, name, rest))
}

/// A sample without its exemplar; a time stamp becomes milliseconds.
fn write_sample(line: &str, out: &mut String) {
    let (series, rest) = line.split_at(end_of_series(line));
    let values = rest.split(" # ").next().unwrap_or_default();
    let mut values = values.split_ascii_whitespace();
    out.push_str(series);
    out.push(' ');
    out.push_str(values.next().unwrap_or("NaN"));
    // The text format's stamps have no point.
    if let Some(stamp) = values.next() {
        match stamp.parse::<f64>() {
            Ok(seconds) if stamp.contains('.') => out.push_str(&format!(" {:.0}", seconds * 1000.0)),
            _ => out.push_str(&format!(" {stamp}")),
        }
    }
    out.push('\n');
}

/// Where the name and its labels end. A label's value may hold any character.
fn end_of_series(line: &str) -> usize {
    let Some(open) = line.find(['{', ' ']).filter(|at| line[*at..].starts_with('{')) else {
        return line.find(' ').unwrap_or(line.len());
    };
    let (mut quoted, mut escaped) = (false, false);
    for (at, character) in line[open..].char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '}' if !quoted => return open + at + 1,
            _ => {}
        }
    }
    line.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_keep_type_and_help_under_the_name_of_their_samples() {
        let openmetrics = "# HELP vllm:prompt_tokens Tokens of \\\"prompts\\\".\n# TYPE vllm:prompt_tokens counter\n# \
            UNIT vllm:prompt_tokens tokens\n\
            vllm:prompt_tokens_total{model_name=\"a # {b} \\\"}\"} 7 # {trace=\"x\"} 1.0 3.5\n\
            # HELP g A gauge.\n# TYPE g gauge\ng 1.5\n\
            # TYPE build info\nbuild_info{version=\"1\"} 1\n\
            # TYPE odd unknown\nodd 1 1700000000.123\n\
            # TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum 3.0\nh_count 2\n\
            # HELP empty_family None yet.\n# TYPE empty_family counter\n# EOF\n";
        let text = "# HELP vllm:prompt_tokens_total Tokens of \"prompts\".\n# TYPE vllm:prompt_tokens_total counter\n\
            vllm:prompt_tokens_total{model_name=\"a # {b} \\\"}\"} 7\n\
            # HELP g A gauge.\n# TYPE g gauge\ng 1.5\n\
            # TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n\
            # TYPE odd untyped\nodd 1 1700000000123\n\
            # TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum 3.0\nh_count 2\n\
            # HELP empty_family_total None yet.\n# TYPE empty_family_total counter\n";
        assert_eq!(from_openmetrics(openmetrics), text);
        assert_eq!(from_openmetrics(text), text, "what is text format stays");
        assert_eq!(from_openmetrics(""), "");
    }

    #[test]
    fn the_format_follows_accept() {
        let wants = |accept: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in accept {
                headers.append(header::ACCEPT, value.parse().expect("a header value"));
            }
            wants_openmetrics(&headers)
        };
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert!(wants(&[prometheus]));
        assert!(wants(&["application/openmetrics-text"]));
        assert!(wants(&["text/plain;q=0.5", "application/openmetrics-text; q=0.9"]));
        for text in [
            "text/plain",
            "text/plain;version=0.0.4",
            "*/*",
            "application/openmetrics-text;q=0.2, */*",
            "application/openmetrics-text;q=0",
            "application/json",
            "",
        ] {
            assert!(!wants(&[text]), "{text}");
        }
        assert!(!wants(&[]));
    }
}
