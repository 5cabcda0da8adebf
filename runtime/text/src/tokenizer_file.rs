//! Checks a tokenizer.json before the tokenizer library reads it. Refused are empty patterns, and
//! normalizers that turn a short text into a long one. Reads the file's structure, never its vocabulary.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Bytes that one byte of text may become by replacements. Spelling a space as `▁` takes 3.
const MAX_GROWTH: usize = 64;
/// Bytes that a step may put before a text.
const MAX_PREPENDED: usize = 1024;
/// Steps of one kind; the longest list of a published tokenizer has 9.
const MAX_STEPS: usize = 256;

/// The parts of a tokenizer.json that are looked at; the rest is only parsed.
#[derive(Deserialize)]
struct Shape {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(flatten)]
    _rest: std::collections::HashMap<String, IgnoredAny>,
}

/// Checks the contents of a tokenizer.json. Returns how many bytes one byte of text may become before it is split.
///
/// # Errors
/// What is wrong, where, and the limit.
pub(crate) fn check(json: &[u8]) -> Result<usize, String> {
    let shape: Shape = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let growth = check_steps("normalizer", &shape.normalizer)?;
    check_steps("pre_tokenizer", &shape.pre_tokenizer)?;
    check_steps("decoder", &shape.decoder)?;
    Ok(growth)
}

/// Checks one part of the file and all steps in it; the growth of all of them together.
fn check_steps(part: &str, root: &Value) -> Result<usize, String> {
    let mut steps = Vec::new();
    flatten(root, &mut steps);
    if steps.len() > MAX_STEPS {
        return Err(format!(
            "{part} has {} steps; at most {MAX_STEPS} are taken",
            steps.len()
        ));
    }
    let mut growth = 1_usize;
    let mut prepended = 0;
    for (index, step) in steps.iter().enumerate() {
        let kind = step["type"].as_str().unwrap_or_default();
        let name = format!("{part} step {index} ({kind})");
        let pattern = &step["pattern"];
        let text = pattern["String"].as_str().or_else(|| pattern["Regex"].as_str());
        if text == Some("") {
            return Err(format!(
                "{name} has an empty pattern, which matches between all characters; remove the step"
            ));
        }
        let bytes = |field: &str| step[field].as_str().map_or(0, str::len);
        match kind {
            "Replace" => {
                // A regular expression may match a single byte.
                let matched = pattern["String"].as_str().map_or(1, str::len);
                growth = growth.saturating_mul(bytes("content").div_ceil(matched).max(1));
            }
            "Prepend" => prepended += bytes("prepend"),
            "Metaspace" => growth = growth.saturating_mul(bytes("replacement").max(1)),
            _ => {}
        }
        if growth > MAX_GROWTH {
            return Err(format!(
                "{name} lets a text grow to {growth} times its length, together with the steps before it; at most \
                 {MAX_GROWTH} times is taken"
            ));
        }
        if prepended > MAX_PREPENDED {
            return Err(format!(
                "{name} puts {prepended} bytes before each text, together with the steps before it; at most \
                 {MAX_PREPENDED} are taken"
            ));
        }
    }
    Ok(growth)
}

/// The steps of a part in order, sequences opened. The parser bounds the depth.
fn flatten<'a>(step: &'a Value, out: &mut Vec<&'a Value>) {
    for list in ["normalizers", "pretokenizers", "decoders"] {
        if let Some(steps) = step[list].as_array() {
            steps.iter().for_each(|step| flatten(step, out));
            return;
        }
    }
    if !step.is_null() {
        out.push(step);
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use serde_json::json;

    fn replace(pattern: serde_json::Value, content: &str) -> serde_json::Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    fn check_normalizers(steps: Vec<serde_json::Value>) -> Result<usize, String> {
        let file = json!({"normalizer": {"type": "Sequence", "normalizers": steps}});
        check(file.to_string().as_bytes())
    }

    #[test]
    fn refuses_patterns_that_match_nothing() {
        let split = json!({"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": false});
        let nested = json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, {"type": "Sequence", "pretokenizers": [split]}]}});
        let error = check(nested.to_string().as_bytes()).expect_err("an empty expression");
        assert!(
            error.contains("pre_tokenizer step 1 (Split) has an empty pattern"),
            "{error}"
        );
        let error = check_normalizers(vec![replace(json!({"String": ""}), "xxx")]).expect_err("an empty text");
        assert!(error.contains("normalizer step 0 (Replace)"), "{error}");
        let decoder = json!({"decoder": replace(json!({"String": ""}), "x")});
        check(decoder.to_string().as_bytes()).expect_err("in a decoder");
    }

    #[test]
    fn bounds_growth_over_all_steps() {
        let double = || replace(json!({"String": "h"}), "hh");
        assert_eq!(check_normalizers((0..6).map(|_| double()).collect()), Ok(64));
        let error = check_normalizers((0..7).map(|_| double()).collect()).expect_err("128 times");
        assert!(error.contains("step 6") && error.contains("128 times"), "{error}");
        check_normalizers(vec![replace(json!({"Regex": "."}), &"x".repeat(65))]).expect_err("65 times");
        assert_eq!(check_normalizers(vec![replace(json!({"String": " "}), "▁")]), Ok(3));
        assert_eq!(check_normalizers(vec![replace(json!({"Regex": " {2,}"}), " ")]), Ok(1));
        let prepend = || json!({"type": "Prepend", "prepend": "x".repeat(600)});
        check_normalizers(vec![prepend()]).expect("600 bytes");
        check_normalizers(vec![prepend(), prepend()]).expect_err("1200 bytes");
        check_normalizers((0..257).map(|_| json!({"type": "NFC"})).collect()).expect_err("too many steps");
    }

    #[test]
    fn a_file_that_is_cut_off_is_told_with_its_place() {
        let error = check(b"{\"version\": \"1.0\",\n \"model\": {\"vocab\": {\"a").expect_err("cut off");
        assert!(error.contains("EOF") && error.contains("line 2"), "{error}");
    }
}
