//! One stored weight, and its rows in the form that backends take: as in the file, with a scale appended to each row,
//! or quantised while loading.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use halyard_platform_api::WeightFormat;
use halyard_platform_api::weight_format::{convert_row, dequantise_row};

use super::grouped::Grouped;
use super::names::PackedRows;
use super::order::{format_of_order, put_order_row};
use crate::error::{ModelError, Result};
use crate::quant::{dequantize, format_name, quantize_e4m3, quantize_groups};

/// One weight.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightTensor<'a> {
    /// Its name in the file, for messages.
    pub name: String,
    /// The stored values, row-major: whole blocks.
    pub bytes: Cow<'a, [u8]>,
    /// How values are held in the rows that are handed out.
    pub format: WeightFormat,
    /// Where the stored values of a row are.
    pub(super) stored_rows: StoredRows,
    /// `[out_features, in_features]` of a matrix, `[size]` of a vector.
    pub shape: Vec<usize>,
    /// What is done to the stored values.
    pub(super) coding: Coding<'a>,
    /// The format that they come in before rows are turned into `format`.
    pub(super) turned_from: Option<WeightFormat>,
    /// And what is changed of them on the way.
    pub(super) change: Change,
}

/// How a value is handed out: (value + offset) · factor − offset, where the offset is what the model adds to a norm's
/// weights; or (value + offset) · factor, where the op of the norm does not add it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Change {
    pub factor: f32,
    pub offset: f32,
    pub adds_offset: bool,
}

/// Where the values of a weight's rows stand in its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StoredRows {
    /// One row behind the other, nothing between.
    Whole,
    /// Row by row in a tensor that has other rows, too.
    Packed(PackedRows),
}

impl Default for Change {
    fn default() -> Self {
        Change {
            factor: 1.0,
            offset: 0.0,
            adds_offset: false,
        }
    }
}

impl Change {
    fn is_none(self) -> bool {
        self.factor == 1.0 && !(self.adds_offset && self.offset != 0.0)
    }

    fn apply(self, values: &mut [f32]) {
        for value in values.iter_mut().filter(|_| !self.is_none()) {
            let taken = if self.adds_offset { 0.0 } else { self.offset };
            *value = (*value + self.offset) * self.factor - taken;
        }
    }
}

