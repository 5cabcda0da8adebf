//! One generation request of any API: reads and submits it, and has its answer sent whole, as a stream, or from the
//! background (`exchange.rs`, `background.rs`).

use std::sync::Arc;

use axum::extract::{ConnectInfo, Request as HttpRequest};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use halyard_engine::Request;
use halyard_request_hooks::IoRun;
use serde_json::Value;

use super::abortable::AbortSeat;
use super::auth::KeyDigest;
use super::background;
use super::conversion::{convert, read};
use super::exchange::{Exchange, merge, stream_answer, whole_answer};
use super::guides;
use super::info::fingerprint;
use super::logits;
use super::peer::Peer;
use super::request_id::TokenCount;
use super::response_store::Keeper;
use super::state::{AppState, InFlight};
use crate::api_error::ApiError;
use crate::clock::unix_seconds;
use crate::openai::answer::{Answer, AnswerWriter, Format};
use crate::openai::api::Api;
use crate::openai::body::Body;
use crate::openai::kept::{Conversation, Kept};
use crate::openai::logits_args::LogitsFields;
use crate::openai::model::ModelContext;
use crate::openai::shared::SchedulingFields;
use crate::openai::structured::Structured;
use crate::openai::thoughts::Thoughts;
use crate::openai::usage::Usage;
use crate::ui::{Submitted, Ticket};

/// A request, checked and ready to be submitted.
struct Job {
    answer: Answer,
    format: Box<dyn Format>,
    /// One for each prompt.
    requests: Vec<Request>,
    /// What the text of every sample must be.
    structured: Option<Structured>,
    /// What the model may think before.
    thoughts: Option<Thoughts>,
    /// What is to be kept.
    kept: Option<Kept>,
    /// What logits processors are told: one JSON object.
    logits_args: String,
    /// The IO processors for the answer's texts.
    io: IoRun,
}

/// Answers a request to `api`.
///
/// # Errors
/// Failures before the first byte of an answer; a later failure of a stream is an event in it.
pub async fn generate(state: Arc<AppState>, http: HttpRequest, api: &'static Api) -> Result<Response, ApiError> {
    let ticket = state.ui.as_ref().map(|ui| {
        let client = http
            .extensions()
            .get::<ConnectInfo<Peer>>()
            .and_then(|info| info.0.ip());
        Arc::new(ui.requests.arrive(api.path, client))
    });
    let answered = read_and_answer(state, http, api, ticket.clone()).await;
    if let (Some(ticket), Err(error)) = (ticket, &answered) {
        ticket.refused(error);
    }
    answered
}

