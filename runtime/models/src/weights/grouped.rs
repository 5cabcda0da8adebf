//! A matrix of codes whose groups of columns share a scale, and a zero point where the method has one: what AWQ, GPTQ,
//! compressed-tensors, bitsandbytes, ModelOpt and FP8 blocks have in common. Makes rows of canonical formats of it.

use std::sync::Arc;

use half::{bf16, f16};
use halyard_platform_api::weight_format::{E2M1, FP4, NF4, e8m0_to_f32, put_group};
use halyard_platform_api::{WeightFormat, e4m3};

use super::packed::{PackedCodes, Words};

/// What codes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elements {
    /// Integers from 0 up, of at most 4 bits.
    Small,
    /// Integers from 0 to 255.
    Byte,
    /// Integers from −128 to 127.
    SignedByte,
    /// Indices of E2M1.
    E2m1,
    /// Indices of NF4.
    Nf4,
    /// Indices of bitsandbytes' FP4.
    Fp4,
    /// 8-bit floats.
    E4m3,
}

impl Elements {
    /// The canonical formats that hold such codes, the largest group first.
    fn formats(self) -> &'static [WeightFormat] {
        use WeightFormat as F;
        match self {
            Elements::Small => &[F::U4G128, F::U4G64, F::U4G32, F::U4G16],
            Elements::Byte | Elements::SignedByte => &[F::I8G128, F::I8G64, F::I8G32, F::I8G16],
            Elements::E2m1 => &[F::E2M1G32, F::E2M1G16],
            Elements::Nf4 => &[F::Nf4G64],
            Elements::Fp4 => &[F::Fp4G64],
            Elements::E4m3 => &[F::F8G128, F::F8G64, F::F8G32],
        }
    }
}

/// Numbers of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Numbers<'w> {
    F32(&'w [u8]),
    F16(&'w [u8]),
    BF16(&'w [u8]),
    E4m3(&'w [u8]),
    E8m0(&'w [u8]),
    Made(Vec<f32>),
}

impl Numbers<'_> {
    pub(super) fn at(&self, at: usize) -> f32 {
        match self {
            Numbers::F32(b) => f32::from_le_bytes([b[4 * at], b[4 * at + 1], b[4 * at + 2], b[4 * at + 3]]),
            Numbers::F16(b) => f16::from_le_bytes([b[2 * at], b[2 * at + 1]]).to_f32(),
            Numbers::BF16(b) => bf16::from_le_bytes([b[2 * at], b[2 * at + 1]]).to_f32(),
            Numbers::E4m3(b) => e4m3::to_f32(b[at]),
            Numbers::E8m0(b) => e8m0_to_f32(b[at]),
            Numbers::Made(values) => values[at],
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Numbers::F32(b) => b.len() / 4,
            Numbers::F16(b) | Numbers::BF16(b) => b.len() / 2,
            Numbers::E4m3(b) | Numbers::E8m0(b) => b.len(),
            Numbers::Made(values) => values.len(),
        }
    }
}

/// Scales of a matrix: that of (row, group) is number row / rows · row_stride + group · group_stride, where numbers
/// begin again after `period` of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scales<'w> {
    pub numbers: Numbers<'w>,
    /// Rows that share a scale.
    pub rows: usize,
    pub row_stride: usize,
    pub group_stride: usize,
    pub period: usize,
    /// One more scale, of the whole matrix.
    pub global: Global,
}

/// The scale of a whole matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Global {
    None,
    Times(f32),
    By(f32),
}

impl Scales<'_> {
    fn at(&self, row: usize, group: usize) -> f32 {
        let place = row / self.rows * self.row_stride + group * self.group_stride;
        let scale = self.numbers.at(place % self.period);
        match self.global {
            Global::None => scale,
            Global::Times(global) => scale * global,
            Global::By(global) => scale / global,
        }
    }
}

