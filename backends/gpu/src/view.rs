//! An operand resolved to an address, from which ops make kernel parameters.

use halyard_platform_api::{DType, Tensor};

use crate::handles::DevicePtr;

/// A strided view of live device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// First element; 0: the absent operand.
    pub ptr: DevicePtr,
    /// Extents, outermost first.
    pub shape: [u32; 4],
    /// Distances along each axis, in elements.
    pub strides: [u32; 4],
    /// Element type.
    pub dtype: DType,
    /// Used axes.
    pub rank: u32,
}

impl View {
    /// The absent operand.
    pub const NONE: View = View {
        ptr: 0,
        shape: [0; 4],
        strides: [0; 4],
        dtype: DType::U8,
        rank: 0,
    };

    /// `tensor` in a buffer that starts at `base`.
    pub fn new(tensor: &Tensor, base: DevicePtr) -> View {
        View {
            ptr: base + tensor.offset,
            shape: tensor.shape,
            strides: tensor.strides,
            dtype: tensor.dtype(),
            rank: tensor.rank,
        }
    }

    /// Whether the operand is absent.
    pub fn is_none(&self) -> bool {
        self.ptr == 0
    }

    /// Extent of the outermost axis.
    pub fn len(&self) -> u32 {
        self.shape[0]
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.shape[..self.rank as usize].contains(&0)
    }

    /// Bytes from its first element to the end of its last.
    pub fn span_bytes(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let axes = self.shape.iter().zip(&self.strides).take(self.rank as usize);
        let last: u64 = axes
            .map(|(&extent, &stride)| u64::from(extent - 1) * u64::from(stride))
            .sum();
        (last + 1) * self.dtype.bytes() as u64
    }

    /// Distance of rows in elements.
    pub fn row_stride(&self) -> u32 {
        self.strides[0]
    }

    /// Whether neighbours of the innermost axis are neighbours in memory.
    pub fn is_inner_contiguous(&self) -> bool {
        let inner = self.rank as usize - 1;
        self.shape[inner] <= 1 || self.strides[inner] == 1
    }
}
