//! The places that weights have in a decoder, and their shapes. What they are called in files: [`super::names`].

use crate::config::{
    AttentionDescription, LayerDescription, MlpDescription, ModelDescription, NormDescription, NormKind, QkNorm,
};

/// A weight of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Token embedding, `[vocab_size, hidden_size]`.
    Embedding,
    /// Embedding of positions, `[max_position_embeddings, hidden_size]`.
    Positions,
    /// A weight of the layer with this index.
    Layer(usize, Part),
    /// Norm after the last layer, `[hidden_size]`.
    FinalNorm,
    /// Its bias, `[hidden_size]`.
    FinalNormBias,
    /// Output projection, `[vocab_size, hidden_size]`.
    LmHead,
}

/// A weight of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// A norm's weight, `[hidden_size]`; of queries and keys `[head_dim]` (of one head, or of all), or as wide as all
    /// heads together.
    Norm(Norm),
    /// A norm's bias, `[hidden_size]`.
    NormBias(Norm),
    /// A linear's matrix, `[out_features, in_features]`.
    Weight(Linear),
    /// A linear's bias, `[out_features]`.
    Bias(Linear),
    /// Scores of the query heads' sinks, `[num_heads]`.
    Sinks,
    /// What is added to the experts' scores for choosing, `[num_experts]`.
    ChoiceBias,
}

/// A norm of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Norm {
    /// Before attention.
    Attention,
    /// Of queries.
    Query,
    /// Of keys.
    Key,
    /// Of the query head with this index, where each has a weight of its own.
    QueryHead(u32),
    /// The same of a KV head.
    KeyHead(u32),
    /// Of attention's result.
    PostAttention,
    /// Before the MLP.
    Mlp,
    /// Of the MLP's result.
    PostMlp,
    /// Of what latent attention's queries are made of.
    QueryLow,
    /// Of latents.
    Latent,
}

/// A linear of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Linear {
    /// Query projection, `[num_heads · head_dim, hidden_size]`.
    Q,
    /// Key projection, `[num_kv_heads · head_dim, hidden_size]`.
    K,
    /// Value projection, `[num_kv_heads · head_dim, hidden_size]`.
    V,
    /// Output projection, `[hidden_size, num_heads · head_dim]`.
    O,
    /// One of a dense MLP.
    Mlp(MlpLinear),
    /// The experts' scores, `[num_experts, hidden_size]`.
    Router,
    /// One of the expert with this index.
    Expert(u32, MlpLinear),
    /// One of the expert that every token takes.
    Shared(MlpLinear),
    /// The weight of that expert, `[1, hidden_size]`.
    SharedWeight,
    /// What latent attention's queries are made of, `[query_rank, hidden_size]`.
    QueryLow,
    /// The parts of its queries that are not turned, `[num_heads · nope_dim, query_rank or hidden_size]`.
    QueryNope,
    /// The parts that are, `[num_heads · rope_dim, query_rank or hidden_size]`.
    QueryRope,
    /// The key that is turned, `[rope_dim, hidden_size]`.
    KeyRope,
    /// The latent, `[latent_dim, hidden_size]`.
    Latent,
    /// Queries of latents from queries of keys, head by head, `[num_heads · latent_dim, nope_dim]`: of each head the
    /// transpose of the matrix that makes keys of latents.
    KeyUp,
    /// Values from latents, head by head, `[num_heads · head_dim, latent_dim]`.
    ValueUp,
    /// What puts an input in the order of its readers' columns, `[in_features, in_features]`: zeros and ones.
    Order(Input),
}

/// A linear of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MlpLinear {
    /// Gate projection, `[intermediate_size, hidden_size]`.
    Gate,
    /// Up projection, `[intermediate_size, hidden_size]`.
    Up,
    /// Down projection, `[hidden_size, intermediate_size]`.
    Down,
}

/// What several linears of a layer read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Input {
    /// Of queries, keys and values.
    Attention,
    /// Of the output projection.
    Attended,
    /// Of a dense MLP's gate and up projection.
    Mlp,
    /// Of its down projection.
    Activated,
}

impl Input {
    /// All of them.
    pub(super) const ALL: [Input; 4] = [Input::Attention, Input::Attended, Input::Mlp, Input::Activated];

