//! Every kernel file compiles on every OpenCL device at hand, under every definition set that its first comment lists
//! as `// check: -DNAME=value ..` (one set a line, an empty one for none). The loader is the system's libOpenCL, or the
//! file that HALYARD_OPENCL names; without one, or without a device, the test says so and passes.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use halyard_kernels_gpu::{Language, expanded, files};
use libloading::Library;

const DEVICE_NOT_FOUND: c_int = -1;
const ALL_DEVICES: u64 = 0xffff_ffff;
const DEVICE_NAME: c_uint = 0x102b;
const BUILD_LOG: c_uint = 0x1183;
/// The compiler options of the platform.
const LANGUAGE: &str = "-cl-std=CL1.2";

/// The definition sets of a file.
fn definition_sets(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("// check:"));
    lines.map(|defines| defines.trim().to_string()).collect()
}

type Handle = *mut c_void;
type CreateContext = unsafe extern "C" fn(*const isize, c_uint, *const Handle, Handle, Handle, *mut c_int) -> Handle;
type CreateProgram = unsafe extern "C" fn(Handle, c_uint, *const *const c_char, *const usize, *mut c_int) -> Handle;
type Build = unsafe extern "C" fn(Handle, c_uint, *const Handle, *const c_char, Handle, Handle) -> c_int;
type BuildInfo = unsafe extern "C" fn(Handle, Handle, c_uint, usize, *mut c_void, *mut usize) -> c_int;
type DeviceInfo = unsafe extern "C" fn(Handle, c_uint, usize, *mut c_void, *mut usize) -> c_int;
type DeviceIds = unsafe extern "C" fn(Handle, u64, c_uint, *mut Handle, *mut c_uint) -> c_int;

/// A device with its context.
struct Device {
    id: Handle,
    context: Handle,
    name: String,
}

// SAFETY: OpenCL's objects may be used from any thread.
unsafe impl Sync for Device {}

/// The loader's entry points.
struct OpenCl {
    platforms: unsafe extern "C" fn(c_uint, *mut Handle, *mut c_uint) -> c_int,
    devices: DeviceIds,
    device_info: DeviceInfo,
    create_context: CreateContext,
    create_program: CreateProgram,
    build: Build,
    build_info: BuildInfo,
    release: unsafe extern "C" fn(Handle) -> c_int,
    // Last: the functions live as long as it.
    _library: Library,
}

impl OpenCl {
    /// The first loader that opens, or why none does.
    fn open() -> Result<OpenCl, String> {
        let named = std::env::var("HALYARD_OPENCL").ok();
        let usual = ["libOpenCL.so.1", "libOpenCL.so"];
        let names = named.map_or_else(|| usual.map(str::to_string).to_vec(), |path| vec![path]);
        // SAFETY: the loader has no initialisers that ask anything of us.
        let opened = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
        let library =
            opened.ok_or_else(|| format!("{} not found; HALYARD_OPENCL may name the file", names.join(", ")))?;
        let missing = |e: libloading::Error| e.to_string();
        // SAFETY: the signatures are those of cl.h, the same since OpenCL 1.0.
        unsafe {
            Ok(OpenCl {
                platforms: *library.get("clGetPlatformIDs").map_err(missing)?,
                devices: *library.get("clGetDeviceIDs").map_err(missing)?,
                device_info: *library.get("clGetDeviceInfo").map_err(missing)?,
                create_context: *library.get("clCreateContext").map_err(missing)?,
                create_program: *library.get("clCreateProgramWithSource").map_err(missing)?,
                build: *library.get("clBuildProgram").map_err(missing)?,
                build_info: *library.get("clGetProgramBuildInfo").map_err(missing)?,
                release: *library.get("clReleaseProgram").map_err(missing)?,
                _library: library,
            })
        }
    }

    /// Every device of every platform.
    fn devices(&self) -> Result<Vec<Device>, String> {
        let mut platforms = [null_mut(); 16];
        let mut count = 0;
        // SAFETY: room for 16 platforms, and for 16 devices below; counts are capped to that.
        let code = unsafe { (self.platforms)(16, platforms.as_mut_ptr(), &mut count) };
        if code != 0 {
            return Err(format!("clGetPlatformIDs gives {code}"));
        }
        let mut found = Vec::new();
        for &platform in &platforms[..(count as usize).min(16)] {
            let (mut ids, mut count) = ([null_mut(); 16], 0);
            // SAFETY: as above.
            let code = unsafe { (self.devices)(platform, ALL_DEVICES, 16, ids.as_mut_ptr(), &mut count) };
            if code == DEVICE_NOT_FOUND {
                continue;
            }
            for &id in &ids[..(count as usize).min(16)] {
                let (mut name, mut code) = ([0u8; 256], 0);
                // SAFETY: room for the name but its last byte; one device; no callback.
                let context = unsafe {
                    (self.device_info)(id, DEVICE_NAME, 255, name.as_mut_ptr().cast(), null_mut());
                    (self.create_context)(null(), 1, &id, null_mut(), null_mut(), &mut code)
                };
                if code != 0 {
                    return Err(format!("clCreateContext gives {code}"));
                }
                let name = String::from_utf8_lossy(&name);
                let name = name.trim_end_matches('\0').to_string();
                found.push(Device { id, context, name });
            }
        }
        Ok(found)
    }

