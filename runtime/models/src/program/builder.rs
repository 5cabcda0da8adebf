//! Numbers tensors, slots and weights, and appends nodes; the embedding and the head. Layers: [`super::layer`].

use halyard_platform_api::ops::{
    Add, Collective, Copy, Embedding, Epilogue, GatherRows, LayerNorm, Linear, LoraExpand, LoraShrink, RmsNorm, Scale,
    Softcap,
};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::weight_format::Codes;
use halyard_platform_api::{CollectiveKind, DType, Node, OpSpec, Program, TensorDecl, WeightFormat};

use super::shard::{LocalSizes, indivisible};
use super::{
    ActivationSlot, FormatOf, KvLayout, LoraGroup, ModelProgram, ProgramOptions, Rows, TensorRole, WeightPart,
    WeightSpec,
};
use crate::config::{ModelDescription, NormKind};
use crate::error::Result;
use crate::weights::{Linear as LinearOf, Norm, Part, Role};

/// Storage numbers from here up belong to tensors that are no activations; an activation's is its slot.
const FIRST_OTHER_STORAGE: u32 = 1 << 16;

pub(super) struct Builder<'a> {
    pub(super) model: &'a ModelDescription,
    pub(super) options: &'a ProgramOptions,
    /// This rank's sizes.
    pub(super) local: LocalSizes,
    format_of: &'a FormatOf<'a>,
    built: ModelProgram,
    /// What adapters' A make of a linear's input, for their B.
    lowered: Option<Columns>,
    /// An input in the order of its readers' columns.
    pub(super) ordered: Option<Columns>,
}

/// Columns of an activation slot.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub slot: u32,
    pub column: u32,
    pub width: u32,
}

