//! `quantization_config` of Hugging Face checkpoints: which methods are read, and the numbers that tensors do not show.
//! Tensors themselves say which matrices are quantised and how; what they show is compared with what is read here
//! ([`crate::weights`]), so lists of modules that were left alone, or that have other bits, need no reading.

use halyard_platform_api::WeightFormat;
use serde_json::Value;

use super::fields::JsonFields;
use crate::error::Result;

const OTHERWISE: &str = "read are AWQ (gemm), GPTQ, AutoRound in their packings, compressed-tensors, FP8 (E4M3) with a \
     scale a tensor, channel or block, ModelOpt FP8 and NVFP4, bitsandbytes, HQQ and MXFP4: use such a checkpoint, the \
     unquantised model (with --quantization fp8, where it should become smaller), or a GGUF file";

/// What a method's tensors are called and how they are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Method {
    /// Nothing is quantised.
    #[default]
    None,
    /// 8-bit floats with scales.
    Fp8,
    /// gpt-oss's experts.
    Mxfp4,
    /// The compressed-tensors library's.
    CompressedTensors,
    /// AutoAWQ's "gemm" packing.
    Awq,
    /// AutoGPTQ's and GPTQModel's.
    Gptq,
    /// Model Optimizer's.
    ModelOpt,
    /// bitsandbytes' 4 and 8 bits.
    BitsAndBytes,
    /// HQQ's.
    Hqq,
}

/// Bits of a weight's codes, and how many columns share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub bits: usize,
    /// `None`: the whole row.
    pub group: Option<usize>,
}

/// What a configuration says of quantised weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quantization {
    pub method: Method,
    /// Every scheme that a matrix may have; empty: tensors alone say.
    pub schemes: Vec<Scheme>,
    /// Rows and columns of the blocks that share a scale, of 8-bit floats.
    pub block: Option<[usize; 2]>,
    /// Stored zero points are one below what is meant (GPTQ's first format).
    pub zeros_less_one: bool,
}

impl Quantization {
    /// Reads `quantization_config`.
    ///
    /// # Errors
    /// [`crate::ModelError::Unsupported`] or [`crate::ModelError::BadField`] names the field that is not understood,
    /// and what would be. Activations are never rounded, whatever the file says of them: that is more exact than the
    /// checkpoint asks for.
    pub(crate) fn read(config: &JsonFields) -> Result<Quantization> {
        let Some(fields) = config.object("quantization_config")? else {
            return Ok(Quantization::default());
        };
        match fields.string("quant_method")? {
            Some("fp8" | "fbgemm_fp8") => fp8(&fields),
            Some("mxfp4") => Ok(Quantization::of(Method::Mxfp4)),
            Some("compressed-tensors") => compressed_tensors(&fields),
            Some("awq") => awq(&fields),
            Some("gptq") => gptq(&fields),
            Some("auto-round") => auto_round(&fields),
            Some("modelopt" | "modelopt_fp4") => Quantization::model_optimizer(&fields),
            Some("bitsandbytes") => bits_and_bytes(&fields),
            Some("hqq") => hqq(&fields),
            // What the library wrote before it named its method.
            None if fields.bool("load_in_4bit")? == Some(true) => bits_and_bytes(&fields),
            method => Err(fields.unsupported("quant_method", method.unwrap_or("an unnamed method"), OTHERWISE)),
        }
    }

    fn of(method: Method) -> Quantization {
        Quantization {
            method,
            ..Quantization::default()
        }
    }

    /// Model Optimizer's layout, in config.json or (as `quantization`) in hf_quant_config.json.
    ///
    /// # Errors
    /// As [`Quantization::read`].
    pub(crate) fn model_optimizer(fields: &JsonFields) -> Result<Quantization> {
        let nested = fields.object("quantization")?;
        let fields = nested.as_ref().unwrap_or(fields);
        only(fields, "quant_algo", &["FP8", "NVFP4"])?;
        Ok(Quantization::of(Method::ModelOpt))
    }