async fn read_and_answer(
    state: Arc<AppState>,
    http: HttpRequest,
    api: &'static Api,
    ticket: Option<Arc<Ticket>>,
) -> Result<Response, ApiError> {
    let trace = TraceContext::of(http.headers());
    let key = http.extensions().get::<KeyDigest>().copied();
    let (body, lane, request_id) = read(&state, http).await?;
    let store = state.responses.clone().filter(|_| api.is_stored);
    let (request_id, seat) = match &store {
        Some(store) => store.reserve(api.id_prefix, request_id),
        None => (request_id, None),
    };
    let id = format!("{}{request_id}", api.id_prefix);
    let (body, io) = pass_io(&state, api.path, &id, body).await?;
    let body = Body::new(body)?;
    let model = state.find_model(&body).await?;
    let conversation = store.map(|store| store.conversation(key, body.get("previous_response_id").as_str()));
    let conversation = conversation.transpose()?;
    check_length(conversation.as_ref(), state.limits.body_bytes)?;
    let job = convert(&state, lane, body, move |state, body, cancel| {
        let context = ModelContext {
            conversation: conversation.as_ref(),
            ..state.context(cancel)
        };
        let asked = (api.read)(body, context)?;
        let scheduling = body.take::<SchedulingFields>()?.read(state.priority_scheduling)?;
        let logits_args = body.take::<LogitsFields>()?.read(&state.logits)?;
        let prompts = asked.prompts.iter().zip(asked.params).enumerate();
        let requests = prompts.map(|(index, (prompt, params))| {
            let id = if api.has_prompts {
                format!("{id}-{index}")
            } else {
                id.clone()
            };
            let mut request = Request::new(id, prompt.token_ids.clone(), params);
            request.lora = state.adapter(&model);
            request.priority = scheduling.priority;
            request.cache_salt.clone_from(&scheduling.cache_salt);
            request.trace_parent.clone_from(&trace.parent);
            request.trace_state.clone_from(&trace.state);
            request
        });
        Ok(Job {
            requests: requests.collect(),
            structured: asked.structured,
            thoughts: asked.thoughts,
            logits_args,
            answer: Answer {
                id,
                model,
                created: unix_seconds(),
                fingerprint: fingerprint(state),
                streaming: asked.streaming,
                usage: Usage::of_prompts(&asked.prompts),
                tokenizer: state.engine.tokenizer().clone(),
                prompts: asked.prompts,
            },
            format: asked.format,
            kept: asked.kept,
            io,
        })
    });
    let mut job = job.await?;
    if let Some(structured) = job.structured.take() {
        guides::add(&state, &mut job.requests, structured, job.thoughts.take()).await?;
    }
    logits::add(&state, &mut job.requests, &job.logits_args).await?;
    if state.log_prompts {
        log_prompts(&state, &job.answer);
    }
    let kept = seat.zip(job.kept.take());
    let keeper = kept.map(|(seat, kept)| seat.keep(key, kept)).transpose()?;
    let mut response = answer(state, job, keeper, ticket, api).await?;
    // The answer's header has the id of the answer's body.
    response.extensions_mut().insert(request_id);
    Ok(response)
}

/// Refuses a conversation that is longer than a body may be.
fn check_length(conversation: Option<&Conversation>, limit: usize) -> Result<(), ApiError> {
    let bytes = conversation.map_or(0, Conversation::num_bytes);
    if bytes <= limit {
        return Ok(());
    }
    let message = format!(
        "the conversation up to previous_response_id is {bytes} bytes of JSON; at most {limit} are taken: begin another"
    );
    Err(ApiError::field("previous_response_id", message))
}

/// The request's place in a trace of its client (W3C Trace Context), for stat records.
#[derive(Debug, Default, PartialEq)]
struct TraceContext {
    parent: Option<String>,
    state: Option<String>,
}

impl TraceContext {
    /// A longer `traceparent` is invalid.
    const MAX_PARENT_BYTES: usize = 128;
    /// The standard's bound of what must be handed on.
    const MAX_STATE_BYTES: usize = 512;

    /// What the headers say. A header that is too long, or no text, is ignored, as the standard wants it.
    fn of(headers: &HeaderMap) -> TraceContext {
        let bounded = |text: String, most| Some(text).filter(|text| !text.is_empty() && text.len() <= most);
        let parent = headers.get("traceparent").and_then(|value| value.to_str().ok());
        // Proxies may add a line of their own: together they are one list.
        let lines = headers.get_all("tracestate").iter().map(HeaderValue::to_str);
        let state = lines.collect::<Result<Vec<_>, _>>().unwrap_or_default().join(",");
        TraceContext {
            parent: parent.and_then(|text| bounded(text.to_owned(), Self::MAX_PARENT_BYTES)),
            state: bounded(state, Self::MAX_STATE_BYTES),
        }
    }
}

/// The body after the IO processors, and the processors for its answer.
async fn pass_io(state: &AppState, route: &'static str, id: &str, body: Value) -> Result<(Value, IoRun), ApiError> {
    if state.io.is_empty() {
        return Ok((body, IoRun::default()));
    }
    Ok(state.io.open(route, id, body).await?)
}

fn log_prompts(state: &AppState, answer: &Answer) {
    for prompt in &answer.prompts {
        let most = state.serving.max_log_len.unwrap_or(usize::MAX);
        let text = prompt.text.as_deref().map(|text| beginning(text, most));
        let token_ids = &prompt.token_ids[..prompt.token_ids.len().min(most)];
        tracing::info!(id = %answer.id, prompt = text, ?token_ids, "prompt");
    }
}

