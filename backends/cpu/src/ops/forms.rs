//! Which of the kernels' formats holds a weight of the contract's, and its rows in it. GGUF's formats of few bits
//! become coded rows (`coded`). Groups of 16, 32 and 128 have kernels; what has none is decoded while it is packed:
//! tables of whole numbers become bytes, other tables f32.

use halyard_kernels_cpu::WeightFormat as Kernel;
use halyard_platform_api::weight_format::{Codes, Unpacked, convert_row, dequantise_row, put_group, unpack};
use halyard_platform_api::{Error, Result, WeightFormat};

use super::coded::{kernel_format, kernel_rows};

/// A format and the kernels' that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub from: WeightFormat,
    pub kernel: Kernel,
    to: Rows,
}

/// What a kernel takes of rows that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// They themselves.
    AsTheyCome,
    /// Their integers (`coded`).
    Coded,
    /// The same values in this format.
    As(WeightFormat),
}

/// The kernel that reads a format as it is.
fn own(format: WeightFormat) -> Option<Kernel> {
    Some(match format {
        WeightFormat::F32 => Kernel::F32,
        WeightFormat::F16 => Kernel::F16,
        WeightFormat::BF16 => Kernel::Bf16,
        WeightFormat::Q4_0 => Kernel::Q4_0,
        WeightFormat::Q4_1 => Kernel::Q4_1,
        WeightFormat::Q5_0 => Kernel::Q5_0,
        WeightFormat::Q8_0 => Kernel::Q8_0,
        WeightFormat::Q4K => Kernel::Q4K,
        WeightFormat::Q6K => Kernel::Q6K,
        WeightFormat::F8E4M3 => Kernel::F8E4M3,
        WeightFormat::U4G16 => Kernel::U4G16,
        WeightFormat::U4G32 => Kernel::U4G32,
        WeightFormat::U4G128 => Kernel::U4G128,
        WeightFormat::I8G16 => Kernel::I8G16,
        WeightFormat::I8G32 => Kernel::I8G32,
        WeightFormat::I8G128 => Kernel::I8G128,
        WeightFormat::F8G32 => Kernel::F8G32,
        WeightFormat::F8G128 | WeightFormat::F8B128 => Kernel::F8G128,
        _ => return None,
    })
}

impl Form {
    /// The form of rows of `width` values.
    ///
    /// # Errors
    /// `Unsupported` where they are no whole blocks.
    pub(crate) fn of(op: &str, from: WeightFormat, width: u32) -> Result<Form> {
        if from.row_bytes(width as usize).is_none() {
            let block = from.block_values();
            return Err(Error::unsupported(format!(
                "{op}: {width} values are no whole blocks of {block} of {from:?}"
            )));
        }
        if let Some(kernel) = own(from) {
            let to = Rows::AsTheyCome;
            return Ok(Form { from, kernel, to });
        }
        if let Some(kernel) = kernel_format(from) {
            let to = Rows::Coded;
            return Ok(Form { from, kernel, to });
        }
        let layout = from.layout();
        let to = match layout.codes {
            Codes::Table(table) if factor(table).is_some() => match layout.group {
                16 => WeightFormat::I8G16,
                _ => WeightFormat::I8G32,
            },
            Codes::Table(_) | Codes::Float => WeightFormat::F32,
            // 64 has no kernel.
            Codes::Integer { .. } | Codes::E4m3 => match from.narrowed(128) {
                Some(to) if own(to).is_some() => to,
                _ => from.narrowed(32).unwrap_or(WeightFormat::F32),
            },
        };
        let kernel = own(to).unwrap_or(Kernel::F32);
        let to = Rows::As(to);
        Ok(Form { from, kernel, to })
    }

    /// Whether a kernel reads rows as they come.
    pub(crate) fn is_own(&self) -> bool {
        self.to == Rows::AsTheyCome
    }

    /// Bytes of a row as it comes.
    pub(crate) fn row_bytes(&self, width: usize) -> usize {
        self.from.row_bytes(width).unwrap_or(0)
    }

    /// Rows as the kernel's packer takes them; `None`: as they are.
    pub(crate) fn rows(&self, rows: &[u8], width: usize) -> Result<Option<Vec<u8>>> {
        let to = match self.to {
            Rows::AsTheyCome => return Ok(None),
            Rows::Coded => return Ok(Some(kernel_rows(self.from, self.kernel, rows))),
            Rows::As(to) => to,
        };
        let mut out = Vec::new();
        for row in rows.chunks_exact(self.row_bytes(width).max(1)) {
            match (to, self.from.layout().codes) {
                (WeightFormat::F32, _) => {
                    let mut values = vec![0.0; width];
                    dequantise_row(self.from, row, &mut values);
                    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                }
                (_, Codes::Table(table)) => put_table(self.from, to, table, row, &mut out),
                _ => convert_row(self.from, to, row, &mut out)?,
            }
        }
        Ok(Some(out))
    }
}

/// What makes whole numbers of a table; a power of two, so that its scale stays exact.
fn factor(table: &[f32; 16]) -> Option<f32> {
    let is_whole = |factor: f32| table.iter().all(|value| (value * factor).fract() == 0.0);
    [1.0, 2.0]
        .into_iter()
        .find(|&factor| is_whole(factor) && table != &[0.0; 16])
}

/// A row of indices as bytes.
fn put_table(from: WeightFormat, to: WeightFormat, table: &[f32; 16], row: &[u8], out: &mut Vec<u8>) {
    let (layout, factor) = (from.layout(), factor(table).unwrap_or(1.0));
    let (blocks, tail) = row.split_at(row.len() - layout.row_tail_bytes);
    let (mut unpacked, size) = (Unpacked::default(), to.block_values());
    for block in blocks.chunks_exact(layout.block_bytes) {
        unpack(from, block, tail, &mut unpacked);
        for first in (0..layout.block_values).step_by(size) {
            let codes: Vec<i8> = unpacked.codes[first..first + size]
                .iter()
                .map(|&code| (table[usize::from(code as u8 & 15)] * factor) as i8)
                .collect();
            put_group(to, &codes, unpacked.scales[first / layout.group] / factor, 0.0, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use halyard_platform_api::weight_format::E2M1;

    use super::*;

    /// Every format has a form here, with the values that the contract's decoder gives.
    #[test]
    fn every_format_has_a_form_with_its_values() {
        let width = 256;
        for format in WeightFormat::ALL {
            let form = Form::of("linear", format, width).expect("a form");
            let row: Vec<u8> = (0..form.row_bytes(256)).map(|i| (i * 37 % 59) as u8).collect();
            let mut expected = vec![0.0; 256];
            dequantise_row(format, &row, &mut expected);
            let turned = form.rows(&row, 256).expect("turned").unwrap_or_else(|| row.clone());
            let mut values = vec![0.0; 256];
            halyard_kernels_cpu::dequantize_row(form.kernel, &turned, &mut values);
            for (value, expected) in values.iter().zip(&expected) {
                let near = (value - expected).abs() <= expected.abs() * 1e-6;
                assert!(
                    near || value.is_nan() && expected.is_nan(),
                    "{format:?}: {value} for {expected}"
                );
            }
        }
        assert_eq!(factor(&E2M1), Some(2.0));
        let narrow = Form::of("linear", WeightFormat::U4G128, 64).expect_err("no whole blocks");
        assert!(
            narrow.message.contains("64 values are no whole blocks of 128"),
            "{narrow:?}"
        );
    }
}
