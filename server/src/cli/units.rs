//! Values of flags that are more than a number: bytes with a unit, element types, scheduling policies.

use halyard_platform_api::DType;
use halyard_scheduler::Policy;

/// Bytes, with an optional unit: `1073741824`, `512MiB`, `4G`.
///
/// # Errors
/// What is accepted.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => {
            return Err(format!(
                "unit `{unit}` is not known; write bytes or KiB, MiB, GiB, TiB, KB, MB, GB"
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

/// Bytes for people.
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
            ("4g", 4 << 30),
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
    fn shows_bytes_in_the_largest_whole_unit() {
        assert_eq!(show_bytes(1023), "1023 B");
        assert_eq!(show_bytes(98_362_432), "93.8 MiB");
    }
}