/// How stored bytes become rows of the tensor's format.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Coding<'a> {
    /// They are such rows.
    AsStored,
    /// They are codes of 8-bit floats; scales come from another tensor of the file: one, or one a row.
    Scales(Vec<f32>),
    /// They are plain values of this format.
    Quantise(WeightFormat),
    /// They are codes of MXFP4 as gpt-oss's checkpoints have them: 16 bytes a block, two neighbours a byte, low half
    /// first. The exponents of all blocks are another tensor, row by row of the stored one.
    Mxfp4(Vec<u8>),
    /// They are several tensors, which this holds; `bytes` is empty.
    Grouped(Box<Grouped<'a>>),
    /// There are none: each row has a 1 in one of its columns.
    Order(Arc<[u32]>),
    /// They are those of this tensor, whose rows are the rows of equally large matrices: each is handed out as its
    /// transpose, in a plain format as stored, in others as F32.
    TransposedMatrices(Box<WeightTensor<'a>>, usize),
}

impl<'w> WeightTensor<'w> {
    /// The weight with some of the rows of a tensor; the shape is the weight's already. Values of a vector are copied,
    /// rows of a matrix stay where they are.
    pub(super) fn of_packed(mut self, rows: PackedRows) -> WeightTensor<'w> {
        let part = |bytes: &[u8], of: Range<usize>| bytes[of].to_vec();
        let value = self.bytes.len() / rows.total;
        // Other tensors' rows are counted from the stored tensor's first one.
        let has_more = matches!(self.coding, Coding::Mxfp4(_) | Coding::Grouped(_));
        if let &[size] = self.shape.as_slice() {
            let values = (0..size).map(|row| rows.stored(row) * value);
            let copied: Vec<u8> = values.flat_map(|at| part(&self.bytes, at..at + value)).collect();
            self.bytes = Cow::Owned(copied);
        } else if rows.run == self.shape[0] && !rows.is_transposed && !has_more {
            let range = rows.first * value..(rows.first + rows.run) * value;
            self.bytes = match self.bytes {
                Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[range]),
                Cow::Owned(bytes) => Cow::Owned(part(&bytes, range)),
            };
        } else {
            self.stored_rows = StoredRows::Packed(rows);
        }
        self
    }

    /// The matrix whose products are the values of a vector in another order.
    pub(super) fn of_order(name: String, order: Arc<[u32]>) -> WeightTensor<'w> {
        WeightTensor {
            name,
            bytes: Cow::Borrowed(&[]),
            format: format_of_order(order.len()),
            stored_rows: StoredRows::Whole,
            shape: vec![order.len(); 2],
            coding: Coding::Order(order),
            turned_from: None,
            change: Change::default(),
        }
    }

    /// The matrix of a tensor whose rows are those of so many equally large matrices, each of them transposed. Plain
    /// values stay in their format, others become F32, as a transposed block is no block.
    pub(super) fn with_matrices_transposed(self, matrices: usize) -> WeightTensor<'w> {
        let (rows, columns) = (self.num_rows() / matrices, self.row_len());
        let is_plain = matches!(self.format, WeightFormat::F16 | WeightFormat::BF16);
        WeightTensor {
            name: self.name.clone(),
            bytes: Cow::Borrowed(&[]),
            format: if is_plain { self.format } else { WeightFormat::F32 },
            stored_rows: StoredRows::Whole,
            shape: vec![matrices * columns, rows],
            coding: Coding::TransposedMatrices(Box::new(self), matrices),
            turned_from: None,
            change: Change::default(),
        }
    }

    /// The bytes in the file that hold its values, without scales; `None` where a copy was made of them.
    pub(super) fn into_stored_bytes(self) -> Option<&'w [u8]> {
        match (self.coding, self.bytes) {
            (Coding::Grouped(grouped), _) => Some(grouped.codes.bytes()),
            (Coding::TransposedMatrices(stored, _), _) => stored.into_stored_bytes(),
            (_, Cow::Borrowed(bytes)) => Some(bytes),
            (_, Cow::Owned(_)) => None,
        }
    }

    /// The stored bytes of a row.
    fn stored_row(&self, row: usize) -> Cow<'_, [u8]> {
        match self.stored_rows {
            StoredRows::Packed(rows) if rows.is_transposed => {
                let (value, column) = (self.format.block_bytes(), rows.stored(row));
                let values = self.bytes.chunks_exact(value).skip(column).step_by(rows.total);
                Cow::Owned(values.flatten().copied().collect())
            }
            StoredRows::Packed(rows) => {
                let bytes = self.bytes.len() / rows.total;
                Cow::Borrowed(&self.bytes[rows.stored(row) * bytes..][..bytes])
            }
            StoredRows::Whole => {
                let bytes = self.bytes.len() / self.num_rows();
                Cow::Borrowed(&self.bytes[row * bytes..][..bytes])
            }
        }
    }

    /// Where a row stands in the stored tensor.
    fn stored_index(&self, row: usize) -> usize {
        match self.stored_rows {
            StoredRows::Packed(rows) => rows.stored(row),
            StoredRows::Whole => row,
        }
    }

    /// Rows of a matrix, 1 of a vector.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        if self.shape.len() == 2 { self.shape[0] } else { 1 }
    }

    /// Values of a row.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Bytes of a row as it is handed out.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.row_len()).unwrap_or(0)
    }

    /// Whether [`WeightTensor::rows`] gives the file's bytes without copying them.
    #[must_use]
    pub fn is_as_stored(&self) -> bool {
        self.coding == Coding::AsStored
            && self.turned_from.is_none()
            && self.change.is_none()
            && self.stored_rows == StoredRows::Whole
    }

    /// The same weight, handed out in another format: of the same codes in narrower groups, or of plain values.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] where that format does not hold this weight's values.
    pub fn in_format(mut self, format: WeightFormat) -> Result<WeightTensor<'w>> {
        if format == self.format {
            return Ok(self);
        }
        let row_len = self.row_len();
        let is_there = match &self.coding {
            Coding::Grouped(grouped) => grouped.has_form(format),
            _ => {
                let narrowed = self.format.narrowed(format.layout().group.max(1));
                self.turned_from.is_none()
                    && (narrowed == Some(format) || format == WeightFormat::F32 || is_exact(self.format, format))
            }
        };
        if !is_there || format.row_bytes(row_len).is_none() {
            return Err(ModelError::Unsupported {
                path: std::path::PathBuf::new(),
                field: self.name,
                value: format!(
                    "rows of {row_len} values of {} as {}",
                    self.format.name(),
                    format_name(format)
                ),
                remedy: "use another platform, or another conversion of the model".to_owned(),
            });
        }
        if !matches!(self.coding, Coding::Grouped(_)) {
            self.turned_from = Some(self.format);
        }
        self.format = format;
        Ok(self)
    }

    /// The same weight as square blocks, where it is in groups whose scales and rows allow it.
    pub(super) fn in_square_blocks(mut self) -> WeightTensor<'w> {
        let is_cut = matches!(self.stored_rows, StoredRows::Packed(rows) if !rows.are_runs_of(128));
        if let Coding::Grouped(grouped) = &self.coding
            && self.format == WeightFormat::F8G128
            && !is_cut
            && grouped.has_form(WeightFormat::F8B128)
        {
            self.format = WeightFormat::F8B128;
        }
        self
    }

    /// The plain format of values that are quantised to 8-bit floats on the way without another change, and their
    /// stored bytes; `None` for others.
    #[must_use]
    pub fn unquantised(&self) -> Option<(WeightFormat, &[u8])> {
        match self.coding {
            Coding::Quantise(format)
                if self.format == WeightFormat::F8E4M3
                    && self.turned_from.is_none()
                    && self.change.is_none()
                    && self.stored_rows == StoredRows::Whole =>
            {
                Some((format, &self.bytes))
            }
            _ => None,
        }
    }

    /// Some rows. A range past the end is a bug of the caller and panics, as for slices.
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> Cow<'_, [u8]> {
        self.submatrix(rows, 0..self.row_len())
    }

    /// Some rows, of each the columns `columns`, which begin and end between blocks; a row's scale is the whole row's.
    /// Copies unless rows are taken whole and as stored. A range past the end is a bug of the caller and panics, as for
    /// slices.
    #[must_use]
    pub fn submatrix(&self, rows: Range<usize>, columns: Range<usize>) -> Cow<'_, [u8]> {
        if self.is_as_stored() && columns == (0..self.row_len()) {
            let stored_bytes = self.bytes.len() / self.num_rows();
            return Cow::Borrowed(&self.bytes[rows.start * stored_bytes..rows.end * stored_bytes]);
        }
        if let Coding::TransposedMatrices(stored, matrices) = &self.coding {
            return Cow::Owned(transposed_rows(stored, *matrices, rows, columns, self.format));
        }
        if let Some(from) = self.turned_from {
            return Cow::Owned(self.turned(from, rows, columns));
        }
        if let Coding::Grouped(grouped) = &self.coding {
            let stored: Vec<usize> = rows.map(|row| self.stored_index(grouped.row(row))).collect();
            let mut bytes = Vec::new();
            let factor = self.change.factor;
            grouped.put_rows(&stored, self.row_len(), columns, self.format, factor, &mut bytes);
            return Cow::Owned(bytes);
        }
        if let Coding::Order(order) = &self.coding {
            let mut bytes = Vec::new();
            for row in rows {
                put_order_row(self.format, order[row], columns.clone(), &mut bytes);
            }
            return Cow::Owned(bytes);
        }
        let bytes_at = |column: usize| column / self.format.block_values() * self.format.block_bytes();
        let part = bytes_at(columns.start)..bytes_at(columns.end);
        let mut bytes = Vec::with_capacity(rows.len() * (part.len() + self.format.row_tail_bytes()));
        let (mut values, mut coded) = (Vec::new(), Vec::new());
        for row in rows {
            let stored = &*self.stored_row(row);
            match &self.coding {
                Coding::AsStored if !self.change.is_none() => {
                    values.resize(self.row_len(), 0.0);
                    plain_values(self.format, stored, &mut values);
                    self.change.apply(&mut values);
                    put_plain_values(self.format, &values[columns.clone()], &mut bytes);
                }
                Coding::AsStored => {
                    bytes.extend_from_slice(&stored[part.clone()]);
                    bytes.extend_from_slice(&stored[bytes_at(self.row_len())..]);
                }
                Coding::TransposedMatrices(..) => unreachable!("made above"),
                Coding::Scales(scales) => {
                    bytes.extend_from_slice(&stored[part.clone()]);
                    let mut scale = [scales[if scales.len() == 1 { 0 } else { row }]];
                    self.change.apply(&mut scale);
                    bytes.extend_from_slice(&scale[0].to_le_bytes());
                }
                Coding::Mxfp4(exponents) => {
                    let blocks = self.row_len() / MXFP4_BLOCK;
                    let exponents = &exponents[self.stored_index(row) * blocks..][..blocks];
                    for block in columns.start / MXFP4_BLOCK..columns.end / MXFP4_BLOCK {
                        let codes = &stored[block * MXFP4_BLOCK / 2..][..MXFP4_BLOCK / 2];
                        let code = |i: usize| codes[i / 2] >> (i % 2 * 4) & 15;
                        bytes.push(exponents[block]);
                        bytes.extend((0..MXFP4_BLOCK / 2).map(|i| code(i) | code(i + MXFP4_BLOCK / 2) << 4));
                    }
                }
                // Taken above.
                Coding::Grouped(_) | Coding::Order(_) => {}
                Coding::Quantise(format) => {
                    values.resize(self.row_len(), 0.0);
                    coded.resize(self.row_bytes(), 0);
                    plain_values(*format, stored, &mut values);
                    self.change.apply(&mut values);
                    match self.format {
                        WeightFormat::F8E4M3 => {
                            quantize_e4m3(&values, &mut coded);
                            bytes.extend_from_slice(&coded[part.clone()]);
                            bytes.extend_from_slice(&coded[self.row_len()..]);
                        }
                        format => quantize_groups(format, &values[columns.clone()], &mut bytes),
                    }
                }
            }
        }
        Cow::Owned(bytes)
    }

    /// Some columns of rows of the format `from`, in the tensor's format.
    fn turned(&self, from: WeightFormat, rows: Range<usize>, columns: Range<usize>) -> Vec<u8> {
        let native = WeightTensor {
            name: String::new(),
            bytes: Cow::Borrowed(&self.bytes),
            format: from,
            stored_rows: self.stored_rows,
            shape: self.shape.clone(),
            coding: self.coding.clone(),
            turned_from: None,
            change: self.change,
        };
        let row_len = self.row_len();
        let (mut bytes, mut whole) = (Vec::new(), Vec::new());
        let mut values = vec![0.0; row_len];
        for row in rows {
            let row = native.rows(row..row + 1);
            if self.format.is_plain() {
                dequantise_row(from, &row, &mut values);
                put_plain_values(self.format, &values[columns.clone()], &mut bytes);
                continue;
            }
            whole.clear();
            // `in_format` has asked whether it can be.
            let converted = convert_row(from, self.format, &row, &mut whole);
            debug_assert!(converted.is_ok(), "{converted:?}");
            let at = |column: usize| column / self.format.block_values() * self.format.block_bytes();
            bytes.extend_from_slice(&whole[at(columns.start)..at(columns.end)]);
        }
        bytes
    }

    /// All values as f32, row-major: for norms, biases and tests.
    ///
    /// # Errors
    /// [`crate::ModelError::WrongByteCount`] if bytes and shape do not belong together, which no tensor handed
    /// out by [`super::Weights`] shows.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.shape.iter().product()];
        // What is changed of a vector is not rounded: vectors are handed on as f32.
        let is_whole = self.turned_from.is_none() && self.stored_rows == StoredRows::Whole;
        let is_stored = self.coding == Coding::AsStored && is_whole;
        let is_plain = self.shape.len() == 1 || self.change.is_none() && is_stored;
        if self.format.row_tail_bytes() == 0 && is_plain {
            dequantize(self.format, &self.bytes, &mut values)?;
            self.change.apply(&mut values);
            return Ok(values);
        }
        for (row, values) in values.chunks_exact_mut(self.row_len().max(1)).enumerate() {
            dequantize(self.format, &self.rows(row..row + 1), values)?;
        }
        Ok(values)
    }
}

