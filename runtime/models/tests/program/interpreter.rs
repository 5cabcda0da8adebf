//! A small interpreter of programs in plain f32, which knows the ops from their documentation only.

use std::collections::HashMap;

use halyard_models::program::{
    KvLayout, ModelProgram, ProgramOptions, Shard, TensorRole, WeightSpec, build_forward, build_head,
};
use halyard_models::quant::dequantize;
use halyard_models::{ModelFiles, Role};
use halyard_platform_api::ops::{GeluKind, LatentAttention, MoeRoute, RopeStyle, Scoring};
use halyard_platform_api::program::ABSENT;
use halyard_platform_api::{CollectiveKind, OpSpec};

use super::{Over, options};

/// A model's weights as f32, by index in each program.
pub struct Interpreter<'a> {
    files: &'a ModelFiles,
    ids: Vec<usize>,
    slots: Vec<Vec<f32>>,
    weights: Vec<Vec<f32>>,
    cache: HashMap<u32, (Vec<f32>, Vec<f32>)>,
}

/// Rows of columns of a slot.
#[derive(Clone, Copy)]
struct View {
    slot: usize,
    stride: usize,
    column: usize,
    width: usize,
}

impl<'a> Interpreter<'a> {
    /// Logits at every position, as `size` ranks compute them together. All of them must come to the same ones.
    pub fn logits(files: &'a ModelFiles, ids: &[usize], over: Over, narrow: bool) -> Vec<Vec<f32>> {
        let format_of = |role: Role| files.weights.format(role);
        let layout = KvLayout::of(&files.description);
        let size = over.ranks;
        let options: Vec<_> = (0..size)
            .map(|rank| ProgramOptions {
                expert_parallel: over.experts,
                ..options(ids.len(), Shard { rank, size }, narrow)
            })
            .collect();
        let forward = |o| build_forward(&files.description, &layout, o, &format_of).unwrap();
        let head = |o| build_head(&files.description, o, &format_of).unwrap();
        let new = |_| Self {
            files,
            ids: ids.to_vec(),
            slots: Vec::new(),
            weights: Vec::new(),
            cache: HashMap::new(),
        };
        let mut ranks: Vec<Self> = options.iter().map(new).collect();
        run(&mut ranks, &options.iter().map(forward).collect::<Vec<_>>());
        run(&mut ranks, &options.iter().map(head).collect::<Vec<_>>());
        let logits: Vec<Vec<f32>> = ranks
            .into_iter()
            .filter_map(|rank| rank.slots.last().cloned())
            .collect();
        assert!(logits.iter().all(|of_rank| *of_rank == logits[0]), "ranks differ");
        let vocab = files.description.vocab_size;
        logits[0].chunks_exact(vocab).map(<[f32]>::to_vec).collect()
    }

    fn begin(&mut self, program: &ModelProgram) {
        // Every slot starts as NaN: reading what no op wrote shows. Slots 0 and 1 are the other program's.
        let rows = self.ids.len();
        let others: Vec<_> = self.slots.drain(..).take(2).collect();
        self.slots = program
            .slots
            .iter()
            .map(|s| vec![f32::NAN; rows * s.width as usize])
            .collect();
        for (slot, other) in self.slots.iter_mut().zip(others) {
            *slot = other;
        }
        self.weights = program.weights.iter().map(|spec| self.load(spec)).collect();
    }

    fn load(&self, spec: &WeightSpec) -> Vec<f32> {
        let parts = match spec {
            WeightSpec::Matrix { parts, .. } | WeightSpec::Vector { parts, .. } => parts,
        };
        let values = parts.iter().flat_map(|part| {
            let tensor = self.files.weights.tensor(part.role).unwrap();
            let rows = part.first_row as usize..(part.first_row + part.rows) as usize;
            let WeightSpec::Matrix {
                in_features, format, ..
            } = spec
            else {
                return tensor.to_f32().unwrap()[rows].to_vec();
            };
            let columns = part.first_column as usize..(part.first_column + in_features) as usize;
            let tensor = tensor.in_format(*format).unwrap();
            let mut values = vec![0.0; rows.len() * columns.len()];
            dequantize(tensor.format, &tensor.submatrix(rows, columns), &mut values).unwrap();
            values
        });
        values.collect()
    }

