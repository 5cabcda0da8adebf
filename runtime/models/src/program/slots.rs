//! Activation memory of layers: slots as wide as the widest layer needs them, which every layer uses again.

use halyard_platform_api::DType;

use super::Rows;
use super::builder::{Builder, Columns};
use crate::config::LayerDescription;
use crate::weights::{Linear, Role};

/// Activation memory that every layer uses again.
pub(super) struct LayerSlots {
    /// Of latent attention: queries, what they are made of, keys and latents.
    pub qkv: Columns,
    pub feed: FeedSlots,
    pub latent: Option<LatentSlots>,
}

/// What latent attention needs besides, for all heads: queries of latents, and weighted sums of latents.
pub(super) struct LatentSlots {
    pub queries: Columns,
    pub sums: Columns,
}

/// Activation memory of what follows attention in a layer.
pub(super) struct FeedSlots {
    pub hidden: Columns,
    pub attended: Columns,
    pub normed: Columns,
    /// Gates and behind them ups; of experts, those of every choice.
    gate_up: Columns,
    activated: Columns,
    /// A part's result before it joins the residual stream, where something is done to it before, and of experts.
    pub branch: Option<Columns>,
    pub routed: Option<RoutedSlots>,
    pub rows: Rows,
    pub max_rows: u32,
}

/// What layers with experts need besides.
pub(super) struct RoutedSlots {
    pub logits: Columns,
    pub experts: Columns,
    pub weights: Columns,
    /// The chosen experts' results.
    pub results: Columns,
    /// The shared expert's result, where it has a weight of its own.
    pub shared: Option<Columns>,
}

impl Builder<'_> {
    /// The residual stream and attention's output, in this order: what a layer's second half takes over from its first.
    pub(super) fn stream_slots(&mut self, rows: Rows) -> [Columns; 2] {
        let act = self.options.act;
        let attended = self.local.layers.iter().map(|layer| layer.q_size()).max();
        [self.model.hidden_size, attended.unwrap_or(0)].map(|width| self.slot(width, act, rows))
    }

    pub(super) fn layer_slots(&mut self, streams: [Columns; 2]) -> LayerSlots {
        let layers = self.local.layers.iter().zip(&self.model.layers);
        let widths = layers.clone().map(|(local, layer)| match layer.mixer.latent {
            None => local.q_size() + 2 * local.kv_size(),
            Some(latent) => {
                let head = latent.nope_dim + latent.rope_dim;
                local.num_heads * head + latent.rope_dim + latent.latent_dim + latent.query_rank.unwrap_or(0)
            }
        });
        let latents = layers.filter_map(|(local, layer)| Some(local.num_heads * layer.mixer.latent?.latent_dim));
        let (width, latents) = (widths.max().unwrap_or(0), latents.max());
        LayerSlots {
            qkv: self.slot(width, self.options.act, Rows::Tokens),
            feed: self.feed_slots(streams, Rows::Tokens, 0),
            latent: latents.map(|width| LatentSlots {
                queries: self.slot(width, self.options.act, Rows::Tokens),
                sums: self.slot(width, self.options.act, Rows::Tokens),
            }),
        }
    }

    /// For the layers from `first_layer` on.
    pub(super) fn feed_slots(&mut self, [hidden, attended]: [Columns; 2], rows: Rows, first_layer: usize) -> FeedSlots {
        let (model, act) = (self.model, self.options.act);
        let layers = &model.layers[first_layer..];
        let sorted = model.sorted.iter().filter(|(layer, _)| *layer >= first_layer);
        let sorted = sorted.map(|&(layer, input)| Role::weight(layer, Linear::Order(input)).shape(model)[0]);
        self.ordered = sorted.max().map(|width| self.slot(width, act, rows));
        let local = self.local.layers[first_layer..].iter();
        let widths = local
            .zip(layers)
            .map(|(local, layer)| (local.intermediate_size * layer.mlp.choices()).max(local.shared_size));
        let width = widths.max().unwrap_or(0);
        let num_experts = layers.iter().map(|layer| layer.mlp.num_experts()).max().unwrap_or(0);
        let choices = layers.iter().map(|layer| layer.mlp.choices()).max().unwrap_or(0);
        let has_experts = num_experts > 0;
        let is_weighted = |layer: &LayerDescription| layer.mlp.shared().is_some_and(|shared| shared.is_weighted);
        let has_weighted = layers.iter().any(is_weighted);
        FeedSlots {
            hidden,
            attended,
            normed: self.slot(model.hidden_size, act, rows),
            gate_up: self.slot(2 * width, act, rows),
            activated: self.slot(width, act, rows),
            branch: (self.changes_parts() || has_experts).then(|| self.slot(model.hidden_size, act, rows)),
            routed: has_experts.then(|| RoutedSlots {
                logits: self.slot(num_experts, DType::F32, rows),
                experts: self.slot(choices, DType::I32, rows),
                weights: self.slot(choices, DType::F32, rows),
                results: self.slot(choices * model.hidden_size, act, rows),
                shared: has_weighted.then(|| self.slot(model.hidden_size, act, rows)),
            }),
            rows,
            max_rows: match rows {
                Rows::Tokens => self.options.max_tokens,
                Rows::Logits => self.options.max_logits_rows,
            },
        }
    }

    /// Something is done to a part's result before it joins the residual stream.
    pub(super) fn changes_parts(&self) -> bool {
        self.model.norm.placement.is_after() || self.model.residual_scale != 1.0
    }
}

impl FeedSlots {
    /// For gates of `width`: gates and ups together; gates, ups, and what becomes of them. Without gates the first take
    /// their place.
    pub(super) fn of_width(&self, width: u32) -> (Columns, [Columns; 3]) {
        let columns = |slot: Columns, column, width| Columns { column, width, ..slot };
        let [gate, up] = [0, width].map(|column| columns(self.gate_up, column, width));
        let activated = columns(self.activated, 0, width);
        (columns(self.gate_up, 0, 2 * width), [gate, up, activated])
    }
}
