//! Whether the weights of one folder can take the place of another's: the same architecture, the same shapes, the same
//! types. Says what differs; knows no device.

use std::sync::Arc;

use halyard_platform_api::WeightFormat;

use crate::config::ModelDescription;
use crate::error::Result;
use crate::quant::format_name;
use crate::source::ModelFiles;
use crate::weights::Role;

/// What weights that take a model's place must have in common with it.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    family: &'static str,
    description: Arc<ModelDescription>,
    formats: Vec<(Role, WeightFormat)>,
}

impl ModelFacts {
    /// Of files as they were opened: before [`ModelFiles::use_kv_scales`] and [`ModelFiles::sort_columns`], whose
    /// outcome lies in the weights' values.
    ///
    /// # Errors
    /// As [`crate::Weights::format`].
    pub fn of(files: &ModelFiles) -> Result<ModelFacts> {
        let with_format = |role| Ok((role, files.weights.format(role)?));
        let formats = Role::each(&files.description).map(with_format).collect::<Result<_>>()?;
        Ok(ModelFacts {
            family: files.family,
            description: files.description.clone(),
            formats,
        })
    }

    /// What `files` have otherwise than this model, by name with both values; `None`: their weights can take its place.
    ///
    /// # Errors
    /// As [`ModelFacts::of`].
    pub fn difference(&self, files: &ModelFiles) -> Result<Option<String>> {
        let other = ModelFacts::of(files)?;
        let (own, its) = (&*self.description, &*other.description);
        let numbers = [
            ("vocab_size", own.vocab_size, its.vocab_size),
            ("num_hidden_layers", own.num_layers(), its.num_layers()),
            ("hidden_size", own.hidden_size, its.hidden_size),
            (
                "max_position_embeddings",
                own.max_position_embeddings,
                its.max_position_embeddings,
            ),
        ];
        let words = [
            ("architecture", own.architecture.as_str(), its.architecture.as_str()),
            ("family", self.family, other.family),
        ];
        if let Some((name, own, its)) = words.into_iter().find(|(_, own, its)| own != its) {
            return Ok(Some(format!("{name} is {its}, and {own} is served")));
        }
        if let Some((name, own, its)) = numbers.into_iter().find(|(_, own, its)| own != its) {
            return Ok(Some(format!("{name} is {its}, and {own} is served")));
        }
        if own.checkpoint_dtype != its.checkpoint_dtype {
            let (own, its) = (own.checkpoint_dtype, its.checkpoint_dtype);
            return Ok(Some(format!(
                "dtype in the configuration is {its:?}, and {own:?} is served"
            )));
        }
        if own != its {
            return Ok(Some(first_other_line(&format!("{own:#?}"), &format!("{its:#?}"))));
        }
        let mut roles = self.formats.iter().zip(&other.formats);
        Ok(roles.find(|(own, its)| own != its).map(|((role, own), (_, its))| {
            format!(
                "weight {} is stored as {}, and {} is served",
                files.weights.file_name(*role),
                format_name(*its),
                format_name(*own)
            )
        }))
    }
}

/// The first line in which two indented texts of a structure differ, with the fields that it stands in.
fn first_other_line(own: &str, its: &str) -> String {
    let lines: Vec<&str> = its.lines().collect();
    let at = own.lines().zip(&lines).position(|(own, its)| own != *its);
    let Some(at) = at.or(lines.len().checked_sub(1)) else {
        return "the configuration differs".to_owned();
    };
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut path = Vec::new();
    let mut depth = indent(lines[at]);
    for line in lines[..at].iter().rev().filter(|line| !line.trim().is_empty()) {
        if indent(line) < depth {
            depth = indent(line);
            path.extend(line.trim().split_once(':').map(|(field, _)| field));
        }
    }
    path.reverse();
    let place = match path.is_empty() {
        true => String::new(),
        false => format!(" in {}", path.join(".")),
    };
    let served = own.lines().nth(at).unwrap_or_default();
    let shown = |line: &str| line.trim().trim_end_matches(',').to_owned();
    format!(
        "the configuration has `{}`{place}, and `{}` is served",
        shown(lines[at]),
        shown(served)
    )
}

#[cfg(test)]
mod tests {
    use super::first_other_line;

    #[test]
    fn a_difference_names_the_fields_around_it() {
        let own = "Model {\n    layers: [\n        Layer {\n            window: None,\n        },\n    ],\n}";
        let its = own.replace("None", "Some(4)");
        let words = first_other_line(own, &its);
        assert_eq!(
            words,
            "the configuration has `window: Some(4)` in layers, and `window: None` is served"
        );
        let flat = first_other_line("Model {\n    size: 1,\n}", "Model {\n    size: 2,\n}");
        assert_eq!(flat, "the configuration has `size: 2`, and `size: 1` is served");
    }
}
