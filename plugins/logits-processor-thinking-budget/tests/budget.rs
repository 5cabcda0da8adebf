//! The plugin as the host meets it: through its entry and tables.

use std::sync::Arc;

use halyard_logits_processor_thinking_budget::plugin;
use halyard_platform_api::logits_processor::{LogitBias, LogitsModel, LogitsProcessor, LogitsRequest, LogitsRow};
use halyard_platform_api::{Result, Status};
use halyard_plugin_host::Plugin;

/// A tokenizer of bytes, with two special tokens.
struct Bytes;

impl LogitsModel for Bytes {
    fn vocab_size(&self) -> u32 {
        260
    }

    fn end_tokens(&self) -> &[u32] {
        &[258]
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let text = text.replace("<think>", "\u{1}").replace("</think>", "\u{2}");
        let token = |byte: u8| match byte {
            1 => 256,
            2 => 257,
            byte => u32::from(byte),
        };
        Ok(text.bytes().map(token).collect())
    }

    fn token_bytes(&self, token: u32) -> Result<Vec<u8>> {
        Ok(u8::try_from(token).map_or_else(|_| Vec::new(), |byte| vec![byte]))
    }
}

fn processor(config: &str) -> Result<Arc<dyn LogitsProcessor>> {
    let plugin = Plugin::from_linked(plugin()).expect("starts");
    plugin
        .logits_processor_factory()
        .expect("a logits processor")
        .create(config, Arc::new(Bytes))
}

/// What a model that says `said`, a token at a time, ends up saying; `None`: the processor takes no part.
fn text(config: &str, args: &str, prompt: &str, said: &str) -> Option<String> {
    let processor = processor(config).expect("configured");
    let opened = processor.open(&LogitsRequest {
        id: "1",
        prompt: &Bytes.encode(prompt).expect("bytes"),
        max_tokens: 100,
        args,
    });
    let mut sample = opened.expect("taken")?.start(0).expect("begins");
    let mut said = Bytes.encode(said).expect("bytes").into_iter();
    let (mut text, mut last) = (String::new(), Vec::new());
    loop {
        let (mut mask, mut room) = ([u32::MAX; 9], [LogitBias::default(); 4]);
        let mut row = LogitsRow::new(260, &mut mask, &mut room).expect("260 tokens");
        sample.process(&last, &mut row).expect("goes on");
        let allowed: Vec<u32> = (0..260).filter(|&token| row.allows(token)).collect();
        let token = match allowed[..] {
            [only] => only,
            _ => match said.next() {
                Some(token) => token,
                None => return Some(text),
            },
        };
        match token {
            256 => text += "<think>",
            257 => text += "</think>",
            byte => text.push(char::from_u32(byte).expect("a byte")),
        }
        last = vec![token];
    }
}

#[test]
fn a_request_or_the_operator_sets_the_budget() {
    let budget = |number: i64| format!(r#"{{"thinking_token_budget": {number}}}"#);
    let of = |config: &str, args: &str| text(config, args, "a", "<think>bcdefg</think>h");
    assert_eq!(of("{}", &budget(3)).as_deref(), Some("<think>bcd</think>efg</think>h"));
    assert_eq!(
        of(r#"{"budget": "2"}"#, "{}").as_deref(),
        Some("<think>bc</think>defg</think>h")
    );
    assert_eq!(
        of(r#"{"budget": 2}"#, &budget(0)).as_deref(),
        Some("<think></think>bcdefg</think>h")
    );
    // Nothing to bound: no part, so that the rows wait for nobody.
    assert_eq!(of("{}", "{}"), None);
    assert_eq!(of("{}", r#"{"other": 1}"#), None);
    assert_eq!(of(r#"{"budget": 2}"#, &budget(-1)), None);
    assert!(processor("{}").expect("configured").reads("thinking_token_budget"));
    assert!(!processor("{}").expect("configured").reads("other"));
}

#[test]
fn a_text_may_be_forced_before_the_end() {
    let config = r#"{"end_text": ".Enough.</think>", "budget": 2}"#;
    let said = text(config, "{}", "a<think>x", "yz").expect("takes part");
    assert_eq!(said, "y.Enough.</think>z");
    let config = r#"{"start": "[[", "end": "]]", "budget": 2}"#;
    assert_eq!(text(config, "{}", "", "[[abcd").expect("takes part"), "[[ab]]cd");
}

#[test]
fn what_cannot_be_configured_is_named() {
    for (config, word) in [
        (r#"{"budgets": 1}"#, "budgets"),
        (r#"{"budget": "many"}"#, "budget"),
        (r#"{"budget": -2}"#, "budget"),
        (r#"{"end": ""}"#, "end: the text"),
        (r#"{"start": ""}"#, "start: the text"),
        (r#"{"end_text": "Enough."}"#, "end_text"),
        ("5", "configuration"),
    ] {
        let error = processor(config).err().expect(config);
        assert_eq!(error.status, Status::InvalidArgument, "{config}");
        assert!(error.message.contains(word), "{}", error.message);
    }
}

/// Where a grammar forbids the end, the request says so rather than giving another token.
#[test]
fn an_end_that_may_not_come_is_an_error() {
    let processor = processor(r#"{"budget": 0}"#).expect("configured");
    let request = LogitsRequest {
        id: "1",
        prompt: &[256],
        max_tokens: 9,
        args: "{}",
    };
    let opened = processor.open(&request).expect("taken").expect("takes part");
    let mut sample = opened.start(0).expect("begins");
    let mut mask = [0; 9];
    mask[0] = 1;
    let mut row = LogitsRow::new(260, &mut mask, &mut []).expect("260 tokens");
    let error = sample.process(&[], &mut row).expect_err("forbidden");
    assert!(error.message.contains("token 257"), "{}", error.message);
}
