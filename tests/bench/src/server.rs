//! Measures the `halyard` binary from outside: the version line, the time until it is ready, and its CPU time when
//! idle.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::error::BenchError;
use crate::options::Options;
use crate::report::{Report, median};

const VERSION_BUDGET_MS: f64 = 20.0;
const READY_BUDGET_S: f64 = 1.0;
const VERSION_RUNS: usize = 21;
const STARTUP_RUNS: usize = 5;
/// The first start may have to fetch the demo model.
const FIRST_READY: Duration = Duration::from_secs(600);
const READY: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);
/// Threads go to sleep after their last work; the measurement begins when they have.
const SETTLE: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(5);
/// Linux counts CPU time of processes in hundredths of a second (USER_HZ), on every architecture that Halyard runs on.
const TICK_S: f64 = 0.01;

/// Wall time of `halyard --version`.
pub fn version(options: &Options) -> Result<Report, BenchError> {
    let binary = binary(options)?;
    let mut runs_ms = Vec::with_capacity(VERSION_RUNS);
    for _ in 0..VERSION_RUNS {
        let start = Instant::now();
        let output = Command::new(&binary).arg("--version").output();
        let output = output.map_err(BenchError::io(format!("running {}", binary.display())))?;
        runs_ms.push(start.elapsed().as_secs_f64() * 1e3);
        if !output.status.success() || output.stdout.is_empty() {
            return Err(BenchError::Ended {
                command: format!("{} --version", binary.display()),
                status: output.status,
                output: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
    }
    let measured = median(&mut runs_ms);
    Ok(Report {
        name: "halyard --version".to_string(),
        measured,
        unit: "ms",
        budget: VERSION_BUDGET_MS,
        details: json!({ "runs": VERSION_RUNS, "best_ms": runs_ms.first(), "worst_ms": runs_ms.last() }),
    })
}

/// Time from the process's start to the first good answer of `/health`, the model being on disk.
pub fn startup(options: &Options) -> Result<Report, BenchError> {
    // Not measured: brings the model onto the disk and into the page cache.
    Process::start(options, FIRST_READY)?;
    let runs = (0..STARTUP_RUNS).map(|_| Ok(Process::start(options, READY)?.ready.as_secs_f64()));
    let mut runs_s = runs.collect::<Result<Vec<_>, BenchError>>()?;
    let measured = median(&mut runs_s);
    Ok(Report {
        name: "ready after start".to_string(),
        measured,
        unit: "s",
        budget: READY_BUDGET_S,
        details: json!({ "runs_s": runs_s, "model": options.model.as_deref().unwrap_or("demo") }),
    })
}

/// CPU time of a server that has answered requests and then gets none. One clock tick in the whole time is noise of the
/// count.
pub fn idle(options: &Options) -> Result<Report, BenchError> {
    let server = Process::start(options, FIRST_READY)?;
    complete(server.address)?;
    std::thread::sleep(SETTLE);
    let before = cpu_ticks(server.child.id())?;
    std::thread::sleep(IDLE);
    let ticks = cpu_ticks(server.child.id())? - before;
    let seconds = IDLE.as_secs_f64();
    Ok(Report {
        name: format!("CPU of an idle server over {seconds} s"),
        measured: ticks as f64 * TICK_S,
        unit: "s",
        budget: TICK_S,
        details: json!({ "ticks": ticks, "percent": ticks as f64 * TICK_S / seconds * 100.0 }),
    })
}

fn binary(options: &Options) -> Result<PathBuf, BenchError> {
    let path = match &options.binary {
        Some(path) => path.clone(),
        None => {
            let program = std::env::current_exe().map_err(BenchError::io("finding this program"))?;
            program.with_file_name("halyard")
        }
    };
    if path.is_file() {
        Ok(path)
    } else {
        Err(BenchError::NoBinary { path })
    }
}

/// A running server, killed when dropped.
pub struct Process {
    child: Child,
    /// Its program.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// From start to the first good answer of `/health`.
    pub ready: Duration,
}

impl Process {
    /// `halyard serve` on a free port, with the options' model and arguments; blocks until it is ready.
    ///
    /// # Errors
    /// A missing binary, or a server that ends or never answers, with its last words.
    pub fn halyard(options: &Options) -> Result<Process, BenchError> {
        Process::start(options, FIRST_READY)
    }

    /// A peer by its command line, in which `{port}` and `{model}` are filled in and leading `NAME=VALUE` words are its
    /// environment.
    ///
    /// # Errors
    /// As [`Process::halyard`].
    pub fn peer(line: &str, options: &Options) -> Result<Process, BenchError> {
        let address = free_address()?;
        let fill = |word: &str| {
            let word = word.replace("{port}", &address.port().to_string());
            word.replace("{model}", options.model.as_deref().unwrap_or_default())
        };
        let mut words = line.split_whitespace().map(fill).peekable();
        let mut variables = Vec::new();
        while let Some((name, value)) = words.peek().and_then(|word| word.split_once('=')) {
            variables.push((name.to_string(), value.to_string()));
            words.next();
        }
        let program = words.next().ok_or_else(|| BenchError::Usage {
            found: format!("--peer \"{line}\" names no program"),
        })?;
        let mut command = Command::new(program);
        command.args(words).envs(variables);
        Process::spawn(command, address, FIRST_READY)
    }

    /// Starts one on a free port and waits until it is ready.
    fn start(options: &Options, patience: Duration) -> Result<Process, BenchError> {
        let binary = binary(options)?;
        let address = free_address()?;
        let mut command = Command::new(&binary);
        command
            .args(["serve", "--host", "127.0.0.1", "--port"])
            .arg(address.port().to_string());
        if let Some(model) = &options.model {
            command.args(["--model", model]);
        }
        if let Some(plugin) = &options.plugin {
            command.arg("--plugin").arg(plugin);
        }
        command.args(&options.serve);
        if let Some(isa) = &options.cpu_isa {
            command.env("HALYARD_CPU_ISA", isa);
        }
        Process::spawn(command, address, patience)
    }

    fn spawn(mut command: Command, address: SocketAddr, patience: Duration) -> Result<Process, BenchError> {
        let log = std::env::temp_dir().join(format!("halyard-bench-{}.log", std::process::id()));
        let operation = || format!("writing {}", log.display());
        let file = std::fs::File::create(&log).map_err(BenchError::io(operation()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let shown = format!("{command:?}");
        let start = Instant::now();
        let child = command.spawn().map_err(BenchError::io(format!("starting {shown}")))?;
        let mut server = Process {
            child,
            name: command.get_program().to_string_lossy().into_owned(),
            address,
            ready: Duration::ZERO,
        };
        while start.elapsed() < patience {
            if status_of(address, "GET /health HTTP/1.1\r\n\r\n").is_ok_and(|status| status == 200) {
                server.ready = start.elapsed();
                // The log is read only when the start fails.
                std::fs::remove_file(&log).map_err(BenchError::io(operation()))?;
                return Ok(server);
            }
            if let Some(status) = server
                .child
                .try_wait()
                .map_err(BenchError::io("waiting for the server"))?
            {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let last: Vec<&str> = text.lines().rev().take(20).collect();
                let output = last.into_iter().rev().collect::<Vec<_>>().join("\n");
                return Err(BenchError::Ended {
                    command: shown,
                    status,
                    output,
                });
            }
            std::thread::sleep(POLL);
        }
        Err(BenchError::NotReady {
            command: shown,
            seconds: patience.as_secs(),
        })
    }

    /// The most memory that the process and its children held at once, each by itself (proc(5), `VmHWM`); 0 where that
    /// is unknown.
    pub fn peak_memory_bytes(&self) -> u64 {
        family(self.child.id()).into_iter().filter_map(high_water_bytes).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A peer may have processes of its own; asked to end, it ends them.
        let asked = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        let deadline = Instant::now() + Duration::from_secs(10);
        while asked.as_ref().is_ok_and(std::process::ExitStatus::success) && Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(_)) => return,
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(|_| ())) {
            eprintln!("halyard-bench: stopping the server: {error}");
        }
    }
}

/// A process and all that descend from it.
fn family(root: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let parent = |id: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let parents: Vec<(u32, Option<u32>)> = ids.into_iter().map(|id| (id, parent(id))).collect();
    let mut members = vec![root];
    let mut at = 0;
    while at < members.len() {
        let of = members[at];
        members.extend(
            parents
                .iter()
                .filter(|(_, parent)| *parent == Some(of))
                .map(|(id, _)| *id),
        );
        at += 1;
    }
    members
}

fn high_water_bytes(id: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// A port of this machine that was free a moment ago.
fn free_address() -> Result<SocketAddr, BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(BenchError::io("finding a free port"))?;
    listener.local_addr().map_err(BenchError::io("finding a free port"))
}

/// Sends a request and returns the status of the whole answer.
fn status_of(address: SocketAddr, request: &str) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    // A server on this machine's own address answers to no other name.
    let head = format!("\r\nHost: {address}\r\nConnection: close\r\n");
    stream.write_all(request.replacen("\r\n", &head, 1).as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let line = answer.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let code = String::from_utf8_lossy(line)
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok());
    code.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, "no HTTP status line"))
}