/// A linear's matrices over one input, and where the results go.
pub(super) struct Projection<'r> {
    pub input: u16,
    /// Weights with their biases, in column order of `out`.
    pub parts: &'r [(Role, Option<Role>)],
    /// As wide as the parts have rows together.
    pub out: Columns,
    /// Added to the result: the residual stream.
    pub residual: Option<u16>,
    pub out_dtype: DType,
    pub max_rows: u32,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        model: &'a ModelDescription,
        options: &'a ProgramOptions,
        format_of: &'a FormatOf<'a>,
    ) -> Result<Self> {
        let built = ModelProgram {
            program: Program::default(),
            roles: Vec::new(),
            slots: Vec::new(),
            weights: Vec::new(),
            lora: Vec::new(),
        };
        Ok(Self {
            model,
            options,
            local: LocalSizes::of(model, options.shard, options.expert_parallel)?,
            format_of,
            built,
            lowered: None,
            ordered: None,
        })
    }

    pub(super) fn forward(mut self, kv_layout: &KvLayout) -> Result<ModelProgram> {
        let streams = self.stream_slots(Rows::Tokens);
        let spec = Embedding {
            num_rows: self.model.vocab_size as u32,
            width: self.model.hidden_size as u32,
            weight: self.format(Role::Embedding)?,
            out: self.options.act,
            scale: self.model.embedding_scale_in(self.options.act),
            max_tokens: self.options.max_tokens,
        };
        let ids = self.tensor(TensorRole::TokenIds, DType::I32);
        let table = self.matrix(&[Role::Embedding])?;
        let out = self.columns(streams[0]);
        self.push(OpSpec::Embedding(spec), vec![ids, table, out]);
        let slots = self.layer_slots(streams);
        if self.model.position_embedding {
            self.embed_positions(streams[0], slots.feed.normed)?;
        }
        // Behind all others: the program without adapters has the same slots up to here.
        self.lora_slot();
        let layers = self.model.num_layers();
        for layer in 0..layers {
            self.attention_half(layer, kv_layout, &slots)?;
            if layer + 1 < layers || !self.options.narrow_last_layer {
                self.feed_half(layer, &slots.feed)?;
            }
        }
        Ok(self.seal(&streams))
    }

    /// Adds the embeddings of the tokens' positions to the residual stream.
    fn embed_positions(&mut self, hidden: Columns, room: Columns) -> Result<()> {
        let (width, dtype) = (self.model.hidden_size as u32, self.options.act);
        let spec = Embedding {
            num_rows: self.model.max_position_embeddings as u32,
            width,
            weight: self.format(Role::Positions)?,
            out: dtype,
            scale: 1.0,
            max_tokens: self.options.max_tokens,
        };
        let positions = self.tensor(TensorRole::Positions, DType::I32);
        let table = self.matrix(&[Role::Positions])?;
        let (hidden, embedded) = (self.columns(hidden), self.columns(room));
        self.push(OpSpec::Embedding(spec), vec![positions, table, embedded]);
        self.push(OpSpec::Add(Add { width, dtype }), vec![hidden, embedded, hidden]);
        Ok(())
    }

    /// Declares every activation internal, but for those slots that outlive the program.
    fn seal(mut self, outside: &[Columns]) -> ModelProgram {
        for (role, decl) in self.built.roles.iter().zip(&mut self.built.program.tensors) {
            if let TensorRole::Activation { slot, .. } = role {
                decl.internal = !outside.iter().any(|columns| columns.slot == *slot);
            }
        }
        self.built
    }

    pub(super) fn head(mut self) -> Result<ModelProgram> {
        let streams = self.stream_slots(Rows::Tokens);
        let rows = self.last_hidden(streams)?;
        let shard = self.slot(self.local.vocab, DType::F32, Rows::Logits);
        let mut outside = vec![streams[0], streams[1], shard];
        let input = self.columns(rows);
        self.project(&Projection {
            input,
            parts: &[(Role::LmHead, None)],
            out: shard,
            residual: None,
            out_dtype: DType::F32,
            max_rows: self.options.max_logits_rows,
        })?;
        if self.model.logit_scale != 1.0 {
            let logits = self.columns(shard);
            self.scale(logits, shard.width, DType::F32, self.model.logit_scale);
        }
        if let Some(cap) = self.model.final_logit_softcap {
            let spec = Softcap {
                width: shard.width,
                dtype: DType::F32,
                cap,
            };
            let logits = self.columns(shard);
            self.push(OpSpec::Softcap(spec), vec![logits, logits]);
        }
        if !self.options.shard.is_whole() {
            outside.extend(self.gather_logits(shard));
        }
        Ok(self.seal(&outside))
    }

    pub(super) fn hidden_states(mut self) -> Result<ModelProgram> {
        let streams = self.stream_slots(Rows::Tokens);
        let rows = self.last_hidden(streams)?;
        Ok(self.seal(&[streams[0], streams[1], rows]))
    }

    /// The wanted positions' hidden states behind the last layer and the final norm.
    fn last_hidden(&mut self, streams: [Columns; 2]) -> Result<Columns> {
        let rows = self.gather(streams[0]);
        if self.options.narrow_last_layer {
            let attended = self.gather(streams[1]);
            let last = self.model.num_layers() - 1;
            let slots = self.feed_slots([rows, attended], Rows::Logits, last);
            self.feed_half(last, &slots)?;
        }
        let normed = self.columns(rows);
        self.norm(normed, Role::FinalNorm, normed, self.model.hidden_size);
        Ok(rows)
    }

    /// The rows of a slot that logits are wanted for, in a slot of their own.
    fn gather(&mut self, from: Columns) -> Columns {
        let dtype = self.options.act;
        let to = self.slot(from.width as usize, dtype, Rows::Logits);
        let op = GatherRows {
            width: from.width,
            dtype,
        };
        let index = self.tensor(TensorRole::LogitsIndex, DType::I32);
        let operands = vec![self.columns(from), index, self.columns(to)];
        self.push(OpSpec::GatherRows(op), operands);
        to
    }

    /// All ranks' logits side by side, in the last slot.
    fn gather_logits(&mut self, shard: Columns) -> [Columns; 2] {
        let ranks = self.options.shard.size as usize;
        let gathered = self.slot(ranks * self.local.vocab, DType::F32, Rows::Logits);
        let logits = self.slot(self.model.vocab_size, DType::F32, Rows::Logits);
        let operands = vec![self.columns(shard), self.columns(gathered)];
        self.collective(CollectiveKind::AllGather, DType::F32, operands);
        let starts = self.local.vocab_starts(self.model);
        for (first, count) in runs(&starts, shard.width) {
            let from = TensorRole::Gathered {
                slot: gathered.slot,
                first,
                count,
                width: shard.width,
            };
            let to = TensorRole::RankColumns {
                slot: logits.slot,
                column: starts[first as usize],
                count,
                width: shard.width,
            };
            let operands = vec![self.tensor(from, DType::F32), self.tensor(to, DType::F32)];
            self.push(OpSpec::Copy(Copy { dtype: DType::F32 }), operands);
        }
        [gathered, logits]
    }

    /// The tensor becomes the sum of all ranks' tensors.
    pub(super) fn sum_over_ranks(&mut self, tensor: u16) {
        self.collective(CollectiveKind::AllReduce, self.options.act, vec![tensor, tensor]);
    }

    fn collective(&mut self, kind: CollectiveKind, dtype: DType, operands: Vec<u16>) {
        let spec = Collective {
            kind,
            dtype,
            peer: 0,
            communicator: self.options.communicator,
        };
        self.push(OpSpec::Collective(spec), operands);
    }

    pub(super) fn push(&mut self, spec: OpSpec, operands: Vec<u16>) {
        self.built.program.nodes.push(Node::new(spec, operands));
    }

    /// A new slot, all of its columns.
    pub(super) fn slot(&mut self, width: usize, dtype: DType, rows: Rows) -> Columns {
        let width = width as u32;
        self.built.slots.push(ActivationSlot { width, dtype, rows });
        Columns {
            slot: self.built.slots.len() as u32 - 1,
            column: 0,
            width,
        }
    }

    pub(super) fn columns(&mut self, columns: Columns) -> u16 {
        self.heads(columns, 0)
    }

    /// Columns seen as heads.
    pub(super) fn heads(&mut self, Columns { slot, column, width }: Columns, heads: usize) -> u16 {
        let dtype = self.built.slots[slot as usize].dtype;
        let role = TensorRole::Activation {
            slot,
            column,
            width,
            heads: heads as u32,
        };
        self.tensor(role, dtype)
    }

    /// The tensor with this role, new at its first use. Their number stays far below 2¹⁶: at most about
    /// 20 a layer, and the description's limit is 2048 layers.
    pub(super) fn tensor(&mut self, role: TensorRole, dtype: DType) -> u16 {
        if let Some(index) = self.built.roles.iter().position(|r| *r == role) {
            return index as u16;
        }
        let index = self.built.roles.len();
        let storage = match role {
            TensorRole::Activation { slot, .. }
            | TensorRole::Gathered { slot, .. }
            | TensorRole::RankColumns { slot, .. } => slot,
            _ => FIRST_OTHER_STORAGE + index as u32,
        };
        self.built.roles.push(role);
        let decl = TensorDecl::whole(dtype, false, storage);
        self.built.program.tensors.push(match role {
            TensorRole::Activation { column, width, .. } => TensorDecl {
                first_column: column,
                num_columns: width,
                ..decl
            },
            TensorRole::RankColumns {
                column, count, width, ..
            } => TensorDecl {
                first_column: column,
                num_columns: count * width,
                ..decl
            },
            _ => decl,
        });
        index as u16
    }

    pub(super) fn norm(&mut self, x: u16, role: Role, out: u16, width: usize) {
        let (norm, width, dtype) = (self.model.norm, width as u32, self.options.act);
        let weight = self.vector(&[role]);
        let of_heads = matches!(role, Role::Layer(_, Part::Norm(Norm::Query | Norm::Key)));
        let NormKind::Layer { bias } = norm.kind else {
            return self.rms_norm([x, weight, out], width, norm.weight_offset, norm.eps);
        };
        if of_heads {
            return self.rms_norm([x, weight, out], width, 0.0, norm.eps);
        }
        let bias = match role {
            Role::Layer(layer, Part::Norm(norm)) if bias => self.vector(&[Role::Layer(layer, Part::NormBias(norm))]),
            Role::FinalNorm if bias => self.vector(&[Role::FinalNormBias]),
            _ => ABSENT,
        };
        let spec = LayerNorm {
            width,
            eps: norm.eps,
            dtype,
            num_weights: 0,
        };
        self.push(OpSpec::LayerNorm(spec), vec![x, weight, bias, out]);
    }

    /// The heads of q or k, each by its own weight, in place.
    pub(super) fn norm_of_heads(&mut self, layer: usize, norm: Norm, x: u16) {
        let local = self.local.layers[layer];
        let (first, count, of): (usize, usize, fn(u32) -> Norm) = match norm {
            Norm::Query => (local.first_head, local.num_heads, Norm::QueryHead),
            _ => (local.first_kv_head, local.num_kv_heads, Norm::KeyHead),
        };
        let roles: Vec<Role> = (first..first + count)
            .map(|head| Role::norm(layer, of(head as u32)))
            .collect();
        let spec = LayerNorm {
            width: local.head_dim as u32,
            eps: self.model.norm.eps,
            dtype: self.options.act,
            num_weights: count as u32,
        };
        let weight = self.vectors(&roles, count as u32);
        self.push(OpSpec::LayerNorm(spec), vec![x, weight, ABSENT, x]);
    }

    pub(super) fn rms_norm(&mut self, operands: [u16; 3], width: u32, weight_offset: f32, eps: f32) {
        let spec = RmsNorm {
            width,
            eps,
            weight_offset,
            dtype: self.options.act,
        };
        self.push(OpSpec::RmsNorm(spec), operands.to_vec());
    }

    /// x becomes factor · x.
    pub(super) fn scale(&mut self, x: u16, width: u32, dtype: DType, factor: f32) {
        let spec = Scale { width, dtype, factor };
        self.push(OpSpec::Scale(spec), vec![x, x]);
    }

    /// out = input · Wᵀ for each part, neighbouring parts of one format merged into one matrix.
    pub(super) fn project(&mut self, projection: &Projection) -> Result<()> {
        let in_order = Projection {
            input: self.in_order(projection)?,
            ..*projection
        };
        let mut column = projection.out.column;
        let mut rest = projection.parts;
        while let Some(&(first, _)) = rest.first() {
            let format = self.format(first)?;
            let mut count = 1;
            while count < rest.len() && have_like_rows(self.format(rest[count].0)?, format) {
                count += 1;
            }
            let (merged, others) = rest.split_at(count);
            column += self.linear(&in_order, merged, column)?;
            rest = others;
        }
        self.adapt(projection);
        Ok(())
    }

    /// A projection's input in the order of its matrices' columns.
    fn in_order(&mut self, projection: &Projection) -> Result<u16> {
        let (Some(slot), Some(&(Role::Layer(layer, Part::Weight(linear)), _))) =
            (self.ordered, projection.parts.first())
        else {
            return Ok(projection.input);
        };
        let input = linear
            .input()
            .filter(|&input| self.model.sorted.contains(&(layer, input)));
        let Some(input) = input else {
            return Ok(projection.input);
        };
        let role = Role::weight(layer, LinearOf::Order(input));
        let width = self.local.slice(self.model, role).columns;
        let spec = Linear {
            in_features: width,
            out_features: width,
            weight: self.format(role)?,
            act: self.options.act,
            out: self.options.act,
            epilogue: Epilogue::None,
            max_tokens: projection.max_rows,
            // Values are moved, not rounded.
            allow_quantized_act: false,
        };
        let weight = self.matrix(&[role])?;
        let ordered = self.columns(Columns { width, ..slot });
        let operands = vec![projection.input, weight, ABSENT, ABSENT, ordered];
        self.push(OpSpec::Linear(spec), operands);
        Ok(ordered)
    }

    /// The slot for the outputs of `lora_shrink`, where the program has adapters: as wide as three linears over one
    /// input need.
    pub(super) fn lora_slot(&mut self) {
        if let Some(lora) = self.options.lora {
            self.lowered = Some(self.slot(3 * lora.max_rank as usize, DType::F32, Rows::Tokens));
        }
    }

    /// Adds the adapters' part to a product: one `lora_shrink` and one `lora_expand` for all of its matrices. On
    /// several ranks each adds what its own rows or columns give, as the product itself does.
    fn adapt(&mut self, projection: &Projection) {
        let (Some(lora), Some(lowered)) = (self.options.lora, self.lowered) else {
            return;
        };
        let roles: Vec<Role> = projection.parts.iter().map(|(role, _)| *role).collect();
        let is_target = |role: &Role| matches!(role, Role::Layer(_, Part::Weight(linear)) if lora.targets.has(*linear));
        if !roles.iter().any(is_target) {
            return;
        }
        let parts = self.parts(&roles);
        let starts: Vec<u32> = parts
            .iter()
            .scan(0, |end, part| {
                let start = *end;
                *end += part.rows;
                Some(start)
            })
            .collect();
        let in_features = self.local.slice(self.model, roles[0]).columns;
        let out_features = parts.iter().map(|part| part.rows).sum();
        let group = self.built.lora.len() as u32;
        let width = parts.len() as u32 * lora.max_rank;
        self.built.lora.push(LoraGroup {
            parts,
            in_features,
            out_features,
        });
        let shrink = LoraShrink {
            in_features,
            max_rank: width,
            num_slots: lora.num_slots,
            act: self.options.act,
            weight: lora.dtype,
            max_tokens: projection.max_rows,
        };
        let expand = LoraExpand {
            out_features,
            max_rank: lora.max_rank,
            num_slots: lora.num_slots,
            weight: lora.dtype,
            out: projection.out_dtype,
            max_tokens: projection.max_rows,
            second_part: starts.get(1).copied().unwrap_or(0),
            third_part: starts.get(2).copied().unwrap_or(0),
        };
        let lowered = self.columns(Columns { width, ..lowered });
        let a = self.tensor(TensorRole::LoraA { group }, lora.dtype);
        let b = self.tensor(TensorRole::LoraB { group }, lora.dtype);
        let token_lora = self.tensor(TensorRole::TokenLora, DType::I32);
        let scales = self.tensor(TensorRole::LoraScales, DType::F32);
        let out = self.columns(projection.out);
        self.push(
            OpSpec::LoraShrink(shrink),
            vec![projection.input, a, token_lora, lowered],
        );
        self.push(OpSpec::LoraExpand(expand), vec![lowered, b, scales, token_lora, out]);
    }

    /// A product over columns that the ranks divide: rank 0 adds residual and bias, and the sum of all ranks is the
    /// result.
    pub(super) fn project_sum(&mut self, projection: &Projection) -> Result<()> {
        let shard = self.options.shard;
        if shard.is_first() {
            self.project(projection)?;
        } else {
            let parts: Vec<_> = projection.parts.iter().map(|&(role, _)| (role, None)).collect();
            self.project(&Projection {
                parts: &parts,
                residual: None,
                ..*projection
            })?;
        }
        if !shard.is_whole() {
            let tensor = self.columns(projection.out);
            self.sum_over_ranks(tensor);
        }
        Ok(())
    }

    /// One linear over `merged`, writing from `column` on; returns its width.
    fn linear(&mut self, projection: &Projection, merged: &[(Role, Option<Role>)], column: u32) -> Result<u32> {
        let roles: Vec<Role> = merged.iter().map(|(role, _)| *role).collect();
        let biases: Option<Vec<Role>> = merged.iter().map(|(_, bias)| *bias).collect();
        let width = roles.iter().map(|&role| self.rows(role)).sum();
        let spec = Linear {
            in_features: self.local.slice(self.model, roles[0]).columns,
            out_features: width,
            weight: self.merged_format(&roles)?,
            act: self.options.act,
            out: projection.out_dtype,
            epilogue: Epilogue::None,
            max_tokens: projection.max_rows,
            allow_quantized_act: self.options.allow_quantized_act,
        };
        let weight = self.matrix(&roles)?;
        let bias = biases.map_or(ABSENT, |biases| self.vector(&biases));
        let out = self.columns(Columns {
            column,
            width,
            ..projection.out
        });
        let residual = projection.residual.unwrap_or(ABSENT);
        self.push(
            OpSpec::Linear(spec),
            vec![projection.input, weight, bias, residual, out],
        );
        Ok(width)
    }

    /// The format of this rank's part of a weight: as it is handed out, or in narrower groups where the ranks cut its
    /// columns inside of a group. Where 8-bit floats have no groups that narrow, their values in f32; where the part is
    /// no whole number of square blocks, or begins inside of one, groups of each row.
    pub(super) fn format(&self, role: Role) -> Result<WeightFormat> {
        let slice = self.local.slice(self.model, role);
        let has_whole_blocks = [slice.first_row, slice.rows].iter().all(|n| n.is_multiple_of(128));
        let format = match (self.format_of)(role)? {
            WeightFormat::F8B128 if !has_whole_blocks => WeightFormat::F8G128,
            format => format,
        };
        let columns = slice.columns as usize;
        if columns.is_multiple_of(format.block_values()) {
            return Ok(format);
        }
        let wide = match format.layout().codes {
            Codes::E4m3 if format.layout().group > 0 => WeightFormat::F32,
            _ => format,
        };
        Ok(format.narrowed(columns).unwrap_or(wide))
    }

    /// The format of weights that are one matrix. Square blocks are the matrix's where they are every weight's.
    fn merged_format(&self, roles: &[Role]) -> Result<WeightFormat> {
        let first = self.format(roles[0])?;
        if first == WeightFormat::F8B128 {
            for &role in roles {
                if self.format(role)? != first {
                    return Ok(WeightFormat::F8G128);
                }
            }
        }
        Ok(first)
    }

    /// A packed matrix, for the node that is pushed next.
    pub(super) fn matrix(&mut self, roles: &[Role]) -> Result<u16> {
        let format = self.merged_format(roles)?;
        let slice = self.local.slice(self.model, roles[0]);
        // Every rank's first column is a multiple of its columns.
        let block = format.block_values();
        if !(slice.columns as usize).is_multiple_of(block) {
            let limit = format!("columns of {format:?} are cut between blocks of {block}");
            let quantity = "the columns of a weight that each rank holds";
            return Err(indivisible(quantity, slice.columns as usize, self.options.shard, limit));
        }
        let spec = WeightSpec::Matrix {
            node: self.built.program.nodes.len() as u32,
            format,
            in_features: slice.columns,
            parts: self.parts(roles),
        };
        Ok(self.weight(spec, DType::U8))
    }

    pub(super) fn vector(&mut self, roles: &[Role]) -> u16 {
        self.vectors(roles, 1)
    }

    /// `rows` vectors of equally many values, one behind the other.
    pub(super) fn vectors(&mut self, roles: &[Role], rows: u32) -> u16 {
        let parts = self.parts(roles);
        self.weight(WeightSpec::Vector { parts, rows }, DType::F32)
    }

    fn weight(&mut self, spec: WeightSpec, dtype: DType) -> u16 {
        self.built.weights.push(spec);
        let index = self.built.weights.len() as u32 - 1;
        self.tensor(TensorRole::Weight { index }, dtype)
    }

    fn parts(&self, roles: &[Role]) -> Vec<WeightPart> {
        let part = |&role: &Role| {
            let slice = self.local.slice(self.model, role);
            WeightPart {
                role,
                first_row: slice.first_row,
                rows: slice.rows,
                first_column: slice.first_column,
            }
        };
        roles.iter().map(part).collect()
    }

    pub(super) fn rows(&self, role: Role) -> u32 {
        self.local.slice(self.model, role).rows
    }
}

/// Whether rows of two formats may lie in one matrix.
fn have_like_rows(a: WeightFormat, b: WeightFormat) -> bool {
    let groups = |format| match format {
        WeightFormat::F8B128 => WeightFormat::F8G128,
        format => format,
    };
    groups(a) == groups(b)
}

/// Neighbouring ranks whose columns stand side by side, as (first rank, number of ranks).
fn runs(starts: &[u32], width: u32) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (rank, &start) in starts.iter().enumerate() {
        match runs.last_mut() {
            Some((_, count)) if start == starts[rank - 1] + width => *count += 1,
            _ => runs.push((rank as u32, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_copied_together() {
        assert_eq!(runs(&[0, 4, 8, 12], 4), [(0, 4)]);
        assert_eq!(runs(&[0, 288, 274], 288), [(0, 2), (2, 1)]);
        assert_eq!(runs(&[0, 0, 0], 10), [(0, 1), (1, 1), (2, 1)]);
    }
}
