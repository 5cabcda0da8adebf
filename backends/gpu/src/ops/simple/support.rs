//! What the simple ops share: entry points by number, operands checked as they are taken, rows, and whether 16-byte
//! accesses fit them.

use halyard_kernels_gpu::Source;
use halyard_platform_api::ops::Operand;
use halyard_platform_api::{DType, Error, Result};

use crate::driver::{DevicePtr, Function};
use crate::encoding::Arg;
use crate::kernel::Preparation;
use crate::ops::names::float_name;
use crate::view::View;

/// Entry points of one kernel file under one set of definitions.
pub(super) struct Entries {
    pub(super) source: Source,
    pub(super) defines: Vec<(&'static str, &'static str)>,
    pub(super) names: Vec<&'static str>,
    pub(super) functions: Vec<Function>,
}

impl Entries {
    pub(super) fn new(source: Source, defines: &[(&'static str, &'static str)], names: &[&'static str]) -> Entries {
        Entries {
            source,
            defines: defines.to_vec(),
            names: names.to_vec(),
            functions: Vec::new(),
        }
    }

    /// Compiles the file and looks the names up.
    pub(super) fn prepare(&mut self, cx: &Preparation<'_>) -> Result<()> {
        self.prepare_shared(cx, 0)
    }

    /// The same for kernels that take dynamic shared memory.
    pub(super) fn prepare_shared(&mut self, cx: &Preparation<'_>, shared_bytes: u32) -> Result<()> {
        let found: Result<Vec<Function>> = self
            .names
            .iter()
            .map(|name| cx.function(self.source, &self.defines, name, shared_bytes))
            .collect();
        self.functions = found?;
        Ok(())
    }

    /// Entry point number `index`.
    pub(super) fn get(&self, index: usize) -> Result<Function> {
        self.functions.get(index).copied().ok_or_else(|| {
            Error::invalid(format!(
                "{} is encoded before it was prepared: prepare the op first",
                self.source.name
            ))
        })
    }
}

/// The name of an activation type in kernel files.
pub(super) fn act_name(op: &str, dtype: DType) -> Result<&'static str> {
    float_name(dtype).ok_or_else(|| {
        Error::unsupported(format!(
            "{op} in {dtype:?}: this platform computes it in F32, F16 and BF16"
        ))
    })
}

/// Refuses a size of nothing.
pub(super) fn not_zero(op: &str, field: &str, value: u32) -> Result<()> {
    if value > 0 {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "{op} with {field} 0: it must be at least 1"
    )))
}

/// Blocks of `threads` for `total` threads' work.
pub(super) fn blocks(total: u32, threads: u32) -> u32 {
    total.div_ceil(threads)
}

/// A matrix of `rows` rows, whose elements are neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) ptr: DevicePtr,
    pub(super) rows: u32,
    /// Distance of rows in elements.
    pub(super) stride: u64,
    /// Bytes of an element.
    pub(super) element: u64,
}

impl Rows {
    /// Whether every row starts at a multiple of `bytes`.
    pub(super) fn aligned(&self, bytes: u64) -> bool {
        self.ptr.is_multiple_of(bytes) && (self.rows <= 1 || (self.stride * self.element).is_multiple_of(bytes))
    }

    /// Whether rows of `width` follow each other without a gap.
    pub(super) fn dense(&self, width: u32) -> bool {
        self.rows <= 1 || self.stride == u64::from(width)
    }

    /// Address and stride as parameters.
    pub(super) fn args(&self) -> [Arg; 2] {
        [Arg::Ptr(self.ptr), Arg::U64(self.stride)]
    }
}

/// The operands of an op, checked by name as they are taken.
pub(super) struct Operands<'a> {
    op: &'static str,
    documented: &'static [Operand],
    views: &'a [View],
}

impl<'a> Operands<'a> {
    /// # Errors
    /// `InvalidArgument` when there are too few.
    pub(super) fn new(op: &'static str, documented: &'static [Operand], views: &'a [View]) -> Result<Operands<'a>> {
        if views.len() != documented.len() {
            return Err(Error::invalid(format!(
                "{op}: {} operands, it takes {}",
                views.len(),
                documented.len()
            )));
        }
        Ok(Operands { op, documented, views })
    }

    /// An error about operand `index`.
    pub(super) fn error(&self, index: usize, message: &str) -> Error {
        let name = self.documented.get(index).map_or("?", |o| o.name);
        Error::invalid(format!("{}: operand `{name}`: {message}", self.op))
    }

    fn strides(&self, index: usize) -> Error {
        let view = &self.views[index];
        let rank = view.rank as usize;
        let mut error = self.error(
            index,
            &format!(
                "strides {:?} over {:?}: elements of a row must be neighbours and rows equally far apart",
                &view.strides[..rank],
                &view.shape[..rank]
            ),
        );
        error.status = halyard_platform_api::Status::Unsupported;
        error
    }

    /// Operand `index` as it is.
    pub(super) fn view(&self, index: usize) -> &'a View {
        &self.views[index]
    }

