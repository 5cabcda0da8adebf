//! Processes in which chat templates run. A template is code by the authors of the model. One that takes more
//! memory, stack or time than its limits ends its process and its one request, never the server.
//!
//! A process is this program with a hidden command. It is kept for the next prompt, sleeps between prompts and ends
//! with the server. It has no environment and sees no file of the model. A thread of low priority gets a process of low
//! priority each time, which is not kept: what a large prompt took of memory goes with it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use halyard_text::{CancelFlag, HostFailure, TemplateHost, opens_template, serve_templates};
use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::error::ServerError;
use crate::low_priority;

/// Processes that are kept for the next prompt.
const MAX_IDLE: usize = 8;
/// Longest answer: prompts are bounded far below it.
const MAX_ANSWER_BYTES: usize = 512 << 20;
/// How many times longer a process of low priority may take: it works when no other does.
const LOW_PATIENCE: u32 = 6;

/// The limits of one prompt.
#[derive(Clone, Copy, Debug)]
pub struct TemplateLimits {
    /// Processor time; the system counts it in hundredths of a second.
    pub cpu: Duration,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Time on the wall of a whole call, with the start of a process, for one that neither works nor answers.
    pub deadline: Duration,
}

impl Default for TemplateLimits {
    fn default() -> Self {
        TemplateLimits {
            cpu: Duration::from_secs(2),
            memory_mib: 512,
            deadline: Duration::from_secs(20),
        }
    }
}

/// Arguments of the hidden command.
#[derive(Args, Debug)]
pub struct TemplateChildArgs {
    /// Seconds of processor time for a prompt
    cpu_seconds: u64,
    /// MiB of memory
    memory_mib: u64,
}

/// Starts template processes and keeps them.
#[derive(Debug)]
pub struct TemplateProcesses {
    program: PathBuf,
    limits: TemplateLimits,
    idle: Mutex<Vec<Worker>>,
}

