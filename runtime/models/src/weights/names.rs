//! What weights are called in a kind of file: templates by role, as data. The tables themselves belong to the families.

use super::role::{Linear, Norm, Part, Role};
use crate::config::ModelDescription;

/// A role (of layer 0 and of expert or head 0, for all of them) and its template: `{l}` stands for the layer, `{e}`
/// for the expert or the head.
pub(crate) type NameTemplate = (Role, &'static str);

/// The names in a kind of file.
#[derive(Debug)]
pub(crate) struct NameTables {
    /// Tensors that are one weight, or that of every expert of a layer; of several templates for one role the first
    /// whose tensor is there counts.
    pub own: &'static [&'static [NameTemplate]],
    /// Tensors that hold the rows of several weights; they are looked for before those of `own`.
    pub packed: &'static [PackedTensor],
}

/// A tensor that holds the rows of several weights.
#[derive(Debug)]
pub(crate) struct PackedTensor {
    /// As in [`NameTemplate`].
    pub name: &'static str,
    /// The weights in the order of their rows.
    pub parts: &'static [Role],
    /// How their rows stand.
    pub order: PackedOrder,
}

/// How the rows of several weights stand in one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackedOrder {
    /// One weight behind the other.
    Stacked,
    /// Of q, k and v, KV head by KV head: the rows of its query heads, of its key, of its value (GPT-NeoX, InternLM 2).
    ByKvHead,
    /// Of several parts of each query head, head by head: the rows of each (DeepSeek).
    ByHead,
    /// As `ByHead`; of the first part, each head's matrix is the transpose.
    ByHeadFirstTransposed,
    /// As `Stacked`, but the tensor is the transpose: `[in_features, out_features]` (GPT-2's `Conv1D`).
    Transposed,
    /// A row of each in turn (gpt-oss's gates and ups).
    Alternating,
    /// The transpose of that.
    AlternatingTransposed,
}

impl PackedOrder {
    fn is_transposed(self) -> bool {
        matches!(self, PackedOrder::Transposed | PackedOrder::AlternatingTransposed)
    }
}

impl NameTables {
    /// Tensors of one weight each.
    pub(crate) const fn own(own: &'static [&'static [NameTemplate]]) -> NameTables {
        NameTables { own, packed: &[] }
    }

    /// The template of the embedding.
    pub(super) fn embedding(&self) -> Option<&'static str> {
        let mut templates = self.own.iter().copied().flatten();
        let found = templates.find(|(role, _)| *role == Role::Embedding);
        found.map(|(_, name)| *name)
    }
}

/// A weight's place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredName {
    pub name: String,
    /// The tensor holds all experts, or heads, of the layer one after the other: which one the weight is of, and how
    /// many there are.
    pub member: Option<(u32, usize)>,
    /// The tensor holds other weights, too, and these are the rows of this one.
    pub rows: Option<PackedRows>,
}

/// Rows of a packed tensor that are those of one weight: row r is the tensor's first + (r / run) · stride + r mod run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedRows {
    pub first: usize,
    pub run: usize,
    pub stride: usize,
    /// Rows of the whole tensor.
    pub total: usize,
    /// The tensor's rows are its columns.
    pub is_transposed: bool,
    /// The weight's rows are so many matrices, each of which is stored as its transpose, in `run` rows; 0: they are
    /// not.
    pub transposed_matrices: usize,
}

impl PackedRows {
    /// Whether the weight is whole runs of so many rows that stand as such in the tensor.
    pub(super) fn are_runs_of(self, rows: usize) -> bool {
        [self.first, self.run, self.stride]
            .iter()
            .all(|n| n.is_multiple_of(rows))
    }

    pub(super) fn stored(self, row: usize) -> usize {
        self.first + row / self.run * self.stride + row % self.run
    }
}

/// The tensors in which a weight may be, in the order of trying. A weight without a template is looked up under its
/// role's name, and so reported as missing.
pub(super) fn stored_names(tables: &NameTables, role: Role, model: &ModelDescription) -> Vec<StoredName> {
    let of_first = match role {
        Role::Layer(_, part) => Role::Layer(0, of_first_member(part)),
        other => other,
    };
    let packed = tables.packed.iter().filter(|packed| packed.parts.contains(&of_first));
    let packed = packed.map(|packed| (packed.name, Some(packed_rows(packed, of_first, role, model))));
    let own = tables.own.iter().copied().flatten().filter(|(of, _)| *of == of_first);
    let found = packed.chain(own.map(|(_, name)| (*name, None)));
    let mut names: Vec<StoredName> = found.map(|(name, rows)| place(name, rows, role, model)).collect();
    if names.is_empty() {
        names.push(StoredName {
            name: format!("{role:?}"),
            member: None,
            rows: None,
        });
    }
    names
}

fn place(template: &str, rows: Option<PackedRows>, role: Role, model: &ModelDescription) -> StoredName {
    let mut name = template.to_owned();
    if let Role::Layer(layer, _) = role {
        name = name.replace("{l}", &layer.to_string());
    }
    match role.member(model) {
        Some((index, _)) if name.contains("{e}") => StoredName {
            name: name.replace("{e}", &index.to_string()),
            member: None,
            rows,
        },
        member => StoredName { name, member, rows },
    }
}

