//! Finds the processor features that a manifest asks for and this machine lacks.

/// The features of `wanted` (comma-separated) that are not in the kernel's list, or why the list cannot be had.
pub(crate) fn missing(wanted: &str) -> Result<Vec<String>, String> {
    let wanted: Vec<&str> = wanted.split(',').map(str::trim).filter(|w| !w.is_empty()).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string("/proc/cpuinfo")
        .map_err(|e| format!("the processor's features are unknown (/proc/cpuinfo: {e})"))?;
    Ok(missing_from(&wanted, &text))
}

fn missing_from(wanted: &[&str], cpuinfo: &str) -> Vec<String> {
    let line = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        matches!(key.trim(), "flags" | "Features").then_some(value)
    });
    let has: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    wanted
        .iter()
        .filter(|w| !has.contains(w))
        .map(|w| w.to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{missing, missing_from};

    #[test]
    fn lacking_features_are_named_whole() {
        let x86 = "processor\t: 0\nflags\t\t: fpu avx2 fma avx512f\n";
        assert_eq!(missing_from(&["avx2", "avx", "fma"], x86), ["avx"]);
        assert_eq!(missing_from(&["asimd"], "Features : fp asimd\n"), Vec::<String>::new());
        assert_eq!(missing_from(&["a"], ""), ["a"]);
    }

    #[test]
    fn no_wish_needs_no_list() {
        assert_eq!(missing(" , "), Ok(Vec::new()));
    }
}
