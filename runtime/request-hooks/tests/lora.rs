//! Resolving names: one call for all requests that wait, a memory with a lifetime and a bound, the next resolver after
//! a failure, and errors that are the client's or pass.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use halyard_platform_api::lora_resolver::{LoraQuery, LoraResolver, LoraResolverFactory};
use halyard_platform_api::{Error, Result, Status};
use halyard_plugin_host::Plugin;
use halyard_request_hooks::{LoraResolvers, ResolveError, ResolverSettings};

type Answer = dyn Fn(&str) -> Result<Option<PathBuf>> + Send + Sync;

/// A resolver that does what `answer` says and counts how often it is asked.
struct Scripted {
    asked: AtomicUsize,
    answer: Box<Answer>,
}

struct ScriptedFactory(Arc<Scripted>);

impl LoraResolverFactory for ScriptedFactory {
    fn create(&self, _: &str) -> Result<Arc<dyn LoraResolver>> {
        Ok(self.0.clone())
    }
}

impl LoraResolver for Scripted {
    fn resolve(&self, query: &LoraQuery<'_>) -> Result<Option<PathBuf>> {
        assert_eq!(query.base_model, "base");
        self.asked.fetch_add(1, Ordering::Relaxed);
        (self.answer)(query.name)
    }
}

impl Scripted {
    fn new(answer: impl Fn(&str) -> Result<Option<PathBuf>> + Send + Sync + 'static) -> Arc<Scripted> {
        Arc::new(Scripted {
            asked: AtomicUsize::new(0),
            answer: Box::new(answer),
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn found(name: &str) -> Result<Option<PathBuf>> {
    Ok(Some(PathBuf::from("/adapters").join(name)))
}

fn resolvers(list: &[&Arc<Scripted>], settings: ResolverSettings) -> LoraResolvers {
    let chosen = list.iter().enumerate().map(|(index, scripted)| {
        let factory: Arc<dyn LoraResolverFactory> = Arc::new(ScriptedFactory(Arc::clone(scripted)));
        (format!("r{index}"), factory, "{}".to_owned())
    });
    LoraResolvers::create(chosen.collect(), "base".to_owned(), settings).expect("they start")
}

/// A resolver that answers when the sender is dropped; the receiver gets a message when it is asked.
fn held() -> (Arc<Scripted>, Sender<()>, Receiver<()>) {
    let (release, released) = channel::<()>();
    let (tell, asked) = channel();
    let (released, tell) = (Mutex::new(released), Mutex::new(tell));
    let scripted = Scripted::new(move |name| {
        let _ = tell.lock().expect("one at a time").send(());
        let _ = released.lock().expect("one at a time").recv();
        found(name)
    });
    (scripted, release, asked)
}

async fn asked_once(asked: Receiver<()>) -> Receiver<()> {
    tokio::task::spawn_blocking(move || {
        asked.recv().expect("it is asked");
        asked
    })
    .await
    .expect("waits")
}

#[tokio::test]
async fn all_who_wait_for_a_name_share_one_question() {
    let (scripted, release, asked) = held();
    let resolvers = resolvers(&[&scripted], ResolverSettings::default());
    // The first caller goes away; the others get the answer all the same.
    let first = tokio::spawn({
        let resolvers = resolvers.clone();
        async move { resolvers.resolve("a").await }
    });
    asked_once(asked).await;
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let resolvers = resolvers.clone();
            tokio::spawn(async move { resolvers.resolve("a").await })
        })
        .collect();
    first.abort();
    tokio::task::yield_now().await;
    drop(release);
    for waiting in waiting {
        let location = waiting.await.expect("runs").expect("answered").expect("found");
        assert_eq!(
            (location.path, location.resolver.as_str()),
            (PathBuf::from("/adapters/a"), "r0")
        );
    }
    assert_eq!(scripted.asked(), 1);
    resolvers.resolve("a").await.expect("answered");
    assert_eq!(
        scripted.asked(),
        2,
        "an answer is not kept: loaded adapters are the caller's to remember"
    );
}

#[tokio::test(start_paused = true)]
async fn a_name_without_an_adapter_is_remembered_for_a_while() {
    let scripted = Scripted::new(|_| Ok(None));
    let settings = ResolverSettings {
        max_negative: 2,
        ..ResolverSettings::default()
    };
    let resolvers = resolvers(&[&scripted], settings);
    for _ in 0..3 {
        assert_eq!(resolvers.resolve("a").await, Ok(None));
    }
    assert_eq!(scripted.asked(), 1);
    tokio::time::advance(settings.negative_lifetime).await;
    assert_eq!(resolvers.resolve("a").await, Ok(None));
    assert_eq!(scripted.asked(), 2, "its time was over");
    // The table holds two names; a third one takes the oldest one's place.
    resolvers.resolve("b").await.expect("answered");
    resolvers.resolve("c").await.expect("answered");
    resolvers.resolve("b").await.expect("remembered");
    assert_eq!(scripted.asked(), 4);
    resolvers.resolve("a").await.expect("answered");
    assert_eq!(scripted.asked(), 5, "it had been forgotten");
}

#[tokio::test]
async fn failures_pass_on_to_the_next_resolver_and_are_not_remembered() {
    let broken = Scripted::new(|_| Err(Error::new(Status::Internal, "its disk is away")));
    let strict = Scripted::new(|name| match name {
        "strange" => Err(Error::new(Status::Denied, "strange names are not served")),
        _ => Ok(None),
    });
    let knows = Scripted::new(|name| if name == "a" { found(name) } else { Ok(None) });
    let all = resolvers(&[&broken, &strict, &knows], ResolverSettings::default());
    let location = all.resolve("a").await.expect("answered").expect("found");
    assert_eq!(location.resolver, "r2");
    let error = all.resolve("b").await.expect_err("one may know it");
    assert!(
        error.http_status() == 503 && error.to_string().contains("its disk is away"),
        "{error}"
    );
    all.resolve("b").await.expect_err("asked again");
    assert_eq!(broken.asked(), 3, "a failure is not remembered");
    assert_eq!(
        all.resolve("strange").await.expect_err("503 before 400").http_status(),
        503
    );
    let sound = resolvers(&[&strict, &knows], ResolverSettings::default());
    let error = sound.resolve("strange").await.expect_err("refused");
    assert_eq!(error, ResolveError::Refused("strange names are not served".to_owned()));
    assert_eq!(error.http_status(), 400);
}

#[tokio::test]
async fn a_resolver_that_hangs_costs_its_deadline_only() {
    let (hangs, release, _asked) = held();
    let knows = Scripted::new(found);
    let settings = ResolverSettings {
        timeout: Duration::from_secs(3),
        ..ResolverSettings::default()
    };
    let both = resolvers(&[&hangs, &knows], settings);
    let location = both.resolve("a").await.expect("answered").expect("found");
    assert_eq!(location.resolver, "r1");
    let alone = resolvers(&[&hangs], settings);
    let error = alone.resolve("a").await.expect_err("no other resolver knows");
    assert!(
        error.http_status() == 503 && error.to_string().contains("r0: did not answer within 3000 ms"),
        "{error}"
    );
    drop(release);
}

#[tokio::test]
async fn names_in_flight_have_a_bound() {
    let (scripted, release, asked) = held();
    let settings = ResolverSettings {
        max_in_flight: 1,
        ..ResolverSettings::default()
    };
    let resolvers = resolvers(&[&scripted], settings);
    let waiting = tokio::spawn({
        let resolvers = resolvers.clone();
        async move { resolvers.resolve("a").await }
    });
    let _asked = asked_once(asked).await;
    let error = resolvers.resolve("b").await.expect_err("one at a time");
    assert_eq!((error.clone(), error.http_status()), (ResolveError::Busy(1), 503));
    drop(release);
    waiting.await.expect("runs").expect("answered");
    resolvers.resolve("b").await.expect("its turn");
}

#[tokio::test]
async fn names_are_checked_before_anybody_is_asked() {
    let scripted = Scripted::new(found);
    let resolvers = resolvers(&[&scripted], ResolverSettings::default());
    for name in ["", "a\nb", &"x".repeat(257)] {
        assert_eq!(resolvers.resolve(name).await.expect_err(name).http_status(), 400);
    }
    assert_eq!(scripted.asked(), 0);
}

mod fragile {
    halyard_platform_api::export_lora_resolver! {
        name: "fragile", version: "1", about: "panics on some names", factory: super::FragileFactory,
    }
}

struct FragileFactory;
struct Fragile;

impl LoraResolverFactory for FragileFactory {
    fn create(&self, _: &str) -> Result<Arc<dyn LoraResolver>> {
        Ok(Arc::new(Fragile))
    }
}

impl LoraResolver for Fragile {
    fn resolve(&self, query: &LoraQuery<'_>) -> Result<Option<PathBuf>> {
        assert_ne!(query.name, "panic", "as asked");
        found(query.name)
    }
}

#[tokio::test]
async fn after_a_panic_the_resolver_is_made_anew() {
    let plugin = Plugin::from_linked(fragile::plugin()).expect("it loads");
    let chosen = vec![(
        "fragile".to_owned(),
        plugin.lora_resolver_factory().expect("its kind"),
        "{}".to_owned(),
    )];
    let resolvers = LoraResolvers::create(chosen, "base".to_owned(), ResolverSettings::default()).expect("starts");
    for _ in 0..2 {
        let error = resolvers.resolve("panic").await.expect_err("panics");
        assert!(
            error.http_status() == 503 && error.to_string().contains("panicked"),
            "{error}"
        );
        resolvers.resolve("a").await.expect("answered").expect("found");
    }
}
