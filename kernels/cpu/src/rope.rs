//! Rotary position embedding of one head vector in place. Owns both pairings; the table of cos and sin is the
//! caller's.

/// How elements pair up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// (i, i + rotary_dim / 2): GPT-NeoX, Llama in Hugging Face's order.
    Neox,
    /// (2i, 2i + 1): GPT-J, Llama in Meta's and GGUF's order.
    Interleaved,
}

/// Rotates `x[..rotary_dim]`; the rest of the head stays. `cos_sin` \[rotary_dim\] f32: cosines, then sines. Plain
/// loops, which the compiler vectorises inside the wrapper.
#[inline(always)]
pub(crate) fn rope(x: &mut [f32], cos_sin: &[f32], style: RopeStyle) {
    let half = cos_sin.len() / 2;
    let (cos, sin) = cos_sin.split_at(half);
    match style {
        RopeStyle::Neox => {
            let (first, second) = x[..2 * half].split_at_mut(half);
            for i in 0..half {
                let (a, b) = (first[i], second[i]);
                first[i] = a * cos[i] - b * sin[i];
                second[i] = b * cos[i] + a * sin[i];
            }
        }
        RopeStyle::Interleaved => {
            for (i, pair) in x[..2 * half].chunks_exact_mut(2).enumerate() {
                let (a, b) = (pair[0], pair[1]);
                pair[0] = a * cos[i] - b * sin[i];
                pair[1] = b * cos[i] + a * sin[i];
            }
        }
    }
}
