//! Compiles the CUDA platform's kernels ahead, for the common GPUs and the models that most people serve: each model
//! starts on a device that computes nothing ([`offline`]), and what it asks the compiler for goes into one file, which
//! lies beside the library. Needs NVRTC and no GPU.

mod devices;
mod error;
mod models;
mod offline;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use halyard_cuda::PREBUILT_KERNELS;
use halyard_engine::{EngineHandle, LoadProgress, RecordSender};
use halyard_gpu::{Facts, GpuDevice, Modules, prebuilt_file};
use halyard_kernels_gpu::STEP_WRITE;

use crate::error::PrebuiltError;
use crate::models::{Model, Way};
use crate::offline::{Collected, Offline};

/// Compiles CUDA kernels ahead, into one file beside the platform's library.
#[derive(Parser)]
struct Options {
    /// Folder for the file `libhalyard_cuda.kernels`.
    #[arg(value_name = "FOLDER", required_unless_present = "list")]
    out: Option<PathBuf>,
    /// Prints what would be compiled, a line each, and compiles nothing.
    #[arg(long)]
    list: bool,
    /// These models alone; else all of models.json.
    #[arg(long = "model", value_name = "NAME")]
    models: Vec<String>,
    /// These architectures alone, as sm_90a; else all.
    #[arg(long = "arch", value_name = "ARCH")]
    archs: Vec<String>,
}

/// A folder that is deleted at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, PrebuiltError> {
        let path = std::env::temp_dir().join(format!("halyard-prebuilt-kernels-{}", std::process::id()));
        match std::fs::create_dir_all(&path) {
            Ok(()) => Ok(Folder(path)),
            Err(source) => Err(PrebuiltError::Write { path, source }),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Best effort: it lies in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a model on a device, for what it asks of the compiler.
fn start(
    model: &Model,
    way: Way,
    facts: &Facts,
    collected: &Arc<Collected>,
    folder: &Path,
) -> Result<(), PrebuiltError> {
    let config = model.engine(way, folder)?;
    let driver = Arc::new(Offline::new(facts.clone(), collected.clone()));
    let refused = |message: String| PrebuiltError::Start {
        model: model.name.clone(),
        way: format!("{way:?}"),
        device: facts.name.clone(),
        message,
    };
    let device = GpuDevice::open(driver.clone(), halyard_cuda::info(facts), Modules::default());
    let device = device.map_err(|error| refused(error.to_string()))?;
    // The queue asks for this one with the first step.
    let step_write = Modules::default().function(&*driver, STEP_WRITE, &[], "step_write", 0);
    step_write.map_err(|error| refused(error.to_string()))?;
    let files = config.model.open().map_err(|error| refused(error.to_string()))?;
    let mut progress = |progress: LoadProgress| {
        if progress.done_bytes > 0 {
            driver.end();
        }
    };
    match EngineHandle::start(config, device, files, RecordSender::default(), &mut progress) {
        Err(_) if driver.is_over() => Ok(()),
        Err(error) => Err(refused(error.to_string())),
        Ok(_) => Err(refused(
            "it starts, which it cannot: all kernels are not asked for before weights".to_string(),
        )),
    }
}

/// Those of `all` that `names` has, or all where it has none.
fn named<T>(
    flag: &'static str,
    names: &[String],
    all: Vec<T>,
    name_of: impl Fn(&T) -> &str,
) -> Result<Vec<T>, PrebuiltError> {
    if let Some(name) = names.iter().find(|name| !all.iter().any(|one| name_of(one) == **name)) {
        let mut known: Vec<&str> = all.iter().map(name_of).collect();
        known.dedup();
        return Err(PrebuiltError::Unknown {
            flag,
            name: name.clone(),
            known: known.join(", "),
        });
    }
    let is_named = |one: &T| names.is_empty() || names.iter().any(|name| name == name_of(one));
    Ok(all.into_iter().filter(is_named).collect())
}

fn collect(options: &Options) -> Result<Arc<Collected>, PrebuiltError> {
    let collected = Arc::new(match options.list {
        true => Collected::new(Box::new(|_, _, _, _| Ok(Vec::new()))),
        false => Collected::new(Box::new(halyard_cuda::compile)),
    });
    let devices = named("arch", &options.archs, devices::all(), |facts| &facts.arch)?;
    let folder = Folder::new()?;
    for model in named("model", &options.models, models::all()?, |model| &model.name)? {
        for facts in &devices {
            for way in [Way::Bf16].iter().chain(&model.also) {
                start(&model, *way, facts, &collected, &folder.0)?;
            }
        }
        eprintln!("{}: {} kernels so far", model.name, collected.len());
    }
    Ok(collected)
}

fn run(options: &Options) -> Result<(), PrebuiltError> {
    let collected = collect(options)?;
    if let Some(out) = options.out.as_ref().filter(|_| !options.list) {
        let images = collected.images();
        let bytes = prebuilt_file(&images).map_err(PrebuiltError::Pack)?;
        let path = out.join(PREBUILT_KERNELS);
        let megabytes = bytes.len() as f64 / 1e6;
        std::fs::write(&path, bytes).map_err(|source| PrebuiltError::Write {
            path: path.clone(),
            source,
        })?;
        println!("{}: {} kernels, {megabytes:.1} MB", path.display(), images.len());
        return Ok(());
    }
    collected.names().iter().for_each(|name| println!("{name}"));
    Ok(())
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("prebuilt: {error}");
            ExitCode::FAILURE
        }
    }
}
