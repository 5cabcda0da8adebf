//! `linear` over packed panels: activations are laid out once, then every thread takes its share of the panels.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use halyard_kernels_cpu::{
    self as kernels, Activation, Isa, LINEAR_SCRATCH, PANEL_ROWS, num_act_parts, num_panels, pack, packed_bytes,
};
use halyard_platform_api::ops::{self, Epilogue};
use halyard_platform_api::{Error, Result, Tensor, WeightRows};

use super::acts::Acts;
use super::forms::Form;
use super::only_f32;
use crate::kernel::{Kernel, Worker, goes_by_rows, rows_of};
use crate::objects::Objects;
use crate::view::View;

/// Values that an activation is computed on at a time.
const PIECE: usize = 64;
/// The smallest piece of a product's panels that a thread comes for is about this part of its equal share.
const LEAST_PIECES: usize = 24;

pub(crate) struct Linear {
    n: usize,
    k: usize,
    max_tokens: usize,
    epilogue: Option<Activation>,
    acts: Acts,
    weight: PackedWeight,
}

impl Linear {
    pub(crate) fn new(op: &ops::Linear, isa: Isa) -> Result<Linear> {
        only_f32("linear", op.act)?;
        only_f32("linear", op.out)?;
        let form = Form::of("linear", op.weight, op.in_features)?;
        let epilogue = match op.epilogue {
            Epilogue::None => None,
            Epilogue::Silu => Some(Activation::Silu),
            Epilogue::GeluTanh => Some(Activation::GeluTanh),
            Epilogue::GeluErf => Some(Activation::GeluErf),
        };
        let (n, k) = (op.out_features as usize, op.in_features as usize);
        let weight = PackedWeight::new(form, n, k, 1);
        Ok(Linear {
            n,
            k,
            max_tokens: op.max_tokens as usize,
            epilogue,
            acts: Acts::of(isa, form.kernel, op.allow_quantized_act),
            weight,
        })
    }

    /// Bytes of activations of so many tokens as they are laid out.
    fn act_bytes(&self, tokens: usize) -> usize {
        self.acts.bytes(tokens, self.k)
    }

    /// Activation and residual on this thread's own part of the output.
    unsafe fn finish(
        &self,
        worker: &Worker<'_>,
        rows: Range<usize>,
        columns: Range<usize>,
        residual: &View,
        out: &View,
    ) {
        if self.epilogue.is_none() && residual.is_none() {
            return;
        }
        for t in rows {
            // SAFETY: the part is this thread's alone.
            let row = unsafe { out.f32s_at_mut(t, columns.start, columns.len()) };
            if let Some(f) = self.epilogue {
                for piece in row.chunks_mut(PIECE) {
                    let mut copy = [0.0; PIECE];
                    copy[..piece.len()].copy_from_slice(piece);
                    worker.kernels.activate(f, &copy[..piece.len()], piece);
                }
            }
            if !residual.is_none() {
                // SAFETY: as above; this residual is not the output itself, and is only read.
                let residual = unsafe { residual.f32s_at(t, columns.start, columns.len()) };
                worker.kernels.add(row, residual);
            }
        }
    }

    /// out += f(product) on this thread's own columns, where out holds the residual.
    unsafe fn add_activated(&self, worker: &Worker<'_>, f: Activation, columns: Range<usize>, out: &View) {
        for t in 0..out.len() {
            // SAFETY: the columns are this thread's alone, in the output as in the product, which it has just written.
            let (row, product) = unsafe {
                let product = self.product(worker).add(t * self.n + columns.start);
                (
                    out.f32s_at_mut(t, columns.start, columns.len()),
                    std::slice::from_raw_parts(product, columns.len()),
                )
            };
            for (piece, product) in row.chunks_mut(PIECE).zip(product.chunks(PIECE)) {
                let mut activated = [0.0; PIECE];
                let activated = &mut activated[..piece.len()];
                worker.kernels.activate(f, product, activated);
                worker.kernels.add(piece, activated);
            }
        }
    }

    /// Where the product goes when the output still holds the residual: behind the activations in shared scratch,
    /// [max_tokens, n] f32.
    fn product(&self, worker: &Worker<'_>) -> *mut f32 {
        worker.shared.wrapping_add(self.product_offset()).cast()
    }

    /// Bytes of shared scratch before the product.
    fn product_offset(&self) -> usize {
        self.act_bytes(self.max_tokens).next_multiple_of(64)
    }
}

/// Whether the output holds the residual that the product is added to.
fn holds_residual(residual: &View, out: &View) -> bool {
    let rows_match = out.len() == 1 || residual.row_stride() == out.row_stride();
    !residual.is_none() && residual.ptr() == out.ptr() && rows_match
}

