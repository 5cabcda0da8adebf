//! `halyard-hub`: the hub's client in a process of its own, which a server starts when a model or tokenizer of the hub
//! is not on the machine (decision 0054). It reads what strangers send and hands it on: it chooses, checks and writes
//! nothing. It ends with the server, whose end closes its standard input.

#[path = "../../src/source/hub_lines.rs"]
mod hub_lines;
mod log;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::pin::pin;
use std::process::ExitCode;

use futures::StreamExt;
use hf_hub::repository::{HFRepository, RepoTreeEntry, RepoTypeModel};
use hf_hub::{HFClient, HFError};
use tokio::sync::mpsc;

use hub_lines::{Answer, Request};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [repo, filter, format] = args.as_slice() else {
        eprintln!("halyard-hub: a server starts this program; run halyard serve --model org/repo");
        return ExitCode::from(2);
    };
    log::start(filter, format);
    match serve(repo) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("halyard-hub: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers requests until there are no more. What fails here is the pipe.
#[tokio::main]
async fn serve(repo: &str) -> io::Result<()> {
    let (sender, mut requests) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        // The server has gone, whatever is still being fetched for it.
        std::process::exit(0);
    });
    // A file of its own: the standard one looks for line breaks in all that passes.
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // The endpoint comes in the variable that the client reads by itself. It can be told to leave the token's alone
    // (HF_HUB_DISABLE_IMPLICIT_TOKEN); this one was meant for it.
    let mut client = HFClient::builder().user_agent(concat!("halyard/", env!("CARGO_PKG_VERSION")));
    if let Some(token) = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty()) {
        client = client.token(token);
    }
    let (owner, name) = hf_hub::split_id(repo);
    let hub = client.build().map(|client| client.model(owner, name));
    while let Some(line) = requests.recv().await {
        let request: Request = serde_json::from_str(&line)?;
        let failed = match &hub {
            Ok(hub) => answer(hub, request, &mut output)
                .await?
                .err()
                .map(|error| describe(&error)),
            Err(error) => Some(describe(error)),
        };
        if let Some(reason) = failed {
            say(&mut output, &Answer::Failed(reason))?;
        }
    }
    Ok(())
}

type Hub = HFRepository<RepoTypeModel>;

/// Answers one request; the inner error is the hub's.
async fn answer(hub: &Hub, request: Request, output: &mut File) -> io::Result<Result<(), HFError>> {
    macro_rules! heard {
        ($words:expr) => {
            match $words {
                Ok(value) => value,
                Err(error) => return Ok(Err(error)),
            }
        };
    }
    match request {
        Request::Names { revision } => {
            let mut entries = pin!(heard!(hub.list_tree().maybe_revision(revision).send()));
            while let Some(entry) = entries.next().await {
                if let RepoTreeEntry::File { path, .. } = heard!(entry) {
                    say(output, &Answer::Name(path))?;
                }
            }
            say(output, &Answer::End)?;
        }
        Request::File { revision, name } => {
            let asked = hub
                .get_file_metadata()
                .filepath(name)
                .maybe_revision(revision.as_deref());
            let info = heard!(asked.send().await);
            let (commit, bytes, etag) = (info.commit_hash, info.file_size, info.etag);
            say(output, &Answer::File { commit, bytes, etag })?;
        }
        Request::Read { commit, name, from, to } => {
            let range = (from > 0).then_some(from..to);
            let asked = hub.download_file_stream().filename(name).revision(commit);
            let (_, stream) = heard!(asked.maybe_range(range).send().await);
            let (mut stream, mut sent) = (pin!(stream), from);
            // A source that ignores ranges sends the whole file: one byte too many says so.
            while sent <= to
                && let Some(chunk) = stream.next().await
            {
                let chunk = heard!(chunk);
                say(output, &Answer::Bytes(chunk.len()))?;
                output.write_all(&chunk)?;
                sent += chunk.len() as u64;
            }
            say(output, &Answer::End)?;
        }
    }
    Ok(Ok(()))
}

fn say(output: &mut File, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    output.write_all(&line)
}

/// The hub's refusal, and what helps.
fn describe(error: &HFError) -> String {
    let remedy = match error {
        HFError::AuthRequired { .. } | HFError::Forbidden { .. } => "; set HF_TOKEN to a token that may read it",
        HFError::RepoNotFound { .. } | HFError::EntryNotFound { .. } => {
            "; check the name, or set HF_TOKEN if it is private"
        }
        HFError::Http { context } if context.status.as_u16() == 404 => {
            "; check the name, or set HF_TOKEN if it is private"
        }
        HFError::Request { .. } => "; check the network and HF_ENDPOINT, or give --model PATH",
        _ => "",
    };
    format!("{error}{remedy}")
}
