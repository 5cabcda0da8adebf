//! cuBLASLt: out = x · Wᵀ as a [`Product`], with an algorithm per token bucket, chosen by time when the op is prepared.
//! Everything is row-major outside and column-major in the library, so the library computes outᵀ = W · xᵀ.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cudarc::cublaslt::sys as lt;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t::*;
use cudarc::driver::sys as cuda;
use halyard_gpu::{DevicePtr, Driver, Facts, Product, ProductCall, ProductSpec, Stream};
use halyard_platform_api::{DType, Error, Result, Status, log};

use crate::error;
use crate::libraries;

/// Workspace of a product. Hopper's algorithms want this much.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;
/// Alignment that the prepared algorithms rely on; anything less gets an algorithm of its own.
const ALIGNMENT: u64 = 16;

/// Algorithms that a product remembers for calls that no bucket fits.
const MAX_OTHERS: usize = 1024;

pub(crate) fn check(call: &str, code: lt::cublasStatus_t) -> Result<()> {
    use lt::cublasStatus_t::*;
    let (status, advice) = match code {
        CUBLAS_STATUS_SUCCESS => return Ok(()),
        CUBLAS_STATUS_NOT_SUPPORTED => (Status::Unsupported, ": the library has no algorithm for this product"),
        CUBLAS_STATUS_ALLOC_FAILED => (
            Status::OutOfMemory,
            ": no memory for the library; ask for fewer KV blocks",
        ),
        CUBLAS_STATUS_EXECUTION_FAILED => (
            Status::DeviceLost,
            ": a kernel failed before or in this call; restart the process",
        ),
        CUBLAS_STATUS_NOT_INITIALIZED => (
            Status::Unavailable,
            ": the library does not start; check that it fits the driver",
        ),
        _ => (Status::Internal, ""),
    };
    Err(Error {
        vendor_code: i64::from(code as u32),
        ..Error::new(status, format!("{call} answered {code:?}{advice}"))
    })
}

/// An algorithm as the library fills it in; opaque, and valid for one version of it.
pub(crate) type Algo = lt::cublasLtMatmulAlgo_t;

/// Chooses an algorithm per token bucket.
pub(crate) type Tune = fn(&dyn Driver, &LtProduct) -> Result<Vec<(u32, Algo)>>;

/// The library on one device.
pub(crate) struct Products {
    handle: usize,
    context: usize,
    /// The facts besides the spec on which a choice depends.
    pub(crate) basis: String,
    pub(crate) folder: Option<PathBuf>,
    known: Mutex<HashMap<ProductSpec, Arc<LtProduct>>>,
}

impl Products {
    /// Starts the library in the current context.
    pub(crate) fn new(context: usize, facts: &Facts, folder: Option<PathBuf>) -> Result<Products> {
        libraries::cublaslt()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is there; the output is live.
        let version = unsafe {
            check("cublasLtCreate", lt::cublasLtCreate(&mut handle))?;
            lt::cublasLtGetVersion()
        };
        Ok(Products {
            handle: handle as usize,
            context,
            basis: format!("cublasLt {version}, {}, {} SMs", facts.name, facts.num_sms),
            folder,
            known: Mutex::default(),
        })
    }

    pub(crate) fn handle(&self) -> lt::cublasLtHandle_t {
        self.handle as lt::cublasLtHandle_t
    }

    fn enter(&self) -> Result<()> {
        // SAFETY: the driver that owns this retains the context.
        error::check("cuCtxSetCurrent", unsafe {
            cuda::cuCtxSetCurrent(self.context as cuda::CUcontext)
        })
    }

    /// The product of `spec`, tuned once a process.
    pub(crate) fn product(
        self: &Arc<Self>,
        driver: &dyn Driver,
        spec: &ProductSpec,
        tune: Tune,
    ) -> Result<Arc<dyn Product>> {
        // Held while tuning: two at once would measure each other.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(product) = known.get(spec) {
            return Ok(product.clone());
        }
        self.enter()?;
        let mut product = LtProduct {
            products: self.clone(),
            // Where the scales are counts only when it runs.
            operation: Operation::new(spec, ALIGNMENT, ALIGNMENT)?,
            spec: *spec,
            buckets: Vec::new(),
            others: Mutex::default(),
        };
        // Adding to what is there takes the same algorithms: one tuning serves both.
        let twin = ProductSpec {
            accumulate: !spec.accumulate,
            ..*spec
        };
        product.buckets = match known.get(&twin) {
            Some(twin) => twin.buckets.clone(),
            None => {
                let begun = Instant::now();
                let buckets = tune(driver, &product)?;
                if buckets.is_empty() && is_eight_bit(spec) {
                    return Err(Error::unsupported(
                        "the library has no algorithm for this product of 8-bit floats",
                    ));
                }
                let ms = begun.elapsed().as_millis();
                log::debug("cuda", &format!("{spec:?}: {} algorithms after {ms} ms", buckets.len()));
                buckets
            }
        };
        let product = Arc::new(product);
        known.insert(*spec, product.clone());
        Ok(product)
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        if self.enter().is_ok() {
            // SAFETY: made in `new`, destroyed once; products hold this.
            unsafe { lt::cublasLtDestroy(self.handle()) };
        }
    }
}

