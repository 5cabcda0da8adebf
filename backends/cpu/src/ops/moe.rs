//! Mixture of experts: routing, one product per (token, choice), and the weighted sum.

use halyard_kernels_cpu::{self as kernels, Isa, LINEAR_SCRATCH, PANEL_ROWS, num_panels};
use halyard_platform_api::ops::{self, Scoring};
use halyard_platform_api::{Result, Tensor, WeightRows};

use super::{acts::Acts, expert_groups, expert_groups::Groups, forms::Form, linear::PackedWeight, only_f32};
use crate::kernel::{Kernel, Worker};
use crate::objects::Objects;
use crate::view::View;

pub(crate) struct Route {
    op: ops::MoeRoute,
}

impl Route {
    pub(crate) fn new(op: &ops::MoeRoute) -> Result<Route> {
        op.check()?;
        Ok(Route { op: op.clone() })
    }

    /// The experts that may be chosen, in index order.
    fn eligible(&self, choices: &[f32]) -> Vec<usize> {
        if self.op.num_groups == 0 {
            return (0..choices.len()).collect();
        }
        let width = choices.len() / self.op.num_groups as usize;
        let best = |group: &[f32]| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            group[..self.op.group_best as usize].iter().sum::<f32>()
        };
        let sums: Vec<f32> = choices.chunks_exact(width).map(best).collect();
        let mut groups: Vec<usize> = (0..sums.len()).collect();
        groups.sort_by(|&a, &b| sums[b].total_cmp(&sums[a]).then(a.cmp(&b)));
        groups.truncate(self.op.top_groups as usize);
        groups
            .into_iter()
            .flat_map(|group| group * width..(group + 1) * width)
            .collect()
    }
}

impl Kernel for Route {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [logits, experts, weights, bias] = operands else {
            unreachable!("moe_route has four operands")
        };
        let (num, k) = (self.op.num_experts as usize, self.op.top_k as usize);
        for t in worker.share(logits.len()) {
            // SAFETY: tokens are shared out.
            unsafe {
                let mut scores = logits.f32s(t, 0, num).to_vec();
                match self.op.scoring {
                    Scoring::Softmax => worker.kernels.softmax(&mut scores),
                    Scoring::Sigmoid => scores.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp())),
                }
                let mut choices = scores.clone();
                if !bias.is_none() {
                    worker.kernels.add(&mut choices, bias.f32s(0, 0, num));
                }
                let mut order = self.eligible(&choices);
                order.sort_by(|&a, &b| choices[b].total_cmp(&choices[a]).then(a.cmp(&b)));
                let sum: f32 = order[..k].iter().map(|&e| scores[e]).sum();
                let factor = if self.op.normalize {
                    self.op.factor / sum
                } else {
                    self.op.factor
                };
                let (experts, weights) = (experts.i32s_mut(t, 0, k), weights.f32s_mut(t, 0, k));
                for (j, &e) in order[..k].iter().enumerate() {
                    (experts[j], weights[j]) = (e as i32, scores[e] * factor);
                }
            }
        }
    }
}

pub(crate) struct Linear {
    op: ops::MoeLinear,
    n: usize,
    k: usize,
    top_k: usize,
    max_tokens: usize,
    acts: Acts,
    weight: PackedWeight,
}

impl Linear {
    pub(crate) fn new(op: &ops::MoeLinear, isa: Isa) -> Result<Linear> {
        only_f32("moe_linear", op.dtype)?;
        op.check()?;
        let form = Form::of("moe_linear", op.weight, op.in_features)?;
        let n = op.out_features as usize;
        let k = op.in_features as usize;
        let weight = PackedWeight::new(form, n, k, op.num_experts as usize);
        Ok(Linear {
            op: op.clone(),
            n,
            k,
            top_k: op.top_k as usize,
            max_tokens: op.max_tokens as usize,
            acts: Acts::of(isa, form.kernel, op.allow_quantized_act),
            weight,
        })
    }
}

