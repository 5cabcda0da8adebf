//! rocBLAS: out = x · Wᵀ as a [`Product`]. Everything is row-major outside and column-major in the library, so the
//! library computes outᵀ = W · xᵀ. Opened when a product is first wanted; without it own tiles run.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use halyard_gpu::{DevicePtr, Library, Product, ProductCall, ProductSpec, Stream, symbol};
use halyard_platform_api::{DType, Error, Result, Status};

use crate::env::{named_library_folders, usual_library_folders};
use crate::hip::Hip;

static ROCBLAS: Library = Library::new(
    "rocblas",
    &[".5", ".4", ".0", ""],
    "install rocBLAS of the same ROCm, and where it lies in neither the loader's path nor /opt/rocm/lib, name its \
     folder in HALYARD_ROCM_LIBRARY_PATH",
);

/// Scratch that the library may use in a call: its own memory cannot grow while a stream is captured.
const WORKSPACE_BYTES: u64 = 32 << 20;

/// `rocblas_operation_none` and `_transpose`.
const NONE: c_int = 111;
const TRANSPOSE: c_int = 112;
/// `rocblas_datatype_f32_r`.
const F32: c_int = 151;

type Handle = *mut c_void;

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $out:ty;)*) => {
        /// The library's functions.
        struct Functions {
            $( $field: unsafe extern "C" fn($($arg),*) -> $out, )*
        }

        impl Functions {
            fn load() -> Result<Functions> {
                let library = ROCBLAS.open(named_library_folders, usual_library_folders)?;
                // SAFETY: the symbols have these types in every version of the library of ROCm 5 to 7.
                unsafe { Ok(Functions { $(
                    $field: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $out>(
                    symbol(library, $symbol)?
                ), )* }) }
            }
        }
    };
}

functions! {
    create = c"rocblas_create_handle": fn(*mut Handle) -> c_int;
    destroy = c"rocblas_destroy_handle": fn(Handle) -> c_int;
    words = c"rocblas_status_to_string": fn(c_int) -> *const c_char;
    set_stream = c"rocblas_set_stream": fn(Handle, usize) -> c_int;
    set_workspace = c"rocblas_set_workspace": fn(Handle, DevicePtr, usize) -> c_int;
    set_atomics = c"rocblas_set_atomics_mode": fn(Handle, c_int) -> c_int;
    multiply = c"rocblas_gemm_ex":
        fn(Handle, c_int, c_int, c_int, c_int, c_int, *const f32, DevicePtr, c_int, c_int, DevicePtr, c_int, c_int,
        *const f32, DevicePtr, c_int, c_int, DevicePtr, c_int, c_int, c_int, c_int, c_int, c_uint) -> c_int;
}

/// The library on one device.
pub(crate) struct Products {
    functions: Functions,
    hip: &'static Hip,
    ordinal: i32,
    /// One call at a time: stream and workspace are the handle's.
    handle: Mutex<usize>,
}

impl Products {
    /// Starts the library on the device.
    ///
    /// # Errors
    /// `Unsupported` with the remedy where there is no library: other kernels do its work.
    pub(crate) fn new(hip: &'static Hip, ordinal: i32) -> Result<Products> {
        let functions = Functions::load().map_err(|e| Error::unsupported(e.message))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the output is live.
        let code = unsafe { (functions.create)(&mut handle) };
        let products = Products {
            functions,
            hip,
            ordinal,
            handle: Mutex::new(handle as usize),
        };
        products.check("rocblas_create_handle", code)?;
        // Sums in one order, run after run.
        // SAFETY: a live handle.
        let code = unsafe { (products.functions.set_atomics)(handle, 0) };
        products.check("rocblas_set_atomics_mode", code)?;
        Ok(products)
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        let (status, advice) = match code {
            0 => return Ok(()),
            2 => (Status::Unsupported, ": the library has no kernel for this product"),
            5 => (
                Status::OutOfMemory,
                ": no memory for the library; ask for fewer KV blocks",
            ),
            _ => (
                Status::Internal,
                ": see the kernel log (dmesg) and ROCBLAS_LAYER=1's output",
            ),
        };
        // SAFETY: takes any code; the texts are constants that end in 0.
        let words = unsafe {
            let text = (self.functions.words)(code);
            match text.is_null() {
                true => String::new(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            }
        };
        Err(Error {
            vendor_code: i64::from(code),
            ..Error::new(status, format!("{call} answered {code} {words}{advice}"))
        })
    }

    /// The product of `spec`.
    ///
    /// # Errors
    /// `Unsupported` for types that the library does not multiply.
    pub(crate) fn product(self: &Arc<Self>, spec: &ProductSpec) -> Result<Arc<dyn Product>> {
        let types = (data_type(spec.act), data_type(spec.weight), data_type(spec.out));
        let (Some(act), Some(weight), Some(out)) = types else {
            return Err(unsupported(spec));
        };
        if act != weight || (out != act && out != F32) {
            return Err(unsupported(spec));
        }
        Ok(Arc::new(RocblasProduct {
            products: self.clone(),
            spec: *spec,
            input: act,
            out,
        }))
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made in `new`, destroyed once; products hold this.
        unsafe {
            if handle != 0 && (self.hip.set_device)(self.ordinal) == 0 {
                (self.functions.destroy)(handle as Handle);
            }
        }
    }
}

fn unsupported(spec: &ProductSpec) -> Error {
    Error::unsupported(format!(
        "rocBLAS multiplies F32, F16 or BF16 by the same type into that or F32, and not {:?} by {:?} into {:?}",
        spec.act, spec.weight, spec.out
    ))
}

/// The library's type of an element.
fn data_type(dtype: DType) -> Option<c_int> {
    match dtype {
        DType::F16 => Some(150),
        DType::F32 => Some(F32),
        DType::BF16 => Some(168),
        _ => None,
    }
}

struct RocblasProduct {
    products: Arc<Products>,
    spec: ProductSpec,
    input: c_int,
    out: c_int,
}

impl Product for RocblasProduct {
    fn workspace_bytes(&self) -> u64 {
        WORKSPACE_BYTES
    }

    /// The library loads a kernel when it is first called for, which a capture does not allow.
    fn must_run_first(&self) -> bool {
        true
    }

    unsafe fn run(&self, call: &ProductCall, workspace: DevicePtr, stream: Stream) -> Result<()> {
        let Products { functions, hip, .. } = &*self.products;
        let (n, k) = (self.spec.out_features as c_int, self.spec.in_features as c_int);
        let (one, kept) = (1f32, if self.spec.accumulate { 1f32 } else { 0f32 });
        let (x_stride, out_stride) = (call.x_stride as c_int, call.out_stride as c_int);
        let handle = self.products.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = *handle as Handle;
        // SAFETY: as the caller promises; the library copies the factors during the call.
        unsafe {
            hip.check("hipSetDevice", (hip.set_device)(self.products.ordinal))?;
            self.products
                .check("rocblas_set_stream", (functions.set_stream)(handle, stream.0))?;
            let code = (functions.set_workspace)(handle, workspace, WORKSPACE_BYTES as usize);
            self.products.check("rocblas_set_workspace", code)?;
            let code = (functions.multiply)(
                handle,
                TRANSPOSE,
                NONE,
                n,
                call.tokens as c_int,
                k,
                &one,
                call.weight,
                self.input,
                k,
                call.x,
                self.input,
                x_stride,
                &kept,
                call.out,
                self.out,
                out_stride,
                call.out,
                self.out,
                out_stride,
                F32,
                0,
                0,
                0,
            );
            self.products.check("rocblas_gemm_ex", code)
        }
    }
}
