//! Types of flag values that are more than a number: bytes with a unit, element types, scheduling policies.

use halyard_platform_api::DType;
use halyard_scheduler::Policy;

/// Bytes, with an optional unit: `1073741824`, `512MiB`, `4G` (2^30), `4g` (10^9, as vLLM has it).
///
/// # Errors
/// What is accepted.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim();
    let scale: u64 = match (unit, unit.to_ascii_lowercase().as_str()) {
        (_, "" | "b") => 1,
        ("k", _) | (_, "kb") => 1_000,
        ("m", _) | (_, "mb") => 1_000_000,
        ("g", _) | (_, "gb") => 1_000_000_000,
        ("t", _) | (_, "tb") => 1_000_000_000_000,
        (_, "k" | "kib") => 1 << 10,
        (_, "m" | "mib") => 1 << 20,
        (_, "g" | "gib") => 1 << 30,
        (_, "t" | "tib") => 1 << 40,
        _ => {
            return Err(format!(
                "unit `{unit}` is not known; write bytes or KiB, MiB, GiB, TiB, KB, MB, GB, TB"
            ));
        }
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a number of bytes, such as 512MiB"))?;
    let bytes = number * scale as f64;
    if bytes >= 1.0 && bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err(format!("`{text}` must be at least 1 byte"))
    }
}

/// Tokens as vLLM writes them: `4096`, `4k` (4000), `25.6k` (25600), `4K` (4096), and so on with m, g, t.
///
/// # Errors
/// What is accepted.
pub fn parse_tokens(text: &str) -> Result<u32, String> {
    let bad = || format!("`{text}` is no number of tokens, such as 8192, 8k (8000) or 8K (8192)");
    let text = text.trim();
    let unit = text.chars().next_back().filter(char::is_ascii_alphabetic);
    let number = text.strip_suffix(|c: char| c.is_ascii_alphabetic()).unwrap_or(text);
    let scale: f64 = match unit {
        None => 1.0,
        Some('k') => 1e3,
        Some('m') => 1e6,
        Some('g') => 1e9,
        Some('t') => 1e12,
        Some('K') => f64::from(1 << 10),
        Some('M') => f64::from(1 << 20),
        Some('G') => f64::from(1 << 30),
        Some(_) => return Err(bad()),
    };
    let plain =
        number.bytes().all(|b| b.is_ascii_digit() || b == b'.') && number.starts_with(|c: char| c.is_ascii_digit());
    let whole_only = unit.is_none_or(|unit| unit.is_ascii_uppercase());
    if !plain || (whole_only && number.contains('.')) {
        return Err(bad());
    }
    let tokens = number.parse::<f64>().map_err(|_| bad())? * scale;
    // Halves of a token come of decimals alone; 25.6k is 25600 but for the float's own rounding.
    let tokens = (tokens + 1e-6).floor();
    if (1.0..=f64::from(u32::MAX)).contains(&tokens) {
        Ok(tokens as u32)
    } else {
        Err(format!("`{text}` must be from 1 to {} tokens", u32::MAX))
    }
}

/// A value of `--max-model-len`; `None`: the model's, if KV memory holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLength(pub Option<u32>);

/// A context: tokens as [`parse_tokens`] takes them, at least 2, or `auto` or -1.
///
/// # Errors
/// What is accepted.
pub fn parse_context(text: &str) -> Result<ContextLength, String> {
    if text.eq_ignore_ascii_case("auto") || text == "-1" {
        return Ok(ContextLength(None));
    }
    match parse_tokens(text)? {
        1 => Err("`1` is too short; give 2 tokens or more, or auto".to_owned()),
        tokens => Ok(ContextLength(Some(tokens))),
    }
}

/// An element type by vLLM's names; `auto` is `None`: the device's choice.
///
/// # Errors
/// The known names.
pub fn parse_dtype(text: &str) -> Result<DTypeChoice, String> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(DTypeChoice(None)),
        "float32" | "float" | "f32" => Ok(DTypeChoice(Some(DType::F32))),
        "float16" | "half" | "f16" => Ok(DTypeChoice(Some(DType::F16))),
        "bfloat16" | "bf16" => Ok(DTypeChoice(Some(DType::BF16))),
        "fp8" | "fp8_e4m3" => Ok(DTypeChoice(Some(DType::F8E4M3))),
        _ => Err(format!(
            "`{text}` is not known; known are auto, float32, float16, bfloat16, fp8 (fp8_e4m3)"
        )),
    }
}