    /// Whether dummy matrices of layers are rounded to 8-bit floats with a scale a row, as the checkpoint's are by and
    /// large.
    pub(crate) fn has_fp8_rows(&self) -> bool {
        self.is_fp8() && self.block.is_none()
    }

    /// The format of blocks or groups that most matrices of layers have, of rows of `columns` values; `None`: they are
    /// plain, rows of 8-bit floats, or of a method whose configuration does not say. `of_expert`: the matrix is one;
    /// square blocks serve `linear` alone.
    pub(crate) fn block_format(&self, columns: usize, of_expert: bool) -> Option<WeightFormat> {
        match self.method {
            Method::Mxfp4 => of_expert.then_some(WeightFormat::Mxfp4),
            _ if self.is_fp8() => match (self.block?, WeightFormat::F8G128.narrowed(columns)?) {
                ([128, 128], WeightFormat::F8G128) if !of_expert => Some(WeightFormat::F8B128),
                (_, groups) => Some(groups),
            },
            Method::Awq | Method::Gptq | Method::Hqq | Method::CompressedTensors => {
                let scheme = self.schemes.first()?;
                let canonical = match scheme.bits {
                    8 => WeightFormat::I8G128,
                    _ => WeightFormat::U4G128,
                };
                // By the checkpoint's groups, and by rows.
                let group = canonical.narrowed(scheme.group.unwrap_or(columns))?;
                group.narrowed(columns)
            }
            _ => None,
        }
    }

    fn is_fp8(&self) -> bool {
        self.method == Method::Fp8
            || self.method == Method::CompressedTensors && self.schemes.iter().all(|scheme| scheme.bits == 0)
    }
}

/// The layout of models released in FP8, vLLM's own and AutoFP8's.
fn fp8(fields: &JsonFields) -> Result<Quantization> {
    only(fields, "fmt", &["e4m3", "float8_e4m3fn"])?;
    Ok(Quantization {
        block: block(fields, "weight_block_size")?,
        ..Quantization::of(Method::Fp8)
    })
}

/// Rows and columns of a block.
fn block(fields: &JsonFields, key: &str) -> Result<Option<[usize; 2]>> {
    let Some(sizes) = fields.unsigned_list(key)? else {
        return Ok(None);
    };
    match sizes[..] {
        [rows, columns] if rows > 0 && columns > 0 => Ok(Some([rows, columns])),
        _ => {
            let value = fields.value(key).cloned().unwrap_or_default();
            Err(fields.bad(key, &value, "rows and columns of a block, each 1 or more"))
        }
    }
}

/// The layout of the compressed-tensors library.
fn compressed_tensors(fields: &JsonFields) -> Result<Quantization> {
    const FORMATS: [&str; 8] = [
        "float-quantized",
        "naive-quantized",
        "int-quantized",
        "pack-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "mixed-precision",
        "dense",
    ];
    only(fields, "format", &FORMATS)?;
    if let Some(sparsity) = fields.object("sparsity_config")? {
        only(&sparsity, "format", &["dense"])?;
    }
    if let Some(transform) = fields.value("transform_config").filter(|value| !is_empty(value)) {
        return Err(fields.unsupported("transform_config", transform.to_string(), OTHERWISE));
    }
    let Some(groups) = fields.object("config_groups")? else {
        return Err(fields.missing("config_groups"));
    };
    let mut read = Quantization::of(Method::CompressedTensors);
    for name in groups.keys() {
        let Some(group) = groups.object(name)? else { continue };
        // A group's own format wins over the checkpoint's.
        only(&group, "format", &FORMATS)?;
        if let Some(weights) = group.object("weights")? {
            of_group(&weights, &mut read)?;
        }
    }
    Ok(read)
}

