//! An operand resolved to memory: what kernels read and write. Only f32, i32 and bytes are seen as slices.

use std::sync::Arc;

use halyard_platform_api::{DType, Result, Tensor};

use crate::memory::Allocation;
use crate::objects::Objects;

/// A strided view of live memory.
#[derive(Clone, Copy)]
pub(crate) struct View {
    ptr: *mut u8,
    pub shape: [usize; 4],
    strides: [usize; 4],
    dtype: DType,
    bytes: usize,
    /// Number of used axes.
    pub rank: usize,
}

// SAFETY: a view is a pointer into an allocation that its command list keeps alive; kernels share out what they write.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    pub(crate) const NONE: View = View {
        ptr: std::ptr::null_mut(),
        shape: [0; 4],
        strides: [0; 4],
        dtype: DType::U8,
        bytes: 0,
        rank: 0,
    };

    /// Finds the memory of `tensor`, which lives as long as the allocation, and checks that it lies inside its buffer.
    pub(crate) fn resolve<'a>(tensor: &Tensor, objects: &'a Objects) -> Result<(View, Option<&'a Arc<Allocation>>)> {
        if tensor.is_none() {
            return Ok((View::NONE, None));
        }
        tensor.check()?;
        let bytes = tensor.span_bytes() as usize;
        let allocation = objects.buffer(tensor.buffer_id())?;
        let widen = |a: [u32; 4]| a.map(|v| v as usize);
        let view = View {
            ptr: allocation.range(tensor.offset, bytes)?,
            shape: widen(tensor.shape),
            strides: widen(tensor.strides),
            dtype: tensor.dtype(),
            bytes,
            rank: tensor.rank as usize,
        };
        Ok((view, Some(allocation)))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.ptr.is_null()
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Extent of the outermost axis.
    pub(crate) fn len(&self) -> usize {
        self.shape[0]
    }

    /// Distance between rows in elements.
    pub(crate) fn row_stride(&self) -> usize {
        self.strides[0]
    }

    /// Distance between entries of the second axis in elements.
    pub(crate) fn second_stride(&self) -> usize {
        self.strides[1]
    }

    /// Whether the innermost used axis of a `rank`-axis view is contiguous.
    pub(crate) fn is_inner_contiguous(&self, rank: usize) -> bool {
        self.shape[rank - 1] <= 1 || self.strides[rank - 1] == 1
    }

    /// Whether the spans share bytes.
    pub(crate) fn overlaps(&self, other: &View) -> bool {
        let (a, b) = (self.ptr as usize, other.ptr as usize);
        !self.is_none() && !other.is_none() && a < b + other.bytes && b < a + self.bytes
    }

    /// Whether one row of this may share bytes with another row of `other`. Two tensors of one memory, dead and born,
    /// may; two columns of one matrix do not.
    pub(crate) fn crosses_rows(&self, other: &View) -> bool {
        if !self.overlaps(other) {
            return false;
        }
        let (a, b) = (self.ptr as usize, other.ptr as usize);
        let (stride, other_stride) = (
            self.strides[0] * self.dtype.bytes(),
            other.strides[0] * other.dtype.bytes(),
        );
        // A row's own bytes: the span without the rows before the last.
        let width = |view: &View, stride: usize| view.bytes - (view.shape[0].max(1) - 1) * stride;
        let one_matrix = stride == other_stride && {
            let first = a.min(b);
            let end = (a - first + width(self, stride)).max(b - first + width(other, stride));
            end <= stride.max(1)
        };
        !one_matrix
    }

    /// All bytes of the span.
    ///
    /// # Safety
    /// No thread writes them meanwhile.
    pub(crate) unsafe fn all(&self) -> &[u8] {
        // SAFETY: `resolve` checked the span.
        unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) }
    }

    /// Pointer to element (row, second).
    pub(crate) fn element_ptr(&self, row: usize, second: usize) -> *mut u8 {
        let index = row * self.strides[0] + second * self.strides[1];
        debug_assert!(self.bytes == 0 || index * self.dtype.bytes() < self.bytes);
        self.ptr.wrapping_add(index * self.dtype.bytes())
    }

    /// Pointer to entry `i`, in row-major order of the inner axes, of outermost entry `t`.
    pub(crate) fn nth(&self, t: usize, i: usize) -> *mut u8 {
        let (second, inner) = (i / (self.shape[2] * self.shape[3]), i % (self.shape[2] * self.shape[3]));
        let (third, fourth) = (inner / self.shape[3], inner % self.shape[3]);
        let index = [t, second, third, fourth]
            .iter()
            .zip(self.strides)
            .map(|(i, s)| i * s)
            .sum::<usize>();
        self.ptr.wrapping_add(index * self.dtype.bytes())
    }

    /// `width` f32 values from element (row, second) on.
    ///
    /// # Safety
    /// They lie inside the view, are contiguous, and no thread writes them meanwhile.
    pub(crate) unsafe fn f32s(&self, row: usize, second: usize, width: usize) -> &[f32] {
        debug_assert_eq!(self.dtype, DType::F32);
        // SAFETY: as the caller promises; buffers are 64-byte aligned and offsets multiples of 4.
        unsafe { std::slice::from_raw_parts(self.element_ptr(row, second).cast(), width) }
    }

    /// The same, to write.
    ///
    /// # Safety
    /// As [`View::f32s`], and no other thread reads or writes them meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn f32s_mut(&self, row: usize, second: usize, width: usize) -> &mut [f32] {
        debug_assert_eq!(self.dtype, DType::F32);
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.element_ptr(row, second).cast(), width) }
    }

    /// `len` f32 values of a row from `column` on: a thread's own part of a row that others write too.
    ///
    /// # Safety
    /// As [`View::f32s`].
    pub(crate) unsafe fn f32s_at(&self, row: usize, column: usize, len: usize) -> &[f32] {
        debug_assert_eq!(self.dtype, DType::F32);
        let first = self.element_ptr(row, 0).cast::<f32>().wrapping_add(column);
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(first, len) }
    }

    /// The same, to write.
    ///
    /// # Safety
    /// As [`View::f32s_mut`].
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn f32s_at_mut(&self, row: usize, column: usize, len: usize) -> &mut [f32] {
        debug_assert_eq!(self.dtype, DType::F32);
        let first = self.element_ptr(row, 0).cast::<f32>().wrapping_add(column);
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    /// `width` i32 values from element (row, second) on.
    ///
    /// # Safety
    /// As [`View::f32s`].
    pub(crate) unsafe fn i32s(&self, row: usize, second: usize, width: usize) -> &[i32] {
        debug_assert_eq!(self.dtype, DType::I32);
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(self.element_ptr(row, second).cast(), width) }
    }

    /// The same, to write.
    ///
    /// # Safety
    /// As [`View::f32s_mut`].
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn i32s_mut(&self, row: usize, second: usize, width: usize) -> &mut [i32] {
        debug_assert_eq!(self.dtype, DType::I32);
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.element_ptr(row, second).cast(), width) }
    }

    /// A whole vector of i32.
    ///
    /// # Safety
    /// As [`View::f32s`].
    pub(crate) unsafe fn vector(&self) -> &[i32] {
        // SAFETY: as the caller promises.
        unsafe { self.i32s(0, 0, self.shape[0]) }
    }
}
