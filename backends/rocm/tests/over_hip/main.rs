//! Tests of the host code without a GPU: over the HIP runtime of tests/hip-on-cuda, which here uses a fake libcuda that
//! plays faults.

mod faults;
mod ranks;

use std::path::PathBuf;
use std::process::Command;

/// The libraries' folder for one test, deleted with it.
struct Stand(PathBuf);

impl Stand {
    fn new(name: &str, libraries: &[(&str, &str)]) -> Stand {
        let folder = std::env::temp_dir().join(format!("halyard-rocm-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let program = std::env::current_exe().expect("a path");
        for (built, library) in libraries {
            let built = program.with_file_name(built);
            std::fs::copy(&built, folder.join(library)).unwrap_or_else(|e| panic!("{}: {e}", built.display()));
        }
        Stand(folder)
    }

    /// Runs one test of this program under a fault: whether it passed, and what it said.
    fn run(&self, test: &str, fault: &str) -> (bool, String) {
        self.run_with(test, fault, &[])
    }

    /// As [`Stand::run`], with variables set.
    fn run_with(&self, test: &str, fault: &str, variables: &[(&str, &str)]) -> (bool, String) {
        let output = Command::new(std::env::current_exe().expect("a path"))
            .envs(variables.iter().copied())
            .args(["--exact", test, "--nocapture"])
            .env("LD_LIBRARY_PATH", &self.0)
            .env("HALYARD_ROCM_LIBRARY_PATH", &self.0)
            .env("HALYARD_CUDA_LIBRARY_PATH", &self.0)
            .env("FAKE_LIBCUDA", fault)
            .env("HALYARD_CACHE_DIR", self.0.join("cache"))
            .output()
            .expect("the child starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success() && text.contains("1 passed"), text)
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        // Best effort: it lies in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const HIP: &str = "libhalyard_hip_on_cuda.so";
const FAKE: &str = "libhalyard_fake_libcuda.so";
/// The runtime, its compiler and the driver beneath: all that one device needs.
const ALL: [(&str, &str); 4] = [
    (HIP, "libamdhip64.so.7"),
    (HIP, "libhiprtc.so.7"),
    (FAKE, "libcuda.so.1"),
    (FAKE, "libnvrtc.so.13"),
];
