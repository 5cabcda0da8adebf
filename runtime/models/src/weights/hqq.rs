//! HQQ's matrices, as its library saves them for safetensors: codes packed in `W_q`, a scale and a zero point for each
//! group of the flattened matrix, and what describes them as small tensors beside them.

use super::finder::Finder;
use super::grouped::{Elements, Grouped, Numbers, Scales, Zeros};
use super::packed::{PackedCodes, Parts};
use crate::config::{Scheme, hqq_bits};
use crate::error::{ModelError, Result};

/// Longest text that describes a matrix.
const MAX_TEXT_BYTES: usize = 64;

/// How `packing` puts codes into words: its name, the bits of a code, the codes of a word, the bytes of a word.
const PACKINGS: [(&str, usize, usize, usize); 5] = [
    ("8bit_u8", 8, 1, 1),
    ("4bit_u8", 4, 2, 1),
    ("3bit_32", 3, 10, 4),
    ("2bit_u8", 2, 4, 1),
    ("1bit_u8", 1, 8, 1),
];

/// The matrix is laid out as `[values / group, group]` and its rows are the groups (axis 1), or as `[group,
/// values / group]` and its columns are (axis 0). Its rows are cut into as many equal parts as a word has codes: the
/// word (r, c) has that of (r, c) of each part, the first part's in the highest bits. value = (q − zero)·scale.
pub(super) fn find<'w>(finder: &Finder<'w, '_>, stem: &str) -> Result<Grouped<'w>> {
    let read = Reader { finder, stem };
    let (rows, columns) = (finder.rows, finder.columns);
    let num_values = rows * columns;
    if read.shape()? != [rows, columns] {
        return Err(finder.wrong_shape(&read.name("shape"), &[rows, columns], &read.shape()?));
    }
    for (flag, wanted) in [("quant_scale", 0), ("quant_zero", 0), ("channel_wise", 1)] {
        if finder.files.tensor(&read.name(flag)).is_some() && read.number(flag)? != wanted {
            let limit = format!("{wanted}: scales and zeros of groups, which are not quantised themselves, are read");
            return Err(read.bad(flag, read.number(flag)?.to_string(), limit));
        }
    }
    let axis = match read.number("axis")? {
        axis @ 0..=1 => axis,
        other => return Err(read.bad("axis", other.to_string(), "0 or 1".to_owned())),
    };
    let group = match usize::try_from(read.number("group_size")?) {
        Ok(group @ 1..) if num_values.is_multiple_of(group) => group,
        _ => {
            let limit = format!("a size of 1 or more that divides the matrix's {num_values} values");
            return Err(read.bad("group_size", read.number("group_size")?.to_string(), limit));
        }
    };
    let packing = read.text("packing")?;
    let Some(&(_, bits, codes, word_bytes)) = PACKINGS.iter().find(|(name, ..)| *name == packing) else {
        let names = PACKINGS.map(|(name, ..)| name).join(", ");
        return Err(read.bad("packing", packing, format!("one of {names}")));
    };
    let nbits = read.real("nbits")?;
    if hqq_bits(nbits) != Some(bits) {
        return Err(read.bad("nbits", nbits.to_string(), format!("what `packing` {packing} holds")));
    }
    read.agrees(bits, group)?;
    let num_groups = num_values / group;
    let (height, width) = if axis == 1 {
        (num_groups, group)
    } else {
        (group, num_groups)
    };
    let num_words = height.div_ceil(codes) * width;
    let bytes = read.codes(num_words * word_bytes, &packing)?;
    // One number a group, as a column or a row.
    let shape = if axis == 1 { [num_groups, 1] } else { [1, num_groups] };
    let numbers = |end: &str| finder.scales(&read.name(end), &shape, 1, 0);
    let (group, scales, zeros) = match axis {
        1 => {
            let part = common_divisor(group, columns);
            let of_parts = |end: &str| Ok(by_parts(numbers(end)?, rows, columns, part, group));
            (part, of_parts("scale")?, of_parts("zero")?)
        }
        // A column of the laid out matrix is a value of each few rows: each value of a row has a scale of its own.
        _ => {
            let of_values = |end: &str| {
                numbers(end).map(|scales| Scales {
                    row_stride: columns,
                    group_stride: 1,
                    period: num_groups,
                    ..scales
                })
            };
            (1, of_values("scale")?, of_values("zero")?)
        }
    };
    Ok(Grouped {
        codes: PackedCodes::Parts(Parts {
            bytes,
            bits,
            codes,
            word_bytes,
            num_words,
        }),
        elements: if bits == 8 { Elements::Byte } else { Elements::Small },
        group,
        scales,
        zeros: Zeros::Real(zeros),
        group_of: None,
        order: None,
        row_order: None,
    })
}

