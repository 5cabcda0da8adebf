//! GGUF's formats whose blocks are integers of few bits: which of the kernels' formats holds one, and its rows in that
//! one. The contract's `blocks` takes them apart; this file owns nothing but the change of clothes.

use halyard_kernels_cpu as kernels;
use halyard_platform_api::WeightFormat;
use halyard_platform_api::weight_format::blocks::{self, Block, GROUP};

/// The kernels' format for one of these, `None` for other formats.
pub(super) fn kernel_format(format: WeightFormat) -> Option<kernels::WeightFormat> {
    Some(match format {
        WeightFormat::Q5_1 => kernels::WeightFormat::Int5,
        WeightFormat::Q5K => kernels::WeightFormat::Int5Scaled,
        WeightFormat::Q2K => kernels::WeightFormat::Int2Scaled,
        WeightFormat::TQ1_0 | WeightFormat::TQ2_0 => kernels::WeightFormat::Int2,
        WeightFormat::Q3K => kernels::WeightFormat::Int3Scaled,
        // Six numbers, and six small ones.
        WeightFormat::IQ2XXS | WeightFormat::IQ2XS | WeightFormat::IQ2S => kernels::WeightFormat::Table3Scaled,
        WeightFormat::IQ1S | WeightFormat::IQ1M => kernels::WeightFormat::Table3Small,
        // Sixteen.
        WeightFormat::IQ4XS | WeightFormat::IQ3XXS | WeightFormat::IQ3S => kernels::WeightFormat::Table4Scaled,
        WeightFormat::IQ4NL => kernels::WeightFormat::Table4,
        _ => return None,
    })
}

/// Whole rows of a format as the kernels take them.
pub(super) fn kernel_rows(format: WeightFormat, to: kernels::WeightFormat, rows: &[u8]) -> Vec<u8> {
    let numbers = if to.has_numbers() { blocks::numbers(format) } else { &[] };
    // Where each number stands among them.
    let mut places = [0; 256];
    for (place, &number) in numbers.iter().enumerate() {
        places[usize::from(number as u8)] = place as u8;
    }
    let (values, groups) = (format.block_values(), format.block_values() / GROUP);
    let mut block = Block::default();
    let mut out = Vec::with_capacity(rows.len() / format.block_bytes() * to.block_bytes());
    for bytes in rows.chunks_exact(format.block_bytes()) {
        block.read(format, bytes);
        out.extend(block.d.to_le_bytes());
        out.extend(block.dmin.to_le_bytes());
        out.extend(numbers.iter().map(|&number| number as u8));
        out.extend(std::iter::repeat_n(0, 16 - numbers.len()));
        out.extend(block.scales[..groups].iter().map(|&scale| scale as u8));
        out.extend(&block.mins[..groups]);
        let codes = block.codes[..values].iter().map(|&code| code as u8);
        match to.has_numbers() {
            true => out.extend(codes.map(|code| places[usize::from(code)])),
            false => out.extend(codes),
        }
    }
    out
}