fn packed_rows(packed: &PackedTensor, of_first: Role, role: Role, model: &ModelDescription) -> PackedRows {
    let layer = match role {
        Role::Layer(layer, _) => layer,
        _ => 0,
    };
    // All parts are of one kind, so that a matrix's rows and a bias's values are counted alike.
    let heads = model.layers[layer].mixer.num_heads;
    let is_first_transposed = packed.order == PackedOrder::ByHeadFirstTransposed;
    let size = |part: &Role| match part {
        Role::Layer(_, of_layer) => match *Role::Layer(layer, *of_layer).shape(model) {
            [_, columns] if is_first_transposed && *part == packed.parts[0] => heads * columns,
            ref shape => shape[0],
        },
        other => other.shape(model)[0],
    };
    let groups = match packed.order {
        PackedOrder::ByHead | PackedOrder::ByHeadFirstTransposed => heads,
        PackedOrder::ByKvHead => model.layers[layer].mixer.num_kv_heads,
        PackedOrder::Stacked | PackedOrder::Transposed => 1,
        PackedOrder::Alternating | PackedOrder::AlternatingTransposed => size(&of_first).max(1),
    };
    let run = |part: &Role| size(part) / groups;
    let before = packed.parts.iter().take_while(|part| **part != of_first);
    let stride: usize = packed.parts.iter().map(run).sum();
    PackedRows {
        first: before.map(run).sum(),
        run: run(&of_first).max(1),
        stride,
        total: stride * groups,
        is_transposed: packed.order.is_transposed(),
        transposed_matrices: match is_first_transposed && of_first == packed.parts[0] {
            true => heads,
            false => 0,
        },
    }
}

fn of_first_member(part: Part) -> Part {
    match part {
        Part::Norm(Norm::QueryHead(_)) => Part::Norm(Norm::QueryHead(0)),
        Part::Norm(Norm::KeyHead(_)) => Part::Norm(Norm::KeyHead(0)),
        Part::Weight(Linear::Expert(_, linear)) => Part::Weight(Linear::Expert(0, linear)),
        Part::Bias(Linear::Expert(_, linear)) => Part::Bias(Linear::Expert(0, linear)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::JsonFields;
    use crate::families::Family;
    use crate::weights::role::MlpLinear;

    const fn down(layer: usize, expert: u32) -> Role {
        Role::weight(layer, Linear::Expert(expert, MlpLinear::Down))
    }

    const OWN: &[NameTemplate] = &[(down(0, 0), "model.layers.{l}.mlp.experts.{e}.down_proj.weight")];
    const STACKED: &[NameTemplate] = &[(down(0, 0), "blk.{l}.ffn_down_exps.weight")];

    /// Only the shapes of packed weights are asked of it.
    fn model() -> ModelDescription {
        let json = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 9, "hidden_size": 8, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 13, "intermediate_size": 6}"#;
        let fields = serde_json::from_str(json).expect("an object");
        let config = JsonFields::empty(Path::new("config.json")).with(&fields);
        Family::describe_config(&config).expect("described").1
    }

    #[test]
    fn a_template_says_whether_experts_are_tensors_of_their_own() {
        let named = |own| stored_names(&NameTables::own(own), down(12, 37), &model()).remove(0);
        let name = |name: &str, member| StoredName {
            name: name.to_owned(),
            member,
            rows: None,
        };
        let own = name("model.layers.12.mlp.experts.37.down_proj.weight", None);
        assert_eq!(named(&[OWN, STACKED]), own);
        assert_eq!(
            named(&[STACKED, OWN]),
            name("blk.12.ffn_down_exps.weight", Some((37, 0)))
        );
        assert_eq!(named(&[]).name, format!("{:?}", down(12, 37)));
    }

    #[test]
    fn rows_of_packed_weights_cover_their_tensor_once() {
        const PARTS: &[Role] = &[
            Role::weight(0, Linear::Q),
            Role::weight(0, Linear::K),
            Role::weight(0, Linear::V),
        ];
        let stored = |order| {
            let packed = PackedTensor {
                name: "layers.{l}.qkv",
                parts: PARTS,
                order,
            };
            let tables = NameTables {
                own: &[],
                packed: Box::leak(Box::new([packed])),
            };
            let rows = PARTS.iter().map(|part| {
                let Role::Layer(_, part) = *part else {
                    unreachable!("parts of layers")
                };
                let role = Role::Layer(3, part);
                let stored = stored_names(&tables, role, &model()).remove(0);
                assert_eq!(stored.name, "layers.3.qkv");
                let rows = stored.rows.expect("packed");
                assert_eq!(rows.total, 16);
                (0..role.shape(&model())[0])
                    .map(|row| rows.stored(row))
                    .collect::<Vec<_>>()
            });
            rows.collect::<Vec<_>>()
        };
        let stacked: Vec<Vec<usize>> = vec![(0..8).collect(), (8..12).collect(), (12..16).collect()];
        assert_eq!(stored(PackedOrder::Stacked), stacked);
        // Two query heads of two values for each KV head.
        let by_head = vec![vec![0, 1, 2, 3, 8, 9, 10, 11], vec![4, 5, 12, 13], vec![6, 7, 14, 15]];
        assert_eq!(stored(PackedOrder::ByKvHead), by_head);
    }
}