/// The numbers of flattened groups of `group` values, for parts of `part` columns, which divide a group and a row.
fn by_parts(scales: Scales<'_>, rows: usize, columns: usize, part: usize, group: usize) -> Scales<'_> {
    let parts = columns / part;
    if columns.is_multiple_of(group) {
        return Scales {
            row_stride: parts,
            group_stride: 1,
            ..scales
        };
    }
    if group.is_multiple_of(columns) {
        return Scales {
            rows: group / columns,
            row_stride: 1,
            group_stride: 0,
            ..scales
        };
    }
    // Groups run over the ends of rows.
    let of_part = (0..rows * parts).map(|at| scales.numbers.at(at * part / group));
    Scales {
        numbers: Numbers::Made(of_part.collect()),
        row_stride: parts,
        group_stride: 1,
        ..scales
    }
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// What stands beside the codes.
struct Reader<'f, 'w, 'n> {
    finder: &'f Finder<'w, 'n>,
    stem: &'f str,
}

impl<'w> Reader<'_, 'w, '_> {
    fn name(&self, end: &str) -> String {
        format!("{}{end}", self.stem)
    }

    /// The words of codes, which may be stored as floats that have their bytes.
    fn codes(&self, num_bytes: usize, packing: &str) -> Result<&'w [u8]> {
        let name = self.name("W_q");
        let bytes = self.finder.files.tensor_bytes(self.finder.required(&name)?);
        match bytes.len() == num_bytes {
            true => Ok(bytes),
            false => Err(self.finder.unexpected(
                &name,
                &format!(
                    "{} bytes of codes, while `packing` {packing} and `group_size` need {num_bytes}",
                    bytes.len()
                ),
            )),
        }
    }

    /// A tensor of one whole number.
    fn number(&self, end: &str) -> Result<i64> {
        let name = self.name(end);
        let tensor = self.finder.required(&name)?;
        let bytes = self.finder.files.tensor_bytes(tensor);
        let number = match (tensor.dtype.as_str(), bytes) {
            ("U8" | "BOOL", &[byte]) => Some(i64::from(byte)),
            ("I32", &[a, b, c, d]) => Some(i64::from(i32::from_le_bytes([a, b, c, d]))),
            ("I64", bytes) => bytes.try_into().ok().map(i64::from_le_bytes),
            _ => None,
        };
        number.ok_or_else(|| {
            let found = format!("{} of shape {:?}, not one whole number", tensor.dtype, tensor.shape);
            self.finder.unexpected(&name, &found)
        })
    }

    /// A tensor of one number: only 1.58 bits are no whole one.
    fn real(&self, end: &str) -> Result<f64> {
        let name = self.name(end);
        let tensor = self.finder.required(&name)?;
        match (tensor.dtype.as_str(), self.finder.files.tensor_bytes(tensor)) {
            ("F32", &[a, b, c, d]) => Ok(f64::from(f32::from_le_bytes([a, b, c, d]))),
            _ => self.number(end).map(|number| number as f64),
        }
    }

    /// The matrix's own shape.
    fn shape(&self) -> Result<Vec<usize>> {
        let name = self.name("shape");
        let bytes = self.finder.of_shape(&name, "I64", &[2])?;
        let sizes = bytes.chunks_exact(8).filter_map(|b| b.try_into().ok());
        Ok(sizes
            .map(|b| usize::try_from(i64::from_le_bytes(b)).unwrap_or(0))
            .collect())
    }

    /// A tensor of characters.
    fn text(&self, end: &str) -> Result<String> {
        let name = self.name(end);
        let tensor = self.finder.required(&name)?;
        let bytes = self.finder.files.tensor_bytes(tensor);
        match tensor.dtype.as_str() {
            "U8" if bytes.len() <= MAX_TEXT_BYTES => Ok(String::from_utf8_lossy(bytes).into_owned()),
            dtype => Err(self
                .finder
                .unexpected(&name, &format!("{dtype} of shape {:?}, not a short text", tensor.shape))),
        }
    }

    /// Bits and groups must be what the configuration says, where it says anything.
    fn agrees(&self, bits: usize, group: usize) -> Result<()> {
        let schemes = &self.finder.quantization.schemes;
        let is_said = |scheme: &Scheme| scheme.bits == bits && scheme.group.is_none_or(|said| said == group);
        if schemes.is_empty() || schemes.iter().any(is_said) {
            return Ok(());
        }
        let said: Vec<String> = schemes
            .iter()
            .map(|scheme| match scheme.group {
                Some(group) => format!("{} bits in groups of {group}", scheme.bits),
                None => format!("{} bits in groups of any size", scheme.bits),
            })
            .collect();
        Err(ModelError::Unsupported {
            path: self.finder.files.path().to_path_buf(),
            field: self.name("*"),
            value: format!(
                "{bits} bits in groups of {group}, while quantization_config says {}",
                said.join(", or ")
            ),
            remedy: "tensors and configuration are not of one checkpoint: download it again".to_owned(),
        })
    }

    fn bad(&self, end: &str, value: String, limit: String) -> ModelError {
        ModelError::BadField {
            path: self.finder.files.path().to_path_buf(),
            field: self.name(end),
            value,
            limit,
        }
    }
}
