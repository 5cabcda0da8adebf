//! Operands: a tensor bound to its memory, read and written as plain vectors in row-major order. It owns the walk over
//! strides and the checks against what an op documents; it must never hand out a reference into a buffer.

use std::sync::Arc;

use halyard_platform_api::{DType, Error, OpSpec, Result, Tensor};

use crate::element::{read_float, write_float};
use crate::memory::Allocation;

/// A tensor with the memory it names; an absent optional operand has none.
#[derive(Clone)]
pub(crate) struct Operand {
    pub(crate) tensor: Tensor,
    memory: Option<Arc<Allocation>>,
}

impl Operand {
    /// The absent operand.
    pub(crate) fn absent() -> Self {
        Operand {
            tensor: Tensor::NONE,
            memory: None,
        }
    }

    /// Binds a tensor to its memory.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank outside 1 to 4 or a span past the buffer's end; `Unsupported` for an unknown type.
    pub(crate) fn bind(tensor: Tensor, memory: Arc<Allocation>) -> Result<Self> {
        tensor.check()?;
        memory.check(tensor.offset, tensor.span_bytes())?;
        Ok(Operand {
            tensor,
            memory: Some(memory),
        })
    }

    pub(crate) fn is_present(&self) -> bool {
        self.memory.is_some()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// Extent of axis `axis`.
    pub(crate) fn dim(&self, axis: usize) -> usize {
        self.tensor.shape[axis] as usize
    }

    /// Distance between rows in elements.
    pub(crate) fn row_stride(&self) -> usize {
        self.tensor.strides[0] as usize
    }

    /// Number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.tensor.elements() as usize
    }

    /// Row `index` of the outermost axis, still with that axis.
    ///
    /// # Errors
    /// `InvalidArgument` for an index outside it: indices come from other tensors.
    pub(crate) fn row(&self, index: i32) -> Result<Operand> {
        let rows = self.tensor.shape[0];
        match u32::try_from(index) {
            Ok(row) if row < rows => Ok(Operand {
                tensor: self.tensor.rows(row, 1),
                memory: self.memory.clone(),
            }),
            _ => Err(Error::invalid(format!("row {index} of a tensor with {rows} rows"))),
        }
    }

    /// All elements as f32.
    pub(crate) fn floats(&self) -> Vec<f32> {
        let dtype = self.dtype();
        self.collect(|bytes| read_float(dtype, bytes))
    }