impl TemplateProcesses {
    /// Processes of `program`, which is this program or one that has its hidden command.
    pub fn new(program: PathBuf, limits: TemplateLimits) -> Self {
        TemplateProcesses {
            program,
            limits,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// The processes of this program, one set for all engines.
    pub fn shared() -> Arc<dyn TemplateHost> {
        static SHARED: OnceLock<Arc<TemplateProcesses>> = OnceLock::new();
        // Not its path: a newer program may stand there by now.
        let new = || TemplateProcesses::new(PathBuf::from("/proc/self/exe"), TemplateLimits::default());
        SHARED.get_or_init(|| Arc::new(new())).clone()
    }

    /// Processes that are kept.
    pub fn kept(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// A living process, rather one that knows the template. `None`: there is none of the caller's priority.
    fn take(&self, open: &Arc<[u8]>) -> Option<Worker> {
        if low_priority::is_taken() {
            return None;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while !idle.is_empty() {
            let knows = |worker: &Worker| worker.knows(open);
            let at = idle.iter().position(knows).unwrap_or(idle.len() - 1);
            let mut worker = idle.swap_remove(at);
            if matches!(worker.child.try_wait(), Ok(None)) {
                return Some(worker);
            }
        }
        None
    }

    fn start(&self, bounds: Bounds<'_>) -> Result<Worker, Failure> {
        let unavailable = |reason: String| HostFailure::Unavailable(format!("its process does not start: {reason}"));
        let worker = Worker::start(&self.program, self.limits);
        let worker = worker.map_err(|error| unavailable(error.to_string()))?;
        // It takes processor time that no template is to blame for.
        let cpu = Duration::MAX;
        match self.ask(worker, &[], Bounds { cpu, ..bounds }) {
            Ok((worker, _ready)) => Ok(worker),
            Err(Failure::Host(HostFailure::Ended(reason))) => Err(unavailable(reason).into()),
            Err(failure) => Err(failure),
        }
    }

    /// Sends a frame. A process that does not answer ends.
    fn ask(&self, mut worker: Worker, frame: &[u8], bounds: Bounds<'_>) -> Result<(Worker, Vec<u8>), Failure> {
        match worker.exchange(frame, bounds) {
            Ok(answer) => Ok((worker, answer)),
            Err(stopped) => Err(worker.ending(&stopped, self.limits)),
        }
    }

    fn keep(&self, worker: Worker) {
        if low_priority::is_taken() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(worker);
        }
    }

    fn call_once(&self, open: &Arc<[u8]>, call: &[u8], bounds: Bounds<'_>) -> Result<Vec<u8>, Failure> {
        let mut worker = match self.take(open) {
            Some(worker) => worker,
            None => self.start(bounds)?,
        };
        if call.is_empty() || !worker.knows(open) {
            let answer;
            (worker, answer) = self.ask(worker, open, bounds)?;
            let opened = opens_template(&answer);
            worker.open = opened.then(|| Arc::clone(open));
            if call.is_empty() || !opened {
                self.keep(worker);
                return Ok(answer);
            }
        }
        let (worker, answer) = self.ask(worker, call, bounds)?;
        self.keep(worker);
        Ok(answer)
    }
}

impl TemplateHost for TemplateProcesses {
    fn call(&self, open: &Arc<[u8]>, call: &[u8], cancel: Option<&CancelFlag>) -> Result<Vec<u8>, HostFailure> {
        let patience = if low_priority::is_taken() { LOW_PATIENCE } else { 1 };
        let bounds = Bounds {
            cpu: self.limits.cpu,
            until: Instant::now() + self.limits.deadline * patience,
            cancel,
        };
        let mut result = self.call_once(open, call, bounds);
        if matches!(result, Err(Failure::Killed)) {
            // A system that is short of memory kills whom it likes.
            result = self.call_once(open, call, bounds);
        }
        result.map_err(|failure| match failure {
            Failure::Killed => HostFailure::Unavailable("its process was killed from outside, twice".to_owned()),
            Failure::Host(failure) => failure,
        })
    }
}

/// The bounds of one call.
#[derive(Clone, Copy, Debug)]
struct Bounds<'a> {
    /// Processor time of each exchange.
    cpu: Duration,
    until: Instant,
    cancel: Option<&'a CancelFlag>,
}

/// Why a call has no answer.
#[derive(Debug)]
enum Failure {
    /// Somebody else ended the process.
    Killed,
    Host(HostFailure),
}

impl From<HostFailure> for Failure {
    fn from(failure: HostFailure) -> Self {
        Failure::Host(failure)
    }
}

/// One process.
#[derive(Debug)]
struct Worker {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// The template that it has compiled.
    open: Option<Arc<[u8]>>,
}

impl Worker {
    /// A process whose first frame says that it has started.
    fn start(program: &PathBuf, limits: TemplateLimits) -> io::Result<Self> {
        let mut child = Command::new(program)
            .arg0("halyard")
            .arg("template-child")
            // The server's own check is stricter; this limit also holds after the server has ended.
            .arg((limits.cpu.as_secs() + 2).to_string())
            .arg(limits.memory_mib.to_string())
            .env_clear()
            // Its one thread needs no heap of its own, whose reservation would count as memory.
            .env("MALLOC_ARENA_MAX", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C in a terminal is for the server.
            .process_group(0)
            .spawn()?;
        let missing = || io::Error::other("it has no pipes");
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        rustix::io::ioctl_fionbio(&input, true)?;
        rustix::io::ioctl_fionbio(&output, true)?;
        Ok(Worker {
            child,
            input,
            output,
            open: None,
        })
    }

    fn knows(&self, open: &Arc<[u8]>) -> bool {
        self.open.as_ref().is_some_and(|known| Arc::ptr_eq(known, open))
    }

    /// Sends a frame and waits for its answer. With nothing to send it waits for the frame that says that the process
    /// has started.
    fn exchange(&mut self, frame: &[u8], bounds: Bounds<'_>) -> Result<Vec<u8>, Stopped> {
        let mut watch = Watch {
            pid: self.child.id(),
            cpu_before: None,
            bounds,
        };
        let mut rest = frame;
        while !rest.is_empty() {
            match self.input.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => watch.wait(error, &self.input, PollFlags::OUT)?,
            }
        }
        let mut answer = Vec::new();
        let mut chunk = [0; 64 << 10];
        let mut expected = 4;
        while answer.len() < expected {
            match self.output.read(&mut chunk) {
                Ok(0) => return Err(Stopped::Pipe(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => answer.extend_from_slice(&chunk[..count]),
                Err(error) => watch.wait(error, &self.output, PollFlags::IN)?,
            }
            if expected == 4
                && let Some(len) = answer.first_chunk::<4>()
            {
                expected = 4 + u32::from_le_bytes(*len) as usize;
                if expected > MAX_ANSWER_BYTES {
                    return Err(Stopped::Pipe(io::Error::other("its answer is too long")));
                }
            }
        }
        answer.drain(..4);
        Ok(answer)
    }

    /// Why there is no answer. The process ends here if it has not.
    fn ending(mut self, stopped: &Stopped, limits: TemplateLimits) -> Failure {
        let error = match stopped {
            Stopped::Late if low_priority::is_taken() => {
                let reason = "no processor was free for it for too long: the prompt is large, and others come first";
                return HostFailure::Unavailable(reason.to_owned()).into();
            }
            Stopped::Late => {
                let reason = format!("it did not end within {} s", limits.deadline.as_secs_f64());
                return HostFailure::Ended(reason).into();
            }
            Stopped::Cpu => return HostFailure::Ended(over_cpu(limits)).into(),
            Stopped::Cancelled => return HostFailure::Cancelled.into(),
            Stopped::Pipe(error) => error,
        };
        // Its pipes close a moment before it is gone.
        let patience = Instant::now() + Duration::from_secs(10);
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < patience => std::thread::sleep(Duration::from_millis(1)),
                _ => break None,
            }
        };
        match status {
            Some(status) if status.signal() == Some(9) => Failure::Killed,
            Some(status) => HostFailure::Ended(describe(status, limits)).into(),
            None => HostFailure::Ended(error.to_string()).into(),
        }
    }
}

/// Why an exchange ended without an answer.
#[derive(Debug)]
enum Stopped {
    /// Past the deadline.
    Late,
    /// Past the processor time.
    Cpu,
    /// Nobody waits for it.
    Cancelled,
    /// The pipe failed: the process has gone, as a rule.
    Pipe(io::Error),
}

/// How often a process that works on a call is looked at. Most answer long before.
const LOOK: Duration = Duration::from_millis(50);

/// Watches the time of one call.
struct Watch<'a> {
    pid: u32,
    /// The process's processor time at the first check, in the system's ticks.
    cpu_before: Option<u64>,
    bounds: Bounds<'a>,
}

impl Watch<'_> {
    /// Waits until a pipe can be used after `error` said that it cannot now.
    fn wait(&mut self, error: io::Error, pipe: impl AsFd, flags: PollFlags) -> Result<(), Stopped> {
        match error.kind() {
            io::ErrorKind::Interrupted => return Ok(()),
            io::ErrorKind::WouldBlock => {}
            _ => return Err(Stopped::Pipe(error)),
        }
        if self.bounds.cancel.is_some_and(CancelFlag::is_cancelled) {
            return Err(Stopped::Cancelled);
        }
        if Instant::now() > self.bounds.until {
            return Err(Stopped::Late);
        }
        let used = cpu_ticks(self.pid);
        let before = *self.cpu_before.get_or_insert(used);
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        if Duration::from_millis(used.saturating_sub(before) * 1000 / ticks_per_second) > self.bounds.cpu {
            return Err(Stopped::Cpu);
        }
        let mut fds = [PollFd::new(&pipe, flags)];
        // Interrupted or not: the caller tries again and comes back.
        let _ = rustix::event::poll(&mut fds, Timespec::try_from(LOOK).ok().as_ref());
        Ok(())
    }
}

