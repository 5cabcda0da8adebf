//! An engine in Python: starting, tokenizing, submitting, ending. Every call that may take time runs without the
//! interpreter's lock.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use halyard_engine::{
    AdapterSource, ControlError, EngineHandle, PauseMode, Request, SamplingParams, SleepLevel, SleepState, WakeTags,
    kv_dtype_name,
};
use halyard_text::{ChatInput, LocalTime};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::error::{EngineDeadError, StartError, refused};
use crate::inbox::Inbox;
use crate::options::Options;
use crate::process::{self, Here};
use crate::stream::Stream;
use crate::waker::Waker;

/// How often a wait looks for signals.
const SIGNAL_PERIOD: Duration = Duration::from_millis(100);

/// A model on a device.
#[pyclass(frozen, module = "halyard._halyard")]
pub struct Engine {
    owner: u32,
    platform: String,
    next_stream: AtomicU64,
    /// Held while an adapter is looked for and added: of requests that bring the same new one, the first adds it.
    adding: Mutex<()>,
    engine: Here<EngineHandle>,
    runtime: Here<Runtime>,
}

/// A chat as Python hands it over.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chat {
    messages: Vec<Value>,
    tools: Option<Value>,
    documents: Option<Value>,
    add_generation_prompt: bool,
    template_variables: Option<serde_json::Map<String, Value>>,
}

fn start_log(filter: &str) -> Result<(), StartError> {
    static STARTED: Once = Once::new();
    let filter = tracing_subscriber::EnvFilter::try_new(filter).map_err(|error| StartError::Option {
        name: "log_level",
        message: format!("`{filter}`: {error}; give error, warn, info, debug or trace"),
    })?;
    STARTED.call_once(|| {
        let log = tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_env_filter(filter);
        // Another extension may have set one in this library's copy: impossible, each library has its own.
        let _ = log.try_init();
    });
    Ok(())
}

fn value_error(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn pause_mode(mode: &str) -> PyResult<PauseMode> {
    match mode {
        "abort" => Ok(PauseMode::Abort),
        "wait" => Ok(PauseMode::Wait),
        "keep" => Ok(PauseMode::Keep),
        other => Err(value_error(format!("mode `{other}` is not abort, wait or keep"))),
    }
}

fn control_error(error: ControlError) -> PyErr {
    match error {
        ControlError::Dead { .. } => EngineDeadError::new_err(error.to_string()),
        ControlError::CannotOpen { .. } | ControlError::OtherModel { .. } => value_error(error),
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

/// Runs `work` on a thread of its own while this one watches for Ctrl-C.
fn interruptible<T: Send + 'static>(py: Python<'_>, work: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    let (sender, receiver) = channel();
    std::thread::Builder::new()
        .name("halyard-load".into())
        .spawn(move || sender.send(work()))?;
    // Receivers are for one thread; this one is not given away while the lock is.
    let receiver = Mutex::new(receiver);
    loop {
        let received = py.detach(|| {
            let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
            receiver.recv_timeout(SIGNAL_PERIOD)
        });
        match received {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(
                    "loading the model panicked; see standard error",
                ));
            }
        }
    }
}

#[pymethods]
impl Engine {
    /// Starts an engine from options as JSON. Ctrl-C ends the wait; what was begun ends by itself.
    #[new]
    fn new(py: Python<'_>, options: &str, log_level: &str) -> PyResult<Engine> {
        let options = Options::read(options)?;
        start_log(log_level)?;
        let owner = process::claim()?;
        let (engine, platform) = interruptible(py, move || options.start())??;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("halyard-text")
            .build()
            .map_err(StartError::Threads)?;
        Ok(Engine {
            owner,
            platform,
            next_stream: AtomicU64::new(0),
            adding: Mutex::new(()),
            engine: Here::new(owner, engine),
            runtime: Here::new(owner, runtime),
        })
    }

