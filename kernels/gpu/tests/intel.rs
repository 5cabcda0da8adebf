//! Every kernel file compiles with Intel's own compiler for its GPUs (ocloc, apt's intel-opencl-icd), which needs no
//! GPU: for DG2, which has matrix units in subgroups of 8, and Ponte Vecchio, in subgroups of 16; and what has no
//! matrix units for Tiger Lake, the oldest that is tried. What compiles here has never run on such a GPU. HALYARD_OCLOC
//! names the program or a folder in which apt's packages were unpacked; without it the test says so and passes.
//!
//! It also checks the compiler's output: kernels on matrix units have their instructions, and hot kernels keep their
//! sums in registers.

mod share;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use halyard_kernels_gpu::{Language, expanded, files};

/// Kernel files whose loops decide a model's speed: none of them may spill.
const HOT: [&str; 6] = [
    "attention_plain",
    "attention_tiles",
    "linear_plain",
    "linear_quantized",
    "linear_scaled",
    "linear_tiled",
];

/// The functions of matrix units, which Debian's build of the compiler's front end does not declare; Intel's does.
const DECLARATIONS: &str = "
#ifdef DPAS
#if DPAS == 16
#define LEFT(n) short##n
#else
#define LEFT(n) int##n
#endif
#define DECLARE(name, n) float##n __attribute__((overloadable)) name(LEFT(n), int8, float##n);
DECLARE(intel_sub_group_f16_f16_matrix_mad_k16, 4)
DECLARE(intel_sub_group_f16_f16_matrix_mad_k16, 8)
DECLARE(intel_sub_group_bf16_bf16_matrix_mad_k16, 4)
DECLARE(intel_sub_group_bf16_bf16_matrix_mad_k16, 8)
#undef LEFT
#undef DECLARE
#endif
";

/// The compiler, and where its libraries lie if not where the system looks.
struct Ocloc {
    program: PathBuf,
    libraries: Option<PathBuf>,
}

/// One compilation.
struct Job {
    name: &'static str,
    text: &'static str,
    device: &'static str,
    options: String,
    on_matrix_units: bool,
}

fn ocloc() -> Result<Ocloc, String> {
    let named = std::env::var_os("HALYARD_OCLOC").map(PathBuf::from);
    let ocloc = match named {
        Some(folder) if folder.is_dir() => Ocloc {
            program: folder.join("usr/bin/ocloc"),
            libraries: Some(folder.join("usr/lib/x86_64-linux-gnu")),
        },
        program => Ocloc {
            program: program.unwrap_or_else(|| "ocloc".into()),
            libraries: None,
        },
    };
    match ocloc.command().arg("--help").output() {
        Ok(output) if output.status.success() => Ok(ocloc),
        Ok(output) => Err(format!(
            "{} ends with {}: {}",
            ocloc.program.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(e) => Err(format!(
            "{}: {e}; apt's intel-opencl-icd (or intel-ocloc) brings Intel's compiler, and HALYARD_OCLOC may name it",
            ocloc.program.display()
        )),
    }
}

impl Ocloc {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }

    /// Compiles a job's text in `folder`: what the compiler notes about the kernels.
    fn compile(&self, job: &Job, folder: &Path) -> Result<String, String> {
        let text = DECLARATIONS.to_string() + &expanded(job.text, Language::OpenCl.headers())?;
        let source = folder.join("kernel.cl");
        std::fs::write(&source, text).map_err(|e| format!("{}: {e}", source.display()))?;
        // Debian's front end believes that OpenCL C 3.0 has no images on Ponte Vecchio, and its own header stumbles
        // over that.
        let images = match job.device {
            "pvc" => "-cl-ext=+__opencl_c_images,+__opencl_c_read_write_images ",
            _ => "",
        };
        let output = self
            .command()
            .current_dir(folder)
            .args([
                "compile",
                "-file",
                "kernel.cl",
                "-device",
                job.device,
                "-output_no_suffix",
            ])
            .args(["-output", "kernel", "-options", &job.options])
            .args(["-internal_options", &format!("{images}-cl-intel-allow-zebin")])
            .output()
            .map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(said);
        }
        let binary = std::fs::read(folder.join("kernel")).map_err(|e| format!("what was compiled: {e}"))?;
        notes(&binary).ok_or_else(|| format!("the binary has no notes about its kernels: {said}"))
    }
}

