//! `halyard chat` and `halyard complete`: they use a running server if one answers, else an engine in this process. If
//! the user gave an address, only that server is used.

use std::io::{BufRead, IsTerminal, Write};

use clap::Args;
use halyard_engine::{FinishReason, Replicas, Request};
use serde_json::{Value, json};

use super::args::{EngineArgs, LogArgs};
use super::parser_args;
use crate::client::{ClientError, Part, ServerClient};
use crate::error::ServerError;
use crate::logging;
use crate::openai::api::{Api, Generation};
use crate::openai::body::Body;
use crate::openai::model::ModelContext;
use crate::openai::parsers::Parsers;
use crate::openai::policy::{Limits, ServingDefaults};
use crate::openai::shaper::Delta;
use crate::openai::{chat, completion};

const DEFAULT_URL: &str = "http://127.0.0.1:8000";

/// Flags of `halyard chat`.
#[derive(Args, Debug)]
pub struct ChatArgs {
    /// One message; without it a conversation on standard input
    message: Option<String>,
    /// Format in which a model of this process writes what it thinks, such as qwen3; a terminal shows it dimmed
    #[arg(long, value_name = "NAME", env = "HALYARD_REASONING_PARSER", help_heading = "Client")]
    reasoning_parser: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// Flags of `halyard complete`.
#[derive(Args, Debug)]
pub struct CompleteArgs {
    /// The text to go on from
    prompt: String,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Client")]
struct ClientArgs {
    /// A server; without it the one at http://127.0.0.1:8000 if it answers, else an engine in this process
    #[arg(long, value_name = "URL", env = "HALYARD_URL")]
    url: Option<String>,
    /// Key for the server
    #[arg(long, value_name = "KEY", env = "HALYARD_CLIENT_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Instructions for the model, before the first message
    #[arg(long, value_name = "TEXT", env = "HALYARD_SYSTEM")]
    system: Option<String>,
    /// Most tokens of an answer; without it the server's default
    #[arg(long, value_name = "TOKENS", env = "HALYARD_MAX_TOKENS")]
    max_tokens: Option<u32>,
    /// 0 always takes the likeliest token; without it the model's default
    #[arg(long, value_name = "NUMBER", env = "HALYARD_TEMPERATURE")]
    temperature: Option<f32>,
}

/// The role of the answer.
enum Answerer {
    Server { client: ServerClient, model: String },
    Engine(Replicas, Parsers),
}

/// Runs `halyard chat`.
///
/// # Errors
/// [`ServerError`].
pub fn run_chat(args: ChatArgs) -> Result<(), ServerError> {
    start_logging(&args.log)?;
    super::runtime()?.block_on(async {
        let reasoning = args.reasoning_parser.as_deref().filter(|name| !name.is_empty());
        let answerer = Answerer::find(&args.client, &args.engine, reasoning).await?;
        let mut messages: Vec<Value> = Vec::new();
        messages.extend(
            args.client
                .system
                .as_ref()
                .map(|text| json!({"role": "system", "content": text})),
        );
        if let Some(message) = &args.message {
            messages.push(json!({"role": "user", "content": message}));
            return answerer.chat(&args.client, &messages).await.map(drop);
        }
        converse(&answerer, &args.client, messages).await
    })
}

/// Runs `halyard complete`.
///
/// # Errors
/// [`ServerError`].
pub fn run_complete(args: CompleteArgs) -> Result<(), ServerError> {
    start_logging(&args.log)?;
    super::runtime()?.block_on(async {
        let answerer = Answerer::find(&args.client, &args.engine, None).await?;
        say_part!("{}", args.prompt);
        let body = args.client.body(json!({"prompt": args.prompt}));
        answerer.answer(&completion::API, body).await.map(drop)
    })
}

fn start_logging(log: &LogArgs) -> Result<(), ServerError> {
    // A conversation is not a log: only what is wrong is shown unless more was asked for.
    let level = if log.log_level == "info" {
        "warn"
    } else {
        &log.log_level
    };
    Ok(logging::start(level, log.log_format)?)
}

async fn converse(answerer: &Answerer, client: &ClientArgs, mut messages: Vec<Value>) -> Result<(), ServerError> {
    let beginning = messages.len();
    let prompts = std::io::stdin().is_terminal();
    if prompts {
        say!("/clear forgets the conversation, /exit or Ctrl-D ends");
    }
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if prompts {
            say_part!("> ");
            flush()?;
        }
        let Some(line) = lines.next() else { return Ok(()) };
        let line = line.map_err(ServerError::io("reading standard input"))?;
        match line.trim() {
            "" => continue,
            "/exit" => return Ok(()),
            "/clear" => {
                messages.truncate(beginning);
                continue;
            }
            text => messages.push(json!({"role": "user", "content": text})),
        }
        let text = answerer.chat(client, &messages).await?;
        messages.push(json!({"role": "assistant", "content": text}));
    }
}

impl ClientArgs {
    fn body(&self, mut body: Value) -> Value {
        if let Some(limit) = self.max_tokens {
            body["max_tokens"] = json!(limit);
        }
        if let Some(temperature) = self.temperature {
            body["temperature"] = json!(temperature);
        }
        body["stream"] = json!(true);
        body
    }
}

impl Answerer {
    async fn find(args: &ClientArgs, engine: &EngineArgs, reasoning: Option<&str>) -> Result<Self, ServerError> {
        parser_args::check(None, reasoning)?;
        let client = ServerClient::new(args.url.as_deref().unwrap_or(DEFAULT_URL), args.api_key.clone())?;
        // A model or platform that was named is started here; a running server may serve another one.
        let asked_for_engine = engine.model.model.is_some() || engine.platform.platform.is_some();
        if args.url.is_some() || !asked_for_engine {
            match client.first_model().await {
                Ok(model) => return Ok(Answerer::Server { client, model }),
                Err(ClientError::Unreachable { .. }) if args.url.is_none() => {}
                Err(error) => return Err(error.into()),
            }
        }
        eprintln!("starting the engine in this process");
        let chosen = engine.choose_device()?;
        let model = engine.resolve_model().await?;
        let engine = engine.clone();
        let loading = tokio::task::spawn_blocking(move || {
            let hooks = engine.hooks(&chosen, Vec::new(), |_| None)?;
            engine.start(&chosen, &model, &hooks, &model.name)
        });
        let started = loading
            .await
            .map_err(|error| ServerError::Refused(format!("loading the model failed: {error}")))?;
        let engine = started?;
        let format = parser_args::format(None, reasoning, engine.first().response_template())?;
        let parsers = Parsers::new(&format, engine.tokenizer());
        Ok(Answerer::Engine(engine, parsers))
    }

