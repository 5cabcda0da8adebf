//! `lora_shrink`, `lora_expand`: many adapters in one batch (Hu et al. 2021, arXiv 2106.09685; grouped as in Punica).

use crate::dtype::DType;

op! {
    /// out\[t, r\] = Σₖ x\[t, k\]·a\[slot, r, k\] with slot = token_lora\[t\]; zeros where the slot is −1.
    pub struct LoraShrink = 3 "lora_shrink", wire LoraShrinkDesc = "halyard_lora_shrink_desc" {
        /// K: values of a row of x.
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
    operands {
        /// \[T, in_features\] `act`.
        x: Read,
        /// \[num_slots, max_rank, in_features\] `weight`. An adapter of a lower rank has zero rows.
        a: Const,
        /// \[T\] i32.
        token_lora: Read,
        /// \[T, max_rank\] f32.
        out: Write,
    }
}

op! {
    /// out\[t, n\] += scales\[slot\]·Σᵣ x\[t, p·max_rank + r\]·b\[slot, n, r\] with slot = token_lora\[t\]; untouched
    /// where the slot is −1. p counts the parts of the output that feature n stands behind the beginning of: q, k and v
    /// of one product have matrices of their own, and one call serves them all.
    pub struct LoraExpand = 4 "lora_expand", wire LoraExpandDesc = "halyard_lora_expand_desc" {
        /// N: values of a row of out.
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
        /// First feature of the second part; 0: one part only.
        second_part: u32,
        /// First feature of the third part, after the second's; 0: no third.
        third_part: u32,
    }
    operands {
        /// \[T, parts·max_rank\] f32.
        x: Read,
        /// \[num_slots, out_features, max_rank\] `weight`.
        b: Const,
        /// \[num_slots\] f32: alpha/rank, or alpha/√rank for rslora.
        scales: Const,
        /// \[T\] i32.
        token_lora: Read,
        /// \[T, out_features\] `out`.
        out: Update,
    }
}

impl LoraExpand {
    /// First feature of each part, and the end.
    pub fn part_starts(&self) -> Vec<u32> {
        let inner = [self.second_part, self.third_part];
        let inner = inner.into_iter().take_while(|&start| start != 0);
        std::iter::once(0).chain(inner).chain([self.out_features]).collect()
    }

    /// Checks that parts begin in order, within the features.
    ///
    /// # Errors
    /// `InvalidArgument` naming the parts.
    pub fn check_parts(&self) -> crate::Result<()> {
        let starts = self.part_starts();
        let skipped = self.second_part == 0 && self.third_part != 0;
        if skipped || !starts.is_sorted_by(|a, b| a < b) {
            return Err(crate::Error::invalid(format!(
                "lora_expand: parts begin at 0, {} and {} of {} features; each must begin after the one before it",
                self.second_part, self.third_part, self.out_features
            )));
        }
        Ok(())
    }
}