/// One of compressed-tensors' groups. 8-bit floats are schemes of 0 bits: their tensors say all.
fn of_group(weights: &JsonFields, read: &mut Quantization) -> Result<()> {
    let bits = weights.unsigned("num_bits")?.unwrap_or(8);
    let kind = weights.string("type")?.unwrap_or("int");
    let strategy = weights.string("strategy")?.unwrap_or("tensor");
    match (kind, bits) {
        ("float", 8) => {
            only(weights, "strategy", &["tensor", "channel", "block"])?;
            if let Some(block) = block(weights, "block_structure")? {
                if read.block.is_some_and(|other| other != block) {
                    let value = format!("{block:?} after {:?}", read.block.unwrap_or_default());
                    return Err(weights.unsupported("block_structure", value, "all groups must have one block"));
                }
                read.block = Some(block);
            }
            read.schemes.push(Scheme { bits: 0, group: None });
        }
        ("float", 4) => {
            only(weights, "strategy", &["tensor_group", "group"])?;
            let group = group_size(weights, "group_size")?;
            read.schemes.push(Scheme { bits, group });
        }
        ("int", 2 | 4 | 8) => {
            only(weights, "strategy", &["tensor", "channel", "group"])?;
            let group = match strategy {
                "group" => group_size(weights, "group_size")?,
                _ => None,
            };
            read.schemes.push(Scheme { bits, group });
        }
        _ => {
            let field = if matches!(kind, "int" | "float") {
                "num_bits"
            } else {
                "type"
            };
            let value = weights.value(field).map_or("no value".to_owned(), Value::to_string);
            return Err(weights.unsupported(field, value, OTHERWISE));
        }
    }
    Ok(())
}

fn awq(fields: &JsonFields) -> Result<Quantization> {
    only(fields, "version", &["gemm", "GEMM"])?;
    let scheme = scheme(fields, &[4])?;
    Ok(Quantization {
        schemes: vec![scheme],
        ..Quantization::of(Method::Awq)
    })
}

fn gptq(fields: &JsonFields) -> Result<Quantization> {
    only(fields, "checkpoint_format", &["gptq", "gptq_v2"])?;
    if fields.bool("is_marlin_format")? == Some(true) {
        return Err(fields.unsupported("is_marlin_format", "Marlin's packing", OTHERWISE));
    }
    let mut schemes = vec![scheme(fields, &GPTQ_BITS)?];
    // GPTQModel's rules for modules: `-:` leaves one alone, others replace what stands above.
    if let Some(rules) = fields.object("dynamic")? {
        for rule in rules.keys().filter(|rule| !rule.starts_with("-:")) {
            let Some(own) = rules.object(rule)? else { continue };
            schemes.push(scheme_over(&own, schemes[0])?);
        }
    }
    Ok(Quantization {
        schemes,
        zeros_less_one: fields.string("checkpoint_format")? != Some("gptq_v2"),
        ..Quantization::of(Method::Gptq)
    })
}

/// AutoRound, in GPTQ's and AWQ's packings.
fn auto_round(fields: &JsonFields) -> Result<Quantization> {
    only(fields, "data_type", &["int"])?;
    let packing = fields.string("packing_format")?.unwrap_or("auto_round:auto_gptq");
    let method = match packing {
        "auto_round:auto_gptq" | "auto_gptq" => Method::Gptq,
        "auto_round:auto_awq" | "auto_awq" => Method::Awq,
        other => return Err(fields.unsupported("packing_format", format!("`{other}`"), OTHERWISE)),
    };
    let bits: &[usize] = if method == Method::Awq { &[4] } else { &GPTQ_BITS };
    let mut schemes = vec![scheme(fields, bits)?];
    if let Some(modules) = fields.object("extra_config")? {
        for module in modules.keys() {
            let Some(own) = modules.object(module)? else { continue };
            // Modules of 16 bits are not quantised.
            if own.unsigned("bits")?.is_none_or(|bits| bits < 16) {
                schemes.push(scheme_over(&own, schemes[0])?);
            }
        }
    }
    Ok(Quantization {
        schemes,
        zeros_less_one: true,
        ..Quantization::of(method)
    })
}

