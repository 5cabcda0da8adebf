//! Asks LoRA resolvers for the adapter of a name: in the operator's order, and once for all requests that wait for the
//! same name. Remembers names without an adapter. Every table is bounded, because names come from clients.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use halyard_platform_api::lora_resolver::{LoraQuery, LoraResolver, LoraResolverFactory};
use halyard_platform_api::{Error, Status};

use crate::guard::Guard;
use crate::instance::Instance;

/// Longest name in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Bounds of resolving.
#[derive(Clone, Copy, Debug)]
pub struct ResolverSettings {
    /// For each resolver's answer.
    pub timeout: Duration,
    /// How long a name without an adapter is remembered.
    pub negative_lifetime: Duration,
    /// Most such names.
    pub max_negative: usize,
    /// Most names being resolved at the same time.
    pub max_in_flight: usize,
}

impl Default for ResolverSettings {
    fn default() -> Self {
        ResolverSettings {
            timeout: Duration::from_secs(10),
            negative_lifetime: Duration::from_secs(30),
            max_negative: 1024,
            max_in_flight: 64,
        }
    }
}

/// Where an adapter is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterLocation {
    /// Its folder, absolute.
    pub path: PathBuf,
    /// Name of the resolver that knew it.
    pub resolver: String,
}

/// Why a name could not be resolved. A name without an adapter is no error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The name is not allowed: 400.
    #[error("{0}")]
    Refused(String),
    /// No resolver knows the name, and one could not be asked: 503.
    #[error("the adapter `{name}` could not be looked up: {reasons}")]
    Unavailable {
        /// The name.
        name: String,
        /// Each failed resolver with its reason.
        reasons: String,
    },
    /// Too many names are being resolved: 503.
    #[error("{0} adapters are being looked up, which is the limit; try again")]
    Busy(usize),
}

impl ResolveError {
    /// The HTTP status that tells a client.
    pub fn http_status(&self) -> u16 {
        match self {
            ResolveError::Refused(_) => 400,
            ResolveError::Unavailable { .. } | ResolveError::Busy(_) => 503,
        }
    }
}

type Outcome = Result<Option<AdapterLocation>, ResolveError>;
type Flight = Shared<BoxFuture<'static, Outcome>>;

/// The operator's resolvers.
#[derive(Clone)]
pub struct LoraResolvers {
    inner: Arc<Inner>,
}

struct Inner {
    entries: Vec<Entry>,
    base_model: String,
    settings: ResolverSettings,
    tables: Mutex<Tables>,
}

struct Entry {
    instance: Arc<Instance<dyn LoraResolver>>,
    guard: Guard,
}

#[derive(Default)]
struct Tables {
    flights: HashMap<String, Flight>,
    negative: NegativeCache,
}

impl LoraResolvers {
    /// Makes a resolver of each (name, factory, configuration as JSON), in order, for adapters of `base_model`. Blocks.
    ///
    /// # Errors
    /// The name of the resolver that does not start, and its error.
    pub fn create(
        chosen: Vec<(String, Arc<dyn LoraResolverFactory>, String)>,
        base_model: String,
        settings: ResolverSettings,
    ) -> Result<LoraResolvers, (String, Error)> {
        let entry = |(name, factory, config): (String, Arc<dyn LoraResolverFactory>, String)| {
            let instance =
                Instance::new(name.clone(), move || factory.create(&config)).map_err(|error| (name, error))?;
            Ok(Entry {
                instance: Arc::new(instance),
                guard: Guard::new(settings.timeout),
            })
        };
        Ok(LoraResolvers {
            inner: Arc::new(Inner {
                entries: chosen.into_iter().map(entry).collect::<Result<_, _>>()?,
                base_model,
                settings,
                tables: Mutex::default(),
            }),
        })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.inner.entries.is_empty()
    }

    /// Their names, in order.
    pub fn names(&self) -> Vec<String> {
        let names = self.inner.entries.iter().map(|entry| entry.instance.name().to_owned());
        names.collect()
    }

