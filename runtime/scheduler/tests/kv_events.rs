//! Events of the prefix cache: a listener that applies them knows at any time exactly which blocks can be found.

mod common;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use common::{Random, Rig, small, tokens};
use halyard_scheduler::*;
use sha2::{Digest, Sha256};

fn listening(config: SchedulerConfig) -> SchedulerConfig {
    SchedulerConfig {
        enable_kv_cache_events: true,
        ..config
    }
}

fn request(id: u64, prompt: Vec<u32>, max_tokens: u32) -> NewRequest {
    NewRequest::new(RequestId(id), prompt, max_tokens)
}

/// Runs what was added to its end; the events of all steps.
fn run(rig: &mut Rig, request: NewRequest) -> Vec<KvEvent> {
    rig.add(request).expect("accepted");
    rig.run_to_end();
    rig.scheduler.take_kv_events()
}

fn stored(event: &KvEvent) -> &KvStored {
    match event {
        KvEvent::Stored(stored) => stored,
        other => panic!("not stored: {other:?}"),
    }
}

#[test]
fn full_blocks_are_stored_with_parent_and_tokens() {
    let mut rig = Rig::new(listening(small(32)));
    // 14 tokens of the prompt in one step; of 3 generated ones, 2 are computed.
    let events = run(&mut rig, request(1, tokens(1, 14), 3));
    let [first, second] = &events[..] else {
        panic!("{events:?}")
    };
    let (first, second) = (stored(first), stored(second));
    assert_eq!((first.group, first.block_size, first.parent), (0, 4, None));
    assert_eq!(first.tokens, tokens(1, 12));
    assert_eq!(first.hashes.len(), 3);
    assert_eq!(second.parent, Some(first.hashes[2]));
    let mut known = tokens(1, 14);
    known.extend(&rig.outputs[&RequestId(1)]);
    assert_eq!(second.tokens, known[12..16]);
    // What is found is not stored again, and what follows names it.
    known.truncate(16);
    known.extend([5, 6, 7, 8, 9]);
    let events = run(&mut rig, request(2, known.clone(), 1));
    let [third] = &events[..] else { panic!("{events:?}") };
    assert_eq!(stored(third).parent, Some(second.hashes[0]));
    assert_eq!(stored(third).tokens, known[16..20]);
}

#[test]
fn equal_content_that_two_requests_compute_is_stored_once() {
    let mut rig = Rig::new(listening(small(32)));
    rig.add(request(1, tokens(1, 7), 1)).expect("accepted");
    let mut longer = tokens(1, 4);
    longer.extend([9, 9, 9, 9, 9]);
    rig.add(request(2, longer, 1)).expect("accepted");
    rig.run_to_end();
    let events = rig.scheduler.take_kv_events();
    let hashes: Vec<_> = events.iter().flat_map(|event| &stored(event).hashes).collect();
    assert_eq!(hashes.len(), 2, "{events:?}");
    assert_eq!(stored(&events[1]).parent, Some(*hashes[0]), "{events:?}");
}

/// Values of Python's hashlib over the bytes that [`KvBlockHash`] describes.
#[test]
fn names_are_the_sha256_of_what_is_documented() {
    let hex = |hash: &KvBlockHash| -> String { hash.iter().map(|byte| format!("{byte:02x}")).collect() };
    let mut rig = Rig::new(listening(small(32)));
    let events = run(&mut rig, request(1, (1..10).collect(), 1));
    let names: Vec<String> = stored(&events[0]).hashes.iter().map(hex).collect();
    assert_eq!(
        names,
        [
            "31d061343d2772046a347bd421ef3f3f254fafd89a91cbcbea925a2f49ae6478",
            "f7ffd76b7ea4dccb2e22dcd1f2b0bd14e907e9bf0fbb252c09fbf041e0af7c6f",
        ]
    );
    let french = NewRequest {
        lora: Some(7),
        lora_name: Some(Arc::from("french")),
        cache_salt: Some(Arc::from(&b"tenant"[..])),
        ..request(2, vec![1, 2, 3, 4, 5], 1)
    };
    let events = run(&mut rig, french);
    let french = stored(&events[0]);
    assert_eq!(
        hex(&french.hashes[0]),
        "c8958b94333ea95e7ab2afcbe6f6a64efa14972dd4016a6cb08cc5f37e3125b6"
    );
    assert_eq!(french.lora, Some((7, Arc::from("french"))));
    assert_eq!(french.salt.as_deref(), Some(&b"tenant"[..]));
}

