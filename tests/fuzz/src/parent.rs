//! The process that watches a child: it records the case that ended it, starts it again after that case, and prints a
//! summary.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::target::Target;

/// How much is run.
#[derive(Clone, Copy, Debug)]
pub enum Extent {
    /// This many cases.
    Cases(u64),
    /// As many as fit.
    Time(Duration),
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Of all cases.
    pub seed: u64,
    /// How much.
    pub extent: Extent,
}

/// Processor time of one case after which it counts as a hang. Not wall time: other work may have the processor.
const HANG_CPU: Duration = Duration::from_secs(30);
/// A case that waits for something that never comes uses no processor time.
const HANG_WALL: Duration = Duration::from_secs(300);
/// Cases of one child in a run by time.
const BATCH: u64 = 20_000;
/// Different findings after which a run ends.
const MAX_FINDINGS: usize = 20;

/// What ended a child.
enum End {
    /// It did all, with this output.
    Done,
    /// It died; in words.
    Died(String),
    /// One case takes too long.
    Hung,
}

/// Findings by their words, with the first input of each.
type Findings = BTreeMap<String, PathBuf>;

/// Runs a target's cases. False: something was found.
///
/// # Errors
/// The child cannot be started.
pub fn run(target: &Target, plan: &Plan) -> std::io::Result<bool> {
    let folder = Folder::new(target)?;
    let started = Instant::now();
    let mut findings = Findings::new();
    let (mut from, mut cases, mut accepted, mut held) = (0, 0, 0, 0);
    loop {
        let to = match plan.extent {
            Extent::Cases(all) if from >= all => break,
            Extent::Cases(all) => all,
            Extent::Time(limit) if started.elapsed() >= limit => break,
            Extent::Time(_) => from + BATCH,
        };
        let numbers = [plan.seed, from, to].map(|number| number.to_string());
        let child = start(target, &folder, &["--cases", &numbers[0], &numbers[1], &numbers[2]])?;
        let limit = match plan.extent {
            Extent::Time(limit) => Some(started + limit),
            Extent::Cases(_) => None,
        };
        let (end, output) = watch(child, &folder, limit)?;
        let (done, taken, bytes) = read_output(&output, &folder, &mut findings);
        match end {
            End::Done if output.contains("\nend ") || output.starts_with("end ") => {
                cases += done;
                accepted += taken;
                held = bytes.max(held);
                from = to;
            }
            // Out of time: the case in hand says how far it came.
            End::Done => {
                cases += folder.current_case().map_or(0, |case| case.saturating_sub(from));
                break;
            }
            End::Died(words) => {
                from = folder.keep(&format!("died: {words}"), from, &mut findings)?;
                cases += 1;
            }
            End::Hung => {
                let words = format!("hung: more than {} s of processor time", HANG_CPU.as_secs());
                folder.keep(&words, from, &mut findings)?;
                cases += 1;
                // The next hang would take as long, and be the same finding.
                break;
            }
        }
        if findings.len() >= MAX_FINDINGS {
            break;
        }
    }
    if findings.is_empty() && accepted == 0 && cases > 0 && matches!(plan.extent, Extent::Cases(_)) {
        // The seeds are right: then something else is wrong, and nothing behind the first check was reached.
        findings.insert("nothing was accepted".to_owned(), target.corpus());
    }
    let seconds = started.elapsed().as_secs();
    println!(
        "{}: {cases} cases ({accepted} accepted where counted), seed {}, {} findings, {seconds} s, {:.1} MiB held at \
         the end",
        target.name,
        plan.seed,
        findings.len(),
        held as f64 / f64::from(1 << 20)
    );
    report(&findings);
    Ok(findings.is_empty())
}

/// Runs files, the committed corpus where none are named. False: something was found.
///
/// # Errors
/// The child cannot be started.
pub fn replay(target: &Target, files: &[PathBuf]) -> std::io::Result<bool> {
    let folder = Folder::new(target)?;
    let mut left: Vec<PathBuf> = files.to_vec();
    if files.is_empty() {
        let names = target
            .committed()
            .into_iter()
            .map(|(name, _)| target.corpus().join(name));
        left = names.collect();
    }
    let total = left.len();
    let mut findings = Findings::new();
    while !left.is_empty() {
        let names: Vec<String> = left.iter().map(|file| file.to_string_lossy().into_owned()).collect();
        let mut args = vec!["--files"];
        args.extend(names.iter().map(String::as_str));
        let (end, output) = watch(start(target, &folder, &args)?, &folder, None)?;
        read_output(&output, &folder, &mut findings);
        let words = match end {
            End::Done => break,
            End::Died(words) => format!("died: {words}"),
            End::Hung => "hung".to_owned(),
        };
        let name = folder.current_name();
        findings.insert(format!("{words} ({name})"), PathBuf::from(&name));
        let at = names
            .iter()
            .position(|file| *file == name)
            .map_or(left.len(), |at| at + 1);
        left.drain(..at);
    }
    println!("{}: {total} files replayed, {} findings", target.name, findings.len());
    report(&findings);
    Ok(findings.is_empty())
}

fn report(findings: &Findings) {
    for (words, file) in findings {
        println!("  FOUND {words}\n    input: {}", file.display());
    }
}

