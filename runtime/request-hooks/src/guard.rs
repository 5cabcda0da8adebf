//! A call into foreign code: on a blocking thread, with a deadline, and with a bound on how many run at once.
//!
//! A call cannot be stopped. One that passes its deadline keeps its thread, and its place among the calls that may run,
//! until it returns; so a plugin that hangs holds at most that many threads, and later callers get the error that it is
//! busy.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// Calls into one plugin that may run at the same time, hanging ones included. The runtime has several hundred blocking
/// threads.
const MAX_CALLS: usize = 32;

/// Why a call gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFailure {
    /// Every place was taken until the deadline.
    #[error("is busy: {running} calls run, none of which ended within {} ms", .waited.as_millis())]
    Busy {
        /// Calls that run.
        running: usize,
        /// The deadline.
        waited: Duration,
    },
    /// The call goes on, but no caller waits for it.
    #[error("did not answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The call ended in a panic of the host's side of it.
    #[error("ended abnormally: {0}")]
    Ended(String),
}

/// Bounds the calls into one plugin.
#[derive(Clone, Debug)]
pub struct Guard {
    timeout: Duration,
    max_calls: usize,
    places: Arc<Semaphore>,
}

impl Guard {
    /// A guard whose callers wait at most `timeout`.
    pub fn new(timeout: Duration) -> Guard {
        Guard::with_places(timeout, MAX_CALLS)
    }

    /// As [`Guard::new`], with another bound on calls at the same time.
    pub fn with_places(timeout: Duration, max_calls: usize) -> Guard {
        Guard {
            timeout,
            max_calls,
            places: Arc::new(Semaphore::new(max_calls)),
        }
    }

    /// The deadline of a call.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Runs `function` on a blocking thread. Past the deadline its result is dropped there, whenever it comes.
    ///
    /// # Errors
    /// [`CallFailure`].
    pub async fn call<T, F>(&self, function: F) -> Result<T, CallFailure>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let deadline = Instant::now() + self.timeout;
        let place = match timeout_at(deadline, Arc::clone(&self.places).acquire_owned()).await {
            Ok(Ok(place)) => place,
            Ok(Err(closed)) => return Err(CallFailure::Ended(closed.to_string())),
            Err(_) => {
                return Err(CallFailure::Busy {
                    running: self.max_calls,
                    waited: self.timeout,
                });
            }
        };
        // The place is given back after the result has been taken or dropped.
        let task = tokio::task::spawn_blocking(move || (function(), place));
        match timeout_at(deadline, task).await {
            Ok(Ok((result, _))) => Ok(result),
            Ok(Err(ended)) => Err(CallFailure::Ended(ended.to_string())),
            Err(_) => Err(CallFailure::Timeout(self.timeout)),
        }
    }

    /// Drops an object of the plugin on a blocking thread, when there is a place; outside a runtime here and now.
    pub fn drop_later<T: Send + 'static>(&self, object: T) {
        match Handle::try_current() {
            Ok(runtime) => self.drop_on(&runtime, object),
            Err(_) => drop(object),
        }
    }

    /// The same from any thread, on a blocking thread of `runtime`.
    pub fn drop_on<T: Send + 'static>(&self, runtime: &Handle, object: T) {
        let places = Arc::clone(&self.places);
        runtime.spawn(async move {
            let place = places.acquire_owned().await;
            tokio::task::spawn_blocking(move || {
                drop(object);
                drop(place);
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn a_hanging_call_keeps_its_place_until_it_returns() {
        let guard = Guard::with_places(Duration::from_secs(2), 1);
        let patient = Guard {
            timeout: Duration::from_secs(60),
            ..guard.clone()
        };
        assert_eq!(patient.call(|| 7).await, Ok(7));
        let (release, released) = channel::<()>();
        let hung = guard.call(move || released.recv().is_err()).await;
        assert_eq!(hung, Err(CallFailure::Timeout(Duration::from_secs(2))));
        let busy = guard.call(|| 8).await.expect_err("the only place is taken");
        assert!(matches!(busy, CallFailure::Busy { running: 1, .. }), "{busy}");
        drop(release);
        // The place is free again when the call has returned.
        assert_eq!(patient.call(|| 9).await, Ok(9));
    }

    #[tokio::test]
    async fn calls_and_drops_leave_the_runtimes_own_threads() {
        struct Tells(std::sync::mpsc::Sender<std::thread::ThreadId>);
        impl Drop for Tells {
            fn drop(&mut self) {
                let _ = self.0.send(std::thread::current().id());
            }
        }
        let guard = Guard::new(Duration::from_secs(60));
        let here = std::thread::current().id();
        assert_ne!(guard.call(|| std::thread::current().id()).await, Ok(here));
        let (sender, receiver) = channel();
        guard.drop_later(Tells(sender));
        let dropped_on = tokio::task::spawn_blocking(move || receiver.recv())
            .await
            .expect("waits");
        assert_ne!(dropped_on.expect("it was dropped"), here);
    }
}
