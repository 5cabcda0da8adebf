//! rocBLAS over cuBLAS: one product, its handle and its stream. Copied to `librocblas.so` in the same folder as the
//! others, or left out, to test both. When a handle is destroyed, the number of products that the process has given to
//! cuBLAS is printed to stderr, which shows that the library was used.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use halyard_gpu::{Library, symbol};

use crate::cuda::{named, usual};
use crate::{Code, api};

/// `rocblas_status_internal_error`: also for a missing cuBLAS.
const INTERNAL_ERROR: Code = 6;

static LIBRARY: Library = Library::new("cublas", &[".13", ".12", ""], "install cuBLAS");

fn cublas(name: &CStr) -> Option<*mut c_void> {
    static HANDLE: OnceLock<Option<usize>> = OnceLock::new();
    let library = (*HANDLE.get_or_init(|| LIBRARY.open(named, usual).ok()))?;
    symbol(library, name).ok()
}

/// Products that cuBLAS has taken.
static PRODUCTS: AtomicU64 = AtomicU64::new(0);

/// Any failure of cuBLAS has one code here.
fn coded(code: Code) -> Code {
    if code == 0 { 0 } else { INTERNAL_ERROR }
}

/// Calls a function of cuBLAS by name with the types given.
macro_rules! call {
    ($name:literal ($($arg:expr => $ty:ty),* $(,)?)) => {
        match cublas($name) {
            // SAFETY: cuBLAS's function of this name has this type.
            Some(found) => coded(std::mem::transmute::<*mut c_void,
                unsafe extern "C" fn($($ty),*) -> Code>(found)($($arg),*)),
            None => INTERNAL_ERROR,
        }
    };
}

/// `cudaDataType_t` of a rocBLAS type.
fn data_type(rocblas: c_int) -> c_int {
    match rocblas {
        150 => 2,
        168 => 14,
        _ => 0,
    }
}

api! {
    fn rocblas_create_handle(handle: *mut usize) -> Code {
        call!(c"cublasCreate_v2"(handle => *mut usize))
    }

    fn rocblas_destroy_handle(handle: usize) -> Code {
        let mut version = 0;
        call!(c"cublasGetVersion_v2"(handle => usize, &mut version => *mut c_int));
        eprintln!("hip-on-cuda: {} products by cuBLAS {version}", PRODUCTS.load(Ordering::Relaxed));
        call!(c"cublasDestroy_v2"(handle => usize))
    }

    fn rocblas_status_to_string(_code: Code) -> *const c_char {
        c"as cuBLAS answered, or it was not found".as_ptr()
    }

    fn rocblas_set_stream(handle: usize, stream: usize) -> Code {
        call!(c"cublasSetStream_v2"(handle => usize, stream => usize))
    }

    fn rocblas_set_workspace(handle: usize, workspace: u64, bytes: usize) -> Code {
        call!(c"cublasSetWorkspace_v2"(handle => usize, workspace => u64, bytes => usize))
    }

    fn rocblas_set_atomics_mode(_handle: usize, _mode: c_int) -> Code {
        0
    }

    // Numbers of operations are 111 and 112 there, 0 and 1 here; d is c in every call.
    fn rocblas_gemm_ex(
        handle: usize,
        left: c_int,
        right: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: *const f32,
        a: u64,
        a_type: c_int,
        lda: c_int,
        b: u64,
        b_type: c_int,
        ldb: c_int,
        beta: *const f32,
        c: u64,
        c_type: c_int,
        ldc: c_int,
        d: u64,
        _d_type: c_int,
        ldd: c_int,
        _compute_type: c_int,
        _algorithm: c_int,
        _solution: c_int,
        _flags: c_uint,
    ) -> Code {
        if d != c || ldd != ldc {
            return INTERNAL_ERROR;
        }
        // CUBLAS_COMPUTE_32F and the default algorithm.
        let code = call!(c"cublasGemmEx"(
            handle => usize,
            left - 111 => c_int,
            right - 111 => c_int,
            m => c_int,
            n => c_int,
            k => c_int,
            alpha => *const f32,
            a => u64,
            data_type(a_type) => c_int,
            lda => c_int,
            b => u64,
            data_type(b_type) => c_int,
            ldb => c_int,
            beta => *const f32,
            c => u64,
            data_type(c_type) => c_int,
            ldc => c_int,
            68 => c_int,
            -1 => c_int,
        ));
        PRODUCTS.fetch_add(u64::from(code == 0), Ordering::Relaxed);
        code
    }
}
