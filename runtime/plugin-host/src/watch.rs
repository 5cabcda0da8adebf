//! Names a library whose constructor, entry point or list of devices does not return: whoever loads it would wait
//! without a word.
//!
//! While constructors run, the system's loader holds a lock that a thread needs which first uses a thread-local with a
//! destructor (`__cxa_thread_atexit_impl`). So the watching thread is there before they run, and it uses nothing of
//! that kind: no channel, and no log but a line on standard error.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Libraries of GPUs take up to two seconds on a machine that has not read them yet.
const LONG: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq)]
enum State {
    NotWatched,
    Watched,
    Over,
}

type Shared = Arc<(Mutex<State>, Condvar)>;

/// Lasts as long as the code that it watches.
pub(crate) struct Watch {
    shared: Shared,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Over the library at `path`, whose code is run now. Without a thread nothing is said.
    pub(crate) fn over(path: &Path) -> Watch {
        Watch::with(path, LONG, |text| {
            let _ = writeln!(std::io::stderr(), "halyard: {text}");
        })
    }

    fn with(path: &Path, long: Duration, say: impl FnOnce(&str) + Send + 'static) -> Watch {
        let shared: Shared = Arc::new((Mutex::new(State::NotWatched), Condvar::new()));
        let text = format!(
            "{}: it has been loading for {} s, and what loads it waits; if its constructor or entry point does not \
             return, choose another platform by --platform, take the plugin's flag away, or leave it out of \
             --plugins-lock",
            path.display(),
            long.as_secs()
        );
        let own = Arc::clone(&shared);
        let wait = move || {
            change(&own, State::Watched);
            if !wait_until(&own, State::Over, long) {
                say(&text);
            }
        };
        let thread = thread::Builder::new().name("plugin-watch".to_owned()).spawn(wait);
        if thread.is_ok() {
            wait_until(&shared, State::Watched, LONG);
        }
        Watch {
            shared,
            thread: thread.ok(),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        change(&self.shared, State::Over);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What is over stays so.
fn change(shared: &Shared, state: State) {
    let mut now = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
    if *now != State::Over {
        *now = state;
        shared.1.notify_all();
    }
}

/// False: not within `long`.
fn wait_until(shared: &Shared, state: State, long: Duration) -> bool {
    let now = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = shared.1.wait_timeout_while(now, long, |now| *now != state);
    *waited.unwrap_or_else(PoisonError::into_inner).0 == state
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_takes_long_is_named_once() {
        let (said, texts) = mpsc::channel();
        let watch = Watch::with(Path::new("/a/libslow.so"), Duration::from_millis(1), move |text| {
            said.send(text.to_owned()).expect("somebody listens");
        });
        let text = texts.recv().expect("it is said");
        assert!(text.starts_with("/a/libslow.so: "), "{text}");
        drop(watch);
        assert!(texts.recv().is_err(), "and nothing more");
    }

    #[test]
    fn what_ends_soon_is_not_waited_for() {
        let (said, texts) = mpsc::channel::<()>();
        let never = Duration::from_secs(3600);
        drop(Watch::with(Path::new("/a/libquick.so"), never, move |_| {
            said.send(()).expect("somebody listens");
        }));
        assert!(texts.recv().is_err());
    }
}