    /// The linears that read it, of those that may be sorted.
    pub(super) fn readers(self, layer: &LayerDescription) -> Vec<Linear> {
        let mlp = |linears: &[MlpLinear]| match layer.mlp {
            MlpDescription::Dense(mlp) => {
                let has = |linear: &&MlpLinear| mlp.is_gated || **linear != MlpLinear::Gate;
                linears.iter().filter(has).map(|&linear| Linear::Mlp(linear)).collect()
            }
            MlpDescription::Experts(_) => Vec::new(),
        };
        match self {
            Input::Attention if layer.mixer.latent.is_some() => Vec::new(),
            Input::Attention => vec![Linear::Q, Linear::K, Linear::V],
            Input::Attended => vec![Linear::O],
            Input::Mlp => mlp(&[MlpLinear::Gate, MlpLinear::Up]),
            Input::Activated => mlp(&[MlpLinear::Down]),
        }
    }
}

impl Linear {
    /// What it reads, of a linear that may be sorted.
    #[must_use]
    pub fn input(self) -> Option<Input> {
        match self {
            Linear::Q | Linear::K | Linear::V => Some(Input::Attention),
            Linear::O => Some(Input::Attended),
            Linear::Mlp(MlpLinear::Gate | MlpLinear::Up) => Some(Input::Mlp),
            Linear::Mlp(MlpLinear::Down) => Some(Input::Activated),
            _ => None,
        }
    }
}

impl Linear {
    /// `[out_features, in_features]`; `[0, hidden_size]` of a router in a layer without experts.
    fn shape(self, hidden: usize, layer: &LayerDescription) -> [usize; 2] {
        let (q, kv) = (layer.mixer.q_size(), layer.mixer.kv_size());
        match self {
            Linear::Q => [q, hidden],
            Linear::K | Linear::V => [kv, hidden],
            Linear::O => [hidden, q],
            Linear::Router => [layer.mlp.num_experts(), hidden],
            Linear::Mlp(linear) | Linear::Expert(_, linear) => linear.shape(hidden, layer.mlp.intermediate_size()),
            Linear::Shared(linear) => {
                let shared = layer.mlp.shared();
                linear.shape(hidden, shared.map_or(0, |shared| shared.intermediate_size))
            }
            Linear::SharedWeight => [1, hidden],
            Linear::Order(Input::Attention | Input::Mlp) => [hidden; 2],
            Linear::Order(Input::Attended) => [q; 2],
            Linear::Order(Input::Activated) => [layer.mlp.intermediate_size(); 2],
            _ => self.latent_shape(hidden, &layer.mixer),
        }
    }
}

impl Linear {
    /// The same of latent attention's linears; of layers without, nothing.
    fn latent_shape(self, hidden: usize, mixer: &AttentionDescription) -> [usize; 2] {
        let (Some(latent), heads) = (mixer.latent, mixer.num_heads) else {
            return [0, hidden];
        };
        let query_rank = latent.query_rank.unwrap_or(hidden);
        match self {
            Linear::QueryLow => [query_rank, hidden],
            Linear::QueryNope => [heads * latent.nope_dim, query_rank],
            Linear::QueryRope => [heads * latent.rope_dim, query_rank],
            Linear::KeyRope => [latent.rope_dim, hidden],
            Linear::Latent => [latent.latent_dim, hidden],
            Linear::KeyUp => [heads * latent.latent_dim, latent.nope_dim],
            Linear::ValueUp => [heads * mixer.head_dim, latent.latent_dim],
            _ => [0, hidden],
        }
    }
}

impl MlpLinear {
    fn shape(self, hidden: usize, intermediate: usize) -> [usize; 2] {
        match self {
            MlpLinear::Gate | MlpLinear::Up => [intermediate, hidden],
            MlpLinear::Down => [hidden, intermediate],
        }
    }
}