    fn view(program: &ModelProgram, tensor: u16) -> View {
        // A gathering slot has its ranks side by side here.
        let (slot, column, width) = match program.roles[usize::from(tensor)] {
            TensorRole::Activation {
                slot, column, width, ..
            } => (slot, column, width),
            TensorRole::Gathered {
                slot,
                first,
                count,
                width,
            } => (slot, first * width, count * width),
            TensorRole::RankColumns {
                slot,
                column,
                count,
                width,
            } => (slot, column, count * width),
            _ => panic!("tensor {tensor} is no activation"),
        };
        let stride = program.slots[slot as usize].width as usize;
        View {
            slot: slot as usize,
            stride,
            column: column as usize,
            width: width as usize,
        }
    }

    fn row(&self, view: View, row: usize) -> Vec<f32> {
        let start = row * view.stride + view.column;
        self.slots[view.slot][start..start + view.width].to_vec()
    }

    fn set_row(&mut self, view: View, row: usize, values: &[f32]) {
        assert_eq!(values.len(), view.width);
        let start = row * view.stride + view.column;
        self.slots[view.slot][start..start + view.width].copy_from_slice(values);
    }

    fn weight(&self, program: &ModelProgram, tensor: u16) -> &[f32] {
        let TensorRole::Weight { index } = program.roles[usize::from(tensor)] else {
            panic!("tensor {tensor} is no weight");
        };
        &self.weights[index as usize]
    }

    fn map_rows(&mut self, from: View, to: View, f: impl Fn(&[f32], usize) -> Vec<f32>) {
        for row in 0..self.ids.len() {
            let out = f(&self.row(from, row), row);
            self.set_row(to, row, &out);
        }
    }