    /// Where the adapter of `name` is; `None` where no resolver knows it. Requests for the same name wait for one
    /// answer. Call inside a runtime.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub async fn resolve(&self, name: &str) -> Result<Option<AdapterLocation>, ResolveError> {
        check_name(name)?;
        if self.is_empty() {
            return Ok(None);
        }
        let flight = {
            let mut tables = self.inner.lock();
            if tables.negative.has(name, now()) {
                return Ok(None);
            }
            match tables.flights.get(name) {
                Some(flight) => flight.clone(),
                None => {
                    let most = self.inner.settings.max_in_flight;
                    if tables.flights.len() >= most {
                        return Err(ResolveError::Busy(most));
                    }
                    let flight = self.start(name.to_owned());
                    tables.flights.insert(name.to_owned(), flight.clone());
                    flight
                }
            }
        };
        flight.await
    }

    /// Asks in a task of its own: the first caller may go away while others wait.
    fn start(&self, name: String) -> Flight {
        let inner = Arc::clone(&self.inner);
        let task = tokio::spawn(async move {
            let landing = Landing {
                inner: &inner,
                name: &name,
            };
            let outcome = inner.ask(&name).await;
            if outcome == Ok(None) {
                let expires = now() + inner.settings.negative_lifetime;
                inner
                    .lock()
                    .negative
                    .insert(&name, expires, inner.settings.max_negative);
            }
            drop(landing);
            outcome
        });
        let ended = |joined: Result<Outcome, tokio::task::JoinError>| {
            joined.unwrap_or_else(|error| {
                Err(ResolveError::Unavailable {
                    name: String::new(),
                    reasons: error.to_string(),
                })
            })
        };
        task.map(ended).boxed().shared()
    }
}

/// Takes a name out of the table of flights, however its task ends.
struct Landing<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.inner.lock().flights.remove(self.name);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        // Entries are put in and taken out whole.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks one resolver after the other until one knows the name. A failed one (503) weighs more than a refusal (400):
    /// it may know the name.
    async fn ask(&self, name: &str) -> Outcome {
        let mut refusal = None;
        let mut failures = Vec::new();
        for entry in &self.entries {
            let resolver = entry.instance.name().to_owned();
            match self.ask_one(entry, name).await {
                Ok(Some(path)) => return Ok(Some(AdapterLocation { path, resolver })),
                Ok(None) => {}
                Err(error) if matches!(error.status, Status::InvalidArgument | Status::Denied) => {
                    refusal.get_or_insert(error.message);
                }
                Err(error) => {
                    tracing::warn!(resolver, adapter = name, "LoRA resolver: {error}");
                    failures.push(error.message);
                }
            }
        }
        if !failures.is_empty() {
            return Err(ResolveError::Unavailable {
                name: name.to_owned(),
                reasons: failures.join("; "),
            });
        }
        refusal.map_or(Ok(None), |reason| Err(ResolveError::Refused(reason)))
    }

    async fn ask_one(&self, entry: &Entry, name: &str) -> Result<Option<PathBuf>, Error> {
        let (instance, name, base_model) = (Arc::clone(&entry.instance), name.to_owned(), self.base_model.clone());
        let timeout_ms = u32::try_from(self.settings.timeout.as_millis()).unwrap_or(u32::MAX);
        let call = move || {
            instance.with(|resolver| {
                resolver.resolve(&LoraQuery {
                    name: &name,
                    base_model: &base_model,
                    timeout_ms,
                })
            })
        };
        let failed = |failure| Error::new(Status::Timeout, format!("{}: {failure}", entry.instance.name()));
        entry.guard.call(call).await.map_err(failed)?
    }
}

fn check_name(name: &str) -> Result<(), ResolveError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        let shown: String = name.chars().take(80).collect();
        let message = format!(
            "the model name {shown:?} has {} bytes; a name has 1 to {MAX_NAME_BYTES} and no control characters",
            name.len()
        );
        return Err(ResolveError::Refused(message));
    }
    Ok(())
}

/// The runtime's clock, which tests hold.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Names without an adapter, each until its time; of too many the oldest go.
#[derive(Default)]
struct NegativeCache {
    expires: HashMap<String, Instant>,
    /// In the order of insertion, which is that of expiry.
    order: VecDeque<(Instant, String)>,
}

impl NegativeCache {
    fn has(&mut self, name: &str, now: Instant) -> bool {
        while self.order.front().is_some_and(|(expires, _)| *expires <= now) {
            self.pop();
        }
        self.expires.contains_key(name)
    }

    fn insert(&mut self, name: &str, expires: Instant, most: usize) {
        while self.order.len() >= most.max(1) {
            self.pop();
        }
        self.expires.insert(name.to_owned(), expires);
        self.order.push_back((expires, name.to_owned()));
    }

    fn pop(&mut self) {
        if let Some((expired, name)) = self.order.pop_front()
            && self.expires.get(&name) == Some(&expired)
        {
            self.expires.remove(&name);
        }
    }
}