    async fn chat(&self, args: &ClientArgs, messages: &[Value]) -> Result<String, ServerError> {
        self.answer(&chat::API, args.body(json!({"messages": messages}))).await
    }

    /// Prints the answer as it comes, and returns it. Reasoning is shown on a terminal only, dimmed.
    async fn answer(&self, api: &Api, mut body: Value) -> Result<String, ServerError> {
        let is_terminal = std::io::stdout().is_terminal();
        let mut printer = Printer { dims: false };
        let print = |part: Part<'_>| {
            if let Some(text) = printer.shown(part, is_terminal) {
                say_part!("{text}");
                // A closed pipe ends the process soon enough.
                let _ = std::io::stdout().flush();
            }
        };
        let text = match self {
            Answerer::Server { client, model } => {
                body["model"] = json!(model);
                client.stream(api.path, &body, print).await.map_err(ServerError::from)
            }
            Answerer::Engine(engine, parsers) => generate(engine, parsers, api, body, print).await,
        };
        if printer.dims {
            say_part!("{UNDIM}");
        }
        let text = text?;
        say!();
        Ok(text)
    }
}

const DIM: &str = "\x1b[2m";
const UNDIM: &str = "\x1b[0m";

/// What a terminal shows: reasoning dimmed, and the answer on a line of its own.
struct Printer {
    /// Whether the terminal dims now.
    dims: bool,
}