impl Linear {
    /// All of this thread's rows: their layout in its own scratch, then all panels.
    unsafe fn run_rows(&self, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, weight, bias, residual, out] = operands else {
            unreachable!("linear has five operands")
        };
        let rows = rows_of(out.len(), worker.size, worker.rank);
        if rows.is_empty() {
            return;
        }
        let accumulate = holds_residual(residual, out);
        let mode = self.acts.mode(rows.len());
        // SAFETY: the rows are this thread's alone, and so is its scratch, which holds their layout.
        unsafe {
            let from = x.element_ptr(rows.start, 0).cast_const().cast();
            let parts = 0..num_act_parts(mode, rows.len());
            worker
                .kernels
                .prepare_act(mode, from, x.row_stride(), rows.len(), self.k, parts, worker.own);
            worker.kernels.linear(kernels::Linear {
                format: self.weight.format,
                mode,
                n: self.n,
                k: self.k,
                tokens: rows.len(),
                weight: weight.all(),
                act: std::slice::from_raw_parts(worker.own, self.act_bytes(rows.len())),
                panels: 0..num_panels(self.n),
                out: out.element_ptr(rows.start, 0).cast(),
                out_stride: out.row_stride(),
                bias: (!bias.is_none()).then(|| bias.f32s(0, 0, self.n)),
                accumulate,
                scratch: &mut worker.local[..LINEAR_SCRATCH],
            });
            if !accumulate {
                self.finish(worker, rows, 0..self.n, residual, out);
            }
        }
    }
}

impl Kernel for Linear {
    fn phases(&self) -> usize {
        2
    }

    fn rows(&self, operands: &[View]) -> Option<usize> {
        // An activation between product and residual takes the product into shared scratch.
        let [.., residual, out] = operands else {
            return None;
        };
        (self.epilogue.is_none() || !holds_residual(residual, out)).then_some(out.len())
    }

    fn rows_scratch_bytes(&self, rows: usize) -> usize {
        self.act_bytes(rows)
    }

    fn scratch_bytes(&self) -> usize {
        match self.epilogue {
            None => self.act_bytes(self.max_tokens),
            // Whether the residual is the output is known only when the op runs.
            Some(_) => self.product_offset() + (self.max_tokens * self.n * size_of::<f32>()).next_multiple_of(64),
        }
    }