fn bits_and_bytes(fields: &JsonFields) -> Result<Quantization> {
    only(fields, "bnb_4bit_quant_type", &["nf4", "fp4"])?;
    only(fields, "bnb_4bit_quant_storage", &["uint8"])?;
    Ok(Quantization::of(Method::BitsAndBytes))
}

/// HQQ: `quant_config` has the parameters of all matrices, or those of each kind of matrix by its name. A matrix has
/// its own beside it.
fn hqq(fields: &JsonFields) -> Result<Quantization> {
    let mut read = Quantization::of(Method::Hqq);
    let Some(config) = fields.object("quant_config")? else {
        return Ok(read);
    };
    let mut add = |config: &JsonFields| {
        let Some(params) = config.object("weight_quant_params")? else {
            return Ok(());
        };
        let bits = params.required_float("nbits")?;
        let Some(bits) = hqq_bits(bits) else {
            let value = format!("{bits}; 8, 6, 5, 4, 3, 2, 1.58 and 1 are read");
            return Err(params.unsupported("nbits", value, OTHERWISE));
        };
        let group = group_size(&params, "group_size")?;
        read.schemes.push(Scheme { bits, group });
        Ok(())
    };
    if config.value("weight_quant_params").is_some() {
        add(&config)?;
    } else {
        for kind in config.keys() {
            if let Some(own) = config.object(kind)? {
                add(&own)?;
            }
        }
    }
    Ok(read)
}

/// The bits that HQQ's library packs codes of `nbits` in; `None` where it has no such codes.
pub(crate) fn hqq_bits(nbits: f64) -> Option<usize> {
    // As f64, and as what f32 makes of 1.58.
    let is_ternary = (nbits - 1.58).abs() < 1e-6;
    match nbits {
        8.0 | 6.0 | 5.0 => Some(8),
        4.0 => Some(4),
        3.0 => Some(3),
        2.0 => Some(2),
        1.0 => Some(1),
        _ => is_ternary.then_some(2),
    }
}

const GPTQ_BITS: [usize; 4] = [2, 3, 4, 8];

/// `bits` and `group_size`.
fn scheme(fields: &JsonFields, bits: &[usize]) -> Result<Scheme> {
    let found = fields.required_unsigned("bits")?;
    if !bits.contains(&found) {
        return Err(fields.unsupported("bits", format!("{found}; {bits:?} are read"), OTHERWISE));
    }
    let group = group_size(fields, "group_size")?;
    Ok(Scheme { bits: found, group })
}

/// The same of a module, which names only what differs.
fn scheme_over(fields: &JsonFields, base: Scheme) -> Result<Scheme> {
    let group = match fields.value("group_size") {
        Some(_) => group_size(fields, "group_size")?,
        None => base.group,
    };
    let bits = fields.unsigned("bits")?.unwrap_or(base.bits);
    Ok(Scheme { bits, group })
}

/// Columns that share a scale; −1 (or, in compressed-tensors, null): all.
fn group_size(fields: &JsonFields, key: &str) -> Result<Option<usize>> {
    match fields.value(key) {
        None => Ok(None),
        Some(value) if value.as_i64() == Some(-1) => Ok(None),
        Some(value) => match fields.unsigned(key)? {
            Some(group @ 1..) => Ok(Some(group)),
            _ => Err(fields.bad(key, value, "a number of columns of 1 or more, or -1 for whole rows")),
        },
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Refuses other values of a field; it may be absent.
fn only(fields: &JsonFields, key: &str, supported: &[&str]) -> Result<()> {
    match fields.string(key)? {
        Some(value) if !supported.contains(&value) => Err(fields.unsupported(key, format!("`{value}`"), OTHERWISE)),
        _ => Ok(()),
    }
}