/// A type of the KV cache: what [`parse_dtype`] takes, and codes with scales by vLLM's names.
///
/// # Errors
/// The known names.
pub fn parse_kv_dtype(text: &str) -> Result<DTypeChoice, String> {
    match text.to_ascii_lowercase().as_str() {
        "int8_per_token_head" | "int8" => Ok(DTypeChoice(Some(DType::I8))),
        "int4_per_token_head" | "int4" => Ok(DTypeChoice(Some(DType::U4))),
        _ => parse_dtype(text).map_err(|why| format!("{why}, int8_per_token_head (int8), int4_per_token_head (int4)")),
    }
}

/// A value of `--dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DTypeChoice(pub Option<DType>);

/// A scheduling policy.
///
/// # Errors
/// The known names.
pub fn parse_policy(text: &str) -> Result<Policy, String> {
    match text {
        "fcfs" => Ok(Policy::Fcfs),
        "priority" => Ok(Policy::Priority),
        _ => Err(format!("`{text}` is not known; known are fcfs and priority")),
    }
}

/// A share above 0 and at most 1.
///
/// # Errors
/// The range.
pub fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err(format!("`{text}` must be a number above 0 and at most 1")),
    }
}

/// A number of GiB, such as 4 or 0.5, in bytes.
///
/// # Errors
/// A text that is none.
pub fn parse_gib(text: &str) -> Result<u64, String> {
    const MOST: f64 = 1_048_576.0;
    match text.parse::<f64>() {
        Ok(gib) if (0.0..=MOST).contains(&gib) => Ok((gib * f64::from(1 << 30)) as u64),
        _ => Err(format!("`{text}` must be a number of GiB, 0 to {MOST}")),
    }
}

/// Bytes as text with a unit.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bytes_with_units() {
        for (text, bytes) in [
            ("1", 1),
            ("512MiB", 512 << 20),
            ("4G", 4 << 30),
            ("4g", 4_000_000_000),
            ("1.5 KiB", 1536),
            ("2GB", 2_000_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "0", "-1", "1.2.3", "5 parsecs", "1e99"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn types_of_the_cache_have_vllms_names_and_short_ones() {
        for (text, dtype) in [
            ("auto", None),
            ("fp8", Some(DType::F8E4M3)),
            ("int8_per_token_head", Some(DType::I8)),
            ("INT8", Some(DType::I8)),
            ("int4_per_token_head", Some(DType::U4)),
            ("int4", Some(DType::U4)),
        ] {
            assert_eq!(parse_kv_dtype(text), Ok(DTypeChoice(dtype)), "{text}");
        }
        for bad in ["int5", "fp8_per_token_head", "nvfp4"] {
            let why = parse_kv_dtype(bad).expect_err(bad);
            assert!(why.contains(bad) && why.contains("int4_per_token_head"), "{why}");
        }
        assert!(parse_dtype("int8").is_err(), "activations are never held so");
    }

    #[test]
    fn reads_tokens_as_vllm_writes_them() {
        for (text, tokens) in [
            ("4096", 4096),
            ("4k", 4000),
            ("4K", 4096),
            ("25.6k", 25_600),
            ("1.1k", 1100),
            ("1m", 1_000_000),
            ("1M", 1 << 20),
        ] {
            assert_eq!(parse_tokens(text), Ok(tokens), "{text}");
            assert_eq!(parse_context(text), Ok(ContextLength(Some(tokens))), "{text}");
        }
        for bad in [
            "", "k", "0", "-5", "1.5K", "1.5", "4kk", "4x", "1e3", "9g", "auto", "4 k",
        ] {
            assert!(parse_tokens(bad).is_err(), "{bad}");
        }
        for none in ["auto", "AUTO", "-1"] {
            assert_eq!(parse_context(none), Ok(ContextLength(None)), "{none}");
        }
        assert!(parse_context("1").is_err());
    }

    #[test]
    fn shows_bytes_in_the_largest_whole_unit() {
        assert_eq!(show_bytes(1023), "1023 B");
        assert_eq!(show_bytes(98_362_432), "93.8 MiB");
    }
}