    unsafe fn run(&self, phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [x, weight, bias, residual, out] = operands else {
            unreachable!("linear has five operands")
        };
        let tokens = out.len();
        if tokens == 0 {
            return;
        }
        let mode = self.acts.mode(tokens);
        if self.rows(operands).is_some() && goes_by_rows(tokens, worker.size) {
            if phase == 0 {
                // SAFETY: the caller's promise.
                unsafe { self.run_rows(worker, operands) };
            }
            return;
        }
        if phase == 0 {
            let parts = worker.share(num_act_parts(mode, tokens));
            // SAFETY: x holds `tokens` rows; the scratch holds their layout, and parts are shared out.
            unsafe {
                worker.kernels.prepare_act(
                    mode,
                    x.ptr().cast(),
                    x.row_stride(),
                    tokens,
                    self.k,
                    parts,
                    worker.shared,
                );
            }
            return;
        }
        // A residual that is the output itself is what the kernel accumulates onto. An activation must come before the
        // sum, though: then the product goes to scratch, since the output holds the residual until the end.
        let in_place = holds_residual(residual, out);
        let accumulate = in_place && self.epilogue.is_none();
        let activated_onto = if in_place { self.epilogue } else { None };
        let (product, product_stride) = match activated_onto {
            Some(_) => (self.product(worker), self.n),
            None => (out.ptr().cast(), out.row_stride()),
        };
        let num_panels = num_panels(self.n);
        // Even, for kernels that take panels in pairs.
        let least = num_panels.div_ceil(worker.size * LEAST_PIECES).next_multiple_of(2);
        for panels in worker.shrinking_pieces(tokens, num_panels, least) {
            let columns = panels.start * PANEL_ROWS..(panels.end * PANEL_ROWS).min(self.n);
            // SAFETY: packed by `pack_weight`, prepared in phase 0; panels are shared out.
            unsafe {
                let act = std::slice::from_raw_parts(worker.shared, self.act_bytes(tokens));
                worker.kernels.linear(kernels::Linear {
                    format: self.weight.format,
                    mode,
                    n: self.n,
                    k: self.k,
                    tokens,
                    weight: weight.all(),
                    act,
                    panels,
                    out: product,
                    out_stride: product_stride,
                    bias: (!bias.is_none()).then(|| bias.f32s(0, 0, self.n)),
                    accumulate,
                    scratch: &mut worker.local[..LINEAR_SCRATCH],
                });
                match activated_onto {
                    Some(f) => self.add_activated(worker, f, columns, out),
                    None if accumulate => {}
                    None => self.finish(worker, 0..tokens, columns, residual, out),
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

/// Matrices in panels of 16 rows: one, or one an expert, each padded to whole panels.
pub(crate) struct PackedWeight {
    form: Form,
    pub format: kernels::WeightFormat,
    /// Rows of one matrix.
    pub n: usize,
    pub k: usize,
    num_matrices: usize,
    /// Canonical rows of panels that are not complete yet, by destination and panel.
    waiting: Mutex<HashMap<(u64, u64, usize), Partial>>,
}

/// A panel some of whose rows have come.
struct Partial {
    bytes: Vec<u8>,
    present: u16,
}

impl PackedWeight {
    pub(crate) fn new(form: Form, n: usize, k: usize, num_matrices: usize) -> PackedWeight {
        PackedWeight {
            form,
            format: form.kernel,
            n,
            k,
            num_matrices,
            waiting: Mutex::default(),
        }
    }

    /// Bytes of one packed matrix.
    pub(crate) fn matrix_bytes(&self) -> usize {
        packed_bytes(self.format, self.n, self.k)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.num_matrices * self.matrix_bytes()
    }

    /// Packs rows in any order and pieces: whole panels at once, the others when their last row has come.
    pub(crate) fn pack(&self, rows: &WeightRows<'_>, dst: &Tensor, objects: &Objects) -> Result<()> {
        let row_bytes = self.form.row_bytes(self.k);
        let (first, count, total) = (
            rows.first_row as usize,
            rows.num_rows as usize,
            self.n * self.num_matrices,
        );
        if rows.bytes.len() != count * row_bytes || first + count > total {
            return Err(Error::invalid(format!(
                "rows {first} to {} in {} bytes: the weight has {total} rows of {row_bytes} bytes",
                first + count,
                rows.bytes.len(),
            )));
        }
        let turned = self.form.rows(rows.bytes, self.k)?;
        let all = turned.as_deref().unwrap_or(rows.bytes);
        let row_bytes = self.format.row_bytes(self.k).unwrap_or(0);
        let (view, _) = View::resolve(dst, objects)?;
        // SAFETY: load time: no work uses the weight yet, and the span was checked.
        let packed = unsafe { std::slice::from_raw_parts_mut(view.ptr(), view.all().len()) };
        if packed.len() < self.bytes() {
            return Err(Error::invalid(format!(
                "a destination of {} bytes for {}",
                packed.len(),
                self.bytes()
            )));
        }
        let mut at = first;
        while at < first + count {
            let (matrix, row) = (at / self.n, at % self.n);
            let end = (first + count).min((matrix + 1) * self.n) - matrix * self.n;
            let packed = &mut packed[matrix * self.matrix_bytes()..(matrix + 1) * self.matrix_bytes()];
            // A run of whole panels, or what there is of one panel.
            let whole_end = if end == self.n {
                end
            } else {
                end / PANEL_ROWS * PANEL_ROWS
            };
            let stop = if row.is_multiple_of(PANEL_ROWS) && row < whole_end {
                whole_end
            } else {
                end.min((row / PANEL_ROWS + 1) * PANEL_ROWS)
            };
            let bytes = &all[(at - first) * row_bytes..(at - first + stop - row) * row_bytes];
            if row.is_multiple_of(PANEL_ROWS) && stop == whole_end {
                pack(self.format, self.k, bytes, packed, row / PANEL_ROWS);
            } else {
                self.add_rows((dst.buffer, dst.offset), matrix, row, bytes, packed);
            }
            at += stop - row;
        }
        Ok(())
    }

    /// Keeps rows of one panel of a matrix, and packs the panel when it is complete.
    fn add_rows(&self, dst: (u64, u64), matrix: usize, row: usize, bytes: &[u8], packed: &mut [u8]) {
        let row_bytes = self.format.row_bytes(self.k).unwrap_or(1);
        let panel = row / PANEL_ROWS;
        let panel_rows = PANEL_ROWS.min(self.n - panel * PANEL_ROWS);
        let key = (dst.0, dst.1, matrix * num_panels(self.n) + panel);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let partial = waiting.entry(key).or_insert_with(|| Partial {
            bytes: vec![0; panel_rows * row_bytes],
            present: 0,
        });
        let from = row % PANEL_ROWS;
        let count = bytes.len() / row_bytes;
        partial.bytes[from * row_bytes..][..bytes.len()].copy_from_slice(bytes);
        (from..from + count).for_each(|r| partial.present |= 1 << r);
        if partial.present.count_ones() as usize == panel_rows {
            pack(self.format, self.k, &partial.bytes, packed, panel);
            waiting.remove(&key);
        }
    }
}