    fn node(&mut self, program: &ModelProgram, spec: &OpSpec, operands: &[u16]) {
        let view = |i: usize| Self::view(program, operands[i]);
        match spec {
            OpSpec::Embedding(op) => {
                let width = op.width as usize;
                let table = self.weight(program, operands[1]).to_vec();
                let of_positions = program.roles[usize::from(operands[0])] == TensorRole::Positions;
                for (row, id) in self.ids.clone().into_iter().enumerate() {
                    let id = if of_positions { row } else { id };
                    let values: Vec<f32> = table[id * width..][..width].iter().map(|v| v * op.scale).collect();
                    self.set_row(view(2), row, &values);
                }
            }
            OpSpec::LayerNorm(op) => {
                let weight = self.weight(program, operands[1]).to_vec();
                let bias = match operands[2] {
                    ABSENT => vec![0.0; weight.len()],
                    bias => self.weight(program, bias).to_vec(),
                };
                // As many weights as heads, or one.
                let norm = |x: &[f32], weight: &[f32], bias: &[f32]| -> Vec<f32> {
                    let mean = x.iter().sum::<f32>() / x.len() as f32;
                    let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / x.len() as f32;
                    let factors = weight.iter().map(|w| w / (variance + op.eps).sqrt());
                    let values = x.iter().zip(factors).zip(bias);
                    values.map(|((v, factor), bias)| (v - mean) * factor + bias).collect()
                };
                let width = op.width as usize;
                assert_eq!(weight.len(), width * op.num_weights.max(1) as usize);
                self.map_rows(view(0), view(3), |x, _| {
                    let own = weight.chunks_exact(width).zip(bias.chunks_exact(width));
                    let heads = x.chunks_exact(width).zip(own);
                    heads.flat_map(|(x, (weight, bias))| norm(x, weight, bias)).collect()
                });
            }
            OpSpec::Scale(op) => self.map_rows(view(0), view(1), |x, _| x.iter().map(|v| v * op.factor).collect()),
            OpSpec::Gelu(op) => {
                let f = gelu(op.kind);
                self.map_rows(view(0), view(1), |x, _| x.iter().map(|&v| f(v)).collect());
            }
            OpSpec::RmsNorm(op) => {
                let weight = self.weight(program, operands[1]).to_vec();
                let norm = |x: &[f32]| {
                    let mean = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
                    let scale = 1.0 / (mean + op.eps).sqrt();
                    x.iter()
                        .zip(&weight)
                        .map(|(v, w)| v * scale * (w + op.weight_offset))
                        .collect::<Vec<_>>()
                };
                self.map_rows(view(0), view(2), |x, _| {
                    x.chunks_exact(op.width as usize).flat_map(norm).collect()
                });
            }
            OpSpec::Linear(op) => {
                let k = op.in_features as usize;
                let weight = self.weight(program, operands[1]).to_vec();
                let bias = (operands[2] != ABSENT).then(|| self.weight(program, operands[2]).to_vec());
                for row in 0..self.ids.len() {
                    let x = self.row(view(0), row);
                    let mut y: Vec<f32> = weight.chunks_exact(k).map(|w| dot(w, &x)).collect();
                    assert_eq!(y.len(), op.out_features as usize);
                    if let Some(bias) = &bias {
                        y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                    }
                    if operands[3] != ABSENT {
                        let residual = self.row(view(3), row);
                        y.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
                    }
                    self.set_row(view(4), row, &y);
                }
            }
            OpSpec::Rope(op) => {
                let TensorRole::RopeTable { index } = program.roles[usize::from(operands[1])] else {
                    panic!("no rope table");
                };
                let table = self.files.description.ropes[index as usize].table(self.ids.len());
                let (dim, half) = (op.rotary_dim as usize, op.rotary_dim as usize / 2);
                self.map_rows(view(2), view(2), |x, position| {
                    let mut x = x.to_vec();
                    for head in x.chunks_exact_mut(op.head_dim as usize) {
                        for i in 0..half {
                            let (a, b) = if op.style == RopeStyle::Neox {
                                (i, i + half)
                            } else {
                                (2 * i, 2 * i + 1)
                            };
                            let (cos, sin) = (table[position * dim + i], table[position * dim + half + i]);
                            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
                        }
                    }
                    x
                });
            }
            OpSpec::KvWrite(_) => {
                let TensorRole::KvCache { layer } = program.roles[usize::from(operands[3])] else {
                    panic!("no cache");
                };
                let rows = |view: View| {
                    (0..self.ids.len())
                        .flat_map(|row| self.row(view, row))
                        .collect::<Vec<_>>()
                };
                let stored = (rows(view(0)), rows(view(1)));
                assert!(self.cache.insert(layer, stored).is_none(), "layer {layer} stored twice");
            }
            OpSpec::Attention(op) => self.attention(program, op, operands),
            OpSpec::HeadLinear(op) => {
                let (k, n) = (op.in_features as usize, op.out_features as usize);
                let weight = self.weight(program, operands[1]).to_vec();
                self.map_rows(view(0), view(2), |x, _| {
                    let heads = x.chunks_exact(k).zip(weight.chunks_exact(n * k));
                    heads
                        .flat_map(|(x, w)| w.chunks_exact(k).map(|w| dot(w, x)).collect::<Vec<_>>())
                        .collect()
                });
            }
            OpSpec::LatentWrite(_) => {
                let TensorRole::KvCache { layer } = program.roles[usize::from(operands[3])] else {
                    panic!("no cache");
                };
                let rows = |view: View| {
                    (0..self.ids.len())
                        .flat_map(|row| self.row(view, row))
                        .collect::<Vec<_>>()
                };
                let stored = (rows(view(0)), rows(view(1)));
                assert!(self.cache.insert(layer, stored).is_none(), "layer {layer} stored twice");
            }
            OpSpec::LatentAttention(op) => self.latent_attention(program, op, operands),
            OpSpec::SiluMul(op) => {
                let limit = if op.limit == 0.0 { f32::INFINITY } else { op.limit };
                let alpha = if op.alpha == 0.0 { 1.0 } else { op.alpha };
                self.gate(view(0), view(1), view(2), |gate, up| {
                    let gate = gate.min(limit);
                    gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + op.up_offset)
                });
            }
            OpSpec::GeluMul(op) => {
                let f = gelu(op.kind);
                self.gate(view(0), view(1), view(2), |gate, up| f(gate) * up);
            }
            OpSpec::ReluSquared(_) => self.map_rows(view(0), view(1), |x, _| {
                x.iter().map(|v| v.max(0.0) * v.max(0.0)).collect()
            }),
            OpSpec::Add(_) => {
                for row in 0..self.ids.len() {
                    let (a, b) = (self.row(view(0), row), self.row(view(1), row));
                    let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
                    self.set_row(view(2), row, &sum);
                }
            }
            OpSpec::MoeRoute(op) => {
                let bias = match operands[3] {
                    ABSENT => vec![0.0; op.num_experts as usize],
                    bias => self.weight(program, bias).to_vec(),
                };
                self.route(op, &bias, view(0), view(1), view(2));
            }
            OpSpec::MoeLinear(op) => {
                let (k, n) = (op.in_features as usize, op.out_features as usize);
                let weight = self.weight(program, operands[1]).to_vec();
                assert_eq!(weight.len(), op.num_experts as usize * n * k);
                let bias = match operands[4] {
                    ABSENT => vec![0.0; op.num_experts as usize * n],
                    bias => self.weight(program, bias).to_vec(),
                };
                for row in 0..self.ids.len() {
                    let x = self.row(view(0), row);
                    let mut y = Vec::new();
                    for (choice, expert) in self.row(view(2), row).into_iter().enumerate() {
                        let expert = expert as u32;
                        assert!(expert < op.total_experts.max(op.num_experts), "expert {expert}");
                        let here = op.first_expert..op.first_expert + op.num_experts;
                        if !here.contains(&expert) {
                            y.extend(vec![0.0; n]);
                            continue;
                        }
                        let expert = expert - op.first_expert;
                        let x = &x[if x.len() == k { 0 } else { choice * k }..][..k];
                        let rows = weight[expert as usize * n * k..].chunks_exact(k).take(n);
                        let bias = &bias[expert as usize * n..][..n];
                        y.extend(rows.zip(bias).map(|(w, bias)| dot(w, x) + bias));
                    }
                    self.set_row(view(3), row, &y);
                }
            }
            OpSpec::MoeCombine(op) => {
                let width = op.width as usize;
                for row in 0..self.ids.len() {
                    let (x, weights) = (self.row(view(0), row), self.row(view(1), row));
                    let mut sum = vec![0.0; width];
                    for (x, weight) in x.chunks_exact(width).zip(weights) {
                        sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += weight * x);
                    }
                    self.set_row(view(2), row, &sum);
                }
            }
            OpSpec::Copy(_) => self.map_rows(view(0), view(1), |x, _| x.to_vec()),
            // Logits are asked for at every position here.
            OpSpec::GatherRows(_) => self.map_rows(view(0), view(2), |x, _| x.to_vec()),
            OpSpec::Softcap(op) => {
                self.map_rows(view(0), view(1), |x, _| {
                    x.iter().map(|v| op.cap * (v / op.cap).tanh()).collect()
                });
            }
            other => panic!("the programs do not use {}", other.name()),
        }
    }

    /// Experts are numbers in slots of f32 here.
    fn route(&mut self, op: &MoeRoute, bias: &[f32], logits: View, experts: View, weights: View) {
        for row in 0..self.ids.len() {
            let logits = self.row(logits, row);
            let score = |logit: &f32| match op.scoring {
                Scoring::Softmax => logit.exp(),
                Scoring::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
            };
            let powers: Vec<f32> = logits.iter().map(score).collect();
            let total: f32 = match op.scoring {
                Scoring::Softmax => powers.iter().sum(),
                Scoring::Sigmoid => 1.0,
            };
            let choice: Vec<f32> = powers.iter().zip(bias).map(|(p, bias)| p / total + bias).collect();
            let mut order: Vec<usize> = (0..choice.len()).collect();
            order.sort_by(|&a, &b| choice[b].total_cmp(&choice[a]));
            if op.num_groups > 0 {
                let group = |e: usize| e / (op.num_experts / op.num_groups) as usize;
                // In descending order, so the first ones of a group are its best.
                let value = |g: usize| {
                    let best = order.iter().filter(|&&e| group(e) == g).take(op.group_best as usize);
                    best.map(|&e| choice[e]).sum::<f32>()
                };
                let mut groups: Vec<usize> = (0..op.num_groups as usize).collect();
                groups.sort_by(|&a, &b| value(b).total_cmp(&value(a)));
                let taken = &groups[..op.top_groups as usize];
                order.retain(|&e| taken.contains(&group(e)));
            }
            order.truncate(op.top_k as usize);
            let chosen: f32 = order.iter().map(|&e| powers[e]).sum();
            let divisor = if op.normalize { chosen } else { total };
            self.set_row(experts, row, &order.iter().map(|&e| e as f32).collect::<Vec<_>>());
            self.set_row(
                weights,
                row,
                &order
                    .iter()
                    .map(|&e| op.factor * powers[e] / divisor)
                    .collect::<Vec<_>>(),
            );
        }
    }

    fn gate(&mut self, gate: View, up: View, out: View, f: impl Fn(f32, f32) -> f32) {
        for row in 0..self.ids.len() {
            let (gate, up) = (self.row(gate, row), self.row(up, row));
            let product: Vec<f32> = gate.iter().zip(&up).map(|(&g, &u)| f(g, u)).collect();
            self.set_row(out, row, &product);
        }
    }

    fn latent_attention(&mut self, program: &ModelProgram, op: &LatentAttention, operands: &[u16]) {
        let TensorRole::KvCache { layer } = program.roles[usize::from(operands[2])] else {
            panic!("no cache");
        };
        let (latents, keys) = self.cache[&layer].clone();
        let [q_latent, q_rope, out] = [0, 1, 7].map(|i| Self::view(program, operands[i]));
        let (dim, rope) = (op.latent_dim as usize, op.rope_dim as usize);
        for position in 0..self.ids.len() {
            let (q_latent, q_rope) = (self.row(q_latent, position), self.row(q_rope, position));
            let mut result = Vec::new();
            for (q_latent, q_rope) in q_latent.chunks_exact(dim).zip(q_rope.chunks_exact(rope)) {
                let score = |j: usize| {
                    op.scale * (dot(q_latent, &latents[j * dim..][..dim]) + dot(q_rope, &keys[j * rope..][..rope]))
                };
                let scores: Vec<f32> = (0..=position).map(score).collect();
                let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f32> = scores.iter().map(|s| (s - most).exp()).collect();
                let total: f32 = weights.iter().sum();
                result.extend((0..dim).map(|d| {
                    let terms = weights.iter().enumerate().map(|(j, w)| w * latents[j * dim + d]);
                    terms.sum::<f32>() / total
                }));
            }
            self.set_row(out, position, &result);
        }
    }

    fn attention(&mut self, program: &ModelProgram, op: &halyard_platform_api::ops::Attention, operands: &[u16]) {
        let TensorRole::KvCache { layer } = program.roles[usize::from(operands[1])] else {
            panic!("no cache");
        };
        let (keys, values) = self.cache[&layer].clone();
        let (q, out) = (Self::view(program, operands[0]), Self::view(program, operands[7]));
        let (dim, kv_width) = (op.head_dim as usize, (op.num_kv_heads * op.head_dim) as usize);
        let per_kv_head = (op.num_heads / op.num_kv_heads) as usize;
        assert_eq!(op.has_sinks, operands[6] != ABSENT);
        let sinks = op.has_sinks.then(|| self.weight(program, operands[6]).to_vec());
        self.map_rows(q, out, |q, position| {
            let first = if op.window == 0 {
                0
            } else {
                (position + 1).saturating_sub(op.window as usize)
            };
            let mut result = Vec::with_capacity(q.len());
            for (head, q) in q.chunks_exact(dim).enumerate() {
                let at = |j: usize| j * kv_width + head / per_kv_head * dim;
                let score = |j: usize| {
                    let dot = dot(q, &keys[at(j)..]);
                    let score = dot * op.scale;
                    if op.softcap == 0.0 {
                        score
                    } else {
                        op.softcap * (score / op.softcap).tanh()
                    }
                };
                let scores: Vec<f32> = (first..=position).map(score).collect();
                let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f32> = scores.iter().map(|s| (s - most).exp()).collect();
                let sink = sinks.as_ref().map_or(0.0, |sinks| (sinks[head] - most).exp());
                let total: f32 = weights.iter().sum::<f32>() + sink;
                result.extend((0..dim).map(|d| {
                    let terms = weights.iter().zip(first..).map(|(w, j)| w * values[at(j) + d]);
                    terms.sum::<f32>() / total
                }));
            }
            result
        });
    }
}