    /// Facts of the model, as JSON.
    fn info(&self) -> PyResult<String> {
        let info = self.engine.of()?.info();
        let facts = json!({
            "name": info.name,
            "architecture": info.architecture,
            "max_model_len": info.max_model_len,
            "tensor_parallel_size": info.tensor_parallel_size,
            "vocab_size": info.vocab_size,
            "eos_token_ids": info.eos_token_ids,
            "dtype": format!("{:?}", info.dtype).to_lowercase(),
            "kv_cache_dtype": kv_dtype_name(info.kv_cache_dtype).to_lowercase(),
            "attention_backend": info.attention_backend,
            "block_size": info.block_size,
            "num_gpu_blocks": info.num_blocks,
            "weight_bytes": info.weight_bytes,
            "max_num_seqs": info.max_num_seqs,
            "max_num_batched_tokens": info.max_num_batched_tokens,
            "platform": self.platform,
            "notes": info.notes,
        });
        Ok(facts.to_string())
    }

    /// Sampling defaults of the model's authors, as JSON with the fields that they set.
    fn generation_defaults(&self) -> PyResult<String> {
        let defaults = self.engine.of()?.generation_defaults();
        let mut all = json!({
            "temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "min_p": defaults.min_p,
            "repetition_penalty": defaults.repetition_penalty,
            "presence_penalty": defaults.presence_penalty,
            "frequency_penalty": defaults.frequency_penalty,
            "max_tokens": defaults.max_new_tokens,
        });
        if let Some(fields) = all.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        Ok(all.to_string())
    }

    /// Token ids of a text.
    fn encode(&self, py: Python<'_>, text: &str, add_special_tokens: bool) -> PyResult<Vec<u32>> {
        let engine = self.engine.of()?;
        py.detach(|| engine.tokenizer().encode(text, add_special_tokens))
            .map_err(value_error)
    }

