//! Commands to the engine's thread, from its handles, its readers and the thread that loads adapters.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use halyard_scheduler::{NewRequest, RequestId};

use crate::lora::AdapterError;
use crate::lora::adapter::Adapter;
use crate::model_source::OpenedWeights;
use crate::pause::{Answer, PauseMode};
use crate::sequence::Sequence;
use crate::sleep::{SleepLevel, WakeTags};

/// A command to the engine's thread.
pub(crate) enum Command {
    /// New sequences, all of one request.
    Submit(Vec<(RequestId, Sequence, NewRequest)>),
    /// The reader has what it wants (a stop string), or went away.
    End {
        ids: Vec<RequestId>,
        reason: Option<String>,
    },
    /// A load that the scheduler asked for has ended.
    LoraLoaded {
        /// The adapter.
        number: u32,
        result: Result<(), AdapterError>,
    },
    /// An adapter has a name.
    AddedAdapter(Arc<Adapter>),
    /// An adapter's name was taken away: it goes with its last request.
    RetireAdapter(Arc<Adapter>),
    /// Hold new requests, and those that are there as `mode` says.
    Pause {
        mode: PauseMode,
        clear_cache: bool,
        answer: Answer<()>,
    },
    /// Go on after a pause.
    Resume(Answer<()>),
    /// Pause as `mode` says, and give the device's memory back.
    Sleep {
        level: SleepLevel,
        mode: PauseMode,
        answer: Answer<()>,
    },
    /// Bring the model back; with all of it, go on.
    Wake { tags: WakeTags, answer: Answer<()> },
    /// Put other weights in the place of the present ones. The answer is the former folder.
    Reload {
        opened: Box<OpenedWeights>,
        answer: Answer<PathBuf>,
    },
    /// Forget all cached prefixes.
    ResetPrefixCache {
        reset_running_requests: bool,
        answer: Answer<bool>,
    },
    /// Finish what runs until the deadline, then abort the rest.
    Shutdown(Instant),
}
