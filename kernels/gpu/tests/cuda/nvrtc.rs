//! Every kernel file compiles as CUDA for the oldest and the newest device in mind. Needs no device: the run-time
//! compiler alone, from the loader's path or from the file that HALYARD_NVRTC names; without it the test says so and
//! passes.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use halyard_kernels_gpu::Language;
use libloading::Library;

use crate::{File, compile_all, needs_ptx};

/// What `--gpu-architecture` is asked for.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];

type Program = *mut c_void;

type Texts = *const *const c_char;
type CreateFn = unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, Texts, Texts) -> c_int;
type SizeFn = unsafe extern "C" fn(Program, *mut usize) -> c_int;

/// The compiler's entry points.
struct Compiler {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    create: CreateFn,
    compile: unsafe extern "C" fn(Program, c_int, Texts) -> c_int,
    log_size: SizeFn,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    image_size: SizeFn,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    // Last: the functions live as long as these.
    _library: Library,
    _builtins: Vec<Library>,
}

/// The compiler opens its second library by name when it first compiles: outside the loader's path it must be open
/// before.
fn open_builtins(compiler: &str) -> Vec<Library> {
    let folder = Path::new(compiler).parent().unwrap_or(Path::new("."));
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_builtins = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libnvrtc-builtins.so")
    };
    let paths = files.map(|file| file.path()).filter(is_builtins);
    // SAFETY: it holds data for the compiler and runs nothing when it is opened.
    paths.filter_map(|path| unsafe { Library::new(path) }.ok()).collect()
}

impl Compiler {
    /// The first library that opens, or why none does.
    fn open() -> Result<Compiler, String> {
        let named = std::env::var("HALYARD_NVRTC").ok();
        let usual = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
        let names: Vec<String> = match &named {
            Some(path) => vec![path.clone()],
            None => usual.map(str::to_string).to_vec(),
        };
        let builtins = named.as_deref().map_or_else(Vec::new, open_builtins);
        // SAFETY: the compiler's library has no initialisers that ask anything of us.
        let opened = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
        let library =
            opened.ok_or_else(|| format!("{} not found; HALYARD_NVRTC may name the file", names.join(", ")))?;
        let missing = |e: libloading::Error| e.to_string();
        // SAFETY: the signatures are those of nvrtc.h, the same in versions 12 and 13.
        unsafe {
            Ok(Compiler {
                version: *library.get("nvrtcVersion").map_err(missing)?,
                create: *library.get("nvrtcCreateProgram").map_err(missing)?,
                compile: *library.get("nvrtcCompileProgram").map_err(missing)?,
                log_size: *library.get("nvrtcGetProgramLogSize").map_err(missing)?,
                log: *library.get("nvrtcGetProgramLog").map_err(missing)?,
                image_size: *library.get("nvrtcGetCUBINSize").map_err(missing)?,
                destroy: *library.get("nvrtcDestroyProgram").map_err(missing)?,
                _library: library,
                _builtins: builtins,
            })
        }
    }

    fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two words to write to.
        unsafe { (self.version)(&mut major, &mut minor) };
        format!("{major}.{minor}")
    }

    /// Compiles a file with the headers of this package and nothing else.
    fn compile(&self, source: &File, defines: &[String], architecture: &str) -> Result<(), String> {
        let c = |text: &str| CString::new(text).expect("kernel texts hold no zero byte");
        let (text, name) = (c(source.text), c(source.name));
        let known = Language::Cuda.headers();
        let headers: Vec<CString> = known.iter().map(|(_, text)| c(text)).collect();
        let names: Vec<CString> = known.iter().map(|(name, _)| c(name)).collect();
        let mut options = vec![c(&format!("--gpu-architecture={architecture}"))];
        options.extend(defines.iter().map(|define| c(define)));
        let pointers = |texts: &[CString]| texts.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
        let (headers, names, options) = (pointers(&headers), pointers(&names), pointers(&options));
        let mut program: Program = null_mut();
        // SAFETY: all texts outlive the program, which is destroyed below; the log has the size that the library asks
        // for.
        unsafe {
            let count = headers.len() as c_int;
            let code = (self.create)(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                count,
                headers.as_ptr(),
                names.as_ptr(),
            );
            if code != 0 {
                return Err(format!("nvrtcCreateProgram gives {code}"));
            }
            let code = (self.compile)(program, options.len() as c_int, options.as_ptr());
            let (mut bytes, mut image) = (0, 0);
            (self.log_size)(program, &mut bytes);
            let mut log = vec![0u8; bytes.max(1)];
            (self.log)(program, log.as_mut_ptr().cast());
            (self.image_size)(program, &mut image);
            (self.destroy)(&mut program);
            if code == 0 && image > 0 {
                return Ok(());
            }
            let log =
                CStr::from_bytes_until_nul(&log).map_or_else(|e| e.to_string(), |l| l.to_string_lossy().into_owned());
            Err(format!("code {code}, {image} bytes of machine code\n{log}"))
        }
    }
}

#[test]
fn every_kernel_file_compiles_as_it_is_used() {
    let compiler = match Compiler::open() {
        Ok(compiler) => compiler,
        Err(why) => {
            println!("skipped: libnvrtc not found ({why})");
            return;
        }
    };
    let (count, failures) = compile_all(
        &ARCHITECTURES,
        |_, _| true,
        |source, defines, architecture| compiler.compile(source, defines, architecture),
    );
    println!("NVRTC {}: {count} compilations", compiler.version());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What the other vendor's platform compiles when it runs over this one (tests/hip-on-cuda).
#[test]
fn every_portable_kernel_file_compiles_in_portable_words_too() {
    let compiler = match Compiler::open() {
        Ok(compiler) => compiler,
        Err(why) => {
            println!("skipped: libnvrtc not found ({why})");
            return;
        }
    };
    let (count, failures) = compile_all(
        &ARCHITECTURES[1..],
        |source, defines| !needs_ptx(source, defines),
        |source, defines, architecture| {
            let defines = [defines, &["-DPORTABLE".to_string()]].concat();
            compiler.compile(source, &defines, architecture)
        },
    );
    println!("NVRTC {}: {count} compilations", compiler.version());
    assert!(count >= 100, "only {count} sets were found");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_compiler_reports_a_planted_error() {
    let Ok(compiler) = Compiler::open() else {
        println!("skipped: libnvrtc not found");
        return;
    };
    let source = File {
        name: "planted",
        text: "#include \"common.cuh\"\nextern \"C\" __global__ void k(ACT *x) { x[0] = missing; }\n",
    };
    let defines = ["-DACT=bf16".to_string()];
    let why = compiler
        .compile(&source, &defines, "sm_80")
        .expect_err("`missing` is not declared");
    assert!(why.contains("missing"), "{why}");
}