impl Kernel for Linear {
    fn phases(&self) -> usize {
        2
    }

    fn scratch_bytes(&self) -> usize {
        expert_groups::scratch_bytes(
            self.acts,
            self.max_tokens * self.top_k,
            self.op.num_experts as usize,
            self.k,
        )
    }

    unsafe fn run(&self, phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, weight, experts, out, bias] = operands else {
            unreachable!("moe_linear has five operands")
        };
        let (inputs, tokens) = (x.shape[1], out.len());
        if tokens > 1 {
            // SAFETY: the caller's promise; both phases sort the same choices alike.
            unsafe {
                let groups = Groups::of(experts, &self.op, self.acts);
                match phase {
                    0 => groups.prepare(worker, x),
                    _ => groups.multiply(worker, &self.weight, weight.all(), bias, out),
                }
            }
            return;
        }
        let (mode, input_bytes) = (self.acts.mode(1), self.acts.bytes(1, self.k));
        // SAFETY: inputs (phase 0) and panels (phase 1) are shared out; the scratch holds every input's layout.
        unsafe {
            if phase == 0 {
                for job in worker.share(tokens * inputs) {
                    let from = x.element_ptr(job / inputs, job % inputs).cast_const().cast();
                    let to = worker.shared.add(job * input_bytes);
                    worker.kernels.prepare_act(mode, from, self.k, 1, self.k, 0..1, to);
                }
                return;
            }
            let panels = worker.share(num_panels(self.n));
            let columns = panels.start * PANEL_ROWS..self.n.min(panels.end * PANEL_ROWS);
            let expert_bytes = self.weight.matrix_bytes();
            for t in 0..tokens {
                for j in 0..self.top_k {
                    let Some(expert) = self.op.place(experts.i32s(t, j, 1)[0] as u32) else {
                        let to = out.element_ptr(t, j).cast::<f32>().add(columns.start);
                        std::slice::from_raw_parts_mut(to, columns.len()).fill(0.0);
                        continue;
                    };
                    let input = t * inputs + if inputs == 1 { 0 } else { j };
                    let act = std::slice::from_raw_parts(worker.shared.add(input * input_bytes), input_bytes);
                    worker.kernels.linear(kernels::Linear {
                        format: self.weight.format,
                        mode,
                        n: self.n,
                        k: self.k,
                        tokens: 1,
                        weight: &weight.all()[expert * expert_bytes..(expert + 1) * expert_bytes],
                        act,
                        panels: panels.clone(),
                        out: out.element_ptr(t, j).cast(),
                        out_stride: self.n,
                        bias: (!bias.is_none()).then(|| bias.f32s(expert, 0, self.n)),
                        accumulate: false,
                        scratch: &mut worker.local[..LINEAR_SCRATCH],
                    });
                }
            }
        }
    }

    fn packed_weight_bytes(&self) -> Result<u64> {
        Ok(self.weight.bytes() as u64)
    }

    fn pack_weight(&self, rows: &WeightRows<'_>, dst: &Tensor, objects: &Objects) -> Result<()> {
        self.weight.pack(rows, dst, objects)
    }
}

pub(crate) struct Combine {
    width: usize,
    top_k: usize,
}

impl Combine {
    pub(crate) fn new(op: &ops::MoeCombine) -> Result<Combine> {
        only_f32("moe_combine", op.dtype)?;
        Ok(Combine {
            width: op.width as usize,
            top_k: op.top_k as usize,
        })
    }
}

impl Kernel for Combine {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, weights, out] = operands else {
            unreachable!("moe_combine has three operands")
        };
        for t in worker.share(out.len()) {
            // SAFETY: tokens are shared out.
            unsafe {
                let out = out.f32s_mut(t, 0, self.width);
                out.fill(0.0);
                for j in 0..self.top_k {
                    let weight = weights.f32s(t, j, 1)[0];
                    out.iter_mut()
                        .zip(x.f32s(t, j, self.width))
                        .for_each(|(o, v)| *o += weight * v);
                }
            }
        }
    }
}