/// The first `most` characters.
fn beginning(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

/// Submits a request and answers it.
async fn answer(
    state: Arc<AppState>,
    job: Job,
    keeper: Option<Keeper>,
    ticket: Option<Arc<Ticket>>,
    api: &Api,
) -> Result<Response, ApiError> {
    let Job {
        mut answer,
        format,
        requests,
        io,
        ..
    } = job;
    let in_flight = InFlight::enter(&state);
    let seat = AbortSeat::take(&state.abortable, &answer.id, api);
    let num_samples = requests.first().map_or(1, |request| request.params.n as usize);
    let tokens = TokenCount::of_prompts(&answer.prompts);
    if let Some(ticket) = &ticket {
        ticket.submitted(Submitted {
            id: answer.id.clone(),
            model: answer.model.clone(),
            is_stream: answer.streaming.stream,
            num_sequences: u32::try_from(requests.len() * num_samples).unwrap_or(u32::MAX),
            prompt_tokens: tokens.prompt(),
            generation_tokens: tokens.counter(),
        });
    }
    let mut streams = Vec::with_capacity(requests.len());
    for request in requests {
        let submitted = state.engine.submit(request);
        streams.push(submitted.map_err(|error| format.refusal(error))?);
    }
    let is_stream = answer.streaming.stream;
    let is_background = keeper.as_ref().is_some_and(Keeper::is_background);
    answer.streaming.stream |= is_background;
    let chunks = merge(streams, &seat, u32::try_from(num_samples).unwrap_or(u32::MAX));
    let exchange = Exchange {
        writer: AnswerWriter::new(answer, format, num_samples),
        io,
        keeper,
        tokens: tokens.clone(),
        _ticket: ticket,
        _in_flight: in_flight,
        seat,
    };
    let mut response = if is_background {
        background::start(exchange, chunks, is_stream, state.serving.sse_keep_alive)?
    } else if is_stream {
        stream_answer(exchange, chunks, state.serving.sse_keep_alive)
    } else {
        whole_answer(exchange, chunks).await?
    };
    response.extensions_mut().insert(tokens);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::{TraceContext, beginning};
    use axum::http::{HeaderMap, HeaderName, HeaderValue};

    #[test]
    fn a_trace_is_taken_from_headers_of_text_and_of_bounded_length() {
        let of = |lines: &[(&'static str, &[u8])]| {
            let pair = |&(name, value): &(&'static str, &[u8])| {
                let value = HeaderValue::from_bytes(value).expect("a header's bytes");
                (HeaderName::from_static(name), value)
            };
            TraceContext::of(&lines.iter().map(pair).collect::<HeaderMap>())
        };
        let parent = "00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01";
        assert_eq!(of(&[]), TraceContext::default());
        let proxied = of(&[
            ("traceparent", parent.as_bytes()),
            ("tracestate", b"a=1,b=2"),
            ("tracestate", b"c=3"),
        ]);
        assert_eq!(proxied.parent.as_deref(), Some(parent));
        assert_eq!(proxied.state.as_deref(), Some("a=1,b=2,c=3"));
        for (bytes, is_taken) in [(128, true), (129, false)] {
            assert_eq!(of(&[("traceparent", &vec![b'0'; bytes])]).parent.is_some(), is_taken);
        }
        for (bytes, is_taken) in [(512, true), (513, false)] {
            assert_eq!(of(&[("tracestate", &vec![b'0'; bytes])]).state.is_some(), is_taken);
        }
        let garbage = of(&[
            ("traceparent", b"\xff"),
            ("tracestate", b"a=1"),
            ("tracestate", b"\xff"),
        ]);
        assert_eq!(garbage, TraceContext::default());
    }

    #[test]
    fn the_log_shows_whole_characters() {
        assert_eq!(beginning("äöü", 2), "äö");
        assert_eq!(beginning("äöü", 3), "äöü");
        assert_eq!(beginning("äöü", 0), "");
        assert_eq!(beginning("äöü", usize::MAX), "äöü");
    }
}