/// The codes that stand for 0.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Zeros<'w> {
    /// Of every group; 0 for codes that are no integers from 0 up.
    All(f32),
    /// Packed numbers, of which `add` is the distance to what is meant.
    Packed {
        words: Words<'w>,
        /// A stream a group, of all rows; else a stream a row.
        by_group: bool,
        add: i32,
    },
    /// Signed bytes: of (row, group) number row · row_stride + group.
    Signed { bytes: &'w [u8], row_stride: usize },
    /// Numbers that need not be whole, one beside each scale.
    Real(Scales<'w>),
}

impl Zeros<'_> {
    fn at(&self, row: usize, group: usize) -> f32 {
        match *self {
            Zeros::All(zero) => zero,
            Zeros::Real(ref zeros) => zeros.at(row, group),
            Zeros::Packed { words, by_group, add } => {
                let (stream, index) = if by_group { (group, row) } else { (row, group) };
                (i32::from(words.at(stream, index)) + add) as f32
            }
            Zeros::Signed { bytes, row_stride } => f32::from(bytes[row * row_stride + group] as i8),
        }
    }
}

/// A matrix `[rows, columns]` as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grouped<'w> {
    pub codes: PackedCodes<'w>,
    pub elements: Elements,
    /// Columns of a group; the last one may be cut.
    pub group: usize,
    pub scales: Scales<'w>,
    pub zeros: Zeros<'w>,
    /// The group of each column where they are not in order (act-order).
    pub group_of: Option<Vec<u32>>,
    /// The columns in the order in which they are handed out.
    pub order: Option<Arc<[u32]>>,
    /// The same of rows.
    pub row_order: Option<Arc<[u32]>>,
}

