//! What a test run compiles and runs of many kernels: all of them, or the share that `HALYARD_TEST_SHARE` names, as
//! `tests/run` does it.

/// Whether a job, named in full, is of this test run.
pub fn is_ours(job: &str) -> bool {
    let text = match std::env::var("HALYARD_TEST_SHARE") {
        Err(_) => return true,
        Ok(all) if all == "all" => return true,
        Ok(text) => text,
    };
    let share = text.split_once('/').and_then(|(number, count)| {
        let (number, count) = (number.parse::<u64>().ok()?, count.parse::<u64>().ok()?);
        // FNV-1a: jobs of one kind are spread evenly, and each keeps its share when others come and go.
        let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Some((hash >> 32).checked_rem(count)? == number % count)
    });
    share.unwrap_or_else(|| panic!("HALYARD_TEST_SHARE={text}: give a share, such as 3/8, or all"))
}