impl Printer {
    fn shown(&mut self, part: Part<'_>, is_terminal: bool) -> Option<String> {
        match part {
            Part::Reasoning(_) if !is_terminal => None,
            Part::Reasoning(text) => {
                let dim = if self.dims { "" } else { DIM };
                self.dims = true;
                Some(format!("{dim}{text}"))
            }
            Part::Text("") => None,
            Part::Text(text) => {
                let undim = if self.dims { UNDIM } else { "" };
                let space = if self.dims { "\n\n" } else { "" };
                self.dims = false;
                Some(format!("{undim}{space}{text}"))
            }
        }
    }
}

async fn generate(
    engine: &Replicas,
    parsers: &Parsers,
    api: &Api,
    body: Value,
    mut print: impl FnMut(Part<'_>),
) -> Result<String, ServerError> {
    let mut asked = read(engine, parsers, api, body)?;
    let (prompt, params) = (asked.prompts.swap_remove(0).token_ids, asked.params.swap_remove(0));
    let mut shaper = asked.format.shaper();
    let submitted = engine.submit(Request::new("chat", prompt, params));
    let mut stream = submitted.map_err(|error| ServerError::Refused(error.to_string()))?;
    let mut text = String::new();
    while let Some(chunk) = stream.next().await {
        let mut deltas = shaper.push(chunk.text, &chunk.token_ids);
        if chunk.finish.is_some() {
            deltas.extend(shaper.finish());
        }
        for delta in deltas {
            match delta {
                Delta::Text(part) => {
                    print(Part::Text(&part));
                    text.push_str(&part);
                }
                Delta::Reasoning(part) => print(Part::Reasoning(&part)),
                // No tools were sent.
                Delta::CallStart { .. } | Delta::Arguments { .. } | Delta::CallEnd { .. } => {}
            }
        }
        if let Some(
            FinishReason::Abort(reason)
            | FinishReason::Error(reason)
            | FinishReason::NotFinite(reason)
            | FinishReason::NoTokenAllowed(reason),
        ) = chunk.finish
        {
            return Err(ServerError::Refused(reason));
        }
    }
    Ok(text)
}

/// Reads a body as the server would, so that both ways give the same answer.
fn read(engine: &Replicas, parsers: &Parsers, api: &Api, body: Value) -> Result<Generation, ServerError> {
    let info = engine.info();
    let serving = ServingDefaults::default();
    let context = ModelContext {
        tokenizer: engine.tokenizer(),
        chat_template: engine.chat_template(),
        defaults: engine.generation_defaults(),
        vocab_size: info.vocab_size,
        max_model_len: info.max_model_len,
        limits: Limits::default(),
        serving: &serving,
        parsers,
        truncates: false,
        conversation: None,
        cancel: None,
    };
    let asked = Body::new(body).and_then(|mut body| (api.read)(&mut body, context));
    asked.map_err(|error| ServerError::Refused(error.message))
}

fn flush() -> Result<(), ServerError> {
    std::io::stdout().flush().map_err(ServerError::io("writing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_dims_reasoning_and_a_pipe_gets_none() {
        let parts = [
            Part::Text(""),
            Part::Reasoning("a"),
            Part::Reasoning("b"),
            Part::Text("c"),
            Part::Text("d"),
        ];
        let shown = |is_terminal: bool| {
            let mut printer = Printer { dims: false };
            let texts = parts.iter().filter_map(|part| printer.shown(*part, is_terminal));
            texts.collect::<String>()
        };
        assert_eq!(shown(true), "\x1b[2mab\x1b[0m\n\ncd");
        assert_eq!(shown(false), "cd");
    }
}