impl Grouped<'_> {
    /// The format in which rows of `columns` values are handed out. Groups out of order have no canonical form, nor
    /// have those that no canonical group divides: their rows are f32 values.
    pub(super) fn format(&self, columns: usize) -> WeightFormat {
        let found = self.canonical(columns).filter(|_| self.group_of.is_none());
        found.unwrap_or(WeightFormat::F32)
    }

    /// The largest canonical groups that divide the groups and rows of `columns` values.
    fn canonical(&self, columns: usize) -> Option<WeightFormat> {
        let fits = |format: &&WeightFormat| {
            let group = format.layout().group;
            self.group.is_multiple_of(group) && columns.is_multiple_of(group)
        };
        self.elements.formats().iter().find(fits).copied()
    }

    /// The order of columns that sorts them by group. `None`: they are in order, groups have other numbers of columns,
    /// or sorted ones have no canonical form.
    pub(super) fn order(&self) -> Option<Vec<u32>> {
        let group_of = self.group_of.as_ref()?;
        let of = |column: u32| group_of[column as usize] as usize;
        let mut order: Vec<u32> = (0..group_of.len() as u32).collect();
        order.sort_by_key(|&column| of(column));
        let is_even = order
            .iter()
            .enumerate()
            .all(|(at, &column)| of(column) == at / self.group);
        let has_form = self.canonical(order.len()).is_some();
        (is_even && has_form).then_some(order)
    }

    /// Hands columns out in an order that [`Grouped::order`] gave.
    pub(super) fn sort(&mut self, order: Arc<[u32]>) {
        self.group_of = None;
        self.order = Some(order);
    }

    /// The row that is handed out in a row's place.
    pub(super) fn row(&self, row: usize) -> usize {
        self.row_order.as_ref().map_or(row, |order| order[row] as usize)
    }

    /// Whether rows can be handed out in a format.
    pub(super) fn has_form(&self, format: WeightFormat) -> bool {
        let holds_codes = match format {
            // 128 rows from a multiple of 128 on have the same scales.
            WeightFormat::F8B128 => {
                self.elements == Elements::E4m3 && self.scales.rows.is_multiple_of(128) && self.row_order.is_none()
            }
            _ => self.elements.formats().contains(&format),
        };
        format == WeightFormat::F32
            || self.group_of.is_none() && holds_codes && self.group.is_multiple_of(format.layout().group)
    }

    /// The first scale or zero point that is no finite number: which of them, its place, what it is.
    pub(super) fn bad_number(&self) -> Option<(&'static str, usize, f32)> {
        let first = |of: &'static str, numbers: &Numbers<'_>| {
            let mut all = (0..numbers.len()).map(|at| (of, at, numbers.at(at)));
            all.find(|(.., number)| !number.is_finite())
        };
        let global = match self.scales.global {
            Global::None => 1.0,
            Global::Times(global) | Global::By(global) => global,
        };
        if !global.is_finite() || global == 0.0 {
            return Some(("scale", 0, global));
        }
        let zeros = match &self.zeros {
            Zeros::Real(zeros) => first("zero point", &zeros.numbers),
            _ => None,
        };
        first("scale", &self.scales.numbers).or(zeros)
    }

    /// Appends rows in a format that [`Grouped::has_form`] allows, of each the columns from `columns`: stored rows
    /// `rows`, multiplied by `factor`.
    pub(super) fn put_rows(
        &self,
        rows: &[usize],
        row_len: usize,
        columns: std::ops::Range<usize>,
        format: WeightFormat,
        factor: f32,
        out: &mut Vec<u8>,
    ) {
        let mut codes = vec![0; rows.len() * row_len];
        self.codes.rows(rows, row_len, &mut codes);
        // As canonical formats hold them.
        if self.elements == Elements::Byte {
            codes.iter_mut().for_each(|code| *code ^= 0x80);
        }
        if let Some(order) = &self.order {
            let mut sorted = Vec::with_capacity(codes.len());
            for codes in codes.chunks_exact(row_len.max(1)) {
                sorted.extend(order.iter().map(|&column| codes[column as usize]));
            }
            codes = sorted;
        }
        let signed: Vec<i8> = codes.into_iter().map(|code| code as i8).collect();
        for (&row, codes) in rows.iter().zip(signed.chunks_exact(row_len.max(1))) {
            match format {
                WeightFormat::F32 => self.put_values(row, codes, columns.clone(), factor, out),
                _ => {
                    let size = format.block_values();
                    for first in columns.clone().step_by(size) {
                        let (scale, min) = self.scale_and_min(row, first / self.group, factor);
                        put_group(format, &codes[first..first + size], scale, min, out);
                    }
                }
            }
        }
    }

    /// scale·(code − zero) = scale·code + min for codes as they are handed out. Exact for scales of 16 bits and zeros
    /// that are whole: the product has at most 19 bits.
    fn scale_and_min(&self, row: usize, group: usize, factor: f32) -> (f32, f32) {
        let scale = self.scales.at(row, group) * factor;
        let offset = if self.elements == Elements::Byte { 128.0 } else { 0.0 };
        let zero = self.zeros.at(row, group) - offset;
        (scale, if zero == 0.0 { 0.0 } else { -(scale * zero) })
    }

    fn put_values(&self, row: usize, codes: &[i8], columns: std::ops::Range<usize>, factor: f32, out: &mut Vec<u8>) {
        for column in columns {
            let group = match &self.group_of {
                Some(group_of) => group_of[column] as usize,
                None => column / self.group,
            };
            let (scale, min) = self.scale_and_min(row, group, factor);
            let (code, index) = (codes[column], usize::from(codes[column] as u8 & 15));
            let value = match self.elements {
                Elements::Small | Elements::Byte | Elements::SignedByte => scale * f32::from(code) + min,
                Elements::E2m1 => scale * E2M1[index],
                Elements::Nf4 => scale * NF4[index],
                Elements::Fp4 => scale * FP4[index],
                Elements::E4m3 => scale * e4m3::to_f32(code as u8),
            };
            out.extend(value.to_le_bytes());
        }
    }
}