#[test]
fn names_do_not_depend_on_the_key_of_the_process() {
    let events = [[1, 2], [3, 4]].map(|hash_key| {
        let mut rig = Rig::new(SchedulerConfig {
            hash_key,
            ..listening(small(32))
        });
        run(&mut rig, request(1, tokens(1, 14), 9))
    });
    assert_eq!(events[0], events[1]);
}

#[test]
fn blocks_that_are_taken_again_are_removed() {
    let mut rig = Rig::new(listening(small(4)));
    let events = run(&mut rig, request(1, tokens(1, 13), 1));
    let old: Vec<KvBlockHash> = stored(&events[0]).hashes.clone();
    assert_eq!(old.len(), 3);
    // 4 blocks, of which 3 hold the first prompt: the last of its blocks go first.
    let events = run(&mut rig, request(2, tokens(2, 9), 1));
    let medium = KvMedium::Device;
    let removed = |hash| KvEvent::Removed { group: 0, hash, medium };
    assert_eq!(events[..2], [removed(old[2]), removed(old[1])], "{events:?}");
    assert_eq!(stored(&events[2]).tokens, tokens(2, 8));
    assert_eq!(events.len(), 3);
}

#[test]
fn a_reset_clears_and_what_ran_before_it_stores_nothing() {
    let mut rig = Rig::new(listening(small(32)));
    rig.add(request(1, tokens(1, 9), 20)).expect("accepted");
    rig.plan().expect("a step");
    rig.read();
    assert_eq!(rig.scheduler.take_kv_events().len(), 1);
    assert_eq!(rig.scheduler.reset_prefix_cache(), 2);
    assert_eq!(rig.scheduler.take_kv_events(), [KvEvent::Cleared]);
    rig.run_to_end();
    assert_eq!(rig.scheduler.take_kv_events(), []);
    let events = run(&mut rig, request(2, tokens(1, 9), 1));
    assert_eq!(stored(&events[0]).hashes.len(), 2, "it is stored anew");
}

#[test]
fn discarded_tokens_are_removed() {
    let mut rig = Rig::new(listening(small(32)));
    rig.add(request(1, tokens(1, 14), 9)).expect("accepted");
    rig.plan().expect("a step");
    rig.read();
    let events = rig.scheduler.take_kv_events();
    let old: HashSet<KvBlockHash> = stored(&events[0]).hashes.iter().copied().collect();
    assert!(rig.scheduler.discard(RequestId(1)));
    let events = rig.scheduler.take_kv_events();
    let removed = events.iter().map(|event| match event {
        KvEvent::Removed { group: 0, hash, .. } => *hash,
        other => panic!("{other:?}"),
    });
    assert_eq!(removed.collect::<HashSet<_>>(), old);
}

#[test]
fn nobody_listens_and_nothing_is_kept() {
    let deaf = [
        small(4),
        SchedulerConfig {
            enable_prefix_caching: false,
            ..listening(small(4))
        },
    ];
    for config in deaf {
        let mut rig = Rig::new(config);
        assert_eq!(run(&mut rig, request(1, tokens(1, 13), 1)), []);
        assert_eq!(run(&mut rig, request(2, tokens(2, 13), 1)), []);
        rig.scheduler.reset_prefix_cache();
        assert_eq!(rig.scheduler.take_kv_events(), []);
    }
}

/// A listener's picture of the cache.
#[derive(Default)]
struct Listener {
    found: HashSet<(KvMedium, u32, KvBlockHash)>,
    /// The tokens of each name ever seen, with the name before it.
    content: HashMap<KvBlockHash, (Option<KvBlockHash>, Vec<u32>)>,
    num: [usize; 4],
}

