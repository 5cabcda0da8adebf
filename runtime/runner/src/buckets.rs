//! Decides whether decode steps are recorded on a device, and for which numbers of sequences.

use halyard_platform_api::{Capabilities, DeviceInfo};

use crate::config::RecordingConfig;
use crate::template::StepShape;

/// Whether decode steps are to be recorded on such a device; otherwise why not.
pub(crate) fn wanted(config: &RecordingConfig, info: &DeviceInfo, attention_records: bool) -> Result<(), &'static str> {
    if config.enforce_eager {
        Err("--enforce-eager")
    } else if !info.capabilities.has(Capabilities::RECORDING) {
        Err("the device claims no recording")
    } else if !attention_records {
        Err("the attention backend cannot record decode")
    } else {
        Ok(())
    }
}

/// Sequence counts that recordings are made for, ascending: 1, 2, 4, steps of 8 to 256, then of 16, and `max_seqs`
/// (vLLM's list). A device that names its own takes those of them that fit.
pub(crate) fn bucket_sizes(max_seqs: u32, device_buckets: &[u32]) -> Vec<u32> {
    let mut sizes: Vec<u32> = if device_buckets.is_empty() {
        let small = [1, 2, 4].into_iter().chain((8..=256).step_by(8));
        small.chain((272..max_seqs).step_by(16)).chain([max_seqs]).collect()
    } else {
        device_buckets.to_vec()
    };
    sizes.retain(|&size| (1..=max_seqs).contains(&size));
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// A step of one token for each of `size` sequences.
pub(crate) fn decode_shape(size: u32) -> StepShape {
    StepShape {
        tokens: size,
        seqs: size,
        logits: 0,
        logits_first: 0,
        direct: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_at_the_most_sequences_and_stay_close() {
        assert_eq!(bucket_sizes(1, &[]), [1]);
        assert_eq!(bucket_sizes(8, &[]), [1, 2, 4, 8]);
        assert_eq!(bucket_sizes(13, &[]), [1, 2, 4, 8, 13]);
        let sizes = bucket_sizes(500, &[]);
        assert_eq!(sizes.last(), Some(&500));
        assert!(sizes.contains(&256) && sizes.contains(&272) && sizes.contains(&496));
        assert!(
            sizes
                .windows(2)
                .all(|pair| pair[0] < pair[1] && pair[1] - pair[0] <= 16)
        );
    }

    #[test]
    fn a_devices_own_buckets_are_taken_where_they_fit() {
        assert_eq!(bucket_sizes(100, &[64, 16, 128, 0, 16]), [16, 64]);
    }
}
