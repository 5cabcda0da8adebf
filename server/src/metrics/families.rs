//! Texts of metrics from several engines as one: each family is described once, with the samples of all. They differ by
//! their label `engine`.

use std::collections::HashMap;

use super::text_format::descriptor_line;

/// One family of metrics.
#[derive(Default)]
struct Family<'a> {
    /// `# HELP`, `# TYPE` and `# UNIT`, each once.
    description: Vec<&'a str>,
    samples: Vec<&'a str>,
}

/// The families of all texts, in the order in which they first come. Lines before the first description stay together.
pub fn merged(texts: &[String]) -> String {
    let mut families: Vec<Family<'_>> = vec![Family::default()];
    let mut places: HashMap<&str, usize> = HashMap::new();
    for text in texts {
        let mut at = 0;
        for line in text.lines().filter(|line| !line.is_empty() && *line != "# EOF") {
            let Some((_, name, _)) = descriptor_line(line) else {
                families[at].samples.push(line);
                continue;
            };
            at = *places.entry(name).or_insert_with(|| {
                families.push(Family::default());
                families.len() - 1
            });
            let description = &mut families[at].description;
            if !description.contains(&line) {
                description.push(line);
            }
        }
    }
    let lines = families
        .iter()
        .flat_map(|family| family.description.iter().chain(&family.samples));
    lines.flat_map(|line| [*line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_described_once_and_has_the_samples_of_all() {
        let text = |engine: u32, value: u32| {
            format!(
                "# HELP a Some text.\n# TYPE a counter\na_total{{engine=\"{engine}\"}} {value}\n# HELP h H.\n# TYPE h \
                 histogram\nh_sum{{engine=\"{engine}\"}} 1\nh_count{{engine=\"{engine}\"}} 2\n# EOF\n"
            )
        };
        let lines = [
            "# HELP a Some text.",
            "# TYPE a counter",
            "a_total{engine=\"0\"} 7",
            "a_total{engine=\"1\"} 8",
            "# HELP h H.",
            "# TYPE h histogram",
            "h_sum{engine=\"0\"} 1",
            "h_count{engine=\"0\"} 2",
            "h_sum{engine=\"1\"} 1",
            "h_count{engine=\"1\"} 2",
        ];
        assert_eq!(merged(&[text(0, 7), text(1, 8)]).lines().collect::<Vec<_>>(), lines);
        assert_eq!(merged(&[String::new(), "bare 1".to_owned()]), "bare 1\n");
    }
}
