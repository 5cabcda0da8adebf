//! The operator's options. The only module that reads the environment. `isa` (or `HALYARD_CPU_ISA`) forces an
//! instruction set, to measure or test the kernels of a lesser processor; without it the fastest set that this CPU has
//! is taken. `threads` (or `HALYARD_CPU_THREADS`) says how many threads a device has.

use halyard_kernels_cpu::{Isa, Kernels};
use halyard_platform_api::{Error, OpenOptions, Result};

/// The options of a device.
pub(crate) const OPTIONS: [&str; 2] = ["isa", "threads"];

/// Names that the variable takes, and the instruction set of each.
const NAMES: [(&str, Isa); 7] = [
    ("portable", Isa::Portable),
    ("neon", Isa::Neon),
    ("avx2", Isa::Avx2Fma),
    (
        "avx512",
        Isa::Avx512 {
            vnni: false,
            bf16: false,
        },
    ),
    (
        "avx512vnni",
        Isa::Avx512 {
            vnni: true,
            bf16: false,
        },
    ),
    ("avx512bf16", Isa::Avx512 { vnni: true, bf16: true }),
    ("amx", Isa::Amx),
];

/// An option, or its variable where that is set to something.
fn chosen(options: &OpenOptions, key: &str, variable: &str) -> Option<String> {
    let set = std::env::var_os(variable).filter(|value| !value.is_empty());
    Some(options.get_or(key, set)?.to_string_lossy().into_owned())
}

/// The kernels that the operator asks for.
///
/// # Errors
/// `InvalidArgument` where the value names no set, or one that this CPU lacks.
pub(crate) fn kernels(options: &OpenOptions) -> Result<&'static Kernels> {
    chosen(options, "isa", "HALYARD_CPU_ISA").map_or_else(|| Ok(Kernels::best()), |name| named(&name))
}

/// The kernels of a set by name.
fn named(name: &str) -> Result<&'static Kernels> {
    let known = NAMES.iter().find(|(known, _)| *known == name);
    known.and_then(|&(_, isa)| Kernels::for_isa(isa)).ok_or_else(|| {
        let here: Vec<&str> = NAMES
            .iter()
            .filter(|(_, isa)| isa.is_available())
            .map(|(name, _)| *name)
            .collect();
        let why = if known.is_some() {
            "this processor lacks it"
        } else {
            "no instruction set is called so"
        };
        Error::invalid(format!(
            "isa={name} (or HALYARD_CPU_ISA): {why}; this processor has {}",
            here.join(", ")
        ))
    })
}

/// Most threads of a device: more than any processor has cores.
const MAX_THREADS: usize = 1024;

/// The threads that the operator asks for, or as many as the process may run on.
///
/// # Errors
/// `InvalidArgument` where the value is no number of threads.
pub(crate) fn threads(options: &OpenOptions) -> Result<usize> {
    let usual = || Ok(std::thread::available_parallelism().map_or(1, usize::from));
    chosen(options, "threads", "HALYARD_CPU_THREADS").map_or_else(usual, |number| threads_of(&number))
}

fn threads_of(number: &str) -> Result<usize> {
    let threads = number
        .parse()
        .ok()
        .filter(|threads| (1..=MAX_THREADS).contains(threads));
    threads.ok_or_else(|| {
        Error::invalid(format!(
            "threads={number} (or HALYARD_CPU_THREADS): a device has 1 to {MAX_THREADS} threads; without a value, one \
             for each core that the process may run on"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_this_cpu_is_found_by_name_and_others_are_refused_with_a_list() {
        for (name, isa) in NAMES {
            match named(name) {
                Ok(kernels) => assert_eq!(kernels.isa(), isa),
                Err(error) => {
                    assert!(!isa.is_available(), "{name}");
                    assert!(error.message.contains("lacks it"), "{}", error.message);
                }
            }
        }
        for name in ["avx3", "AVX2", " "] {
            let Err(error) = named(name) else {
                panic!("{name} was taken")
            };
            assert!(
                error.message.contains(name) && error.message.contains("portable"),
                "{}",
                error.message
            );
        }
    }

    #[test]
    fn a_number_of_threads_is_taken_and_anything_else_refused_with_the_limits() {
        assert_eq!((threads_of("1"), threads_of("1024")), (Ok(1), Ok(1024)));
        for number in ["0", "1025", "-2", "all", "2 ", "99999999999999999999"] {
            let error = threads_of(number).expect_err(number);
            assert!(
                error.message.contains(number) && error.message.contains("1 to 1024"),
                "{}",
                error.message
            );
        }
    }
}