    fn compile(&self, device: &Device, text: &str, defines: &str) -> Result<(), String> {
        let c = |text: String| CString::new(text).expect("kernel texts hold no zero byte");
        let (source, options) = (
            c(expanded(text, Language::OpenCl.headers())?),
            c(format!("{LANGUAGE} {defines}")),
        );
        let pointer = source.as_ptr();
        let (mut code, mut log) = (0, vec![0u8; 1 << 16]);
        // SAFETY: the texts outlive the program, which is released at the end; the log has the size that is passed.
        unsafe {
            let program = (self.create_program)(device.context, 1, &pointer, null(), &mut code);
            if code != 0 {
                return Err(format!("clCreateProgramWithSource gives {code}"));
            }
            code = (self.build)(program, 1, &device.id, options.as_ptr(), null_mut(), null_mut());
            if code != 0 {
                let size = log.len() - 1;
                (self.build_info)(program, device.id, BUILD_LOG, size, log.as_mut_ptr().cast(), null_mut());
            }
            (self.release)(program);
        }
        if code == 0 {
            return Ok(());
        }
        let log = String::from_utf8_lossy(&log);
        Err(format!("code {code}\n{}", log.trim_end_matches('\0')))
    }
}

/// The loader and its devices, or why there are none.
fn devices() -> Result<(OpenCl, Vec<Device>), String> {
    // One at a time: pocl 3.1 finds no device when two threads ask for the first time.
    static ASKING: Mutex<()> = Mutex::new(());
    let _asking = ASKING.lock().unwrap_or_else(|e| e.into_inner());
    let opencl = OpenCl::open()?;
    let devices = opencl.devices()?;
    if devices.is_empty() {
        return Err("no OpenCL device; packages such as pocl-opencl-icd bring one".to_string());
    }
    Ok((opencl, devices))
}

#[test]
fn every_kernel_file_compiles_as_it_is_used() {
    let (opencl, devices) = match devices() {
        Ok(found) => found,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let mut jobs = Vec::new();
    for device in &devices {
        for (name, text) in files(Language::OpenCl) {
            jobs.extend(
                definition_sets(text)
                    .into_iter()
                    .map(|defines| (device, name, text, defines)),
            );
        }
    }
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((device, name, text, defines)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = opencl.compile(device, text, defines) {
                        let line = format!("{name}.cl {defines} on {}: {why}", device.name);
                        failures.lock().unwrap_or_else(|e| e.into_inner()).push(line);
                    }
                }
            });
        }
    });
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    println!("{}: {} compilations", names.join(", "), jobs.len());
    let failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_compiler_reports_a_planted_error() {
    let Ok((opencl, devices)) = devices() else {
        println!("skipped: no OpenCL device");
        return;
    };
    let text = "#include \"common.h\"\n__kernel void k(__global ACT *x) { x[0] = missing; }\n";
    for device in &devices {
        let why = opencl
            .compile(device, text, "-DACT=bf16")
            .expect_err("`missing` is not declared");
        assert!(why.contains("missing"), "{}: {why}", device.name);
    }
}

#[test]
fn every_helper_is_always_inlined() {
    // pocl 3.1 mixes up the ids of its threads' work-items in functions that stay functions.
    let texts = files(Language::OpenCl).chain(Language::OpenCl.headers().iter().copied());
    let own = "#define INLINE static inline __attribute__((always_inline))";
    for (name, text) in texts {
        let plain: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("static ") && *line != own)
            .collect();
        assert!(plain.is_empty(), "{name}: {plain:?}: say INLINE instead");
    }
}

#[test]
fn every_file_expands_and_lists_its_definition_sets() {
    for (name, text) in files(Language::OpenCl) {
        let expanded = expanded(text, Language::OpenCl.headers()).expect("known headers");
        assert!(
            expanded.contains("__kernel") && !expanded.contains("#include"),
            "{name}.cl: it has no kernel, or includes in a way that expansion does not see"
        );
        let sets = definition_sets(text);
        assert!(
            !sets.is_empty(),
            "{name}.cl: list each definition set in the file's first comment, as in `// check: -DACT=bf16`"
        );
        let different: BTreeSet<_> = sets.iter().collect();
        assert_eq!(different.len(), sets.len(), "{name}.cl lists a set twice");
        for define in sets.iter().flat_map(|set| set.split_whitespace()) {
            assert!(define.starts_with("-D"), "{name}.cl: {define} is no definition");
        }
    }
}