    /// All elements as i32. The type was checked by [`Args`].
    pub(crate) fn ints(&self) -> Vec<i32> {
        self.collect(|bytes| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// The bytes of all elements, element after element.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let size = self.dtype().bytes();
        let mut out = Vec::with_capacity(self.elements() * size);
        self.visit(|data, at| out.extend_from_slice(&data[at..at + size]));
        out
    }

    fn collect<T>(&self, read: impl Fn(&[u8]) -> T) -> Vec<T> {
        let size = self.dtype().bytes();
        let mut out = Vec::with_capacity(self.elements());
        self.visit(|data, at| out.push(read(&data[at..at + size])));
        out
    }

    /// Writes all elements, rounded to the tensor's type.
    pub(crate) fn store_floats(&self, values: &[f32]) {
        let dtype = self.dtype();
        let size = dtype.bytes();
        self.store(values, |value, bytes| write_float(dtype, *value, &mut bytes[..size]));
    }

    /// Writes all elements of an i32 tensor.
    pub(crate) fn store_ints(&self, values: &[i32]) {
        self.store(values, |value, bytes| bytes[..4].copy_from_slice(&value.to_le_bytes()));
    }

    /// Writes all elements from their bytes.
    pub(crate) fn store_bytes(&self, values: &[u8]) {
        let size = self.dtype().bytes();
        let elements: Vec<&[u8]> = values.chunks_exact(size).collect();
        self.store(&elements, |value, bytes| bytes[..size].copy_from_slice(value));
    }

    fn store<T>(&self, values: &[T], write: impl Fn(&T, &mut [u8])) {
        debug_assert_eq!(values.len(), self.elements(), "a store covers the whole tensor");
        let mut values = values.iter();
        self.visit(|data, at| {
            if let Some(value) = values.next() {
                write(value, &mut data[at..]);
            }
        });
    }

    /// Calls `f(buffer, first byte of the element)` for every element in row-major order.
    fn visit(&self, mut f: impl FnMut(&mut [u8], usize)) {
        let Some(memory) = &self.memory else { return };
        let mut data = memory.lock();
        let size = self.dtype().bytes();
        let Tensor {
            shape, strides, rank, ..
        } = self.tensor;
        // Unused axes have extent 1: every tensor is walked as four axes.
        let extent = |axis: usize| if axis < rank as usize { shape[axis] as usize } else { 1 };
        let step = |axis: usize| strides[axis] as usize * size;
        for a in 0..extent(0) {
            for b in 0..extent(1) {
                for c in 0..extent(2) {
                    let at = self.tensor.offset as usize + a * step(0) + b * step(1) + c * step(2);
                    for d in 0..extent(3) {
                        f(&mut data, at + d * step(3));
                    }
                }
            }
        }
    }

    /// A copy of `len` raw bytes from byte `offset` of this contiguous byte tensor.
    ///
    /// # Errors
    /// `InvalidArgument` past the tensor's end.
    pub(crate) fn raw(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        let start = self.raw_start(offset, len)?;
        let Some(memory) = &self.memory else {
            return Ok(Vec::new());
        };
        Ok(memory.lock()[start..start + len].to_vec())
    }

    /// Overwrites raw bytes from byte `offset` of this contiguous byte tensor.
    ///
    /// # Errors
    /// `InvalidArgument` past the tensor's end.
    pub(crate) fn write_raw(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let start = self.raw_start(offset, bytes.len())?;
        if let Some(memory) = &self.memory {
            memory.lock()[start..start + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn raw_start(&self, offset: usize, len: usize) -> Result<usize> {
        let span = self.tensor.span_bytes() as usize;
        if offset.checked_add(len).is_none_or(|end| end > span) {
            return Err(Error::invalid(format!(
                "bytes {offset} .. {offset} + {len} of a tensor of {span} bytes"
            )));
        }
        Ok(self.tensor.offset as usize + offset)
    }

    /// Runs `f` over the raw bytes of this contiguous byte tensor, under its lock.
    pub(crate) fn with_raw<T>(&self, f: impl FnOnce(&[u8]) -> T) -> T {
        let Some(memory) = &self.memory else { return f(&[]) };
        let data = memory.lock();
        let start = self.tensor.offset as usize;
        f(&data[start..start + self.tensor.span_bytes() as usize])
    }
}

/// The operands of one op, checked by name as they are taken.
pub(crate) struct Args<'a> {
    spec: &'a OpSpec,
    operands: &'a [Operand],
}

impl<'a> Args<'a> {
    pub(crate) fn new(spec: &'a OpSpec, operands: &'a [Operand]) -> Self {
        Args { spec, operands }
    }

    /// Operand `index`, present or not.
    pub(crate) fn any(&self, index: usize) -> &'a Operand {
        &self.operands[index]
    }

    /// Operand `index` of one of these types whose last axes have these extents.
    ///
    /// # Errors
    /// `InvalidArgument` naming op, operand, what was expected and what came.
    pub(crate) fn typed(&self, index: usize, dtype: DType, last: &[usize]) -> Result<&'a Operand> {
        let operand = &self.operands[index];
        let dims = operand.tensor.dims();
        let fits = operand.dtype() == dtype
            && dims.len() >= last.len()
            && dims[dims.len() - last.len()..]
                .iter()
                .zip(last)
                .all(|(&d, &l)| d as usize == l);
        if fits {
            return Ok(operand);
        }
        Err(self.error(
            index,
            format!(
                "expected {dtype:?} [.., {last:?}], found {:?} {dims:?}",
                operand.dtype()
            ),
        ))
    }

    /// Operand `index` if it is present, checked as [`Args::typed`].
    ///
    /// # Errors
    /// As [`Args::typed`].
    pub(crate) fn optional(&self, index: usize, dtype: DType, last: &[usize]) -> Result<Option<&'a Operand>> {
        if self.operands[index].is_present() {
            self.typed(index, dtype, last).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The elements of i32 operand `index`.
    ///
    /// # Errors
    /// As [`Args::typed`].
    pub(crate) fn ints(&self, index: usize) -> Result<Vec<i32>> {
        Ok(self.typed(index, DType::I32, &[])?.ints())
    }

    /// An error about operand `index`.
    pub(crate) fn error(&self, index: usize, message: String) -> Error {
        let name = self.spec.operands().get(index).map_or("?", |o| o.name);
        Error::invalid(format!("{}: operand `{name}`: {message}", self.spec.name()))
    }

    /// Checks that operands `a` and `b` have the same number of elements.
    ///
    /// # Errors
    /// `InvalidArgument` naming both.
    pub(crate) fn same_elements(&self, a: usize, b: usize) -> Result<()> {
        let (left, right) = (self.operands[a].elements(), self.operands[b].elements());
        if left == right {
            return Ok(());
        }
        Err(self.error(
            b,
            format!(
                "{right} elements, operand `{}` has {left}",
                self.spec.operands()[a].name
            ),
        ))
    }

    /// Checks that operand `index` has `rows` rows.
    ///
    /// # Errors
    /// `InvalidArgument` naming it.
    pub(crate) fn expect_rows(&self, index: usize, rows: usize) -> Result<()> {
        let found = self.operands[index].dim(0);
        if found == rows {
            return Ok(());
        }
        Err(self.error(index, format!("{found} rows, expected {rows}")))
    }
}
