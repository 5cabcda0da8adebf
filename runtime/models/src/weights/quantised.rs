//! Finds the tensors of a quantised matrix in safetensors files and checks that they belong together: by what the
//! method calls them, their types and shapes, and what `quantization_config` says.

use super::bits_and_bytes;
use super::finder::Finder;
use super::grouped::{Elements, Global, Grouped, Numbers, Scales, Zeros};
use super::hqq;
use super::packed::{PackedCodes, Words};
use crate::config::Method;
use crate::error::{ModelError, Result};
use crate::safetensors::{SafetensorsFiles, SafetensorsTensor};

/// What the codes of `x.weight` may be called in its place: `x.` and one of these.
const CODE_NAMES: [&str; 3] = ["qweight", "weight_packed", "W_q"];

/// Whether the files have a tensor, or the codes of a quantised one with this name.
pub(super) fn is_there(files: &SafetensorsFiles, name: &str) -> bool {
    files.tensor(name).is_some()
        || name.strip_suffix("weight").is_some_and(|stem| {
            CODE_NAMES
                .iter()
                .any(|codes| files.tensor(&format!("{stem}{codes}")).is_some())
        })
}

impl<'w> Finder<'w, '_> {
    /// The matrix; `None` where it is stored plainly or as 8-bit floats with one scale a tensor or row.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::WrongShape`], [`ModelError::UnsupportedFormat`],
    /// [`ModelError::Unsupported`] where tensors and configuration contradict each other.
    pub(super) fn find(&self) -> Result<Option<Grouped<'w>>> {
        let Some(stem) = self.name.strip_suffix("weight") else {
            return Ok(None);
        };
        let tensor = |end: &str| self.files.tensor(&format!("{stem}{end}"));
        if tensor("qweight").is_some() {
            return match self.quantization.method {
                Method::Awq => self.awq(stem).map(Some),
                Method::Gptq => self.gptq(stem).map(Some),
                _ => Err(self.unexpected(&format!("{stem}qweight"), "AWQ's or GPTQ's packing")),
            };
        }
        if tensor("weight_packed").is_some() {
            return self.compressed(stem).map(Some);
        }
        if tensor("W_q").is_some() {
            return match self.quantization.method {
                // Files that the library saves itself have no quantization_config.
                Method::Hqq | Method::None => hqq::find(self, stem).map(Some),
                _ => Err(self.unexpected(&format!("{stem}W_q"), "HQQ's packing")),
            };
        }
        let Some(weight) = self.files.tensor(self.name) else {
            return Ok(None);
        };
        match weight.dtype.as_str() {
            "U8" if self.quantization.method == Method::BitsAndBytes => {
                bits_and_bytes::four_bits(self, weight).map(Some)
            }
            "I8" if tensor("SCB").is_some() => bits_and_bytes::eight_bits(self, weight, stem).map(Some),
            "I8" if tensor("weight_scale").is_some() => self.signed_bytes(weight, stem).map(Some),
            "U8" if tensor("weight_scale_2").is_some() => self.model_optimizer(weight, stem).map(Some),
            "F8_E4M3" => self.float_blocks(weight, stem),
            _ => Ok(None),
        }
    }

    /// AutoAWQ: `qweight` [columns, rows / 8] i32, `qzeros` [groups, rows / 8] i32, `scales` [groups, rows].
    fn awq(&self, stem: &str) -> Result<Grouped<'w>> {
        let words = self.rows / 8;
        let codes = self.of_shape(&format!("{stem}qweight"), "I32", &[self.columns, words])?;
        let (scales, num_groups) = self.group_scales(&format!("{stem}scales"))?;
        let group = self.group(stem, 4, num_groups)?;
        let packed = |bytes| Words {
            bytes,
            bits: 4,
            step: 1,
            stride: words,
            is_awq: true,
        };
        let zeros = format!("{stem}qzeros");
        let zeros = match self.files.tensor(&zeros) {
            // A symmetric one may leave them out.
            None => Zeros::All(8.0),
            Some(_) => Zeros::Packed {
                words: packed(self.of_shape(&zeros, "I32", &[num_groups, words])?),
                by_group: true,
                add: 0,
            },
        };
        Ok(Grouped {
            codes: PackedCodes::ByColumn(packed(codes)),
            elements: Elements::Small,
            group,
            scales,
            zeros,
            group_of: None,
            order: None,
            row_order: None,
        })
    }

    /// GPTQ: `qweight` [columns · bits / 32, rows] i32, `qzeros` [groups, rows · bits / 32] i32, `scales`
    /// [groups, rows], and `g_idx` [columns] i32, the group of each column.
    fn gptq(&self, stem: &str) -> Result<Grouped<'w>> {
        let codes = format!("{stem}qweight");
        let found = self.required(&codes)?;
        let bits = self.bits_of(&codes, found, found.shape.first().copied().unwrap_or(0) * 32)?;
        let codes = self.of_shape(&codes, "I32", &[self.columns * bits / 32, self.rows])?;
        let (scales, num_groups) = self.group_scales(&format!("{stem}scales"))?;
        let group = self.group(stem, bits, num_groups)?;
        let zero_words = self.rows * bits / 32;
        let zeros = self.of_shape(&format!("{stem}qzeros"), "I32", &[num_groups, zero_words])?;
        let words = |bytes, step, stride| Words {
            bytes,
            bits,
            step,
            stride,
            is_awq: false,
        };
        Ok(Grouped {
            codes: PackedCodes::ByRow(words(codes, self.rows, 1)),
            elements: if bits == 8 { Elements::Byte } else { Elements::Small },
            group,
            scales,
            zeros: Zeros::Packed {
                words: words(zeros, 1, zero_words),
                by_group: true,
                add: i32::from(self.quantization.zeros_less_one),
            },
            group_of: self.group_of(&format!("{stem}g_idx"), group, num_groups)?,
            order: None,
            row_order: None,
        })
    }

    /// compressed-tensors: `weight_packed` [rows, columns · bits / 32] i32, or two E2M1 codes a byte
    /// [rows, columns / 2] u8; `weight_scale` [rows, groups]; `weight_zero_point` packed along rows
    /// [rows · bits / 32, groups] i32.
    fn compressed(&self, stem: &str) -> Result<Grouped<'w>> {
        let codes = format!("{stem}weight_packed");
        let found = self.required(&codes)?;
        if found.dtype == "U8" {
            return self.float_codes(&codes, stem);
        }
        let width = found.shape.get(1).copied().unwrap_or(0);
        let bits = self.bits_of(&codes, found, width * 32)?;
        if !matches!(bits, 2 | 4 | 8) {
            return Err(self.unexpected(&codes, &format!("codes of {bits} bits")));
        }
        let bytes = self.of_shape(&codes, "I32", &[self.rows, self.columns * bits / 32])?;
        let (scales, num_groups) = self.row_scales(&format!("{stem}weight_scale"))?;
        let group = self.group(stem, bits, num_groups)?;
        let words = |bytes, step, stride| Words {
            bytes,
            bits,
            step,
            stride,
            is_awq: false,
        };
        let zeros = format!("{stem}weight_zero_point");
        let zeros = match self.files.tensor(&zeros) {
            None => Zeros::All((1 << (bits - 1)) as f32),
            Some(_) => Zeros::Packed {
                words: words(
                    self.of_shape(&zeros, "I32", &[(self.rows * bits).div_ceil(32), num_groups])?,
                    num_groups,
                    1,
                ),
                by_group: true,
                add: 0,
            },
        };
        Ok(Grouped {
            codes: PackedCodes::ByRow(words(bytes, 1, width)),
            elements: if bits == 8 { Elements::Byte } else { Elements::Small },
            group,
            scales,
            zeros,
            group_of: self.group_of(&format!("{stem}weight_g_idx"), group, num_groups)?,
            order: None,
            row_order: None,
        })
    }

    /// compressed-tensors' NVFP4 (E4M3 scales of 16 columns, which `weight_global_scale` divides) and MXFP4 (E8M0
    /// scales of 32).
    fn float_codes(&self, codes: &str, stem: &str) -> Result<Grouped<'w>> {
        let bytes = self.of_shape(codes, "U8", &[self.rows, self.columns / 2])?;
        let name = format!("{stem}weight_scale");
        let tensor = self.required(&name)?;
        let scale_bytes = self.files.tensor_bytes(tensor);
        let (numbers, group, global) = match tensor.dtype.as_str() {
            "U8" => (Numbers::E8m0(scale_bytes), 32, Global::None),
            "F8_E4M3" => {
                let global = self.scalar(&format!("{stem}weight_global_scale"))?;
                (Numbers::E4m3(scale_bytes), 16, Global::By(global))
            }
            other => return Err(self.unexpected(&name, &format!("scales of type {other}"))),
        };
        self.float_groups(&name, bytes, numbers, group, global)
    }

    /// ModelOpt's NVFP4: `weight_scale_2` multiplies.
    fn model_optimizer(&self, weight: &SafetensorsTensor, stem: &str) -> Result<Grouped<'w>> {
        let bytes = self.of_shape(self.name, &weight.dtype, &[self.rows, self.columns / 2])?;
        let name = format!("{stem}weight_scale");
        let scale_bytes = self.of_shape(&name, "F8_E4M3", &[self.rows, self.columns / 16])?;
        let global = Global::Times(self.scalar(&format!("{stem}weight_scale_2"))?);
        self.float_groups(&name, bytes, Numbers::E4m3(scale_bytes), 16, global)
    }

    fn float_groups(
        &self,
        scale: &str,
        bytes: &'w [u8],
        numbers: Numbers<'w>,
        group: usize,
        global: Global,
    ) -> Result<Grouped<'w>> {
        let groups = self.columns / group;
        self.of_shape(scale, &self.required(scale)?.dtype.clone(), &[self.rows, groups])?;
        Ok(Grouped {
            codes: PackedCodes::Nibbles {
                bytes,
                high_first: false,
            },
            elements: Elements::E2m1,
            group,
            scales: Scales {
                numbers,
                rows: 1,
                row_stride: groups,
                group_stride: 1,
                period: usize::MAX,
                global,
            },
            zeros: Zeros::All(0.0),
            group_of: None,
            order: None,
            row_order: None,
        })
    }

    /// compressed-tensors' int-quantized: signed bytes, `weight_scale` a tensor, row or group, `weight_zero_point` i8
    /// alike.
    fn signed_bytes(&self, weight: &SafetensorsTensor, stem: &str) -> Result<Grouped<'w>> {
        let bytes = self.of_shape(self.name, &weight.dtype, &[self.rows, self.columns])?;
        let (scales, num_groups) = self.row_scales(&format!("{stem}weight_scale"))?;
        let group = self.group(stem, 8, num_groups)?;
        let zeros = format!("{stem}weight_zero_point");
        let zeros = match self.files.tensor(&zeros) {
            None => Zeros::All(0.0),
            Some(tensor) => Zeros::Signed {
                bytes: self.of_shape(&zeros, "I8", &tensor.shape.clone()).and_then(|bytes| {
                    let expected = if scales.row_stride == 0 {
                        1
                    } else {
                        self.rows * num_groups
                    };
                    match bytes.len() == expected {
                        true => Ok(bytes),
                        false => Err(self.wrong_shape(&zeros, &[self.rows, num_groups], &tensor.shape)),
                    }
                })?,
                row_stride: scales.row_stride,
            },
        };
        Ok(Grouped {
            codes: PackedCodes::Bytes(bytes),
            elements: Elements::SignedByte,
            group,
            scales,
            zeros,
            group_of: None,
            order: None,
            row_order: None,
        })
    }

    /// 8-bit floats with a scale a block of rows and columns (DeepSeek's `weight_scale_inv`). `None`: a scale a tensor
    /// or row.
    fn float_blocks(&self, weight: &SafetensorsTensor, stem: &str) -> Result<Option<Grouped<'w>>> {
        let Some([block_rows, block_columns]) = self.quantization.block else {
            return Ok(None);
        };
        let names = ["weight_scale_inv", "weight_scale"].map(|end| format!("{stem}{end}"));
        let Some(name) = names.iter().find(|name| self.files.tensor(name).is_some()) else {
            return Err(self.missing(&names[0]));
        };
        let tensor = self.required(name)?;
        if tensor.shape.len() != 2 {
            return Ok(None);
        }
        let bytes = self.of_shape(self.name, &weight.dtype, &[self.rows, self.columns])?;
        let groups = self.columns.div_ceil(block_columns);
        let shape = [self.rows.div_ceil(block_rows), groups];
        Ok(Some(Grouped {
            codes: PackedCodes::Bytes(bytes),
            elements: Elements::E4m3,
            group: block_columns,
            scales: Scales {
                rows: block_rows,
                ..self.scales(name, &shape, groups, 1)?
            },
            zeros: Zeros::All(0.0),
            group_of: None,
            order: None,
            row_order: None,
        }))
    }

    /// `scales` [groups, rows], and the number of groups.
    fn group_scales(&self, name: &str) -> Result<(Scales<'w>, usize)> {
        let tensor = self.required(name)?;
        let num_groups = tensor.shape.first().copied().unwrap_or(0);
        let scales = self.scales(name, &[num_groups, self.rows], 1, self.rows)?;
        Ok((scales, num_groups))
    }

    /// `weight_scale` [rows, groups], [rows], [1] or [], and the number of groups.
    fn row_scales(&self, name: &str) -> Result<(Scales<'w>, usize)> {
        let tensor = self.required(name)?;
        match tensor.shape[..] {
            [] | [1] => Ok((self.scales(name, &tensor.shape.clone(), 0, 0)?, 1)),
            [rows] if rows == self.rows => Ok((self.scales(name, &[rows], 1, 0)?, 1)),
            [rows, groups] if rows == self.rows => Ok((self.scales(name, &[rows, groups], groups, 1)?, groups)),
            _ => Err(self.wrong_shape(name, &[self.rows, 1], &tensor.shape)),
        }
    }

    /// A tensor of one number.
    fn scalar(&self, name: &str) -> Result<f32> {
        let tensor = self.required(name)?;
        let scales = self.scales(name, &tensor.shape.clone(), 0, 0)?;
        match scales.numbers.len() {
            1 => Ok(scales.numbers.at(0)),
            _ => Err(self.wrong_shape(name, &[1], &tensor.shape)),
        }
    }

    /// The bits of codes that take `stored_bits` for each row or column of the matrix.
    fn bits_of(&self, name: &str, tensor: &SafetensorsTensor, stored_bits: usize) -> Result<usize> {
        let bits = stored_bits / self.columns.max(1);
        let is_whole = stored_bits == bits * self.columns && matches!(bits, 1..=8);
        // A matrix whose columns do not fill words is padded: the configuration has to say.
        match is_whole {
            true => Ok(bits),
            false => Err(self.wrong_shape(name, &[self.rows, self.columns], &tensor.shape)),
        }
    }

    /// The columns of a group, which must be what the configuration says. The last group of a row may be cut.
    fn group(&self, stem: &str, bits: usize, num_groups: usize) -> Result<usize> {
        let schemes = &self.quantization.schemes;
        let said = schemes.iter().filter(|scheme| scheme.bits == bits);
        let mut said = said.map(|scheme| scheme.group.unwrap_or(self.columns));
        if let Some(group) = said.find(|group| self.columns.div_ceil(*group) == num_groups) {
            return Ok(group);
        }
        let group = self.columns / num_groups.max(1);
        if schemes.is_empty() && group > 0 && group * num_groups == self.columns {
            return Ok(group);
        }
        let said: Vec<String> = schemes
            .iter()
            .map(|scheme| match scheme.group {
                Some(group) => format!("{} bits in groups of {group}", scheme.bits),
                None => format!("{} bits with one scale a row", scheme.bits),
            })
            .collect();
        Err(ModelError::Unsupported {
            path: self.files.path().to_path_buf(),
            field: format!("{stem}*"),
            value: format!(
                "{bits} bits with {num_groups} scales for {} columns, while quantization_config says {}",
                self.columns,
                said.join(", or ")
            ),
            remedy: "tensors and configuration are not of one checkpoint: download it again".to_owned(),
        })
    }

    /// The group of each column, where they are not in order.
    fn group_of(&self, name: &str, group: usize, num_groups: usize) -> Result<Option<Vec<u32>>> {
        if self.files.tensor(name).is_none() {
            return Ok(None);
        }
        let bytes = self.of_shape(name, "I32", &[self.columns])?;
        let groups: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        if let Some(column) = groups.iter().position(|&of| of as usize >= num_groups) {
            return Err(ModelError::BadField {
                path: self.files.path().to_path_buf(),
                field: format!("{name}[{column}]"),
                value: (groups[column] as i32).to_string(),
                limit: format!("a group from 0 to {}", num_groups.saturating_sub(1)),
            });
        }
        let in_order = groups
            .iter()
            .enumerate()
            .all(|(column, &of)| column / group == of as usize);
        Ok((!in_order).then_some(groups))
    }
}
