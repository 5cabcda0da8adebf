//! The MLP of a layer as ops: dense, or experts chosen by a router (Shazeer et al. 2017, arXiv 1701.06538).

use halyard_platform_api::ops::{
    Add, Gelu, GeluKind, GeluMul, MoeCombine, MoeLinear, MoeRoute, ReluSquared, Scoring, SiluMul,
};
use halyard_platform_api::{DType, OpSpec};

use super::builder::{Builder, Columns, Projection};
use super::slots::{FeedSlots, RoutedSlots};
use crate::config::{Activation, DenseMlp, ExpertsMlp, MlpDescription, SharedExpert};
use crate::error::Result;
use crate::weights::{Linear, MlpLinear, Norm, Part, Role};

impl Builder<'_> {
    /// Adds the MLP's result to the residual stream.
    pub(super) fn mlp(&mut self, layer: usize, slots: &FeedSlots) -> Result<()> {
        match (self.model.layers[layer].mlp, &slots.routed, slots.branch) {
            (MlpDescription::Dense(mlp), ..) => self.dense(layer, mlp, slots),
            (MlpDescription::Experts(mlp), Some(routed), Some(branch)) => {
                self.experts(layer, mlp, slots, routed, branch)?;
                // Each rank has some columns of every expert, or some of the experts.
                if !self.options.shard.is_whole() {
                    let sum = self.columns(branch);
                    self.sum_over_ranks(sum);
                }
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
        let (gate_up, [gate, up, activated]) = slots.of_width(width);
        let input = self.mlp_input(slots);
        let input = self.columns(input);
        let parts = [linear(MlpLinear::Gate), linear(MlpLinear::Up)];
        self.project(&Projection {
            input,
            parts: if mlp.is_gated { &parts } else { &parts[1..] },
            out: if mlp.is_gated { gate_up } else { gate },
            residual: None,
            out_dtype: self.options.act,
            max_rows: slots.max_rows,
        })?;
        match mlp.is_gated {
            true => self.activate(mlp.activation, gate, up, activated),
            false => self.activate_alone(mlp.activation, gate, activated),
        }
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
        let input = self.mlp_input(slots);
        let (x, input) = (input, self.columns(input));
        self.project(&Projection {
            input,
            parts: &[(
                Role::weight(layer, Linear::Router),
                mlp.bias.then_some(Role::bias(layer, Linear::Router)),
            )],
            out: logits,
            residual: None,
            out_dtype: DType::F32,
            max_rows: slots.max_rows,
        })?;
        let groups = mlp
            .groups
            .map_or([0; 3], |groups| [groups.num_groups, groups.top_groups, groups.best]);
        let [num_groups, top_groups, group_best] = groups.map(|number| number as u32);
        let route = MoeRoute {
            num_experts: mlp.num_experts as u32,
            top_k: mlp.top_k as u32,
            scoring: mlp.scoring,
            normalize: mlp.norm_topk,
            factor: mlp.factor,
            num_groups,
            top_groups,
            group_best,
        };
        let logits = self.columns(logits);
        let experts = self.columns(narrow(routed.experts, mlp.top_k));
        let weights = self.columns(narrow(routed.weights, mlp.top_k));
        let mut operands = vec![logits, experts, weights];
        if mlp.choice_bias {
            operands.push(self.vector(&[Role::Layer(layer, Part::ChoiceBias)]));
        }
        self.push(OpSpec::MoeRoute(route), operands);

        let (_, [gate, up, activated]) = slots.of_width((mlp.top_k * width) as u32);
        let results = narrow(routed.results, mlp.top_k * hidden);
        let input = self.heads(x, 1);
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
        match mlp.shared {
            Some(shared) => self.shared_expert(layer, shared, mlp.activation, slots, routed, branch),
            None => Ok(()),
        }
    }

    /// Adds the result of the expert that every token takes to `sum`.
    fn shared_expert(
        &mut self,
        layer: usize,
        shared: SharedExpert,
        activation: Activation,
        slots: &FeedSlots,
        routed: &RoutedSlots,
        sum: Columns,
    ) -> Result<()> {
        let linear = |linear| (Role::weight(layer, Linear::Shared(linear)), None);
        let (gate_up, [gate, up, activated]) = slots.of_width(self.local.layers[layer].shared_size as u32);
        let input = self.mlp_input(slots);
        let input = self.columns(input);
        self.project(&Projection {
            input,
            parts: &[linear(MlpLinear::Gate), linear(MlpLinear::Up)],
            out: gate_up,
            residual: None,
            out_dtype: self.options.act,
            max_rows: slots.max_rows,
        })?;
        self.activate(activation, gate, up, activated);
        let own = routed.shared.filter(|_| shared.is_weighted);
        let (activated, total) = (self.columns(activated), self.columns(sum));
        self.project(&Projection {
            input: activated,
            parts: &[linear(MlpLinear::Down)],
            out: own.unwrap_or(sum),
            residual: if own.is_some() { None } else { Some(total) },
            out_dtype: self.options.act,
            max_rows: slots.max_rows,
        })?;
        match own {
            Some(own) => self.weigh_shared(layer, slots, routed, own, sum),
            None => Ok(()),
        }
    }

    /// Adds `own` to `sum`, multiplied by the sigmoid of its linear: the routing of one expert among one.
    fn weigh_shared(
        &mut self,
        layer: usize,
        slots: &FeedSlots,
        routed: &RoutedSlots,
        own: Columns,
        sum: Columns,
    ) -> Result<()> {
        let one = |columns: Columns| Columns { width: 1, ..columns };
        let input = self.mlp_input(slots);
        let input = self.columns(input);
        self.project(&Projection {
            input,
            parts: &[(Role::weight(layer, Linear::SharedWeight), None)],
            out: one(routed.logits),
            residual: None,
            out_dtype: DType::F32,
            max_rows: slots.max_rows,
        })?;
        let route = MoeRoute {
            num_experts: 1,
            top_k: 1,
            scoring: Scoring::Sigmoid,
            normalize: false,
            factor: 1.0,
            num_groups: 0,
            top_groups: 0,
            group_best: 0,
        };
        let [logits, expert, weight] =
            [routed.logits, routed.experts, routed.weights].map(|columns| self.columns(one(columns)));
        self.push(OpSpec::MoeRoute(route), vec![logits, expert, weight]);
        let (width, dtype) = (own.width, self.options.act);
        let combine = MoeCombine { width, top_k: 1, dtype };
        // Nothing reads the MLP's input any more.
        let (own, weighed) = (self.heads(own, 1), self.columns(slots.normed));
        self.push(OpSpec::MoeCombine(combine), vec![own, weight, weighed]);
        let sum = self.columns(sum);
        self.push(OpSpec::Add(Add { width, dtype }), vec![sum, weighed, sum]);
        Ok(())
    }

    /// One linear of every expert that is here as one weight.
    fn expert_linear(
        &mut self,
        layer: usize,
        mlp: ExpertsMlp,
        linear: MlpLinear,
        [x, experts, out]: [u16; 3],
        max_tokens: u32,
    ) -> Result<()> {
        let local = self.local.layers[layer];
        let (first, count) = (local.first_expert as u32, local.num_experts as u32);
        let roles: Vec<Role> = (first..first + count)
            .map(|expert| Role::weight(layer, Linear::Expert(expert, linear)))
            .collect();
        let is_divided = !self.options.expert_parallel && !self.options.shard.is_whole();
        let slice = self.local.slice(self.model, roles[0]);
        let spec = MoeLinear {
            in_features: slice.columns,
            out_features: slice.rows,
            num_experts: count,
            top_k: mlp.top_k as u32,
            weight: self.format(roles[0])?,
            dtype: self.options.act,
            max_tokens,
            first_expert: first,
            total_experts: if local.num_experts < mlp.num_experts {
                mlp.num_experts as u32
            } else {
                0
            },
            allow_quantized_act: self.options.allow_quantized_act,
        };
        let mut operands = vec![x, self.matrix(&roles)?, experts, out];
        // The ranks' parts of down's results are summed: where each has a part of every expert, one adds the bias.
        if mlp.bias && (linear != MlpLinear::Down || !is_divided || self.options.shard.is_first()) {
            let biases = (first..first + count).map(|expert| Role::bias(layer, Linear::Expert(expert, linear)));
            operands.push(self.vectors(&biases.collect::<Vec<_>>(), count));
        }
        self.push(OpSpec::MoeLinear(spec), operands);
        Ok(())
    }

    /// out = activation(gate) · up; a description's check has refused squared relus.
    fn activate(&mut self, activation: Activation, gate: Columns, up: Columns, out: Columns) {
        let (width, dtype) = (out.width, self.options.act);
        let spec = match activation {
            Activation::BoundedSilu {
                limit,
                alpha,
                up_offset,
            } => OpSpec::SiluMul(SiluMul {
                limit,
                alpha,
                up_offset,
                ..SiluMul::plain(width, dtype)
            }),
            Activation::GeluTanh | Activation::GeluErf => OpSpec::GeluMul(GeluMul {
                width,
                dtype,
                kind: gelu_kind(activation),
            }),
            Activation::Silu | Activation::ReluSquared => OpSpec::SiluMul(SiluMul::plain(width, dtype)),
        };
        let operands = [gate, up, out].map(|columns| self.columns(columns));
        self.push(spec, operands.to_vec());
    }

    /// out = activation(x); a description's check has refused silus.
    fn activate_alone(&mut self, activation: Activation, x: Columns, out: Columns) {
        let (width, dtype) = (out.width, self.options.act);
        let spec = match activation {
            Activation::ReluSquared => OpSpec::ReluSquared(ReluSquared { width, dtype }),
            _ => OpSpec::Gelu(Gelu {
                width,
                dtype,
                kind: gelu_kind(activation),
            }),
        };
        let operands = [x, out].map(|columns| self.columns(columns));
        self.push(spec, operands.to_vec());
    }
}

fn gelu_kind(activation: Activation) -> GeluKind {
    match activation {
        Activation::GeluErf => GeluKind::Erf,
        _ => GeluKind::Tanh,
    }
}
