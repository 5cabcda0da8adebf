//! Measures the encoding of an op from the host through the C table into a plugin that does nothing. Budget: 25 ns.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use halyard_platform_api::ops::{Add, VendorOp};
use halyard_platform_api::{BufferKind, DType, Device, EncoderMode, OpSpec, QueueKind, Tensor};
use halyard_plugin_host::{Catalog, Plugin, SearchPath, select_platform};
use serde_json::json;

use crate::error::BenchError;
use crate::report::{Report, median};

const BUDGET_NS: f64 = 25.0;
/// Ops of an encoder: about a step of a 30-layer model, ten times over.
const OPS: u32 = 3000;
const ENCODERS: u32 = 200;
const REPEATS: usize = 9;
/// An addition has 3 operands, a linear 4 to 5, attention 8, update_rows 11.
const OPERANDS: [usize; 4] = [3, 5, 8, 11];

/// The null platform linked, and loaded from its library if that is in this program's folder.
pub fn measure() -> Result<Vec<Report>, BenchError> {
    let linked = Plugin::from_linked(halyard_null::plugin())?.platform()?.open(0)?;
    let mut reports = vec![report("encode (linked)", &linked)?];
    match library() {
        Some(path) => {
            let search = SearchPath {
                plugins: vec![path],
                ..SearchPath::default()
            };
            let selected = select_platform(&Catalog::discover(&search), Some("null"))?;
            reports.push(report("encode (loaded)", &selected.platform.open(0)?)?);
        }
        None => eprintln!(
            "encode (loaded): skipped: libhalyard_null.so is not in this program's folder (cargo build --release -p \
             halyard-backend-null)"
        ),
    }
    Ok(reports)
}

/// Cargo puts a dependency's library into `deps`, and one that was asked for into the folder of programs.
fn library() -> Option<PathBuf> {
    let folder = std::env::current_exe().ok()?.parent()?.to_path_buf();
    let places = [
        folder.join("libhalyard_null.so"),
        folder.join("deps").join("libhalyard_null.so"),
    ];
    places.into_iter().find(|path| path.is_file())
}

fn report(name: &str, device: &Arc<dyn Device>) -> Result<Report, BenchError> {
    let figures = OPERANDS
        .into_iter()
        .map(|operands| Ok((operands, ns_an_op(device, operands)?)))
        .collect::<Result<Vec<_>, BenchError>>()?;
    let worst = figures.iter().map(|(_, ns)| *ns).fold(0.0, f64::max);
    let details: Vec<_> = figures
        .iter()
        .map(|(operands, ns)| json!({ "operands": operands, "ns": ns }))
        .collect();
    Ok(Report {
        name: name.to_string(),
        measured: worst,
        unit: "ns an op",
        budget: BUDGET_NS,
        details: json!(details),
    })
}

/// The median over repeats of the mean cost of an op with that many operands.
fn ns_an_op(device: &Arc<dyn Device>, operands: usize) -> Result<f64, BenchError> {
    // A vendor op takes any number of operands.
    let spec = match operands {
        3 => OpSpec::from(Add {
            width: 64,
            dtype: DType::F32,
        }),
        _ => OpSpec::Vendor(VendorOp {
            name: "bench.any".to_string(),
            version: 1,
            descriptor: Vec::new(),
        }),
    };
    let op = device.ops().prepare(&spec)?;
    let queue = device.create_queue(QueueKind::Compute)?;
    let buffer = device.create_buffer(4096, BufferKind::Device)?;
    let tensors = vec![Tensor::contiguous(buffer.id(), 0, DType::F32, &[4, 64]); operands];
    let mut repeats = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        let mut elapsed_ns = 0;
        for _ in 0..ENCODERS {
            let mut encoder = queue.create_encoder(EncoderMode::OneShot)?;
            let start = Instant::now();
            for _ in 0..OPS {
                encoder.encode(op.id(), std::hint::black_box(&tensors))?;
            }
            elapsed_ns += start.elapsed().as_nanos();
            encoder.finish()?;
        }
        repeats.push(elapsed_ns as f64 / f64::from(OPS * ENCODERS));
    }
    Ok(median(&mut repeats))
}
