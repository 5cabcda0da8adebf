//! The process that runs a target's cases. It writes each input to a file before running it, so that the parent can
//! name the
//! one that ended it, and reports panics itself.

use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Mutex;

use crate::ALLOCATOR;
use crate::mutate;
use crate::random::Random;
use crate::target::{Outcome, Target};

/// The last panic's place and words.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// The arguments that the parent passes.
struct Arguments {
    folder: PathBuf,
    seed: u64,
    from: u64,
    to: u64,
    files: Vec<PathBuf>,
}

/// Runs cases `--from … --to`, or files. Its output, read by the parent: `panic CASE WORDS` lines, and `end CASES
/// ACCEPTED
/// BYTES` at last, with the bytes that are allocated then.
///
/// # Errors
/// Arguments that the parent does not write.
pub fn main(target: &Target, options: &[&str]) -> Result<bool, String> {
    let arguments = parse(options).ok_or("child is started by run and replay")?;
    let scratch = arguments.folder.join("scratch");
    std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
    let mut case = (target.start)(&scratch);
    ALLOCATOR
        .set_limit(target.memory_bytes)
        .map_err(|_| "more memory is in use at the start than a target may have")?;
    let mut seeds = Vec::new();
    if arguments.from < arguments.to {
        seeds = (target.seeds)();
        seeds.extend(target.committed().into_iter().map(|(_, input)| input));
    }
    // Only from here on: a panic at the start says its words itself.
    std::panic::set_hook(Box::new(|info| {
        let words = info.to_string().replace('\n', " ");
        *PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = words;
    }));
    let (mut cases, mut accepted, mut panics) = (0_u64, 0_u64, 0_u64);
    let current = std::fs::File::create(arguments.folder.join("current")).map_err(|error| error.to_string())?;
    let mut run = |name: &str, input: &[u8]| {
        note(&current, name, input);
        cases += 1;
        match std::panic::catch_unwind(AssertUnwindSafe(|| case(input))) {
            Ok(Outcome::Accepted) => accepted += 1,
            Ok(Outcome::Refused) => {}
            Err(_) => {
                panics += 1;
                let words = PANIC.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
                println!("panic {name} {words}");
                let _ = std::fs::write(
                    arguments.folder.join(format!("panic-{}", name.replace('/', "_"))),
                    input,
                );
            }
        }
    };
    for file in &arguments.files {
        let input = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        run(&file.to_string_lossy(), &input);
    }
    if arguments.from < arguments.to {
        for number in arguments.from..arguments.to {
            let mut random = Random::of_case(target.name, arguments.seed, number);
            // A few at first as they are: the seeds themselves are right.
            let input = match seeds.get(number as usize) {
                Some(seed) => seed.clone(),
                None => mutate::make(target.form, &seeds, &mut random),
            };
            run(&number.to_string(), &input);
        }
    }
    println!("end {cases} {accepted} {}", ALLOCATOR.allocated());
    let _ = std::io::stdout().flush();
    // What a target left running must not keep the process.
    std::process::exit(i32::from(panics > 0));
}

/// Name and input of the case that runs now, with the input's length: an earlier, longer one may stand behind it.
fn note(current: &std::fs::File, name: &str, input: &[u8]) {
    use std::os::unix::fs::FileExt as _;
    let mut bytes = format!("{name}\n{}\n", input.len()).into_bytes();
    bytes.extend_from_slice(input);
    let _ = current.write_all_at(&bytes, 0);
}

fn parse(options: &[&str]) -> Option<Arguments> {
    let (folder, rest) = options.split_first()?;
    let mut arguments = Arguments {
        folder: folder.into(),
        seed: 0,
        from: 0,
        to: 0,
        files: Vec::new(),
    };
    match rest {
        ["--cases", seed, from, to] => {
            arguments.seed = seed.parse().ok()?;
            arguments.from = from.parse().ok()?;
            arguments.to = to.parse().ok()?;
        }
        ["--files", files @ ..] => arguments.files = files.iter().map(PathBuf::from).collect(),
        _ => return None,
    }
    Some(arguments)
}
