//! The cases, one family a file, and running them: every op over types, formats and odd shapes, strided operands and
//! padding.

mod attend;
mod data;
mod dense;
mod latent;
mod no_token;
mod pointwise;
mod sampling;
mod step;

use std::sync::Arc;

use halyard_platform_api::weight_format::Codes;
use halyard_platform_api::{Capabilities, DType, Device, WeightFormat};

use crate::case::Case;
use crate::execute::{Failure, compare, execute};
use crate::random::Random;
use crate::{Options, Report, Support, recorded, row_fits};

/// The activation types.
pub(crate) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// A part of the suite: its name, its ops, and what makes their cases from a seed.
type Family = (&'static str, &'static [&'static str], fn(u64) -> Vec<Case>);

const FAMILIES: [Family; 7] = [
    ("dense", dense::OPS, dense::cases),
    ("head-linear", latent::HEAD_OPS, latent::head_cases),
    ("pointwise", pointwise::OPS, pointwise::cases),
    ("data", data::OPS, data::cases),
    ("step", step::OPS, step::cases),
    ("sampling", sampling::OPS, sampling::cases),
    ("no-token", no_token::OPS, no_token::cases),
];

/// The parts of attention, whose cases depend on the device.
const ATTENTION: [AttentionFamily; 2] = [
    ("attention", attend::OPS, attend::cases),
    ("latent", latent::OPS, latent::cases),
];

/// As [`Family`], by block size.
type AttentionFamily = (&'static str, &'static [&'static str], fn(u64, u32) -> Vec<Case>);

/// Whether a part is one of ops.
pub(crate) fn has_part(part: &str) -> bool {
    ATTENTION.iter().any(|(family, ..)| *family == part) || FAMILIES.iter().any(|(family, ..)| *family == part)
}

/// A number for a row's share, from its name (FNV-1a). Rows of one op come at even distances: by their places a share
/// would have all of them, and others none.
fn number(row: &str) -> usize {
    let hash = row.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    (hash >> 32) as usize
}

/// Runs all cases; attention on every backend of the device.
pub(crate) fn run(device: &Arc<dyn Device>, oracle: &Arc<dyn Device>, options: &Options, report: &mut Report) {
    let wanted = |case: &Case, place: &str| {
        let row = format!("{} {}{place}", case.op, case.variant);
        number(&row) % options.share.1 == options.share.0
            && options.only_op.as_ref().is_none_or(|op| op == case.op)
            && row_fits(&row, &options.filter)
    };
    // Contents take long to make: none for families that have nothing to run.
    let has_wanted = |part: &str, ops: &[&str]| {
        options.wants_part(part) && options.only_op.as_deref().is_none_or(|op| ops.contains(&op))
    };
    // The same cases with other contents, for what is recorded.
    let others = |family: &dyn Fn(u64) -> Vec<Case>| match device.info().capabilities.has(Capabilities::RECORDING) {
        true => family(options.seed ^ 0x0FF5_E7ED).into_iter().map(Some).collect(),
        false => Vec::new(),
    };
    for (_, _, family) in FAMILIES.iter().filter(|(part, ops, _)| has_wanted(part, ops)) {
        let others = others(family).into_iter().chain(std::iter::repeat(None));
        for (case, other) in family(options.seed).iter().zip(others) {
            if wanted(case, "") {
                run_case(&**device, &**oracle, (case, other.as_ref()), 0, "", report);
            }
        }
    }
    let wanted_attention: Vec<_> = ATTENTION
        .iter()
        .filter(|(part, ops, _)| has_wanted(part, ops))
        .collect();
    for (index, backend) in device.attention().backends().iter().enumerate() {
        let sizes = match backend.block_sizes.as_slice() {
            [] => vec![16, 8],
            sizes => sizes.to_vec(),
        };
        let of_sizes = sizes
            .iter()
            .flat_map(|size| wanted_attention.iter().map(move |family| (*size, family)));
        for (block_size, (.., cases)) in of_sizes {
            let place = format!(" {} block {block_size}", backend.name);
            let family = |seed| cases(seed, block_size);
            let others = others(&family).into_iter().chain(std::iter::repeat(None));
            for (case, other) in family(options.seed).iter().zip(others) {
                if wanted(case, &place) {
                    let cases = (case, other.as_ref());
                    run_case(&**device, &**oracle, cases, index as u32, &place, report);
                }
            }
        }
    }
}

/// Whether the device says that it runs each op, in each of its variants; nothing is computed.
pub(crate) fn support(device: &dyn Device) -> Vec<Support> {
    let attention = |device: &dyn Device| {
        let sizes = device
            .attention()
            .backends()
            .into_iter()
            .next()
            .map(|backend| backend.block_sizes);
        let size = sizes.and_then(|sizes| sizes.first().copied()).unwrap_or(16);
        ATTENTION.iter().flat_map(move |(.., cases)| cases(0, size))
    };
    let cases = FAMILIES
        .iter()
        .flat_map(|(.., family)| family(0))
        .chain(attention(device));
    let mut rows: Vec<Support> = Vec::new();
    for case in cases {
        if rows.iter().any(|row| row.op == case.op && row.variant == case.variant) {
            continue;
        }
        let answers = case.nodes.iter().map(|(spec, _)| device.ops().support(spec));
        let outcome = answers.collect::<Result<Vec<_>, _>>();
        rows.push(Support {
            op: case.op.to_string(),
            variant: case.variant.clone(),
            outcome: match outcome {
                Ok(all) => Ok(all.last().map(|last| last.implementation.clone()).unwrap_or_default()),
                Err(why) => Err(why.message),
            },
        });
    }
    rows
}

/// Runs one case on both devices and notes the outcome; then again from a recording, together with its other contents.
fn run_case(
    device: &dyn Device,
    oracle: &dyn Device,
    (case, other): (&Case, Option<&Case>),
    backend: u32,
    place: &str,
    report: &mut Report,
) {
    let row = report.row(case.op, &format!("{}{place}", case.variant));
    let found = match execute(device, case, backend) {
        Err(Failure::Unsupported(reason)) => {
            row.unsupported = Some(reason);
            return;
        }
        Err(Failure::Broken(why)) => Err(why),
        Ok(found) => Ok(found),
    };
    let expected = execute(oracle, case, 0).map_err(|failure| match failure {
        Failure::Unsupported(why) | Failure::Broken(why) => format!("the oracle: {why}"),
    });
    let mut outcomes = Vec::with_capacity(2);
    match &expected {
        Ok(expected) => {
            outcomes.push(found.and_then(|found| compare(case, &found, expected)));
            let recorded = other.and_then(|other| recorded::check(device, oracle, (case, expected), other, backend));
            outcomes.extend(recorded.map(|outcome| outcome.map_err(|why| format!("recorded: {why}"))));
        }
        Err(why) => outcomes.push(Err(why.clone())),
    }
    for outcome in outcomes {
        row.cases += 1;
        match outcome {
            Ok(worst) => {
                row.passed += 1;
                row.worst = row.worst.max(worst);
            }
            Err(why) => row.failures.push(format!("{}: {why}", case.name)),
        }
    }
}

/// A block of a canonical format: values up to about `jitter`.
fn group(random: &mut Random, format: WeightFormat, jitter: f32, out: &mut Vec<u8>) {
    let layout = format.layout();
    let bytes = layout.block_bytes - layout.scale_bytes();
    let (largest, min) = match (layout.codes, bytes == layout.block_values) {
        (Codes::Integer { .. }, true) => (128.0, Some(0.1 * jitter)),
        (Codes::Integer { .. }, false) => (9.0, Some(-0.8 * jitter)),
        (Codes::Table(table), _) => (table.iter().fold(0.0f32, |max, v| max.max(v.abs())), None),
        _ => (448.0, None),
    };
    out.extend((jitter / (1.5 * largest)).to_le_bytes());
    out.extend(min.into_iter().flat_map(f32::to_le_bytes));
    out.extend(random.bytes(bytes).iter().map(|&code| match layout.codes {
        Codes::E4m3 if code & 0x7f == 0x7f => code & 0x80,
        _ => code,
    }));
}

/// `rows` canonical rows of random weights of magnitude up to about 1 and a root mean square of 0.5 or less, which the
/// tolerance of products (`tolerance::Class::Product`) rests on.
pub(crate) fn weight(random: &mut Random, format: WeightFormat, rows: u32, width: u32) -> Vec<u8> {
    let half = |value: f32| half::f16::from_f32(value).to_le_bytes();
    let blocks = width as usize / format.block_values();
    let mut out = Vec::new();
    for row in 0..rows {
        for _ in 0..blocks {
            let jitter = 1.0 + 0.25 * random.unit();
            match format {
                WeightFormat::F32 => out.extend(random.unit().to_le_bytes()),
                WeightFormat::F16 => out.extend(half(random.unit())),
                WeightFormat::BF16 => out.extend(half::bf16::from_f32(random.unit()).to_le_bytes()),
                WeightFormat::Q4_0 => out.extend([&half(jitter / 10.0)[..], &random.bytes(16)].concat()),
                WeightFormat::Q4_1 => {
                    out.extend([&half(jitter / 9.0)[..], &half(-0.8 * jitter), &random.bytes(16)].concat());
                }
                WeightFormat::Q5_0 => out.extend([&half(jitter / 20.0)[..], &random.bytes(20)].concat()),
                WeightFormat::Q8_0 => out.extend([&half(jitter / 160.0)[..], &random.bytes(32)].concat()),
                WeightFormat::Q4K => {
                    out.extend([&half(jitter / 700.0)[..], &half(jitter / 90.0), &random.bytes(140)].concat());
                }
                WeightFormat::Q6K => out.extend([&random.bytes(208)[..], &half(jitter / 4000.0)].concat()),
                WeightFormat::Q5_1 => {
                    out.extend([&half(jitter / 36.0)[..], &half(-0.43 * jitter), &random.bytes(20)].concat());
                }
                WeightFormat::Q2K => {
                    out.extend([&random.bytes(80)[..], &half(jitter / 50.0), &half(jitter / 34.0)].concat());
                }
                WeightFormat::Q3K => out.extend([&random.bytes(108)[..], &half(jitter / 180.0)].concat()),
                WeightFormat::Q5K => {
                    out.extend([&half(jitter / 2800.0)[..], &half(jitter / 180.0), &random.bytes(172)].concat());
                }
                WeightFormat::IQ4NL => out.extend([&half(jitter / 200.0)[..], &random.bytes(16)].concat()),
                WeightFormat::IQ4XS => out.extend([&half(jitter / 5000.0)[..], &random.bytes(134)].concat()),
                WeightFormat::IQ3XXS => out.extend([&half(jitter / 800.0)[..], &random.bytes(96)].concat()),
                WeightFormat::IQ3S => out.extend([&half(jitter / 800.0)[..], &random.bytes(108)].concat()),
                WeightFormat::IQ2XXS => out.extend([&half(jitter / 280.0)[..], &random.bytes(64)].concat()),
                WeightFormat::IQ2XS => out.extend([&half(jitter / 280.0)[..], &random.bytes(72)].concat()),
                WeightFormat::IQ2S => out.extend([&half(jitter / 280.0)[..], &random.bytes(80)].concat()),
                WeightFormat::IQ1S => out.extend([&half(jitter / 30.0)[..], &random.bytes(48)].concat()),
                WeightFormat::IQ1M => {
                    // The f16 stands in the upper nibbles of the last four words.
                    let (mut block, d) = (random.bytes(56), u16::from_le_bytes(half(jitter / 30.0)));
                    for (i, word) in block[48..].chunks_exact_mut(2).enumerate() {
                        word[1] = word[1] & 15 | ((d >> (4 * i)) as u8 & 15) << 4;
                    }
                    out.extend(block);
                }
                WeightFormat::TQ1_0 => out.extend([&random.bytes(52)[..], &half(0.5 * jitter)].concat()),
                WeightFormat::TQ2_0 => out.extend([&random.bytes(64)[..], &half(jitter / 3.0)].concat()),
                // A sixteenth or an eighth, the largest code being 6.
                WeightFormat::Mxfp4 => {
                    out.push(123 + random.bytes(1)[0] % 2);
                    out.extend(random.bytes(16));
                }
                // Scales of 1 to 2.
                WeightFormat::Nvfp4 => {
                    out.push(0x38 | random.bytes(1)[0] & 7);
                    out.extend(random.bytes(8));
                }
                // Every code but NaN.
                WeightFormat::F8E4M3 => out.extend(random.bytes(1).iter().map(|&code| match code & 0x7f {
                    0x7f => code & 0x80,
                    _ => code,
                })),
                canonical => group(random, canonical, jitter, &mut out),
            }
        }
        if format.row_tail_bytes() > 0 {
            // Scales of neighbouring rows are far apart.
            let largest = if format == WeightFormat::F8E4M3 { 448.0 } else { 24.0 };
            let scale = (1.0 + 0.25 * random.unit()) * [1.0, 0.5, 2.0][row as usize % 3] / largest;
            out.extend(scale.to_le_bytes());
        }
    }
    if format == WeightFormat::F8B128 {
        share_scales(&mut out, rows as usize, blocks);
    }
    out
}

/// Gives the rows of a block of 128 the scales of its first; those of neighbouring blocks are far apart.
fn share_scales(out: &mut [u8], rows: usize, blocks: usize) {
    let bytes = WeightFormat::F8B128.block_bytes();
    for (row, group) in (0..rows).flat_map(|row| (0..blocks).map(move |group| (row, group))) {
        let first = (row / 128 * 128 * blocks + group) * bytes;
        let own = (row * blocks + group) * bytes;
        let mut scale = [0; 4];
        scale.copy_from_slice(&out[first..first + 4]);
        if row % 128 == 0 {
            let factor = [1.0, 0.5, 0.25][(row / 128 + group) % 3];
            scale = (f32::from_le_bytes(scale) * factor).to_le_bytes();
        }
        out[own..own + 4].copy_from_slice(&scale);
    }
}
