//! The vendors' suite: a device against an oracle, op by op, then its memory, queues, composites, recordings and
//! collectives.
//!
//! One line instantiates it for a backend: `halyard_conformance::assert_conformant!(device)`. It owns the tolerance
//! table; it must never look at who the device is, only at what it says of itself.

pub mod case;
mod cases;
mod execute;
mod faulty;
mod random;
mod recorded;
mod report;
mod suites;
pub mod tolerance;

use std::sync::Arc;

use halyard_platform_api::Device;

pub use faulty::Faulty;
pub use report::{Report, Row, Support, Watch};
pub use suites::check_collectives;

/// What to run, and what may be missing.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of all inputs.
    pub seed: u64,
    /// Only rows of this op, or only this suite (memory, execution, rules, composites, invariance).
    pub only_op: Option<String>,
    /// Only this one of [`PARTS`].
    pub only_part: Option<String>,
    /// Only cases of ops whose row (op and variant) fits each of these ([`row_fits`]), such as `linear`, `BF16` and
    /// `block 64`.
    pub filter: Vec<String>,
    /// Ops that the device may leave unsupported (with a reason) in every variant. Another op that is unsupported in
    /// every variant fails.
    pub may_lack: Vec<String>,
    /// Only share `.0` of `.1` of the ops' rows, which are dealt by their names. The suites run whole.
    pub share: (usize, usize),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0x5EED,
            only_op: None,
            only_part: None,
            filter: Vec::new(),
            may_lack: Vec::new(),
            share: (0, 1),
        }
    }
}

impl Options {
    /// What a test runs of a large suite: the share of its rows that `HALYARD_TEST_SHARE` names, as `tests/run` does
    /// it, and all of them where it is not set or `all`.
    ///
    /// # Panics
    /// Where the variable is neither a share, such as 3/8, nor `all`.
    pub fn of_test_run() -> Options {
        Options {
            share: share_of(std::env::var("HALYARD_TEST_SHARE").as_deref().unwrap_or("all")),
            ..Options::default()
        }
    }

    /// Whether the filter leaves a row of a suite.
    fn wants_row(&self, suite: &str, name: &str) -> bool {
        row_fits(&format!("{suite} {name}"), &self.filter)
    }

    fn wants_part(&self, part: &str) -> bool {
        self.only_part.as_ref().is_none_or(|only| only == part)
    }
}

/// The share that `NUMBER/COUNT` or `all` stands for, its number below its count.
fn share_of(text: &str) -> (usize, usize) {
    if text == "all" {
        return (0, 1);
    }
    let share = text.split_once('/').and_then(|(number, count)| {
        let (number, count) = (number.parse::<usize>().ok()?, count.parse().ok()?);
        number.checked_rem(count).map(|number| (number, count))
    });
    share.unwrap_or_else(|| panic!("HALYARD_TEST_SHARE={text}: give a share, such as 3/8, or all"))
}

/// Whether a row holds each text of a filter. A text may be several with `|` between, of which one must be there; after
/// a `!` it must not.
pub fn row_fits(row: &str, filter: &[String]) -> bool {
    filter.iter().all(|text| match text.strip_prefix('!') {
        Some(text) => !text.split('|').any(|one| row.contains(one)),
        None => text.split('|').any(|one| row.contains(one)),
    })
}

/// Parts of the suite: ops of one kind, or one behaviour.
pub const PARTS: [&str; 15] = [
    "memory",
    "execution",
    "rules",
    "dense",
    "head-linear",
    "pointwise",
    "data",
    "step",
    "sampling",
    "no-token",
    "attention",
    "latent",
    "composites",
    "experts",
    "invariance",
];

/// Whether a part is one of ops, whose rows can be shared out, and no suite.
pub fn has_rows_to_share(part: &str) -> bool {
    cases::has_part(part)
}

/// Runs one of [`PARTS`] with its rows shared out among handles of one device, each with an oracle of its own.
pub fn run_part(
    part: &str,
    devices: &[Arc<dyn Device>],
    oracles: &[Arc<dyn Device>],
    options: &Options,
    watch: Watch,
) -> Report {
    let options = Options {
        only_part: Some(part.to_string()),
        ..options.clone()
    };
    run_shares(devices, oracles, &options, Some(watch))
}

/// Whether the device says that it runs each op in each variant. Nothing is computed.
pub fn support(device: &Arc<dyn Device>) -> Vec<Support> {
    cases::support(&**device)
}

/// Runs the suite. `oracle` computes what is expected: the reference backend.
pub fn run(device: &Arc<dyn Device>, oracle: &Arc<dyn Device>, options: &Options) -> Report {
    let mut report = run_share(device, oracle, options, true, None);
    check_lacking(&mut report, options);
    report
}