impl Part {
    /// The weights of a layer, in the order of use.
    #[must_use]
    pub fn of(layer: &LayerDescription, norm: &NormDescription) -> Vec<Part> {
        use Part::{Bias, Weight};
        let placement = norm.placement;
        let norm = |of: Norm| match norm.kind {
            NormKind::Layer { bias: true } => vec![Part::Norm(of), Part::NormBias(of)],
            _ => vec![Part::Norm(of)],
        };
        let mut parts = Vec::new();
        let mut add = |present: bool, some: &[Part]| parts.extend(some.iter().filter(|_| present));
        add(placement.is_before_attention(), &norm(Norm::Attention));
        let [q, k, v] = [Linear::Q, Linear::K, Linear::V];
        if let Some(latent) = layer.mixer.latent {
            let low = [Weight(Linear::QueryLow), Part::Norm(Norm::QueryLow)];
            add(latent.query_rank.is_some(), &low);
            add(
                true,
                &[Linear::QueryNope, Linear::QueryRope, Linear::KeyRope, Linear::Latent].map(Weight),
            );
            add(true, &[Part::Norm(Norm::Latent)]);
            add(true, &[Linear::KeyUp, Linear::ValueUp].map(Weight));
        } else {
            add(true, &[Weight(q), Weight(k), Weight(v)]);
        }
        add(layer.mixer.qkv_bias, &[Bias(q), Bias(k), Bias(v)]);
        match layer.mixer.qk_norm {
            Some(QkNorm::OwnWeights) => {
                let queries = (0..layer.mixer.num_heads as u32).map(Norm::QueryHead);
                let keys = (0..layer.mixer.num_kv_heads as u32).map(Norm::KeyHead);
                queries.chain(keys).for_each(|norm| add(true, &[Part::Norm(norm)]));
            }
            norm => add(norm.is_some(), &[Part::Norm(Norm::Query), Part::Norm(Norm::Key)]),
        }
        add(layer.mixer.sinks, &[Part::Sinks]);
        add(true, &[Weight(Linear::O)]);
        add(layer.mixer.o_bias, &[Bias(Linear::O)]);
        add(placement.is_after(), &norm(Norm::PostAttention));
        add(placement.is_before_mlp(), &norm(Norm::Mlp));
        let linears = [MlpLinear::Gate, MlpLinear::Up, MlpLinear::Down];
        match layer.mlp {
            MlpDescription::Dense(mlp) => {
                let [gate, up, down] = linears.map(Linear::Mlp);
                add(mlp.is_gated, &[Weight(gate)]);
                add(true, &[Weight(up)]);
                add(mlp.bias && mlp.is_gated, &[Bias(gate)]);
                add(mlp.bias, &[Bias(up), Bias(down)]);
                add(true, &[Weight(down)]);
            }
            MlpDescription::Experts(mlp) => {
                add(true, &[Weight(Linear::Router)]);
                add(mlp.bias, &[Bias(Linear::Router)]);
                add(mlp.choice_bias, &[Part::ChoiceBias]);
                for expert in 0..mlp.num_experts as u32 {
                    add(true, &linears.map(|linear| Weight(Linear::Expert(expert, linear))));
                    add(mlp.bias, &linears.map(|linear| Bias(Linear::Expert(expert, linear))));
                }
                add(
                    mlp.shared.is_some(),
                    &linears.map(|linear| Weight(Linear::Shared(linear))),
                );
                let is_weighted = mlp.shared.is_some_and(|shared| shared.is_weighted);
                add(is_weighted, &[Weight(Linear::SharedWeight)]);
            }
        }
        add(placement.is_after(), &norm(Norm::PostMlp));
        parts
    }
}

/// The ops that read matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// `embedding`.
    Embedding,
    /// `linear`.
    Linear,
    /// `moe_linear`.
    Experts,
    /// `head_linear`.
    Heads,
}

impl Role {
    /// The norm of a layer.
    #[must_use]
    pub const fn norm(layer: usize, norm: Norm) -> Role {
        Role::Layer(layer, Part::Norm(norm))
    }

    /// The matrix of a layer's linear.
    #[must_use]
    pub const fn weight(layer: usize, linear: Linear) -> Role {
        Role::Layer(layer, Part::Weight(linear))
    }

    /// The bias of a layer's linear.
    #[must_use]
    pub const fn bias(layer: usize, linear: Linear) -> Role {
        Role::Layer(layer, Part::Bias(linear))
    }

    /// Every weight of a model, in the order of use. The output projection is listed for tied models too.
    #[must_use]
    pub fn all(model: &ModelDescription) -> Vec<Role> {
        Role::each(model).collect()
    }