/// Runs a program on every rank: the nodes of each up to its next collective, then the collective.
fn run(ranks: &mut [Interpreter], programs: &[ModelProgram]) {
    let mut done = vec![0; ranks.len()];
    for (rank, program) in ranks.iter_mut().zip(programs) {
        program.program.validate().unwrap();
        rank.begin(program);
    }
    loop {
        let mut meetings = Vec::new();
        for ((rank, program), done) in ranks.iter_mut().zip(programs).zip(&mut done) {
            for node in &program.program.nodes[*done..] {
                *done += 1;
                if let OpSpec::Collective(op) = &node.spec {
                    meetings.push((op.kind, node.operands.clone()));
                    break;
                }
                rank.node(program, &node.spec, &node.operands);
            }
        }
        if meetings.is_empty() {
            return;
        }
        assert_eq!(meetings.len(), ranks.len(), "all ranks have the same collectives");
        meet(ranks, programs, &meetings);
    }
}

/// A collective of all ranks, each with its operands.
fn meet(ranks: &mut [Interpreter], programs: &[ModelProgram], meetings: &[(CollectiveKind, Vec<u16>)]) {
    let view = |rank: usize, operand: usize| Interpreter::view(&programs[rank], meetings[rank].1[operand]);
    let kind = meetings[0].0;
    assert!(meetings.iter().all(|(other, _)| *other == kind));
    for row in 0..ranks[0].ids.len() {
        let given = ranks.iter().enumerate().map(|(i, rank)| rank.row(view(i, 0), row));
        let parts: Vec<Vec<f32>> = given.collect();
        let out: Vec<f32> = match kind {
            CollectiveKind::AllReduce => (0..parts[0].len()).map(|i| parts.iter().map(|p| p[i]).sum()).collect(),
            CollectiveKind::AllGather => parts.concat(),
            other => panic!("the programs do not use {other:?}"),
        };
        for (i, rank) in ranks.iter_mut().enumerate() {
            rank.set_row(view(i, 1), row, &out);
        }
    }
}

fn gelu(kind: GeluKind) -> impl Fn(f32) -> f32 {
    move |x| match kind {
        GeluKind::Tanh => 0.5 * x * (1.0 + ((2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        GeluKind::Erf => (0.5 * f64::from(x) * (1.0 + erf(f64::from(x) / std::f64::consts::SQRT_2))) as f32,
    }
}

/// The series of erf (Abramowitz, Stegun 7.1.6), to the last bits for the arguments of gelu.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-17 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

/// In one loop without calls: tests are compiled with few optimisations, and most of their time is here.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let count = a.len().min(b.len());
    let (a, b) = (&a[..count], &b[..count]);
    let (mut sum, mut i) = (0.0, 0);
    while i < count {
        sum += a[i] * b[i];
        i += 1;
    }
    sum
}
