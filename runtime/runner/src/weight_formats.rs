//! Which format of a weight a platform gets: the stored one, or else its canonical form, or a plain type that holds
//! every value of it. Asks the platform, and says what became of formats that it refuses.

use std::cell::RefCell;
use std::collections::BTreeSet;

use halyard_models::program::ProgramOptions;
use halyard_models::weights::Reader;
use halyard_models::{ModelFiles, Result, Role};
use halyard_platform_api::ops::{Embedding, Epilogue, HeadLinear, Linear, MoeLinear};
use halyard_platform_api::{Device, OpSpec, WeightFormat};

use crate::error::RunnerError;

/// What was settled for a format in an op.
struct Settled {
    reader: Reader,
    /// The first weight that it was settled for.
    role: Role,
    stored: WeightFormat,
    /// What was asked for, in this order.
    forms: Vec<WeightFormat>,
    taken: WeightFormat,
    /// Every format that was refused, with the platform's reason.
    refused: Vec<String>,
}

/// The formats of a model's weights on a device.
pub(crate) struct WeightFormats<'a> {
    device: &'a dyn Device,
    files: &'a ModelFiles,
    options: &'a ProgramOptions,
    settled: RefCell<Vec<Settled>>,
    /// Quantised matrices that no canonical form holds.
    expanded: RefCell<BTreeSet<Role>>,
}

impl<'a> WeightFormats<'a> {
    pub(crate) fn new(device: &'a dyn Device, files: &'a ModelFiles, options: &'a ProgramOptions) -> Self {
        WeightFormats {
            device,
            files,
            options,
            settled: RefCell::default(),
            expanded: RefCell::default(),
        }
    }

    /// The format in which a weight is packed. Where the platform takes none, the stored one: its op is then missing,
    /// and [`WeightFormats::explain`] has the reasons.
    pub(crate) fn of(&self, role: Role) -> Result<WeightFormat> {
        let stored = self.files.weights.format(role)?;
        if stored.is_plain() {
            if self.files.weights.is_expanded(role)? {
                self.expanded.borrow_mut().insert(role);
            }
            return Ok(stored);
        }
        let reader = role.reader();
        let forms = candidates(stored, self.columns(role));
        let mut settled = self.settled.borrow_mut();
        if let Some(known) = settled.iter().find(|s| s.reader == reader && s.forms == forms) {
            return Ok(known.taken);
        }
        let mut refused = Vec::new();
        let mut taken = stored;
        for &format in &forms {
            match self.device.ops().support(&self.spec(reader, role, format)) {
                Ok(_) => {
                    taken = format;
                    break;
                }
                Err(why) => refused.push(format!("{}: {}", format.name(), why.message)),
            }
        }
        settled.push(Settled {
            reader,
            role,
            stored,
            forms,
            taken,
            refused,
        });
        Ok(taken)
    }

    /// Values of a row of a weight.
    fn columns(&self, role: Role) -> usize {
        self.files.weights.shape(role).last().copied().unwrap_or(0)
    }

    /// The op that reads a weight, in a format.
    fn spec(&self, reader: Reader, role: Role, weight: WeightFormat) -> OpSpec {
        let shape = self.files.weights.shape(role);
        let (rows, columns) = (shape[0] as u32, self.columns(role) as u32);
        let (act, max_tokens) = (self.options.act, self.options.max_tokens);
        match reader {
            Reader::Embedding => Embedding {
                num_rows: rows,
                width: columns,
                weight,
                out: act,
                scale: 1.0,
                max_tokens,
            }
            .into(),
            Reader::Linear => Linear {
                in_features: columns,
                out_features: rows,
                weight,
                act,
                out: act,
                epilogue: Epilogue::None,
                max_tokens,
                allow_quantized_act: self.options.allow_quantized_act,
            }
            .into(),
            Reader::Experts => MoeLinear {
                in_features: columns,
                out_features: rows,
                num_experts: 2,
                top_k: 1,
                weight,
                dtype: act,
                max_tokens,
                first_expert: 0,
                total_experts: 0,
                allow_quantized_act: self.options.allow_quantized_act,
            }
            .into(),
            Reader::Heads => HeadLinear {
                num_heads: 1,
                in_features: columns,
                out_features: rows,
                weight,
                dtype: act,
                max_tokens,
            }
            .into(),
        }
    }

    /// Adds to a list of missing ops why neither a format nor what stands for it is taken.
    pub(crate) fn explain(&self, error: RunnerError) -> RunnerError {
        let RunnerError::MissingOps { mut missing } = error else {
            return error;
        };
        for settled in self.settled.borrow().iter() {
            let is_refused = settled.refused.len() == settled.forms.len();
            if is_refused {
                let forms = settled.refused.join("; ");
                missing.push(format!(
                    "weights of {} in no form: {forms}; {}",
                    settled.stored.name(),
                    self.taken_instead(settled)
                ));
            }
        }
        RunnerError::MissingOps { missing }
    }

    /// The formats that the platform takes in the op that refuses a weight in every form.
    fn taken_instead(&self, settled: &Settled) -> String {
        let takes = |format: &WeightFormat| {
            let spec = self.spec(settled.reader, settled.role, *format);
            self.device.ops().support(&spec).is_ok()
        };
        let taken: Vec<&str> = WeightFormat::ALL
            .into_iter()
            .filter(takes)
            .map(WeightFormat::name)
            .collect();
        match taken.is_empty() {
            true => "it takes such weights in no format at all: use another platform".to_owned(),
            false => format!(
                "it takes {}: use a checkpoint in one of these, or another platform",
                taken.join(", ")
            ),
        }
    }

    /// For the log: formats that were replaced, and matrices that were expanded.
    pub(crate) fn notes(&self) -> Vec<String> {
        let settled = self.settled.borrow();
        let replaced = settled.iter().filter(|settled| settled.taken != settled.stored);
        let expanded = self.expanded.borrow();
        let expanded = expanded.first().map(|&first| {
            format!(
                "{} quantised matrices ({} and others) are handed out as F32, which takes 4 bytes a value: their \
                 groups are in no order (act-order), not along rows, or of no multiple of 16 columns",
                expanded.len(),
                self.files.weights.file_name(first)
            )
        });
        replaced
            .map(|settled| {
                format!(
                    "weights of {} are handed to {:?} ops as {}, which has the same values ({})",
                    settled.stored.name(),
                    settled.reader,
                    settled.taken.name(),
                    settled.refused.join("; ")
                )
            })
            .chain(expanded)
            .collect()
    }
}

/// The forms of a format whose rows have so many values, in the order of asking: each holds every value. F32 is the
/// last one: it costs memory, and every platform takes it.
fn candidates(stored: WeightFormat, columns: usize) -> Vec<WeightFormat> {
    let canonical = stored.layout().canonical.and_then(|_| stored.narrowed(columns));
    let plain = (stored == WeightFormat::Mxfp4).then_some(WeightFormat::BF16);
    std::iter::once(stored)
        .chain(canonical)
        .chain(plain)
        .chain([WeightFormat::F32])
        .collect()
}
