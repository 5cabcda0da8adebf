//! Every kernel file compiles for the oldest and the newest device in mind, under every definition set that its first comment lists as
//! `// check: -DNAME=value ..` (one set a line, an empty one for none). Needs no device: the run-time compiler alone, from the loader's
//! path or from the file that HALYARD_NVRTC names; without it the test says so and passes.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use halyard_kernels_gpu::{HEADERS, SOURCES, Source};
use libloading::Library;

/// What `--gpu-architecture` is asked for.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];

/// The definition sets of a file.
fn definition_sets(source: &Source) -> Vec<Vec<String>> {
    source
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("// check:"))
        .map(|defines| defines.split_whitespace().map(str::to_string).collect())
        .collect()
}

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

/// The compiler opens its second library by name when it first compiles: outside the loader's path it must be open before.
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
    fn compile(&self, source: &Source, defines: &[String], architecture: &str) -> Result<(), String> {
        let c = |text: &str| CString::new(text).expect("kernel texts hold no zero byte");
        let (text, name) = (c(source.text), c(source.name));
        let headers: Vec<CString> = HEADERS.iter().map(|(_, text)| c(text)).collect();
        let names: Vec<CString> = HEADERS.iter().map(|(name, _)| c(name)).collect();
        let mut options = vec![c(&format!("--gpu-architecture={architecture}"))];
        options.extend(defines.iter().map(|define| c(define)));
        let pointers = |texts: &[CString]| texts.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
        let (headers, names, options) = (pointers(&headers), pointers(&names), pointers(&options));
        let mut program: Program = null_mut();
        // SAFETY: all texts outlive the program, which is destroyed below; the log has the size that the library asks for.
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
    let mut jobs = Vec::new();
    for source in SOURCES {
        for defines in definition_sets(source) {
            jobs.extend(ARCHITECTURES.map(|architecture| (source, defines.clone(), architecture)));
        }
    }
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((source, defines, architecture)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = compiler.compile(source, defines, architecture) {
                        let line = format!("{}.cu {} for {architecture}: {why}", source.name, defines.join(" "));
                        failures.lock().unwrap_or_else(|e| e.into_inner()).push(line);
                    }
                }
            });
        }
    });
    println!("NVRTC {}: {} compilations", compiler.version(), jobs.len());
    let failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_compiler_reports_a_planted_error() {
    let Ok(compiler) = Compiler::open() else {
        println!("skipped: libnvrtc not found");
        return;
    };
    let source = Source {
        name: "planted",
        text: "#include \"common.cuh\"\nextern \"C\" __global__ void k(ACT *x) { x[0] = missing; }\n",
    };
    let defines = ["-DACT=bf16".to_string()];
    let why = compiler
        .compile(&source, &defines, "sm_80")
        .expect_err("`missing` is not declared");
    assert!(why.contains("missing"), "{why}");
}

#[test]
fn every_file_lists_its_definition_sets_and_known_headers() {
    let kernels = SOURCES.iter().filter(|s| s.text.contains("__global__"));
    let (listed, unlisted): (Vec<&Source>, Vec<&Source>) = kernels.partition(|s| !definition_sets(s).is_empty());
    let unlisted: Vec<&str> = unlisted.iter().map(|source| source.name).collect();
    assert!(
        unlisted.is_empty(),
        "{unlisted:?}: list each definition set in the file's first comment, as in `// check: -DACT=bf16`"
    );
    for source in listed {
        let sets = definition_sets(source);
        let different: BTreeSet<_> = sets.iter().collect();
        assert_eq!(different.len(), sets.len(), "{}.cu lists a set twice", source.name);
        for define in sets.iter().flatten() {
            assert!(
                define.starts_with("-D"),
                "{}.cu: {define} is no definition",
                source.name
            );
        }
        assert!(
            source.text.contains("wait_for_previous()"),
            "{}.cu: launches are chained, and nothing in it waits",
            source.name
        );
        let included = source.text.lines().filter_map(|l| l.strip_prefix("#include \""));
        for name in included.map(|rest| rest.trim_end_matches('"')) {
            assert!(
                HEADERS.iter().any(|(header, _)| *header == name),
                "{}.cu includes {name}, which is not in HEADERS",
                source.name
            );
        }
    }
}
