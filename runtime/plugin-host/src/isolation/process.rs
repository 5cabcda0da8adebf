//! One child process of a hook, seen from the server: starts it, calls it with a deadline, reports how it ended, and
//! never leaves a zombie.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use super::IsolationOptions;
use super::ring::{Answer, Corrupt, FrameKind, Producer};

/// How long an ended child may take to be gone before the server stops waiting for it.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// A running child.
pub(super) struct HookProcess {
    child: Child,
    pid: Pid,
    // Readable when the child has gone; none on systems without process descriptors, where the bell's end tells.
    gone: Option<OwnedFd>,
    // The child writes a byte with each answer.
    bell: OwnedFd,
    pub(super) ring: Producer,
}

/// Why a call has no answer. The child is gone in all cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// It died, with how.
    Died(String, i64),
    /// It did not answer within the deadline and was ended.
    Late(Duration),
    /// It wrote nonsense into the shared memory and was ended.
    Corrupt(String),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Died(how, _) => f.write_str(how),
            Lost::Late(patience) => write!(f, "did not answer within {} ms and was ended", patience.as_millis()),
            Lost::Corrupt(reason) => write!(
                f,
                "broke the memory that it shares with the server ({reason}) and was ended"
            ),
        }
    }
}

impl HookProcess {
    /// Starts a child for the hook of `name`. It has not loaded anything yet.
    pub(super) fn start(options: &IsolationOptions, name: &str) -> io::Result<HookProcess> {
        let (ring, file) = Producer::create()?;
        let (bell, child_bell) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut command = Command::new(&options.program);
        command
            .args(&options.args)
            .arg(name)
            .arg0("halyard")
            .stdin(Stdio::from(file))
            .stdout(Stdio::from(child_bell))
            // Ctrl-C in a terminal is for the server, which ends its hooks after its requests.
            .process_group(0);
        for variable in &options.removed_variables {
            command.env_remove(variable);
        }
        let child = command.spawn()?;
        drop(command);
        let pid = Pid::from_child(&child);
        let gone = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        Ok(HookProcess {
            child,
            pid,
            gone,
            bell,
            ring,
        })
    }

    /// The system's number of the child.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Publishes what was written and waits for the answer to frame `sequence`. A child that is late is ended.
    pub(super) fn wait(&mut self, sequence: u64, patience: Duration) -> Result<Answer, Lost> {
        match self.wait_or_leave(sequence, patience)? {
            Some(answer) => Ok(answer),
            None => {
                self.kill();
                Err(Lost::Late(patience))
            }
        }
    }

    /// As [`HookProcess::wait`], but a child that is late goes on; none then.
    pub(super) fn wait_or_leave(&mut self, sequence: u64, patience: Duration) -> Result<Option<Answer>, Lost> {
        let start = Instant::now();
        self.ring.publish();
        loop {
            match self.ring.answer(sequence) {
                Ok(Some(answer)) => {
                    self.clear_bell();
                    return Ok(Some(answer));
                }
                Ok(None) => {}
                Err(Corrupt(reason)) => {
                    self.kill();
                    return Err(Lost::Corrupt(reason));
                }
            }
            if self.has_gone() {
                // It may have answered with its last breath.
                if let Ok(Some(answer)) = self.ring.answer(sequence) {
                    return Ok(Some(answer));
                }
                let (how, signal) = self.reap();
                return Err(Lost::Died(how, signal));
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.sleep(left);
        }
    }

    /// Asks the child to release the hook and end; ends it when it does not.
    pub(super) fn end(mut self, patience: Duration) -> Result<Answer, Lost> {
        if !matches!(self.ring.fits(0), Ok(true)) {
            return Err(Lost::Corrupt("its ring is full or broken at its end".to_string()));
        }
        let sequence = self.ring.write(FrameKind::End, &[]);
        let answer = self.wait(sequence, patience)?;
        let start = Instant::now();
        while start.elapsed() < END_PATIENCE && !self.has_gone() {
            self.sleep(END_PATIENCE.saturating_sub(start.elapsed()));
        }
        Ok(answer)
    }

    /// Whether the child has gone, without waiting.
    fn has_gone(&mut self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // Left on the system's list, so that its number stays its own until `reap`. After an error the system no longer
        // knows it.
        !matches!(rustix::process::waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    /// Sleeps until the bell rings, the child goes, or time is up.
    fn sleep(&mut self, patience: Duration) {
        let timeout = Timespec::try_from(patience).ok();
        let closed = {
            let bell = PollFd::new(&self.bell, PollFlags::IN);
            let mut both = [bell.clone(), bell];
            let count = match &self.gone {
                Some(gone) => {
                    both[1] = PollFd::new(gone, PollFlags::IN);
                    2
                }
                None => 1,
            };
            // An interrupted sleep is a short one.
            let _ = rustix::event::poll(&mut both[..count], timeout.as_ref());
            both[0].revents().contains(PollFlags::HUP) && !both[0].revents().contains(PollFlags::IN)
        };
        self.clear_bell();
        if closed {
            // The pipe ends just before the process does: without this the loop around would spin through that moment.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn clear_bell(&self) {
        let mut bytes = [0; 64];
        while matches!(rustix::io::read(&self.bell, &mut bytes), Ok(count) if count > 0) {}
    }

    /// Ends the child at once and reaps it.
    fn kill(&mut self) {
        // Fails only when it has gone by itself.
        let _ = self.child.kill();
        self.reap();
    }

    /// Takes the ended child off the system's list, and whatever it forked with it; how it ended, and the signal or 0.
    fn reap(&mut self) -> (String, i64) {
        // The child leads a group of its own. No process of it may be left.
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        match self.child.wait() {
            Ok(status) => (ending(status), status.signal().map_or(0, i64::from)),
            Err(error) => (format!("ended in a way that the system does not tell ({error})"), 0),
        }
    }
}

impl Drop for HookProcess {
    fn drop(&mut self) {
        if self.has_gone() {
            self.reap();
        } else {
            self.kill();
        }
    }
}

/// An exit status in words.
fn ending(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}{}", signal_name(signal)),
        (None, Some(code)) => format!("exited with status {code}"),
        (None, None) => "ended".to_string(),
    }
}

/// Names of the signals that hooks die of.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        31 => " (SIGSYS)",
        _ => "",
    }
}

/// Closes the child's sight of whatever the server had open: every descriptor from 3 on.
pub(super) fn close_inherited() -> io::Result<()> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        if let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) {
            open.push(number);
        }
    }
    for number in open.into_iter().filter(|number| *number > 2) {
        // SAFETY: called before this process opened anything of its own, so no object owns this number; the listing's
        // own descriptor is closed by now, and closing it again only fails.
        unsafe { libc::close(number) };
    }
    Ok(())
}

/// Whether the reader of a pipe has gone, waiting for that without end.
pub(super) fn wait_for_reader_to_go(pipe: impl AsFd) {
    loop {
        let mut fds = [PollFd::new(&pipe, PollFlags::empty())];
        match rustix::event::poll(&mut fds, None) {
            Ok(_)
                if fds[0]
                    .revents()
                    .intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) =>
            {
                return;
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Without a way to watch, assume the worst.
            Err(_) => return,
        }
    }
}
