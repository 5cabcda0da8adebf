//! A tensor operand: a strided view of a buffer. The one struct of the hot path, fixed at 64 bytes.

use crate::abi::abi_fixed_struct;
use crate::dtype::DType;
use crate::status::{Error, Result};

/// A live buffer of one device, as the backend numbered it: opaque to the host, checked by the backend. 0 is "none".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct BufferId(pub u64);

abi_fixed_struct! {
    /// A strided view of a buffer, passed by array to `encode`. Fixed for the life of the major version. Element
    /// (i, j, …) lies at byte offset + (i·strides\[0\] + j·strides\[1\] + …) · bytes of an element.
    pub struct Tensor = "halyard_tensor" {
        /// Id of the buffer; 0: an optional operand that is absent.
        pub buffer: u64,
        /// First byte of the view in the buffer: a multiple of the element's size, and where a tensor of its own
        /// begins, not a slice of one, of the device's offset_alignment.
        pub offset: u64,
        /// Extents, outermost first; unused ones are 1.
        pub shape: [u32; 4],
        /// Distance between neighbours along each axis, in elements.
        pub strides: [u32; 4],
        /// Dtype code.
        pub dtype: u32,
        /// Number of used axes, 1 to 4.
        pub rank: u32,
        /// Of a packed weight: the bytes at `offset` that belong to it, any number; it is U8 of rank 1 then, and its
        /// shape says no more. 0: the shape says it. KV blocks have a shape, \[num_pages, block_bytes\].
        pub bytes: u64,
    }
}

const _: () = assert!(size_of::<Tensor>() == 64);

impl Tensor {
    /// The absent optional operand.
    pub const NONE: Tensor = Tensor {
        buffer: 0,
        offset: 0,
        shape: [0; 4],
        strides: [0; 4],
        dtype: 0,
        rank: 0,
        bytes: 0,
    };

    /// A contiguous view of `buffer` at byte `offset`. `shape` has 1 to 4 axes; more are a programming error.
    pub fn contiguous(buffer: BufferId, offset: u64, dtype: DType, shape: &[u32]) -> Tensor {
        debug_assert!(
            (1..=4).contains(&shape.len()),
            "a tensor has 1 to 4 axes, not {}",
            shape.len()
        );
        let mut tensor = Tensor {
            buffer: buffer.0,
            offset,
            shape: [1; 4],
            strides: [1; 4],
            dtype: dtype as u32,
            rank: shape.len() as u32,
            bytes: 0,
        };
        let mut stride = 1u32;
        for axis in (0..shape.len()).rev() {
            tensor.shape[axis] = shape[axis];
            tensor.strides[axis] = stride;
            stride = stride.saturating_mul(shape[axis]);
        }
        tensor
    }

    /// `bytes` bytes of `buffer` from byte `offset` on, which only the backend that packed them can read.
    pub fn opaque(buffer: BufferId, offset: u64, bytes: u64) -> Tensor {
        Tensor {
            bytes,
            ..Tensor::contiguous(buffer, offset, DType::U8, &[u32::try_from(bytes).unwrap_or(u32::MAX)])
        }
    }

    /// The same memory with other extents and strides (in elements), starting `elements` further on.
    pub fn view(&self, elements: u64, shape: &[u32], strides: &[u32]) -> Tensor {
        debug_assert_eq!(shape.len(), strides.len());
        let mut tensor = Tensor {
            shape: [1; 4],
            strides: [1; 4],
            rank: shape.len() as u32,
            bytes: 0,
            ..*self
        };
        tensor.shape[..shape.len()].copy_from_slice(shape);
        tensor.strides[..strides.len()].copy_from_slice(strides);
        tensor.offset += elements * self.dtype().bytes() as u64;
        tensor
    }

    /// Rows `first .. first + count` along the outermost axis.
    pub fn rows(&self, first: u32, count: u32) -> Tensor {
        let mut tensor = Tensor { bytes: 0, ..*self };
        tensor.shape[0] = count;
        tensor.offset += u64::from(first) * u64::from(self.strides[0]) * self.dtype().bytes() as u64;
        tensor
    }

    /// Columns `first .. first + count` of the innermost used axis: how q, k and v are slices of one product.
    pub fn columns(&self, first: u32, count: u32) -> Tensor {
        let axis = self.rank as usize - 1;
        let mut tensor = Tensor { bytes: 0, ..*self };
        tensor.shape[axis] = count;
        tensor.offset += u64::from(first) * u64::from(self.strides[axis]) * self.dtype().bytes() as u64;
        tensor
    }

    /// Whether rank and type are ones that there are, and the offset is a multiple of an element.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank outside 1 to 4 and an offset within an element; `Unsupported` for a type that is
    /// not known here, or not a tensor's.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if !(1..=4).contains(&self.rank) {
            return Err(Error::invalid(format!("rank {}: a tensor has 1 to 4 axes", self.rank)));
        }
        let dtype = DType::from_code(self.dtype)?;
        if dtype == DType::U4 {
            return Err(Error::unsupported(
                "a tensor in U4, which is the type of a KV cache alone",
            ));
        }
        let bytes = dtype.bytes() as u64;
        // Sizes are powers of two; a division would be felt in every encode.
        if self.offset & (bytes - 1) != 0 {
            return Err(Error::invalid(format!(
                "offset {}: an operand starts at a multiple of its elements' {bytes} bytes",
                self.offset
            )));
        }
        Ok(())
    }

    /// Whether the operand is absent.
    pub const fn is_none(&self) -> bool {
        self.buffer == 0
    }

    /// The buffer's id.
    pub const fn buffer_id(&self) -> BufferId {
        BufferId(self.buffer)
    }

    /// The element type; of a tensor that [`Tensor::check`] refuses, bytes.
    pub fn dtype(&self) -> DType {
        DType::from_code(self.dtype).unwrap_or(DType::U8)
    }

    /// The used extents.
    pub fn dims(&self) -> &[u32] {
        &self.shape[..self.rank as usize]
    }

    /// Number of elements of the view.
    pub fn elements(&self) -> u64 {
        self.dims().iter().map(|&d| u64::from(d)).product()
    }

    /// Bytes from `offset` to just past the last element, 0 for an empty view.
    pub fn span_bytes(&self) -> u64 {
        if self.bytes > 0 {
            return self.bytes;
        }
        if self.elements() == 0 {
            return 0;
        }
        let last: u64 = (0..self.rank as usize)
            .map(|a| u64::from(self.shape[a] - 1) * u64::from(self.strides[a]))
            .sum();
        (last + 1) * self.dtype().bytes() as u64
    }
}