/// The section of a binary that says what each kernel needs, in YAML.
fn notes(binary: &[u8]) -> Option<String> {
    let start = binary.windows(9).position(|window| window == b"\nkernels:")?;
    let text = &binary[start..];
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Some(String::from_utf8_lossy(&text[..end]).into_owned())
}

/// What is wrong with a compiled file; `None`: nothing.
fn fault(job: &Job, notes: &str) -> Option<String> {
    if job.on_matrix_units && !notes.contains("has_dpas:        true") {
        return Some("no instruction of the matrix units".to_string());
    }
    let spills = |kernel: &str| {
        let spilled = kernel.contains("spill_fill_space") || kernel.contains("private_space");
        spilled.then(|| {
            format!(
                "{} keeps values in memory",
                kernel.split_whitespace().next().unwrap_or("a kernel")
            )
        })
    };
    let hot = HOT.contains(&job.name) && !job.options.contains("HALYARD_CPU");
    let mut kernels = notes.split("- name:").skip(1);
    hot.then(|| kernels.find_map(spills)).flatten()
}

fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for (name, text) in files(Language::OpenCl) {
        // Empty without them.
        let needs_matrix_units = name == "attention_tiles";
        let sets = |prefix: &'static str| text.lines().filter_map(move |line| line.strip_prefix(prefix));
        // What processors are given is not for GPUs.
        let plain = sets("// check:").filter(|set| !set.contains("HALYARD_CPU") && !needs_matrix_units);
        for (at, set) in plain.enumerate() {
            // The set that comes first is for the older one: differences are of the hardware, not of the types.
            let devices: &[&str] = if at == 0 { &["dg2", "tgllp"] } else { &["dg2"] };
            jobs.extend(devices.iter().map(|device| Job {
                name,
                text,
                device,
                options: format!("-cl-std=CL3.0 -DSUBGROUP=16{set}"),
                on_matrix_units: false,
            }));
        }
        for set in sets("// matrix:") {
            jobs.extend([("dg2", 8), ("pvc", 16)].map(|(device, lanes)| {
                let large = if needs_matrix_units {
                    "-cl-intel-256-GRF-per-thread "
                } else {
                    ""
                };
                Job {
                    name,
                    text,
                    device,
                    options: format!("-cl-std=CL3.0 {large}-DSUBGROUP={lanes} -DDPAS={lanes}{set}"),
                    on_matrix_units: true,
                }
            }));
        }
    }
    jobs
}

#[test]
fn every_kernel_file_compiles_for_intels_gpus() {
    let ocloc = match ocloc() {
        Ok(ocloc) => ocloc,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let mut jobs = jobs();
    let on_matrix_units = jobs.iter().filter(|job| job.on_matrix_units).count();
    println!("{} compilations, {on_matrix_units} on matrix units", jobs.len());
    assert!(on_matrix_units >= 8, "{on_matrix_units} on matrix units");
    jobs.retain(|job| share::is_ours(&format!("{} {} {}", job.name, job.options, job.device)));
    println!("{} of them are of this run's share", jobs.len());
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ocloc-{thread}"));
            std::fs::create_dir_all(&folder).expect("a folder");
            let (ocloc, jobs, next, failures) = (&ocloc, &jobs, &next, &failures);
            scope.spawn(move || {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let fault = match ocloc.compile(job, &folder) {
                        Ok(notes) => fault(job, &notes),
                        Err(why) => Some(why),
                    };
                    if let Some(why) = fault {
                        let line = format!("{}.cl {} for {}: {why}", job.name, job.options, job.device);
                        failures.lock().unwrap_or_else(|e| e.into_inner()).push(line);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
