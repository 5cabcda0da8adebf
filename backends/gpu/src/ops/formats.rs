//! The weight formats that kernels read, and their numbers in definitions. What a row of each holds: `block_values.h`.

use halyard_platform_api::WeightFormat;

/// The formats in blocks that kernels read, for refusals.
pub(crate) const IN_BLOCKS: &str =
    "Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K, and groups of 16 to 128 of U4, I8, E2M1, NF4, FP4, IQ4_NL and F8";

/// Whether kernels read rows of a format in blocks: GGUF's commonest, and all canonical ones.
pub(crate) fn in_blocks(format: WeightFormat) -> bool {
    use WeightFormat::{Q4_0, Q4_1, Q4K, Q5_0, Q6K, Q8_0};
    matches!(format, Q4_0 | Q4_1 | Q5_0 | Q8_0 | Q4K | Q6K) || format.is_canonical()
}

/// The contract's code of a format, as a definition.
pub(crate) const fn code(format: WeightFormat) -> &'static str {
    const CODES: [&str; 56] = [
        "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19",
        "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32", "33", "34", "35", "36", "37",
        "38", "39", "40", "41", "42", "43", "44", "45", "46", "47", "48", "49", "50", "51", "52", "53", "54", "55",
    ];
    CODES[format as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_its_number() {
        for format in WeightFormat::ALL {
            assert_eq!(code(format), (format as u32).to_string());
        }
    }
}