/// Processor time of a process, own and the system's; 0 for one that has gone (proc(5), fields 14 and 15 of stat).
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is a name in parentheses, which may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields = fields.split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

fn over_cpu(limits: TemplateLimits) -> String {
    format!("it took more than {} s of processor time", limits.cpu.as_secs_f64())
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Fails only when it has ended by itself; either way no process may be left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why the process ended, in words.
fn describe(status: ExitStatus, limits: TemplateLimits) -> String {
    let memory_mib = limits.memory_mib;
    match (status.signal(), status.code()) {
        // SIGXCPU
        (Some(24), _) => over_cpu(limits),
        // SIGABRT, SIGSEGV, SIGBUS: an allocation that failed, or the end of the stack.
        (Some(6 | 7 | 11), _) => format!("it took more than {memory_mib} MiB of memory, or nested too deeply"),
        (Some(signal), _) => format!("its process was ended by signal {signal}"),
        (None, Some(code)) => format!("its process exited with status {code}"),
        (None, None) => "its process ended".to_owned(),
    }
}

/// Serves templates for the server that started this process, until that server closes the pipe.
///
/// # Errors
/// Limits that the system refuses, and what reading and writing fail with.
pub fn run_template_child(args: &TemplateChildArgs) -> Result<(), ServerError> {
    let limited = |error: nix::Error| ServerError::io("limiting a template's process")(error.into());
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(limited)?;
    let memory = own_bytes().saturating_add(args.memory_mib.saturating_mul(1 << 20));
    setrlimit(Resource::RLIMIT_AS, memory, memory).map_err(limited)?;
    let cpu_seconds = args.cpu_seconds;
    // The limit counts from the process's start: it moves with what was used.
    let before = move || {
        let used = getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| {
            let (user, system) = (usage.user_time(), usage.system_time());
            user.tv_sec().saturating_add(system.tv_sec()).saturating_add(1)
        });
        let used = u64::try_from(used).unwrap_or(0);
        let limit = used.saturating_add(cpu_seconds);
        // The limit before stays where this fails, which is the tighter one.
        let _ = setrlimit(Resource::RLIMIT_CPU, limit, nix::sys::resource::RLIM_INFINITY);
    };
    // Where the system runs out of memory, it ends this process and not the server.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    // Files of their own: the standard ones buffer by lines.
    let own = |fd: io::Result<std::os::fd::OwnedFd>| fd.map(File::from).map_err(ServerError::io("opening its pipes"));
    let input = own(io::stdin().as_fd().try_clone_to_owned())?;
    let mut output = own(io::stdout().as_fd().try_clone_to_owned())?;
    // An empty frame: it has started.
    let ready = output.write_all(&[0; 4]);
    ready.map_err(ServerError::io("saying that it has started"))?;
    serve_templates(input, output, before).map_err(ServerError::io("serving templates"))
}

/// Bytes of address space that this process has already, its program above all.
fn own_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = pages
        .split(' ')
        .next()
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    pages.saturating_mul(rustix::param::page_size() as u64)
}