/// Some rows and columns of the transposes of matrices that stand one behind the other in `stored`.
fn transposed_rows(
    stored: &WeightTensor<'_>,
    matrices: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    format: WeightFormat,
) -> Vec<u8> {
    let (height, width) = (stored.num_rows() / matrices, stored.row_len());
    let mut bytes = Vec::new();
    let (mut matrix, mut values) = (usize::MAX, vec![0.0; height * width]);
    for row in rows {
        if row / width != matrix {
            matrix = row / width;
            for (i, values) in values.chunks_exact_mut(width).enumerate() {
                let stored_row = matrix * height + i;
                // The bytes are whole rows of the tensor's own format.
                let decoded = dequantize(stored.format, &stored.rows(stored_row..stored_row + 1), values);
                debug_assert!(decoded.is_ok(), "{decoded:?}");
            }
        }
        let transposed: Vec<f32> = columns.clone().map(|i| values[i * width + row % width]).collect();
        put_plain_values(format, &transposed, &mut bytes);
    }
    bytes
}

/// Values of a block of MXFP4 (OCP Microscaling Formats 1.0).
pub(super) const MXFP4_BLOCK: usize = 32;

/// Whether a plain format holds every value of another one.
fn is_exact(format: WeightFormat, plain: WeightFormat) -> bool {
    // A sign, a power of two and two bits.
    format == WeightFormat::Mxfp4 && plain == WeightFormat::BF16
}