/// One completion, so that every thread has worked once.
fn complete(address: SocketAddr) -> Result<(), BenchError> {
    let body = json!({ "prompt": "One, two, three", "max_tokens": 8, "ignore_eos": true }).to_string();
    let head = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    let request = format!("POST /v1/completions HTTP/1.1\r\n{head}\r\n{body}");
    let asked = "asking for a completion";
    match status_of(address, &request).map_err(BenchError::io(asked))? {
        200 => Ok(()),
        status => Err(BenchError::io(asked)(std::io::Error::other(format!(
            "HTTP status {status}"
        )))),
    }
}

/// User and system time of a process in clock ticks: fields 14 and 15 of its stat file (proc(5)).
fn cpu_ticks(pid: u32) -> Result<u64, BenchError> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(BenchError::io(format!("reading {path}")))?;
    let cut = || BenchError::io(format!("reading {path}"))(std::io::Error::other("fields 14 and 15 are missing"));
    parse_ticks(&text).ok_or_else(cut)
}

/// The name, field 2, may hold spaces and parentheses: fields are counted after its last one.
fn parse_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_user_and_system_time() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 100 0 0 0 250 17 0 0 20 0 3 0 999 0 0";
        assert_eq!(parse_ticks(stat), Some(267));
        assert_eq!(parse_ticks("42 (x) S 1"), None);
    }

    #[test]
    fn memory_is_found_for_this_process_and_its_children() {
        let mut child = Command::new("sleep").arg("10").spawn().expect("sleep is there");
        let members = family(std::process::id());
        assert!(members.contains(&child.id()), "{members:?}");
        assert!(high_water_bytes(std::process::id()).is_some_and(|bytes| bytes > 1 << 20));
        child.kill().and_then(|()| child.wait()).expect("ended");
    }

    #[test]
    fn a_missing_binary_is_named_with_the_remedy() {
        let options = Options {
            binary: Some("no/such/halyard".into()),
            ..Options::default()
        };
        let error = version(&options).expect_err("not there").to_string();
        assert!(
            error.contains("no/such/halyard") && error.contains("--binary"),
            "{error}"
        );
    }

    #[test]
    fn a_server_that_ends_is_reported_with_its_words() {
        // `cat serve …` fails at once and says why, like a server that cannot start.
        let options = Options {
            binary: Some("/bin/cat".into()),
            ..Options::default()
        };
        let error = startup(&options).expect_err("cat is no server");
        assert!(
            matches!(&error, BenchError::Ended { output, .. } if output.contains("cat")),
            "{error}"
        );
    }

    #[test]
    fn an_answer_is_read_to_its_status() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 256];
            let count = stream.read(&mut request).expect("a request");
            stream
                .write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\nno")
                .expect("taken");
            String::from_utf8_lossy(&request[..count]).into_owned()
        });
        assert_eq!(
            status_of(address, "GET /health HTTP/1.1\r\n\r\n").expect("answered"),
            503
        );
        let request = server.join().expect("no panic");
        assert_eq!(
            request,
            format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
        );
    }
}
