//! The MLP of a layer as ops: dense, or experts chosen by a router (Shazeer et al. 2017, arXiv 1701.06538).

use halyard_platform_api::ops::{GeluKind, GeluMul, MoeCombine, MoeLinear, MoeRoute, SiluMul};
use halyard_platform_api::{DType, OpSpec};

use super::builder::{Builder, Columns, Projection};
use super::layer::FeedSlots;
use super::{CollectiveOp, Rows};
use crate::config::{Activation, DenseMlp, ExpertsMlp, MlpDescription};
use crate::error::Result;
use crate::weights::{Linear, MlpLinear, Norm, Role};

/// Activation memory of MLPs, as wide as the widest needs it.
pub(super) struct MlpSlots {
    /// Gates and behind them ups; of experts, those of every choice.
    gate_up: Columns,
    activated: Columns,
    /// A part's result before it joins the residual stream; sandwich layers and experts only.
    pub branch: Option<Columns>,
    routed: Option<RoutedSlots>,
}

/// What layers with experts need besides.
struct RoutedSlots {
    logits: Columns,
    experts: Columns,
    weights: Columns,
    /// The chosen experts' results.
    results: Columns,
}

impl Builder<'_> {
    /// For the layers from `first_layer` on.
    pub(super) fn mlp_slots(&mut self, rows: Rows, first_layer: usize) -> MlpSlots {
        let (model, act) = (self.model, self.options.act);
        let layers = &model.layers[first_layer..];
        let local = self.local.layers[first_layer..].iter();
        let widths = local
            .zip(layers)
            .map(|(l, layer)| l.intermediate_size * layer.mlp.choices());
        let width = widths.max().unwrap_or(0);
        let num_experts = layers.iter().map(|layer| layer.mlp.num_experts()).max().unwrap_or(0);
        let choices = layers.iter().map(|layer| layer.mlp.choices()).max().unwrap_or(0);
        let has_experts = num_experts > 0;
        MlpSlots {
            gate_up: self.slot(2 * width, act, rows),
            activated: self.slot(width, act, rows),
            branch: (self.is_sandwich() || has_experts).then(|| self.slot(model.hidden_size, act, rows)),
            routed: has_experts.then(|| RoutedSlots {
                logits: self.slot(num_experts, DType::F32, rows),
                experts: self.slot(choices, DType::I32, rows),
                weights: self.slot(choices, DType::F32, rows),
                results: self.slot(choices * model.hidden_size, act, rows),
            }),
        }
    }

    /// Adds the MLP's result to the residual stream.
    pub(super) fn mlp(&mut self, layer: usize, slots: &FeedSlots) -> Result<()> {
        match (self.model.layers[layer].mlp, &slots.mlp.routed, slots.mlp.branch) {
            (MlpDescription::Dense(mlp), ..) => self.dense(layer, mlp, slots),
            (MlpDescription::Experts(mlp), Some(routed), Some(branch)) => {
                self.experts(layer, mlp, slots, routed, branch)?;
                self.join(layer, slots, branch, Norm::PostMlp);
                Ok(())
            }
            (MlpDescription::Experts(_), ..) => unreachable!("slots are made for these layers"),
        }
    }

    fn dense(&mut self, layer: usize, mlp: DenseMlp, slots: &FeedSlots) -> Result<()> {
        let linear = |linear| {
            let linear = Linear::Mlp(linear);
            let bias = mlp.bias.then_some(Role::bias(layer, linear));
            (Role::weight(layer, linear), bias)
        };
        let width = self.local.layers[layer].intermediate_size as u32;
        let (gate_up, [gate, up, activated]) = slots.mlp.of_width(width);
        let input = self.columns(slots.normed);
        self.project(&Projection {
            input,
            parts: &[linear(MlpLinear::Gate), linear(MlpLinear::Up)],
            out: gate_up,
            residual: None,
            out_dtype: self.options.act,
            max_rows: slots.max_rows,
        })?;
        self.activate(mlp.activation, gate, up, activated);
        let down = (Linear::Mlp(MlpLinear::Down), mlp.bias);
        self.output(layer, slots, activated, down, Norm::PostMlp)
    }

    /// Writes the weighted sum of the chosen experts to `branch`.
    fn experts(
        &mut self,
        layer: usize,
        mlp: ExpertsMlp,
        slots: &FeedSlots,
        routed: &RoutedSlots,
        branch: Columns,
    ) -> Result<()> {
        let (hidden, width) = (self.model.hidden_size, self.local.layers[layer].intermediate_size);
        let narrow = |columns: Columns, width: usize| Columns {
            width: width as u32,
            ..columns
        };
        let logits = narrow(routed.logits, mlp.num_experts);
        let input = self.columns(slots.normed);
        self.project(&Projection {
            input,
            parts: &[(Role::weight(layer, Linear::Router), None)],
            out: logits,
            residual: None,
            out_dtype: DType::F32,
            max_rows: slots.max_rows,
        })?;
        let route = MoeRoute {
            num_experts: mlp.num_experts as u32,
            top_k: mlp.top_k as u32,
            scoring: mlp.scoring,
            normalize: mlp.norm_topk,
            factor: 1.0,
        };
        let logits = self.columns(logits);
        let experts = self.columns(narrow(routed.experts, mlp.top_k));
        let weights = self.columns(narrow(routed.weights, mlp.top_k));
        self.push(OpSpec::MoeRoute(route), vec![logits, experts, weights]);

        let (_, [gate, up, activated]) = slots.mlp.of_width((mlp.top_k * width) as u32);
        let results = narrow(routed.results, mlp.top_k * hidden);
        let input = self.heads(slots.normed, 1);
        for (linear, out) in [(MlpLinear::Gate, gate), (MlpLinear::Up, up)] {
            let out = self.heads(out, mlp.top_k);
            self.expert_linear(layer, mlp, linear, [input, experts, out], slots.max_rows)?;
        }
        self.activate(mlp.activation, gate, up, activated);
        let (activated, results) = (self.heads(activated, mlp.top_k), self.heads(results, mlp.top_k));
        self.expert_linear(
            layer,
            mlp,
            MlpLinear::Down,
            [activated, experts, results],
            slots.max_rows,
        )?;
        let combine = MoeCombine {
            width: hidden as u32,
            top_k: mlp.top_k as u32,
            dtype: self.options.act,
        };
        let sum = self.columns(branch);
        self.push(OpSpec::MoeCombine(combine), vec![results, weights, sum]);
        // Each rank has some columns of every expert.
        if !self.options.shard.is_whole() {
            self.collective(CollectiveOp::AllReduce { tensor: sum });
        }
        Ok(())
    }

    /// One linear of every expert as one weight.
    fn expert_linear(
        &mut self,
        layer: usize,
        mlp: ExpertsMlp,
        linear: MlpLinear,
        [x, experts, out]: [u16; 3],
        max_tokens: u32,
    ) -> Result<()> {
        let roles: Vec<Role> = (0..mlp.num_experts as u32)
            .map(|expert| Role::weight(layer, Linear::Expert(expert, linear)))
            .collect();
        let slice = self.local.slice(self.model, roles[0]);
        let spec = MoeLinear {
            in_features: slice.columns,
            out_features: slice.rows,
            num_experts: mlp.num_experts as u32,
            top_k: mlp.top_k as u32,
            weight: self.format(roles[0])?,
            dtype: self.options.act,
            max_tokens,
        };
        let weight = self.matrix(&roles)?;
        self.push(OpSpec::MoeLinear(spec), vec![x, weight, experts, out]);
        Ok(())
    }

    /// out = activation(gate) · up.
    fn activate(&mut self, activation: Activation, gate: Columns, up: Columns, out: Columns) {
        let (width, dtype) = (out.width, self.options.act);
        let spec = match activation {
            Activation::Silu => OpSpec::SiluMul(SiluMul { width, dtype }),
            Activation::GeluTanh => OpSpec::GeluMul(GeluMul {
                width,
                dtype,
                kind: GeluKind::Tanh,
            }),
        };
        let operands = [gate, up, out].map(|columns| self.columns(columns));
        self.push(spec, operands.to_vec());
    }
}

impl MlpSlots {
    /// For gates of `width`: gates and ups together; gates, ups, and what becomes of them.
    fn of_width(&self, width: u32) -> (Columns, [Columns; 3]) {
        let columns = |slot: Columns, column, width| Columns { column, width, ..slot };
        let [gate, up] = [0, width].map(|column| columns(self.gate_up, column, width));
        let activated = columns(self.activated, 0, width);
        (columns(self.gate_up, 0, 2 * width), [gate, up, activated])
    }
}
