//! `lora_shrink`, `lora_expand`: many adapters in one batch (Hu et al. 2021, arXiv 2106.09685; grouped as in Punica).

use crate::dtype::DType;

op! {
    /// out\[t, r\] = Σₖ x\[t, k\]·a\[slot, r, k\] with slot = token_lora\[t\]; zeros where the slot is −1.
    ///
    /// Operands: x \[T, in_features\] `act`; a \[num_slots, max_rank, in_features\] `weight`; token_lora \[T\] i32;
    /// out \[T, max_rank\] f32. Adapters of a lower rank have zero rows.
    pub struct LoraShrink = 3 "lora_shrink" v 1, wire LoraShrinkDesc = "halyard_lora_shrink_desc" {
        /// K.
        in_features: u32,
        /// Rank that slots are padded to.
        max_rank: u32,
        /// Adapter slots.
        num_slots: u32,
        /// Type of x.
        act: DType,
        /// Type of a.
        weight: DType,
        /// Most tokens of one call.
        max_tokens: u32,
    }
    operands { x: Read, a: Const, token_lora: Read, out: Write }
}

op! {
    /// out\[t, n\] += scales\[slot\]·Σᵣ x\[t, r\]·b\[slot, n, r\] with slot = token_lora\[t\]; untouched where the slot is −1.
    ///
    /// Operands: x \[T, max_rank\] f32; b \[num_slots, out_features, max_rank\] `weight`; scales \[num_slots\] f32 (alpha/rank, or
    /// alpha/√rank for rslora); token_lora \[T\] i32; out \[T, out_features\] `out`, updated.
    pub struct LoraExpand = 4 "lora_expand" v 1, wire LoraExpandDesc = "halyard_lora_expand_desc" {
        /// N.
        out_features: u32,
        /// Rank that slots are padded to.
        max_rank: u32,
        /// Adapter slots.
        num_slots: u32,
        /// Type of b.
        weight: DType,
        /// Type of out.
        out: DType,
        /// Most tokens of one call.
        max_tokens: u32,
    }
    operands { x: Read, b: Const, scales: Const, token_lora: Read, out: Update }
}