fn run_share(
    device: &Arc<dyn Device>,
    oracle: &Arc<dyn Device>,
    options: &Options,
    with_suites: bool,
    watch: Option<Watch>,
) -> Report {
    let mut report = Report::watched(watch);
    cases::run(device, oracle, options, &mut report);
    if with_suites {
        suites::run(device, oracle, options, &mut report);
    }
    report
}

/// Runs the suite with its rows shared out among handles of one device, a thread each: for devices that take long to
/// prepare ops.
///
/// # Errors
/// What opening the oracle returns.
pub fn run_shared(devices: &[Arc<dyn Device>], options: &Options) -> halyard_platform_api::Result<Report> {
    let oracles: Vec<_> = devices.iter().map(|_| oracle()).collect::<Result<_, _>>()?;
    let mut all = run_shares(devices, &oracles, options, None);
    all.rows.sort_by(|a, b| (&a.op, &a.variant).cmp(&(&b.op, &b.variant)));
    check_lacking(&mut all, options);
    Ok(all)
}

/// A share of the rows does not tell whether an op is unsupported in all of them.
fn check_lacking(report: &mut Report, options: &Options) {
    if options.share.1 == 1 {
        report.check_lacking(&options.may_lack);
    }
}

fn run_shares(
    devices: &[Arc<dyn Device>],
    oracles: &[Arc<dyn Device>],
    options: &Options,
    watch: Option<Watch>,
) -> Report {
    let mut all = Report::default();
    std::thread::scope(|scope| {
        let pairs = devices.iter().zip(oracles).enumerate();
        let start = |(index, (device, oracle))| {
            let (first, step) = options.share;
            let options = Options {
                share: (first + index * step, devices.len() * step),
                ..options.clone()
            };
            scope.spawn(move || run_share(device, oracle, &options, index == 0, watch))
        };
        for share in pairs.map(start).collect::<Vec<_>>() {
            match share.join() {
                Ok(report) => all.rows.extend(report.rows),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all
}

/// The reference device that [`assert_conformant!`] compares with.
///
/// # Errors
/// What opening it returns.
pub fn oracle() -> halyard_platform_api::Result<Arc<dyn Device>> {
    use halyard_platform_api::Platform;
    halyard_reference::ReferencePlatform::new().open(0)
}

/// Runs the whole suite on a device (`Arc<dyn Device>`) and panics with the report unless it passes. A second argument
/// gives other [`Options`].
#[macro_export]
macro_rules! assert_conformant {
    ($device:expr) => {
        $crate::assert_conformant!($device, $crate::Options::default())
    };
    ($device:expr, $options:expr) => {{
        let oracle = $crate::oracle().expect("the reference device opens");
        let report = $crate::run(&$device, &oracle, &$options);
        assert!(report.passed(), "not conformant:\n{report}");
        println!("{report}");
        report
    }};
}

#[cfg(test)]
mod tests {
    use super::{row_fits, share_of};

    #[test]
    fn shares_that_follow_each_other_have_every_row_once_and_all_is_all() {
        let has = |text: &str, row: usize| {
            let (first, step) = share_of(text);
            row % step == first
        };
        for row in 0..20 {
            let runs = (1072..1080).filter(|number| has(&format!("{number}/8"), row));
            assert_eq!(runs.count(), 1, "row {row}");
            assert!(has("all", row));
        }
    }

    #[test]
    fn what_is_no_share_is_named() {
        for text in ["half", "3", "3/", "/8", "3/0", "-1/8"] {
            let panic = std::panic::catch_unwind(|| share_of(text)).expect_err(text);
            let said = panic.downcast_ref::<String>().map_or("", String::as_str);
            assert!(said.contains(&format!("HALYARD_TEST_SHARE={text}: ")), "{text}: {said}");
        }
    }

    #[test]
    fn a_filter_names_what_a_row_holds_one_of_several_and_what_it_does_not() {
        let row = "linear Q4_1 x F32, quantized act allowed";
        for (filter, fits) in [
            (&["Q4_1", "F32"][..], true),
            (&["Q4_1", "BF16"], false),
            (&["Q4_0|Q4_1"], true),
            (&["Q4_0|Q8_0"], false),
            (&["!quantized"], false),
            (&["!Q4_0|Q4_1"], false),
            (&["!Q4_0|Q8_0", "F32"], true),
            (&[], true),
        ] {
            let filter: Vec<String> = filter.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(row_fits(row, &filter), fits, "{filter:?}");
        }
    }
}
