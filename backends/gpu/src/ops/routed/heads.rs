//! `head_linear`: the kernels of `moe_linear`, each head being an expert that every token chooses. Where matrix units
//! do not take it, a warp a (token, head) and four features, which reads each matrix once a token.

use halyard_platform_api::ops;
use halyard_platform_api::{Error, Result};

use super::expert_list::Elsewhere;
use super::products::{Call, Products};
use super::support::{MAX_GRID_Y, THREADS, WARP_FEATURES, check_inner, wrong_count};
use super::{Linear, WARPS};
use crate::driver::DevicePtr;
use crate::encoding::{Arg, Encoding};
use crate::kernel::{Kernel, Packer, Preparation, RowSource};
use crate::view::View;

/// The op as that of experts, and its products on matrix units.
pub(super) struct Heads(Linear, Option<Products>);

impl Heads {
    const NAME: &str = "head_linear";

    /// Checks the spec.
    ///
    /// # Errors
    /// As those of `moe_linear`, under this op's name.
    pub(super) fn new(op: &ops::HeadLinear) -> Result<Heads> {
        let linear = Linear::new(&ops::MoeLinear {
            in_features: op.in_features,
            out_features: op.out_features,
            num_experts: op.num_heads,
            top_k: op.num_heads,
            weight: op.weight,
            dtype: op.dtype,
            max_tokens: op.max_tokens,
            first_expert: 0,
            total_experts: 0,
            allow_quantized_act: false,
        });
        linear.map(|linear| Heads(linear, None)).map_err(|why| Error {
            message: why.message.replace("moe_linear", Self::NAME),
            ..why
        })
    }
}

impl Kernel for Heads {
    fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.1 = Products::prepare(cx, &self.0.op, None, false)?;
        self.0.prepare_rows(cx)
    }

    fn encode(&self, encoding: &mut Encoding, operands: &[View]) -> Result<()> {
        let [x, weight, out] = operands else {
            return Err(wrong_count(Self::NAME, 3, operands));
        };
        check_inner(Self::NAME, &[("x", x), ("out", out)])?;
        let op = &self.0.op;
        let heads = op.num_experts;
        let choices = out.len() * heads;
        if choices == 0 {
            return Ok(());
        }
        let call = Call {
            x: *x,
            weight: weight.ptr,
            weight_up: 0,
            experts: View::NONE,
            elsewhere: Elsewhere::Zeros,
            out: *out,
            bias: 0,
            bias_up: 0,
        };
        if let Some(products) = self.1.as_ref().filter(|products| products.suits(op, &call)) {
            products.encode(encoding, op, &call);
            return Ok(());
        }
        if let (Some(products), Some(_)) = (&self.1, self.0.pack) {
            return products.encode_any(encoding, op, &call);
        }
        let no_experts = [Arg::Ptr(0), Arg::U32(0)];
        let mut args = vec![
            Arg::Ptr(x.ptr),
            Arg::U32(x.strides[0]),
            Arg::U32(x.strides[1]),
            Arg::Ptr(weight.ptr),
            Arg::U64(self.0.row_bytes),
        ];
        args.extend(no_experts);
        args.extend([
            Arg::Ptr(out.ptr),
            Arg::U32(out.strides[0]),
            Arg::U32(out.strides[1]),
            Arg::Ptr(0),
            Arg::U32(choices),
            Arg::U32(heads),
            Arg::U32(0),
            Arg::U32(heads),
            Arg::U32(op.in_features),
            Arg::U32(op.out_features),
        ]);
        let blocks = op.out_features.div_ceil(WARPS * WARP_FEATURES);
        let grid = [blocks, choices.min(MAX_GRID_Y), 1];
        encoding.launch(self.0.entry.get()?, grid, THREADS, 0, &args);
        Ok(())
    }

    fn packed_weight_bytes(&self, node: u32) -> Result<u64> {
        self.0.packed_weight_bytes(node)
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
        self.0.pack_weight(packer, node, first_row, num_rows, source, dst)
    }
}