    /// Operand `index` of a type whose last axis has `width` elements, if that is given.
    pub(super) fn typed(&self, index: usize, dtype: DType, width: Option<u32>) -> Result<&'a View> {
        let view = &self.views[index];
        let rank = view.rank as usize;
        let fits = view.dtype == dtype && rank >= 1 && width.is_none_or(|w| view.shape[rank - 1] == w);
        if fits {
            return Ok(view);
        }
        let expected = match width {
            Some(w) => format!("{dtype:?} [.., {w}]"),
            None => format!("{dtype:?}"),
        };
        Err(self.error(
            index,
            &format!("expected {expected}, found {:?} {:?}", view.dtype, &view.shape[..rank]),
        ))
    }

    /// Operand `index` as [T, G, width]: extents of both outer axes and their distances, in elements.
    pub(super) fn heads(&self, index: usize, dtype: DType, width: u32) -> Result<([u32; 2], [u64; 2])> {
        let view = self.typed(index, dtype, Some(width))?;
        if !view.is_inner_contiguous() {
            return Err(self.strides(index));
        }
        match view.rank {
            1 => Ok(([1, 1], [u64::from(width), 0])),
            2 => Ok(([view.shape[0], 1], [u64::from(view.strides[0]), 0])),
            3 => Ok((
                [view.shape[0], view.shape[1]],
                [u64::from(view.strides[0]), u64::from(view.strides[1])],
            )),
            rank => Err(self.error(index, &format!("{rank} axes, it takes up to 3"))),
        }
    }

    /// Operand `index` as rows of `width` elements.
    pub(super) fn rows(&self, index: usize, dtype: DType, width: u32) -> Result<Rows> {
        let ([outer, inner], [outer_stride, inner_stride]) = self.heads(index, dtype, width)?;
        let stride = if inner == 1 {
            outer_stride
        } else if outer <= 1 || outer_stride == u64::from(inner) * inner_stride {
            inner_stride
        } else {
            return Err(self.strides(index));
        };
        let rows = outer
            .checked_mul(inner)
            .ok_or_else(|| self.error(index, &format!("{outer} x {inner} rows: at most {}", u32::MAX)))?;
        Ok(Rows {
            ptr: self.views[index].ptr,
            rows,
            stride,
            element: dtype.bytes() as u64,
        })
    }

    /// The address of operand `index`: a dense vector of `len` elements if that is given. 0 for an absent optional one.
    pub(super) fn vector(&self, index: usize, dtype: DType, len: Option<u32>) -> Result<DevicePtr> {
        if self.views[index].is_none() && self.documented[index].optional {
            return Ok(0);
        }
        let view = self.typed(index, dtype, len)?;
        if view.rank != 1 || !view.is_inner_contiguous() {
            return Err(self.strides(index));
        }
        Ok(view.ptr)
    }

    /// The address of operand `index`: `rows` dense vectors of `width` f32. 0 for an absent optional one.
    pub(super) fn vectors(&self, index: usize, rows: u32, width: u32) -> Result<DevicePtr> {
        if self.views[index].is_none() && self.documented[index].optional {
            return Ok(0);
        }
        let found = self.rows(index, DType::F32, width)?;
        self.expect_rows(index, found.rows, rows)?;
        if !found.dense(width) {
            return Err(self.strides(index));
        }
        Ok(found.ptr)
    }

    /// Checks that operand `index` has `expected` rows.
    pub(super) fn expect_rows(&self, index: usize, found: u32, expected: u32) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(self.error(index, &format!("{found} rows, expected {expected}")))
    }

    /// `rows` times `each` as a number of threads.
    pub(super) fn total(&self, rows: u32, each: u32) -> Result<u32> {
        let total = u64::from(rows) * u64::from(each);
        u32::try_from(total)
            .ok()
            .filter(|t| *t <= i32::MAX as u32)
            .ok_or_else(|| {
                Error::unsupported(format!(
                    "{}: {total} pieces of work in one call, at most {}: split the call",
                    self.op,
                    i32::MAX
                ))
            })
    }
}