impl Listener {
    fn apply(&mut self, events: Vec<KvEvent>) {
        for event in events {
            match event {
                KvEvent::Stored(stored) if stored.medium == KvMedium::Host => {
                    self.num[3] += 1;
                    assert_eq!((stored.parent, stored.tokens.len()), (None, 0));
                    for hash in stored.hashes {
                        let found = (stored.medium, stored.group, hash);
                        assert!(self.found.insert(found), "stored twice");
                        assert!(self.content.contains_key(&hash), "it was on the device before");
                    }
                }
                KvEvent::Stored(stored) => {
                    self.num[0] += 1;
                    let size = stored.block_size as usize;
                    assert_eq!(stored.tokens.len(), stored.hashes.len() * size);
                    let mut parent = stored.parent;
                    for (hash, tokens) in stored.hashes.iter().zip(stored.tokens.chunks(size)) {
                        let found = (stored.medium, stored.group, *hash);
                        assert!(self.found.insert(found), "stored twice");
                        if let Some(parent) = parent {
                            let mut hasher = Sha256::new_with_prefix(parent);
                            tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
                            assert_eq!(*hash, <KvBlockHash>::from(hasher.finalize()), "the name's chain");
                        }
                        let content = (parent, tokens.to_vec());
                        let known = self.content.entry(*hash).or_insert_with(|| content.clone());
                        assert_eq!(*known, content, "one name, one content");
                        parent = Some(*hash);
                    }
                }
                KvEvent::Removed { group, hash, medium } => {
                    self.num[1] += 1;
                    let found = (medium, group, hash);
                    assert!(self.found.remove(&found), "removed what was not there");
                }
                KvEvent::Cleared => {
                    self.num[2] += 1;
                    self.found.clear();
                }
            }
        }
    }
}

/// Random requests, preemptions, aborts and resets, with full and window groups of two block sizes.
#[test]
fn a_listener_knows_what_can_be_found() {
    let window = |block_size, tokens| KvGroup {
        kind: KvKind::Window { tokens },
        block_size,
    };
    let full = |block_size| KvGroup {
        kind: KvKind::Full,
        block_size,
    };
    for (seed, groups) in [
        (1, vec![full(4)]),
        (2, vec![full(4), window(4, 6)]),
        (3, vec![window(2, 5), full(4), window(4, 9)]),
    ] {
        let mut config = SchedulerConfig {
            groups,
            max_steps_in_flight: 2,
            num_host_blocks: 20,
            ..listening(small(0))
        };
        config.num_blocks = config.blocks_for(64) as u32 + 7;
        let mut rig = Rig::new(config);
        let (mut random, mut listener) = (Random(seed), Listener::default());
        let salts: [Option<Arc<[u8]>>; 2] = [None, Some(Arc::from(&b"tenant"[..]))];
        for id in 0..1500u64 {
            let pattern = random.below(4) + 1;
            let prompt: Vec<u32> = (0..1 + random.below(50)).map(|at| (at / pattern % 3) as u32).collect();
            let adapter = random.below(2) as u32;
            let new = NewRequest {
                cache_salt: salts[random.below(2) as usize].clone(),
                lora: (adapter > 0).then_some(adapter),
                lora_name: (adapter > 0).then(|| Arc::from("one")),
                cacheable: !random.one_in(5),
                ..request(id, prompt, 1 + random.below(12) as u32)
            };
            let _ = rig.add(new);
            for _ in 0..random.below(4) {
                if rig.device.in_flight.len() == 2 || rig.plan().is_none() {
                    if rig.device.in_flight.is_empty() {
                        break;
                    }
                    rig.read();
                }
            }
            let live: Vec<RequestId> = rig.scheduler.running_ids().collect();
            match random.below(40) {
                0 => assert!(rig.scheduler.reset_prefix_cache() < 1000),
                1..3 => assert!(live.first().is_none_or(|id| rig.scheduler.discard(*id))),
                3..6 => assert!(live.last().is_none_or(|id| rig.scheduler.abort(*id))),
                _ => {}
            }
            listener.apply(rig.scheduler.take_kv_events());
            let counts = rig.scheduler.counts();
            let on_host = listener.found.iter().filter(|found| found.0 == KvMedium::Host).count();
            assert_eq!(
                (listener.found.len() - on_host, on_host),
                (counts.cached_blocks, counts.host_cached_blocks),
                "request {id}"
            );
        }
        assert!(rig.scheduler.counts().preemptions > 20, "{:?}", rig.scheduler.counts());
        assert!(listener.num.iter().all(|num| *num > 20), "{:?}", listener.num);
        assert!(
            rig.scheduler.counts().host_loaded_blocks > 20,
            "{:?}",
            rig.scheduler.counts()
        );
    }
}