/// Values of a plain format; the bytes were checked when the file was opened.
fn plain_values(format: WeightFormat, bytes: &[u8], values: &mut [f32]) {
    match format {
        WeightFormat::BF16 => {
            for (value, b) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                *value = half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        WeightFormat::F16 => {
            for (value, b) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                *value = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        _ => {
            for (value, b) in values.iter_mut().zip(bytes.chunks_exact(4)) {
                *value = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
    }
}

/// Appends values in a plain format, rounded to nearest even.
fn put_plain_values(format: WeightFormat, values: &[f32], bytes: &mut Vec<u8>) {
    match format {
        WeightFormat::BF16 => bytes.extend(values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes())),
        WeightFormat::F16 => bytes.extend(values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes())),
        _ => bytes.extend(values.iter().flat_map(|v| v.to_le_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submatrix_of_blocks_is_the_submatrix_of_values() {
        let format = WeightFormat::Q8_0;
        let (rows, columns) = (3, 96);
        // Each block: a scale of 1 as f16, then 32 signed bytes.
        let block = |first: u8| [vec![0, 0x3c], (first..first + 32).collect()].concat();
        let tensor = WeightTensor {
            name: "w".to_owned(),
            bytes: (0..9).flat_map(|i| block(i * 8)).collect(),
            format,
            stored_rows: StoredRows::Whole,
            shape: vec![rows, columns],
            coding: Coding::AsStored,
            turned_from: None,
            change: Change::default(),
        };
        let whole = tensor.to_f32().expect("decodes");
        let part = tensor.submatrix(1..3, 32..96);
        let mut values = vec![0.0; 2 * 64];
        dequantize(format, &part, &mut values).expect("whole blocks");
        let expected: Vec<f32> = (1..3)
            .flat_map(|row| whole[row * 96 + 32..row * 96 + 96].to_vec())
            .collect();
        assert_eq!(values, expected);
        assert!(matches!(tensor.submatrix(0..2, 0..96), Cow::Borrowed(_)));
    }

    fn scaled(scales: Vec<f32>) -> WeightTensor<'static> {
        WeightTensor {
            name: "w".to_owned(),
            // 1, 2, 4 and -1, -2, -4.
            bytes: Cow::Borrowed(&[0x38, 0x40, 0x48, 0xb8, 0xc0, 0xc8]),
            format: WeightFormat::F8E4M3,
            stored_rows: StoredRows::Whole,
            shape: vec![2, 3],
            coding: Coding::Scales(scales),
            turned_from: None,
            change: Change::default(),
        }
    }

    #[test]
    fn both_layouts_of_mxfp4_give_the_same_rows() {
        let code = |i: usize| (i * 7 % 16) as u8;
        let beside: Vec<u8> = (0..64).step_by(2).map(|i| code(i + 1) << 4 | code(i)).collect();
        let block = |first: usize| (0..16).map(move |i| code(first + 16 + i) << 4 | code(first + i));
        let first: Vec<u8> = [(0, 126), (32, 128)]
            .into_iter()
            .flat_map(|(at, exponent)| std::iter::once(exponent).chain(block(at)))
            .collect();
        let tensor = |bytes: Vec<u8>, coding| WeightTensor {
            name: "w".to_owned(),
            bytes: Cow::Owned(bytes),
            format: WeightFormat::Mxfp4,
            stored_rows: StoredRows::Whole,
            shape: vec![2, 32],
            coding,
            turned_from: None,
            change: Change::default(),
        };
        let tensors = [
            tensor(beside, Coding::Mxfp4(vec![126, 128])),
            tensor(first, Coding::AsStored),
        ];
        let values = tensors.each_ref().map(|tensor| tensor.to_f32().expect("decodes"));
        assert_eq!(values[0], values[1]);
        // Codes 0, 7 and 14 of the first row, at 2^-1.
        assert_eq!(values[0][..3], [0.0, 3.0, -2.0]);
        for format in [WeightFormat::E2M1G32, WeightFormat::E2M1G16, WeightFormat::BF16] {
            let turned = tensors
                .clone()
                .map(|tensor| tensor.in_format(format).expect("a form of it"));
            for turned in &turned {
                assert_eq!(turned.to_f32().expect("decodes"), values[0], "{format:?}");
            }
            let part = turned
                .each_ref()
                .map(|tensor| tensor.submatrix(1..2, 0..32).into_owned());
            assert_eq!(part[0], part[1]);
        }
        let error = tensors[0].clone().in_format(WeightFormat::F16).expect_err("not exact");
        assert!(error.to_string().contains("MXFP4 as F16"), "{error}");
    }

    #[test]
    fn a_scale_stands_behind_the_columns_of_its_row() {
        let tensor = scaled(vec![0.5, 3.0]);
        assert_eq!(tensor.row_bytes(), 7);
        assert_eq!(tensor.to_f32().expect("decodes"), [0.5, 1.0, 2.0, -3.0, -6.0, -12.0]);
        let mut values = [0.0; 2];
        let second = tensor.submatrix(1..2, 1..3);
        dequantize(tensor.format, &second, &mut values).expect("a row");
        assert_eq!(values, [-6.0, -12.0]);
        let one = scaled(vec![2.0]).to_f32().expect("decodes");
        assert_eq!(one, [2.0, 4.0, 8.0, -2.0, -4.0, -8.0]);
    }

    #[test]
    fn quantised_rows_keep_the_scale_of_the_whole_row() {
        let values = [1.0f32, -224.0, 3.3, 0.0, 0.0, 0.0];
        let tensor = WeightTensor {
            name: "w".to_owned(),
            bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            format: WeightFormat::F8E4M3,
            stored_rows: StoredRows::Whole,
            shape: vec![2, 3],
            coding: Coding::Quantise(WeightFormat::F32),
            turned_from: None,
            change: Change::default(),
        };
        assert_eq!(tensor.to_f32().expect("decodes"), [1.0, -224.0, 3.25, 0.0, 0.0, 0.0]);
        let column = tensor.submatrix(0..2, 2..3);
        assert_eq!(
            column[1..5],
            0.5f32.to_le_bytes(),
            "the scale of a row without its largest value"
        );
        assert_eq!(column.len(), 10);
    }
}
