//! `embedding`: the table stays as the file has it, rows padded to 16 bytes, and is dequantised as rows are gathered.

use halyard_kernels_gpu::EMBEDDING;
use halyard_platform_api::{DType, Error, Result, ops};

use super::support::{Entries, Operands, act_name, blocks, not_zero};
use crate::driver::DevicePtr;
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Packer, Preparation, RowSource};
use crate::ops::formats::{IN_BLOCKS, code, in_blocks};
use crate::view::View;

const THREADS: u32 = 128;
/// Values of a thread of the vector kernel.
const PER_THREAD: u32 = 8;

/// The op.
pub(super) struct Embedding {
    spec: ops::Embedding,
    /// Bytes of a row in the file.
    row_bytes: u64,
    /// Distance of rows here.
    pitch: u64,
    pub(super) entries: Entries,
}

impl Embedding {
    pub(super) fn new(op: &ops::Embedding) -> Result<Embedding> {
        not_zero("embedding", "width", op.width)?;
        let out = act_name("embedding", op.out)?;
        if !op.weight.is_plain() && !in_blocks(op.weight) {
            return Err(Error::unsupported(format!(
                "embedding: a table of {} is not read here; F32, F16, BF16, {IN_BLOCKS} are",
                op.weight.name()
            )));
        }
        let Some(row_bytes) = op.weight.row_bytes(op.width as usize) else {
            return Err(Error::unsupported(format!(
                "embedding: {} values are no whole blocks of {} of {:?}",
                op.width,
                op.weight.block_values(),
                op.weight
            )));
        };
        let defines = [("WEIGHT", code(op.weight)), ("OUT", out)];
        let row_bytes = row_bytes as u64;
        Ok(Embedding {
            spec: op.clone(),
            row_bytes,
            pitch: row_bytes.next_multiple_of(16),
            entries: Entries::new(EMBEDDING, &defines, &["embedding_vector", "embedding_scalar"]),
        })
    }
}

impl Kernel for Embedding {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.entries.prepare(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let operands = Operands::new("embedding", ops::Embedding::OPERANDS, operands)?;
        let out = operands.rows(2, self.spec.out, self.spec.width)?;
        let ids = operands.vector(0, DType::I32, Some(out.rows))?;
        let table = operands.view(1).ptr;
        if table == 0 || !table.is_multiple_of(16) {
            return Err(operands.error(
                1,
                &format!("address {table:#x}: it must be packed and aligned to 16 bytes"),
            ));
        }
        let vector = self.spec.width.is_multiple_of(PER_THREAD) && out.aligned(16);
        let groups = if vector {
            self.spec.width / PER_THREAD
        } else {
            self.spec.width
        };
        let total = operands.total(out.rows, groups)?;
        let [out, out_stride] = out.args();
        encoding.launch(
            self.entries.get(usize::from(!vector))?,
            [blocks(total, THREADS), 1, 1],
            THREADS,
            0,
            &[
                Arg::Ptr(ids),
                Arg::Ptr(table),
                Arg::U64(self.pitch),
                Arg::U32(self.spec.num_rows),
                out,
                out_stride,
                Arg::U32(groups),
                Arg::U32(total),
                Arg::F32(self.spec.scale),
            ],
        );
        encoding.settles();
        Ok(())
    }

    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        if node != 0 {
            return Err(Error::invalid(format!(
                "node {node} of a single op: it has node 0 only"
            )));
        }
        Ok(u64::from(self.spec.num_rows) * self.pitch)
    }

    fn pack_weight(
        &self,
        packer: &dyn Packer,
        node: u32,
        first_row: u32,
        num_rows: u32,
        source: RowSource<'_>,
        dst: DevicePtr,
    ) -> Result<()> {
        let end = u64::from(first_row) + u64::from(num_rows);
        if node != 0 || end > u64::from(self.spec.num_rows) {
            return Err(Error::invalid(format!(
                "node {node}, rows {first_row} to {end}: the table has {} rows, at node 0",
                self.spec.num_rows
            )));
        }
        source.check(num_rows, self.row_bytes)?;
        let to = dst + u64::from(first_row) * self.pitch;
        packer.copy(
            to,
            self.pitch,
            source,
            0,
            self.row_bytes,
            self.row_bytes,
            u64::from(num_rows),
        )
    }
}
