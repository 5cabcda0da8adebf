//! What a test run compiles and runs of many kernels: all of them, or the share that `HALYARD_TEST_SHARE` numbers, as
//! `tests/run` does it.

/// How many test runs see every job once.
const SHARES: u64 = 5;

/// Whether a job, named in full, is of this test run.
pub fn is_ours(job: &str) -> bool {
    let number = match std::env::var("HALYARD_TEST_SHARE") {
        Err(_) => return true,
        Ok(all) if all == "all" => return true,
        Ok(number) => number,
    };
    let share: u64 = match number.parse() {
        Ok(share) => share,
        Err(e) => panic!("HALYARD_TEST_SHARE={number}: {e}; give a number, or all"),
    };
    // FNV-1a: jobs of one kind are spread evenly, and each keeps its share when others come and go.
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    (hash >> 32) % SHARES == share % SHARES
}