fn start(target: &Target, folder: &Folder, args: &[&str]) -> std::io::Result<Child> {
    let _ = std::fs::remove_file(folder.path.join("current"));
    Command::new(std::env::current_exe()?)
        .args(["child", target.name])
        .arg(&folder.path)
        .args(args)
        // The last line that it writes is the reason then.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(folder.path.join("stdout"))?)
        .stderr(std::fs::File::create(folder.path.join("stderr"))?)
        .spawn()
}

/// Waits for a child, or ends it: when a case hangs, or when the time is over.
fn watch(mut child: Child, folder: &Folder, limit: Option<Instant>) -> std::io::Result<(End, String)> {
    let (mut name, mut since, mut used) = (String::new(), Instant::now(), Duration::ZERO);
    let mut pause = Duration::from_millis(5);
    let end = loop {
        if let Some(status) = child.try_wait()? {
            break match status.code() {
                Some(0 | 1) => End::Done,
                _ => End::Died(format!("{status}: {}", folder.last_words())),
            };
        }
        let now = folder.current_name();
        let cpu = processor_time(child.id());
        if now != name {
            (name, since, used) = (now, Instant::now(), cpu);
        }
        let hung = cpu.saturating_sub(used) > HANG_CPU || since.elapsed() > HANG_WALL;
        let over = limit.is_some_and(|limit| Instant::now() >= limit);
        if hung || over {
            child.kill()?;
            child.wait()?;
            break if hung { End::Hung } else { End::Done };
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    };
    let output = std::fs::read_to_string(folder.path.join("stdout")).unwrap_or_default();
    Ok((end, output))
}

/// User and system time of a process (proc(5), `stat`, fields 14 and 15 in ticks of 10 ms).
fn processor_time(id: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let after = stat.rsplit(") ").next().unwrap_or_default();
    let ticks: u64 = after
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

/// Takes panics into the findings; the numbers of the last line.
fn read_output(output: &str, folder: &Folder, findings: &mut Findings) -> (u64, u64, u64) {
    let mut counts = (0, 0, 0);
    for line in output.lines() {
        if let Some((name, words)) = line.strip_prefix("panic ").and_then(|rest| rest.split_once(' ')) {
            let file = folder.path.join(format!("panic-{}", name.replace('/', "_")));
            findings.entry(format!("panic at {}", place(words))).or_insert_with(|| {
                println!("  {}", words.chars().take(600).collect::<String>());
                file
            });
        } else if let Some(numbers) = line.strip_prefix("end ") {
            let mut numbers = numbers.split(' ').map(|number| number.parse().unwrap_or(0));
            let mut next = || numbers.next().unwrap_or(0);
            counts = (next(), next(), next());
        }
    }
    counts
}

/// A panic's place, without what it says there: the same fault has many inputs and as many texts.
fn place(words: &str) -> String {
    let line = words
        .strip_prefix("panicked at ")
        .and_then(|rest| rest.split_once(": "));
    line.map_or(words, |(place, _)| place).chars().take(240).collect()
}

/// The folder of a run: the case in hand, and what was found. Findings stay, the rest goes.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new(target: &Target) -> std::io::Result<Folder> {
        let name = format!("halyard-fuzz-{}-{}", target.name, std::process::id());
        // In memory where the system has a place for that: a case writes its input first, and a disk would be most of
        // its time.
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() {
            memory.to_path_buf()
        } else {
            std::env::temp_dir()
        };
        let path = base.join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Folder { path })
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok(mut file) = std::fs::File::open(self.path.join(name)) {
            let _ = file.read_to_end(&mut bytes);
        }
        bytes
    }

    fn current_name(&self) -> String {
        let bytes = self.read("current");
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(line).into_owned()
    }

    fn current_case(&self) -> Option<u64> {
        self.current_name().parse().ok()
    }

    fn last_words(&self) -> String {
        let text = String::from_utf8_lossy(&self.read("stderr")).into_owned();
        let words: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        words
            .iter()
            .rev()
            .take(3)
            .rev()
            .copied()
            .collect::<Vec<_>>()
            .join(" | ")
    }

    /// Keeps the case in hand as a finding; the number behind it.
    fn keep(&self, words: &str, from: u64, findings: &mut Findings) -> std::io::Result<u64> {
        let case = self.current_case().unwrap_or(from);
        let bytes = self.read("current");
        let mut parts = bytes.splitn(3, |byte| *byte == b'\n').skip(1);
        let len = parts.next().and_then(|len| std::str::from_utf8(len).ok()?.parse().ok());
        let input = parts.next().unwrap_or_default();
        let file = self.path.join(format!("died-{case}"));
        std::fs::write(&file, &input[..len.unwrap_or(0).min(input.len())])?;
        findings.entry(place(words)).or_insert(file);
        Ok(case + 1)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let found = |entry: &std::fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with("panic-") || name.starts_with("died-")
        };
        let entries: Vec<_> = std::fs::read_dir(&self.path).into_iter().flatten().flatten().collect();
        if entries.iter().any(found) {
            for entry in entries.iter().filter(|entry| !found(entry)) {
                remove(&entry.path());
            }
        } else {
            remove(&self.path);
        }
    }
}

fn remove(path: &Path) {
    let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
}
