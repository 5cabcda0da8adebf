//! How much memory the host has left, for what is put there on request.

use crate::error::RunnerError;

/// The option that takes host memory.
pub(crate) const OFFLOADING_SIZE: &str = "--kv-offloading-size";

/// Checks that the host has `bytes` left for KV blocks. What cannot be asked here is not checked.
///
/// # Errors
/// The option, with what was asked and what is left.
pub fn check_host_memory(bytes: u64) -> Result<(), RunnerError> {
    check(bytes, available_bytes())
}

fn check(bytes: u64, available: Option<u64>) -> Result<(), RunnerError> {
    match available {
        Some(available) if bytes > available => Err(RunnerError::Config {
            name: OFFLOADING_SIZE,
            message: format!(
                "{} are more than the {} that are available on this host; choose less (weights take some, too)",
                show_bytes(bytes),
                show_bytes(available)
            ),
        }),
        _ => Ok(()),
    }
}

/// What the kernel says is available (proc(5), in kB), or the container's limit less what it uses, if that is less.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    let of_container = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/memory.{name}")).ok()?;
        text.trim().parse().ok()
    };
    let host = kilobytes.saturating_mul(1024);
    match (of_container("max"), of_container("current")) {
        (Some(limit), Some(used)) => Some(host.min(limit.saturating_sub(used))),
        _ => Some(host),
    }
}

/// Bytes in GiB; less than a hundredth of one in MiB or bytes.
pub(crate) fn show_bytes(bytes: u64) -> String {
    match bytes {
        0..=0xf_ffff => format!("{bytes} bytes"),
        0x10_0000..=0x9f_ffff => format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_is_left_is_refused_with_both_figures() {
        let error = check(9 << 30, Some(8 << 30)).expect_err("too much").to_string();
        assert!(error.contains("--kv-offloading-size: 9.00 GiB"), "{error}");
        assert!(error.contains("8.00 GiB that are available"), "{error}");
        assert!(check(8 << 30, Some(8 << 30)).is_ok() && check(u64::MAX, None).is_ok());
    }

    #[test]
    fn this_host_says_what_it_has() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
        assert!(check_host_memory(u64::MAX).is_err());
    }
}