/// The library's type of an element.
fn data_type(dtype: DType) -> Option<lt::cudaDataType_t> {
    Some(match dtype {
        DType::F32 => lt::cudaDataType_t::CUDA_R_32F,
        DType::F16 => lt::cudaDataType_t::CUDA_R_16F,
        DType::BF16 => lt::cudaDataType_t::CUDA_R_16BF,
        DType::F8E4M3 => lt::cudaDataType_t::CUDA_R_8F_E4M3,
        _ => return None,
    })
}

/// A matrix layout that is destroyed when it goes.
pub(crate) struct Layout(pub(crate) lt::cublasLtMatrixLayout_t);

impl Layout {
    fn new(dtype: lt::cudaDataType_t, rows: u32, columns: u32, stride: u32) -> Result<Layout> {
        let mut made = std::ptr::null_mut();
        // SAFETY: the output is live.
        check("cublasLtMatrixLayoutCreate", unsafe {
            lt::cublasLtMatrixLayoutCreate(&mut made, dtype, rows.into(), columns.into(), stride.into())
        })?;
        Ok(Layout(made))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { lt::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

/// The operation's description.
pub(crate) struct Operation(pub(crate) lt::cublasLtMatmulDesc_t);

// SAFETY: a description is only read once made.
unsafe impl Send for Operation {}
// SAFETY: as above.
unsafe impl Sync for Operation {}

/// Whether operands are 8-bit floats with scales.
fn is_eight_bit(spec: &ProductSpec) -> bool {
    spec.act == DType::F8E4M3
}

/// Whether the library has such products at all.
pub fn takes(spec: &ProductSpec) -> bool {
    let outs: &[DType] = match spec.act {
        DType::F32 => &[DType::F32],
        DType::F16 => &[DType::F16, DType::F32],
        DType::BF16 => &[DType::BF16, DType::F32],
        DType::F8E4M3 => &[DType::F16, DType::BF16, DType::F32],
        _ => &[],
    };
    let scales = match spec.scale_depth {
        0 => !spec.weight_blocks,
        depth => is_eight_bit(spec) && depth == 128,
    };
    spec.act == spec.weight && outs.contains(&spec.out) && scales
}

impl Operation {
    /// The scales' addresses count for 8-bit floats only.
    fn new(spec: &ProductSpec, weight_scales: DevicePtr, x_scales: DevicePtr) -> Result<Operation> {
        if !takes(spec) {
            return Err(Error::unsupported(format!(
                "a library product of {:?} by {:?} to {:?}, scales of {} depths (blocks: {}): it takes F32, F16, BF16 \
                 or F8E4M3 for both (of F8E4M3 scales of 128 depths, and of blocks of them, too), and gives the same \
                 type (of F8E4M3: a wider one) or F32",
                spec.act, spec.weight, spec.out, spec.scale_depth, spec.weight_blocks
            )));
        }
        let mut made = std::ptr::null_mut();
        // SAFETY: the output is live.
        unsafe {
            check(
                "cublasLtMatmulDescCreate",
                lt::cublasLtMatmulDescCreate(
                    &mut made,
                    // Not the variant that rounds f32 inputs for the matrix units.
                    lt::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    lt::cudaDataType_t::CUDA_R_32F,
                ),
            )?;
        }
        let operation = Operation(made);
        operation.set(CUBLASLT_MATMUL_DESC_TRANSA, 1i32)?;
        if is_eight_bit(spec) {
            use lt::cublasLtMatmulMatrixScale_t::*;
            let of_tokens = match spec.scale_depth {
                0 => CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F as i32,
                _ => CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F as i32,
            };
            let of_weights = match spec.weight_blocks {
                true => CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F as i32,
                false => of_tokens,
            };
            operation.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, of_weights)?;
            operation.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, of_tokens)?;
            operation.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight_scales)?;
            operation.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales)?;
        }
        Ok(operation)
    }

    /// Sets an attribute of the value's type.
    fn set<T: Copy>(&self, attribute: lt::cublasLtMatmulDescAttributes_t, value: T) -> Result<()> {
        // SAFETY: a live description; the value is read during the call, and of the size given.
        let code =
            unsafe { lt::cublasLtMatmulDescSetAttribute(self.0, attribute, (&raw const value).cast(), size_of::<T>()) };
        match check("cublasLtMatmulDescSetAttribute", code) {
            // A library from before there were scales a row.
            Err(error) if code == lt::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE => Err(Error::unsupported(format!(
                "{}: this cuBLASLt has no {attribute:?}",
                error.message
            ))),
            other => other,
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { lt::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// A call's three matrices.
pub(crate) struct Shapes {
    pub(crate) weight: Layout,
    pub(crate) x: Layout,
    pub(crate) out: Layout,
}

/// Alignment that prepared algorithms may rely on: as much of 16 bytes as the spec's row lengths allow.
pub(crate) fn alignment(spec: &ProductSpec) -> u32 {
    let act = spec.act.bytes() as u32;
    let out = spec.out.bytes() as u32;
    let bits = (spec.in_features * act) | (spec.out_features * out) | 16;
    1 << bits.trailing_zeros()
}

/// A tuned product.
pub(crate) struct LtProduct {
    products: Arc<Products>,
    operation: Operation,
    spec: ProductSpec,
    /// Ascending token counts with the algorithm up to each.
    buckets: Vec<(u32, Algo)>,
    /// Algorithms of calls that the buckets' do not fit: by tokens, alignment and strides.
    others: Mutex<HashMap<(u32, u32, u32, u32), Algo>>,
}

impl LtProduct {
    pub(crate) fn spec(&self) -> &ProductSpec {
        &self.spec
    }

    pub(crate) fn products(&self) -> &Products {
        &self.products
    }

    /// Layouts of `tokens` rows.
    pub(crate) fn shapes(&self, tokens: u32, x_stride: u32, out_stride: u32) -> Result<Shapes> {
        let spec = &self.spec;
        let dtype = |dtype| data_type(dtype).ok_or_else(|| Error::unsupported(format!("a product in {dtype:?}")));
        Ok(Shapes {
            weight: Layout::new(
                dtype(spec.weight)?,
                spec.in_features,
                spec.out_features,
                spec.in_features,
            )?,
            x: Layout::new(dtype(spec.act)?, spec.in_features, tokens, x_stride)?,
            out: Layout::new(dtype(spec.out)?, spec.out_features, tokens, out_stride)?,
        })
    }

    /// The library's own ranking for these shapes, the best first.
    pub(crate) fn candidates(&self, shapes: &Shapes, alignment: u32, most: usize) -> Result<Vec<Algo>> {
        use lt::cublasLtMatmulPreferenceAttributes_t::*;
        struct Preference(lt::cublasLtMatmulPreference_t);
        impl Drop for Preference {
            fn drop(&mut self) {
                // SAFETY: made once, destroyed once.
                unsafe { lt::cublasLtMatmulPreferenceDestroy(self.0) };
            }
        }
        let mut preference = Preference(std::ptr::null_mut());
        let workspace = WORKSPACE_BYTES;
        // Partial sums stay in f32: no reduction in the output's type.
        let reductions = lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_INPLACE as u32
            | lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        // SAFETY: outputs are live, attributes have the sizes given, and results are read up to the number found.
        unsafe {
            check(
                "cublasLtMatmulPreferenceCreate",
                lt::cublasLtMatmulPreferenceCreate(&mut preference.0),
            )?;
            let set = |attribute, value: *const c_void, bytes| {
                let code = lt::cublasLtMatmulPreferenceSetAttribute(preference.0, attribute, value, bytes);
                check("cublasLtMatmulPreferenceSetAttribute", code)
            };
            set(
                CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace).cast(),
                8,
            )?;
            set(
                CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                (&raw const reductions).cast(),
                4,
            )?;
            for attribute in [
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ] {
                set(attribute, (&raw const alignment).cast(), 4)?;
            }
            let mut results: Vec<lt::cublasLtMatmulHeuristicResult_t> = vec![std::mem::zeroed(); most];
            let mut found = 0;
            let code = lt::cublasLtMatmulAlgoGetHeuristic(
                self.products.handle(),
                self.operation.0,
                shapes.weight.0,
                shapes.x.0,
                shapes.out.0,
                shapes.out.0,
                preference.0,
                most as i32,
                results.as_mut_ptr(),
                &mut found,
            );
            check("cublasLtMatmulAlgoGetHeuristic", code).map_err(|e| Error {
                // Of an older library, which does not know the scales.
                status: match code {
                    lt::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE if is_eight_bit(&self.spec) => Status::Unsupported,
                    _ => e.status,
                },
                message: format!(
                    "a product of {} by {}: {}",
                    self.spec.in_features, self.spec.out_features, e.message
                ),
                ..e
            })?;
            results.truncate(found as usize);
            let good = |r: &&lt::cublasLtMatmulHeuristicResult_t| r.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS;
            Ok(results.iter().filter(good).map(|r| r.algo).collect())
        }
    }

    /// Whether the library runs `algo` on these shapes.
    pub(crate) fn accepts(&self, shapes: &Shapes, algo: &Algo) -> bool {
        // SAFETY: live descriptions; the result is plain data.
        unsafe {
            let mut result: lt::cublasLtMatmulHeuristicResult_t = std::mem::zeroed();
            let code = lt::cublasLtMatmulAlgoCheck(
                self.products.handle(),
                self.operation.0,
                shapes.weight.0,
                shapes.x.0,
                shapes.out.0,
                shapes.out.0,
                algo,
                &mut result,
            );
            code == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS && result.workspaceSize as u64 <= WORKSPACE_BYTES
        }
    }

    /// Enqueues one call with a given algorithm.
    ///
    /// # Safety
    /// As [`Product::run`].
    pub(crate) unsafe fn run_with(
        &self,
        shapes: &Shapes,
        algo: &Algo,
        call: &ProductCall,
        workspace: DevicePtr,
        stream: Stream,
    ) -> lt::cublasStatus_t {
        let scaled = if is_eight_bit(&self.spec) {
            match Operation::new(&self.spec, call.weight_scales, call.x_scales) {
                Ok(operation) => Some(operation),
                Err(_) => return lt::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
            }
        } else {
            None
        };
        let operation = scaled.as_ref().unwrap_or(&self.operation);
        let alpha = 1f32;
        let beta = if self.spec.accumulate { 1f32 } else { 0f32 };
        // SAFETY: as the caller promises; scalars are read during the call.
        unsafe {
            lt::cublasLtMatmul(
                self.products.handle(),
                operation.0,
                (&raw const alpha).cast(),
                call.weight as *const c_void,
                shapes.weight.0,
                call.x as *const c_void,
                shapes.x.0,
                (&raw const beta).cast(),
                call.out as *const c_void,
                shapes.out.0,
                call.out as *mut c_void,
                shapes.out.0,
                algo,
                workspace as *mut c_void,
                WORKSPACE_BYTES as usize,
                stream.0 as lt::cudaStream_t,
            )
        }
    }

    /// The prepared algorithm for this many tokens.
    fn bucket(&self, tokens: u32) -> Option<&Algo> {
        let at = self.buckets.partition_point(|&(most, _)| most < tokens);
        self.buckets
            .get(at)
            .or_else(|| self.buckets.last())
            .map(|(_, algo)| algo)
    }

    /// The library's first choice for a call that no bucket fits.
    fn other(&self, shapes: &Shapes, call: &ProductCall, alignment: u32) -> Result<Algo> {
        let key = (call.tokens, alignment, call.x_stride, call.out_stride);
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(algo) = others.get(&key) {
            return Ok(*algo);
        }
        let algo = *self.candidates(shapes, alignment, 1)?.first().ok_or_else(|| {
            Error::unsupported(format!(
                "the library has no algorithm for {} tokens at {alignment}-byte alignment",
                call.tokens
            ))
        })?;
        if others.len() >= MAX_OTHERS {
            others.clear();
        }
        others.insert(key, algo);
        Ok(algo)
    }

    /// The largest power of two up to [`ALIGNMENT`] that divides every address and row length.
    fn alignment(&self, call: &ProductCall) -> u32 {
        let spec = &self.spec;
        let (act, out) = (spec.act.bytes() as u64, spec.out.bytes() as u64);
        let rows = [
            u64::from(call.x_stride) * act,
            u64::from(spec.in_features) * act,
            u64::from(call.out_stride) * out,
        ];
        let bits = rows
            .iter()
            .fold(call.x | call.weight | call.out | ALIGNMENT, |bits, row| bits | row);
        1 << bits.trailing_zeros()
    }
}

impl Product for LtProduct {
    fn workspace_bytes(&self) -> u64 {
        WORKSPACE_BYTES
    }

    unsafe fn run(&self, call: &ProductCall, workspace: DevicePtr, stream: Stream) -> Result<()> {
        self.products.enter()?;
        let shapes = self.shapes(call.tokens, call.x_stride, call.out_stride)?;
        let aligned = self.alignment(call);
        if let Some(algo) = self.bucket(call.tokens).filter(|_| aligned >= alignment(&self.spec)) {
            // SAFETY: as the caller promises.
            let code = unsafe { self.run_with(&shapes, algo, call, workspace, stream) };
            use lt::cublasStatus_t::{CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED};
            if !matches!(code, CUBLAS_STATUS_NOT_SUPPORTED | CUBLAS_STATUS_INVALID_VALUE) {
                return check("cublasLtMatmul", code);
            }
        }
        let algo = self.other(&shapes, call, aligned)?;
        // SAFETY: as the caller promises.
        check("cublasLtMatmul", unsafe {
            self.run_with(&shapes, &algo, call, workspace, stream)
        })
    }
}
