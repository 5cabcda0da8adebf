//! What weights are called in a kind of file: templates by role, as data. The tables themselves belong to the families.

use super::role::{Linear, Part, Role};

/// A role (of layer 0 and expert 0, for all of them) and its template: `{l}` stands for the layer, `{e}` for the
/// expert.
pub(crate) type NameTemplate = (Role, &'static str);

/// Tables of templates; of two for one role the first counts.
pub(crate) type NameTables = [&'static [NameTemplate]];

/// A weight's place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredName {
    pub name: String,
    /// The tensor holds all experts of the layer one after the other, and this is the weight's.
    pub expert: Option<u32>,
}

/// The tensor and slice of a weight in a file. A weight without a template is looked up under its role's name, and so
/// reported as missing.
pub(super) fn stored_name(tables: &NameTables, role: Role) -> StoredName {
    let of_first = match role {
        Role::Layer(_, part) => Role::Layer(0, of_first_expert(part)),
        other => other,
    };
    let mut templates = tables.iter().copied().flatten();
    let Some((_, template)) = templates.find(|(of, _)| *of == of_first) else {
        let name = format!("{role:?}");
        return StoredName { name, expert: None };
    };
    let mut name = (*template).to_owned();
    if let Role::Layer(layer, _) = role {
        name = name.replace("{l}", &layer.to_string());
    }
    match role.expert() {
        Some(expert) if name.contains("{e}") => StoredName {
            name: name.replace("{e}", &expert.to_string()),
            expert: None,
        },
        expert => StoredName { name, expert },
    }
}

fn of_first_expert(part: Part) -> Part {
    match part {
        Part::Weight(Linear::Expert(_, linear)) => Part::Weight(Linear::Expert(0, linear)),
        Part::Bias(Linear::Expert(_, linear)) => Part::Bias(Linear::Expert(0, linear)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::role::MlpLinear;

    const fn down(layer: usize, expert: u32) -> Role {
        Role::weight(layer, Linear::Expert(expert, MlpLinear::Down))
    }

    const OWN: &[NameTemplate] = &[(down(0, 0), "model.layers.{l}.mlp.experts.{e}.down_proj.weight")];
    const STACKED: &[NameTemplate] = &[(down(0, 0), "blk.{l}.ffn_down_exps.weight")];

    #[test]
    fn a_template_says_whether_experts_are_tensors_of_their_own() {
        let named = |tables: &NameTables| stored_name(tables, down(12, 37));
        let name = |name: &str, expert| StoredName {
            name: name.to_owned(),
            expert,
        };
        let own = name("model.layers.12.mlp.experts.37.down_proj.weight", None);
        assert_eq!(named(&[OWN, STACKED]), own);
        assert_eq!(named(&[STACKED, OWN]), name("blk.12.ffn_down_exps.weight", Some(37)));
        assert_eq!(named(&[]).name, format!("{:?}", down(12, 37)));
    }
}
