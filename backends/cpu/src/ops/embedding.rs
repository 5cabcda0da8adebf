//! `embedding`: rows of the canonical table, dequantised as they are gathered.

use halyard_kernels_cpu::dequantize_row;
use halyard_platform_api::weight_format::dequantise_row;
use halyard_platform_api::{Error, Result, Tensor, WeightRows, ops};

use super::forms::Form;
use super::only_f32;
use crate::kernel::{Kernel, Worker};
use crate::objects::Objects;
use crate::view::View;

pub(crate) struct Embedding {
    num_rows: usize,
    width: usize,
    form: Form,
    row_bytes: usize,
    scale: f32,
}

impl Embedding {
    pub(crate) fn new(op: &ops::Embedding) -> Result<Embedding> {
        only_f32("embedding", op.out)?;
        let form = Form::of("embedding", op.weight, op.width)?;
        let width = op.width as usize;
        let row_bytes = form.row_bytes(width);
        Ok(Embedding {
            num_rows: op.num_rows as usize,
            width,
            form,
            row_bytes,
            scale: op.scale,
        })
    }
}

impl Kernel for Embedding {
    unsafe fn run(&self, _phase: usize, worker: &mut Worker<'_>, operands: &[View]) {
        let [ids, table, out] = operands else {
            unreachable!("embedding has three operands")
        };
        // SAFETY: ids and table are read only; rows of out are shared out.
        unsafe {
            let (ids, table) = (ids.vector(), table.all());
            for t in worker.share(out.len()) {
                let row = out.f32s_mut(t, 0, self.width);
                if ids[t] < 0 {
                    row.fill(0.0);
                    continue;
                }
                let at = ids[t] as usize * self.row_bytes;
                let stored = &table[at..at + self.row_bytes];
                match self.form.is_own() {
                    true => dequantize_row(self.form.kernel, stored, row),
                    false => dequantise_row(self.form.from, stored, row),
                }
                if self.scale != 1.0 {
                    worker.kernels.scale(row, self.scale);
                }
            }
        }
    }

    fn packed_weight_bytes(&self) -> Result<u64> {
        Ok((self.num_rows * self.row_bytes) as u64)
    }

    fn pack_weight(&self, rows: &WeightRows<'_>, dst: &Tensor, objects: &Objects) -> Result<()> {
        let expected = rows.num_rows as usize * self.row_bytes;
        if rows.bytes.len() != expected || rows.first_row as usize + rows.num_rows as usize > self.num_rows {
            return Err(Error::invalid(format!(
                "rows {} to {} in {} bytes: the table has {} rows of {} bytes",
                rows.first_row,
                rows.first_row + rows.num_rows,
                rows.bytes.len(),
                self.num_rows,
                self.row_bytes
            )));
        }
        let to = objects.buffer(dst.buffer_id())?;
        let to = to.range(dst.offset + u64::from(rows.first_row) * self.row_bytes as u64, expected)?;
        // SAFETY: the range was checked; load time: no op reads the table yet.
        unsafe { std::ptr::copy_nonoverlapping(rows.bytes.as_ptr(), to, expected) };
        Ok(())
    }
}
