//! `moe_linear` of several tokens: choices sorted by expert, so that the weights of an expert are read once for all
//! tokens that chose it.

use std::cell::RefCell;
use std::ops::Range;

use halyard_kernels_cpu::{self as kernels, LINEAR_SCRATCH, PANEL_ROWS, num_act_parts, num_panels};

use halyard_platform_api::ops::MoeLinear;

use super::{acts::Acts, linear::PackedWeight};
use crate::kernel::Worker;
use crate::view::View;

/// Most choices of one product.
const GROUP: usize = 64;
/// Panels of one product: its results wait on the stack before they go to their rows.
const PANELS: usize = 4;

thread_local! {
    /// Rows that one product reads, one behind the other.
    static GATHERED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// What the inputs of a product begin at a multiple of, in bytes.
const ALIGNMENT: usize = 64;

/// Scratch for the inputs of so many choices of `k` values, however they fall on the experts.
pub(super) fn scratch_bytes(acts: Acts, choices: usize, num_experts: usize, k: usize) -> usize {
    let groups = choices.min(num_experts + choices / GROUP);
    let choice = acts.bytes(GROUP, k) / GROUP;
    // Where tiles are whole, a group's last one may have room for all choices but one.
    let room = acts.bytes(GROUP + 1, k) - (GROUP + 1) * choice;
    choices * choice + groups * (room + ALIGNMENT)
}

/// Choices of one expert that one product serves: places in [`Groups::choices`].
struct Group {
    expert: usize,
    places: Range<usize>,
    /// Where its inputs lie in shared scratch.
    inputs: Range<usize>,
}

/// A step's choices (token · top_k + j) by expert.
pub(super) struct Groups {
    acts: Acts,
    top_k: usize,
    /// Values of an input.
    k: usize,
    /// Those of experts that are elsewhere come last.
    choices: Vec<u32>,
    groups: Vec<Group>,
    /// Places of the choices whose expert is here.
    here: usize,
}

impl Groups {
    /// Sorts the choices `experts`, [tokens, top_k] i32.
    ///
    /// # Safety
    /// The operand is readable.
    pub(super) unsafe fn of(experts: &View, op: &MoeLinear, acts: Acts) -> Groups {
        let (tokens, top_k, num_experts) = (experts.len(), op.top_k as usize, op.num_experts as usize);
        let place_of = |expert: i32| op.place(expert as u32).unwrap_or(num_experts);
        // SAFETY: the caller's promise.
        let row = |t| unsafe { experts.i32s(t, 0, top_k) };
        let mut ends = vec![0; num_experts + 2];
        for t in 0..tokens {
            row(t).iter().for_each(|&expert| ends[place_of(expert) + 1] += 1);
        }
        for expert in 0..num_experts {
            ends[expert + 1] += ends[expert];
        }
        let (k, mut inputs_end) = (op.in_features as usize, 0usize);
        let mut groups = Vec::new();
        for expert in 0..num_experts {
            let (mut first, end) = (ends[expert], ends[expert + 1]);
            while first < end {
                let places = first..end.min(first + GROUP);
                first = places.end;
                let begin = inputs_end.next_multiple_of(ALIGNMENT);
                inputs_end = begin + acts.bytes(places.len(), k);
                groups.push(Group {
                    expert,
                    places,
                    inputs: begin..inputs_end,
                });
            }
        }
        let here = ends[num_experts];
        let mut choices = vec![0; tokens * top_k];
        for t in 0..tokens {
            for (j, &expert) in row(t).iter().enumerate() {
                let place = &mut ends[place_of(expert)];
                choices[*place] = (t * top_k + j) as u32;
                *place += 1;
            }
        }
        Groups {
            acts,
            top_k,
            k,
            choices,
            groups,
            here,
        }
    }

    /// Lays out this thread's part of the inputs in shared scratch, in the order of the choices. `x` has one row a
    /// token, or one a choice.
    ///
    /// # Safety
    /// The operand is readable, the shared scratch holds [`scratch_bytes`].
    pub(super) unsafe fn prepare(&self, worker: &Worker<'_>, x: &View) {
        let (inputs, k) = (x.shape[1], self.k);
        GATHERED.with_borrow_mut(|gathered| {
            for group in &self.groups[worker.share(self.groups.len())] {
                let places = group.places.clone();
                gathered.resize(gathered.len().max(places.len() * k), 0.0);
                for (to, &choice) in gathered.chunks_exact_mut(k).zip(&self.choices[places.clone()]) {
                    let (t, j) = (choice as usize / self.top_k, choice as usize % self.top_k);
                    // SAFETY: the caller's promise.
                    let row = unsafe {
                        let from = x.element_ptr(t, if inputs == 1 { 0 } else { j });
                        std::slice::from_raw_parts(from.cast_const().cast::<f32>(), k)
                    };
                    to.copy_from_slice(row);
                }
                let (from, count) = (gathered.as_ptr(), places.len());
                let mode = self.acts.mode(count);
                let parts = 0..num_act_parts(mode, count);
                // SAFETY: groups are shared out, and so are their places of the scratch.
                unsafe {
                    let to = worker.shared.add(group.inputs.start);
                    worker.kernels.prepare_act(mode, from, k, count, k, parts, to);
                }
            }
        });
    }

    /// This thread's part of the products. `out` has one row a choice, `bias` one an expert or nothing. Rows of choices
    /// whose expert is elsewhere become 0.
    ///
    /// # Safety
    /// [`Groups::prepare`] has run on all threads; the weight holds every expert, packed; the output's rows are
    /// writable.
    pub(super) unsafe fn multiply(
        &self,
        worker: &mut Worker<'_>,
        packed: &PackedWeight,
        weight: &[u8],
        bias: &View,
        out: &View,
    ) {
        let (n, k) = (packed.n, packed.k);
        let elsewhere = &self.choices[self.here..];
        for &choice in &elsewhere[worker.share(elsewhere.len())] {
            let (t, j) = (choice as usize / self.top_k, choice as usize % self.top_k);
            // SAFETY: rows are shared out, and no product writes these.
            unsafe { std::slice::from_raw_parts_mut(out.element_ptr(t, j).cast::<f32>(), n).fill(0.0) };
        }
        let pieces = num_panels(n).div_ceil(PANELS);
        let mut results = [0.0f32; GROUP * PANELS * PANEL_ROWS];
        for jobs in worker.pieces(self.here, self.groups.len() * pieces, PANELS) {
            for job in jobs {
                let (group, piece) = (&self.groups[job / pieces], job % pieces);
                let panels = piece * PANELS..num_panels(n).min((piece + 1) * PANELS);
                let columns = panels.start * PANEL_ROWS..n.min(panels.end * PANEL_ROWS);
                let count = group.places.len();
                let matrix = packed.matrix_bytes();
                // SAFETY: prepared and packed, as the caller promises; the kernel writes `columns` alone, which begin
                // at the array's start.
                unsafe {
                    let act = worker.shared.add(group.inputs.start);
                    worker.kernels.linear(kernels::Linear {
                        format: packed.format,
                        mode: self.acts.mode(count),
                        n,
                        k,
                        tokens: count,
                        weight: &weight[group.expert * matrix..][..matrix],
                        act: std::slice::from_raw_parts(act, group.inputs.len()),
                        panels,
                        out: results.as_mut_ptr().wrapping_sub(columns.start),
                        out_stride: columns.len(),
                        bias: (!bias.is_none()).then(|| bias.f32s(group.expert, 0, n)),
                        accumulate: false,
                        scratch: &mut worker.local[..LINEAR_SCRATCH],
                    });
                }
                let rows = results.chunks_exact(columns.len());
                for (row, &choice) in rows.zip(&self.choices[group.places.clone()]) {
                    let (t, j) = (choice as usize / self.top_k, choice as usize % self.top_k);
                    // SAFETY: these columns of the row are this thread's alone.
                    unsafe {
                        let to = out.element_ptr(t, j).cast::<f32>().add(columns.start);
                        to.copy_from_nonoverlapping(row.as_ptr(), row.len());
                    }
                }
            }
        }
    }
}