    /// The text of token ids.
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        let engine = self.engine.of()?;
        py.detach(|| engine.tokenizer().decode(&ids, skip_special_tokens))
            .map_err(value_error)
    }

    /// A chat, as JSON, in the words of the model's template.
    fn render_chat(&self, py: Python<'_>, chat: &str) -> PyResult<String> {
        let engine = self.engine.of()?;
        let chat: Chat = serde_json::from_str(chat).map_err(|error| value_error(format!("messages: {error}")))?;
        if chat.messages.is_empty() {
            return Err(value_error("messages is empty; send at least one message"));
        }
        let template = engine.chat_template().ok_or(halyard_text::TextError::NoChatTemplate);
        let template = template.map_err(value_error)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = LocalTime {
            unix_seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            utc_offset_seconds: 0,
        };
        let input = ChatInput {
            messages: &chat.messages,
            tools: chat.tools.as_ref(),
            documents: chat.documents.as_ref(),
            add_generation_prompt: chat.add_generation_prompt,
            extra: chat.template_variables.as_ref(),
            now: Some(now),
            cancel: None,
        };
        py.detach(|| template.render(&input)).map_err(value_error)
    }

    /// Queues a request; `params` is the engine's `SamplingParams` as JSON.
    #[pyo3(signature = (request_id, prompt, params, *, lora=None, priority=0, cache_salt=None, waker=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn submit(
        &self,
        py: Python<'_>,
        request_id: String,
        prompt: Vec<u32>,
        params: &str,
        lora: Option<String>,
        priority: i32,
        cache_salt: Option<String>,
        waker: Option<&Waker>,
    ) -> PyResult<Stream> {
        let engine = self.engine.of()?;
        let params: SamplingParams =
            serde_json::from_str(params).map_err(|error| value_error(format!("SamplingParams: {error}")))?;
        let (num_samples, scored) = (params.n, params.logprobs.is_some());
        let request = Request {
            lora,
            priority,
            cache_salt,
            ..Request::new(request_id, prompt, params)
        };
        let engine = engine.clone();
        // A structured output is compiled here.
        let output = py.detach(|| engine.submit(request)).map_err(refused)?;
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        let bell = waker.map(|waker| Arc::clone(&waker.bell));
        let inbox = Arc::new(Inbox::new(number, num_samples, bell));
        let runtime = self.runtime.of()?.handle();
        Ok(Stream::start(
            runtime,
            self.owner,
            engine,
            output,
            (number, scored),
            inbox,
        ))
    }

    /// Makes an adapter known by a name, unless there is one of that name.
    fn ensure_lora(&self, py: Python<'_>, name: &str, folder: PathBuf) -> PyResult<()> {
        let engine = self.engine.of()?;
        // Without the lock, so that a known adapter does not wait for the files of another.
        if engine.has_adapter(name) {
            return Ok(());
        }
        py.detach(|| {
            let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
            if engine.has_adapter(name) {
                return Ok(());
            }
            engine.add_adapter(name, AdapterSource::Folder(folder))
        })
        .map_err(value_error)
    }

    /// Raises when the engine does not run.
    fn check_health(&self) -> PyResult<()> {
        let engine = self.engine.of()?;
        engine.health().map_err(EngineDeadError::new_err)
    }

    /// Holds generation; `mode` is abort, wait or keep.
    fn pause(&self, py: Python<'_>, mode: &str, clear_cache: bool) -> PyResult<()> {
        let (engine, mode) = (self.engine.of()?, pause_mode(mode)?);
        py.detach(|| engine.pause(mode, clear_cache).blocking_wait())
            .map_err(control_error)
    }

    /// Ends a pause.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.engine.of()?;
        py.detach(|| engine.resume().blocking_wait()).map_err(control_error)
    }

    /// Whether generation is held.
    fn is_paused(&self) -> PyResult<bool> {
        Ok(self.engine.of()?.is_paused())
    }

    /// Forgets cached prefixes. False: requests that run use blocks.
    fn reset_prefix_cache(&self, py: Python<'_>, reset_running_requests: bool) -> PyResult<bool> {
        let engine = self.engine.of()?;
        py.detach(|| engine.reset_prefix_cache(reset_running_requests).blocking_wait())
            .map_err(control_error)
    }

    /// Gives the device's memory back.
    fn sleep(&self, py: Python<'_>, level: u32, mode: &str) -> PyResult<()> {
        let (engine, mode) = (self.engine.of()?, pause_mode(mode)?);
        let level = match level {
            1 => SleepLevel::One,
            2 => SleepLevel::Two,
            other => return Err(value_error(format!("level is {other}; it must be 1 or 2"))),
        };
        py.detach(|| engine.sleep(level, mode).blocking_wait())
            .map_err(control_error)
    }

    /// Brings the model back; without tags all of it.
    #[pyo3(signature = (tags=None))]
    fn wake_up(&self, py: Python<'_>, tags: Option<Vec<String>>) -> PyResult<()> {
        let engine = self.engine.of()?;
        let mut asked = WakeTags {
            weights: tags.is_none(),
            kv_cache: tags.is_none(),
        };
        for tag in tags.iter().flatten() {
            match tag.as_str() {
                "weights" => asked.weights = true,
                "kv_cache" => asked.kv_cache = true,
                other => return Err(value_error(format!("tag `{other}` is not weights or kv_cache"))),
            }
        }
        py.detach(|| engine.wake_up(asked).blocking_wait())
            .map_err(control_error)
    }

    /// Whether the model is off the device.
    fn is_sleeping(&self) -> PyResult<bool> {
        Ok(self.engine.of()?.sleep_state() != SleepState::Awake)
    }

    /// Puts the weights of another folder in the place of the present ones.
    fn reload_weights(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let engine = self.engine.of()?;
        py.detach(|| engine.reload_weights(&path).map(drop))
            .map_err(control_error)
    }

    /// Takes no more requests, aborts what runs after `seconds`, and gives the device back.
    fn shutdown(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        if !process::is_here(self.owner) {
            return Ok(());
        }
        let limit = Duration::try_from_secs_f64(seconds).map_err(value_error)?;
        let engine = self.engine.of()?;
        py.detach(|| engine.shutdown(limit));
        Ok(())
    }
}
