//! The generation requests that run, so that an operator can end them. Answers of chat and completions then end as they
//! are, with the finish reason `abort`; those of other APIs, which have no word for it, with an error.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use halyard_engine::{FinishReason, OutputChunk};
use tokio::sync::watch;

use crate::api_error::ApiError;
use crate::openai::api::Api;
use crate::openai::refusals::failure;

/// The generation requests that run, by the ids that clients know.
#[derive(Debug, Default)]
pub struct Abortable {
    running: Mutex<Vec<Arc<Running>>>,
}

#[derive(Debug)]
struct Running {
    /// The answer's id, such as `chatcmpl-…`.
    id: String,
    /// Its beginning that the API adds to the request's id.
    prefix: &'static str,
    abort: watch::Sender<bool>,
}

impl Running {
    fn is(&self, asked: &str) -> bool {
        self.id == asked || self.id.strip_prefix(self.prefix) == Some(asked)
    }
}

impl Abortable {
    fn running(&self) -> MutexGuard<'_, Vec<Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the requests of these ids; without any, all of them. Returns how many it ended.
    pub(super) fn abort(&self, ids: Option<&BTreeSet<&str>>) -> usize {
        let running = self.running();
        let asked = |known: &&Arc<Running>| ids.is_none_or(|ids| ids.iter().any(|id| known.is(id)));
        running
            .iter()
            .filter(asked)
            .filter(|known| !known.abort.send_replace(true))
            .count()
    }
}

/// A request's place among those that can be ended; left when dropped.
pub(super) struct AbortSeat {
    all: Arc<Abortable>,
    running: Arc<Running>,
    says_abort: bool,
}

impl AbortSeat {
    pub(super) fn take(all: &Arc<Abortable>, id: &str, api: &Api) -> AbortSeat {
        let running = Arc::new(Running {
            id: id.to_owned(),
            prefix: api.id_prefix,
            abort: watch::Sender::new(false),
        });
        all.running().push(Arc::clone(&running));
        AbortSeat {
            all: Arc::clone(all),
            running,
            says_abort: api.says_abort,
        }
    }

    /// The error of a chunk that is no answer's end. None where the operator ended it and its API has a word for that:
    /// then the answer ends as it is.
    pub(super) fn failure(&self, chunk: &OutputChunk) -> Option<ApiError> {
        let finish = chunk.finish.as_ref()?;
        let was_ended = *finish == FinishReason::Paused || *self.running.abort.borrow();
        failure(finish).filter(|_| !(self.says_abort && was_ended))
    }

    /// The chunks of one prompt until the request is ended: then each of its `num_samples` that has not finished does.
    pub(super) fn until_aborted(
        &self,
        chunks: BoxStream<'static, OutputChunk>,
        num_samples: u32,
    ) -> BoxStream<'static, OutputChunk> {
        let start = UntilAborted {
            chunks: Some(chunks),
            abort: self.running.abort.subscribe(),
            unfinished: (0..num_samples).collect(),
        };
        stream::unfold(start, |mut state| async move { Some((state.next().await?, state)) }).boxed()
    }
}

impl Drop for AbortSeat {
    fn drop(&mut self) {
        self.all.running().retain(|known| !Arc::ptr_eq(known, &self.running));
    }
}

struct UntilAborted {
    /// None once the request was ended: dropping them cancels it.
    chunks: Option<BoxStream<'static, OutputChunk>>,
    abort: watch::Receiver<bool>,
    unfinished: BTreeSet<u32>,
}

impl UntilAborted {
    async fn next(&mut self) -> Option<OutputChunk> {
        if let Some(chunks) = &mut self.chunks {
            tokio::select! {
                biased;
                // The sender stays as long as the answer.
                Ok(_) = self.abort.wait_for(|abort| *abort) => {}
                chunk = chunks.next() => {
                    let chunk = chunk?;
                    if chunk.finish.is_some() {
                        self.unfinished.remove(&chunk.index);
                    }
                    return Some(chunk);
                }
            }
            self.chunks = None;
        }
        let index = self.unfinished.pop_first()?;
        Some(OutputChunk {
            finish: Some(FinishReason::Abort("by POST /abort_requests".to_owned())),
            ..OutputChunk::empty(index)
        })
    }
}