    /// As [`Role::all`], one after the other: a damaged configuration may have millions.
    pub(crate) fn each(model: &ModelDescription) -> impl Iterator<Item = Role> {
        let layers = model.layers.iter().enumerate().flat_map(|(i, layer)| {
            let parts = Part::of(layer, &model.norm);
            let orders = model.sorted.iter().filter(move |(layer, _)| *layer == i);
            let orders = orders.map(|&(_, input)| Part::Weight(Linear::Order(input)));
            parts.into_iter().chain(orders).map(move |part| Role::Layer(i, part))
        });
        let positions = model.position_embedding.then_some(Role::Positions);
        let has_bias = model.norm.kind == NormKind::Layer { bias: true };
        std::iter::once(Role::Embedding)
            .chain(positions)
            .chain(layers)
            .chain([Role::FinalNorm])
            .chain(has_bias.then_some(Role::FinalNormBias))
            .chain([Role::LmHead])
    }

    /// The shape that the description implies.
    #[must_use]
    pub fn shape(self, model: &ModelDescription) -> Vec<usize> {
        let hidden = model.hidden_size;
        match self {
            Role::Embedding | Role::LmHead => vec![model.vocab_size, hidden],
            Role::Positions => vec![model.max_position_embeddings, hidden],
            Role::FinalNorm | Role::FinalNormBias => vec![hidden],
            Role::Layer(i, Part::Norm(norm @ (Norm::Query | Norm::Key))) => {
                let mixer = &model.layers[i].mixer;
                vec![match (mixer.qk_norm, norm) {
                    (Some(QkNorm::Whole), Norm::Query) => mixer.q_size(),
                    (Some(QkNorm::Whole), _) => mixer.kv_size(),
                    _ => mixer.head_dim,
                }]
            }
            Role::Layer(i, Part::Norm(norm @ (Norm::QueryLow | Norm::Latent))) => {
                vec![model.layers[i].mixer.latent.map_or(0, |latent| match norm {
                    Norm::Latent => latent.latent_dim,
                    _ => latent.query_rank.unwrap_or(0),
                })]
            }
            Role::Layer(i, Part::Norm(Norm::QueryHead(_) | Norm::KeyHead(_))) => vec![model.layers[i].mixer.head_dim],
            Role::Layer(_, Part::Norm(_) | Part::NormBias(_)) => vec![hidden],
            Role::Layer(i, Part::Sinks) => vec![model.layers[i].mixer.num_heads],
            Role::Layer(i, Part::ChoiceBias) => vec![model.layers[i].mlp.num_experts()],
            Role::Layer(i, Part::Weight(linear)) => linear.shape(hidden, &model.layers[i]).to_vec(),
            Role::Layer(i, Part::Bias(linear)) => vec![linear.shape(hidden, &model.layers[i])[0]],
        }
    }

    /// Whether it is a vector that scales a norm.
    #[must_use]
    pub fn is_norm(self) -> bool {
        matches!(self, Role::FinalNorm | Role::Layer(_, Part::Norm(_)))
    }

    /// The op that reads it, of a matrix.
    #[must_use]
    pub fn reader(self) -> Reader {
        match self {
            Role::Embedding | Role::Positions => Reader::Embedding,
            Role::Layer(_, Part::Weight(Linear::Expert(..))) => Reader::Experts,
            Role::Layer(_, Part::Weight(Linear::KeyUp | Linear::ValueUp)) => Reader::Heads,
            _ => Reader::Linear,
        }
    }

    /// Whether it is a matrix; the others are vectors.
    pub(super) fn is_matrix(self) -> bool {
        matches!(
            self,
            Role::Embedding | Role::Positions | Role::LmHead | Role::Layer(_, Part::Weight(_))
        )
    }

    /// The expert, or the head, that it is a weight of, and how many of them the layer has.
    pub(super) fn member(self, model: &ModelDescription) -> Option<(u32, usize)> {
        let Role::Layer(layer, part) = self else {
            return None;
        };
        let layer = &model.layers[layer];
        match part {
            Part::Weight(Linear::Expert(expert, _)) | Part::Bias(Linear::Expert(expert, _)) => {
                Some((expert, layer.mlp.num_experts()))
            }
            Part::Norm(Norm::QueryHead(head)) => Some((head, layer.mixer.num_heads)),
            Part::Norm(Norm::KeyHead(head)) => Some((head, layer.mixer.num_kv_heads)),
            _ => None,
        }
    }
}
