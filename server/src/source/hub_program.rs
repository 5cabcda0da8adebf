//! The server's side of `halyard-hub`, the program that downloads. The server starts it when something has to be
//! fetched, sends one request at a time, and ends it on drop. The hub's token is in its environment, which other users
//! cannot see with `ps`.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::hub_lines::{Answer, Request};
use super::{SourceError, SourceSettings};
use crate::logging;

/// A hub that says nothing for so long is taken as gone: its client waits without end.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Longest line of an answer: a name, or a refusal with the hub's own words.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Keys of this server, which the hub has no use for.
const OTHER_KEYS: [&str; 3] = ["HALYARD_API_KEY", "VLLM_API_KEY", "HALYARD_CLIENT_API_KEY"];

/// The hub's client for one repository.
pub struct HubProgram {
    repo: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl HubProgram {
    /// Starts it.
    ///
    /// # Errors
    /// [`SourceError::NoHubProgram`].
    pub fn start(settings: &SourceSettings, repo: &str) -> Result<Self, SourceError> {
        let missing = |source| SourceError::NoHubProgram {
            repo: repo.to_owned(),
            program: settings.hub_program.clone(),
            source,
        };
        let (filter, format) = logging::chosen();
        let mut command = Command::new(&settings.hub_program);
        command.args([repo, filter, format]);
        for (name, value) in [("HF_ENDPOINT", &settings.endpoint), ("HF_TOKEN", &settings.token)] {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        for name in OTHER_KEYS {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        // Ctrl-C in a terminal is for the server.
        let mut child = command.process_group(0).spawn().map_err(missing)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| missing(io::Error::other("it has no pipes")))?;
        Ok(HubProgram {
            repo: repo.to_owned(),
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`SourceError::Hub`] of a program that has ended.
    pub async fn ask(&mut self, request: &Request) -> Result<(), SourceError> {
        let mut line = serde_json::to_vec(request).unwrap_or_default();
        line.push(b'\n');
        match self.input.write_all(&line).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.ended(error).await),
        }
    }

    /// The next answer, but for a refusal.
    ///
    /// # Errors
    /// [`SourceError::Hub`] for the hub's refusal and a program that has ended, [`SourceError::Silent`].
    pub async fn answer(&mut self) -> Result<Answer, SourceError> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.output).take(MAX_LINE_BYTES);
        let read = patient(&self.repo, bounded.read_until(b'\n', &mut line)).await?;
        let answer = match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => serde_json::from_slice(&line).map_err(io::Error::from),
            Err(error) => Err(error),
        };
        match answer {
            Ok(Answer::Failed(reason)) => Err(self.failed(reason)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.ended(error).await),
        }
    }

    /// Reads into `buffer` some of the `left` bytes that an [`Answer::Bytes`] announced.
    ///
    /// # Errors
    /// As [`HubProgram::answer`].
    pub async fn read(&mut self, buffer: &mut [u8], left: usize) -> Result<usize, SourceError> {
        let count = left.min(buffer.len());
        match patient(&self.repo, self.output.read(&mut buffer[..count])).await? {
            Ok(0) => Err(self.ended(io::ErrorKind::UnexpectedEof.into()).await),
            Ok(count) => Ok(count),
            Err(error) => Err(self.ended(error).await),
        }
    }

    /// An answer to another question.
    pub fn unexpected(&self, answer: &Answer) -> SourceError {
        self.failed(format!("halyard-hub answered {answer:?} to another question"))
    }

    fn failed(&self, reason: String) -> SourceError {
        SourceError::Hub {
            repo: self.repo.clone(),
            reason,
        }
    }

    /// Why the pipe failed: as a rule the program has ended, and its status says more.
    async fn ended(&mut self, error: io::Error) -> SourceError {
        // Its pipes close a moment before it is gone.
        let status = tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await;
        let why = match status {
            Ok(Ok(status)) => status.to_string(),
            _ => error.to_string(),
        };
        self.failed(format!(
            "halyard-hub ended before its work was done ({why}); run the same command again to resume"
        ))
    }
}

/// Waits for the hub's next words, not forever.
async fn patient<T>(repo: &str, words: impl Future<Output = T>) -> Result<T, SourceError> {
    let silent = |_| SourceError::Silent {
        repo: repo.to_owned(),
        seconds: MAX_SILENCE.as_secs(),
    };
    tokio::time::timeout(MAX_SILENCE, words).await.map_err(silent)
}
