//! Incremental decoding: characters stay whole, and the pieces are the full decode.

use std::path::PathBuf;

use halyard_models::SplitMix64;
use halyard_text::{Detokenizer, GgufTokenizer, Tokenizer};

#[derive(serde::Deserialize)]
struct Golden {
    gguf: GgufTokenizer,
}

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn from_gguf(name: &str) -> Tokenizer {
    let bytes = std::fs::read(golden_path(name)).expect("the golden is committed");
    let mut golden: Golden = serde_json::from_slice(&bytes).expect("the golden parses");
    golden.gguf.pre.get_or_insert_with(|| "gpt-2".to_owned());
    Tokenizer::from_gguf(&golden.gguf).expect("builds")
}

/// Every kind of vocabulary, with its name.
fn tokenizers() -> Vec<(&'static str, Tokenizer)> {
    let load = |name: &str| Tokenizer::from_file(&golden_path(name)).expect("loads");
    vec![
        ("bpe", from_gguf("bpe.json")),
        ("spm", from_gguf("spm.json")),
        ("spm_no_prefix", from_gguf("spm_no_prefix.json")),
        ("tokenizer.json", load("bpe_tokenizer.json")),
        ("wordpiece", load("wordpiece_tokenizer.json")),
    ]
}

fn pieces(tokenizer: &Tokenizer, prompt: &[u32], ids: &[u32], skip: bool) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer, prompt, skip);
    let mut pieces: Vec<String> = ids
        .iter()
        .map(|id| detokenizer.push(*id).expect("decodes").to_owned())
        .collect();
    pieces.push(detokenizer.finish().expect("decodes").to_owned());
    pieces
}

#[test]
fn pieces_concatenate_to_the_full_decode() {
    for (name, tokenizer) in tokenizers() {
        let mut random = SplitMix64(42);
        for round in 0..500 {
            let ids: Vec<u32> = (0..random.index(40))
                .map(|_| random.index(tokenizer.vocab_size()) as u32)
                .collect();
            let skip = round % 2 == 0;
            let whole = tokenizer.decode(&ids, skip).expect("decodes");
            assert_eq!(pieces(&tokenizer, &[], &ids, skip).concat(), whole, "{name} {ids:?}");
        }
    }
}

#[test]
fn kept_special_tokens_give_their_text_and_the_others_do_not() {
    let mut compared = 0;
    for (name, tokenizer) in tokenizers() {
        let special: Vec<u32> = (0..tokenizer.vocab_size() as u32)
            .filter(|id| tokenizer.is_special(*id))
            .collect();
        let [kept, others @ ..] = &special[..] else { continue };
        let plain = (0..).find(|id| !tokenizer.is_special(*id) && !tokenizer.token_bytes(*id).expect("ids").is_empty());
        let plain = plain.expect("a token");
        let mut ids = vec![plain, *kept, plain];
        ids.extend(others);
        ids.push(*kept);
        let mut detokenizer = Detokenizer::new(&tokenizer, &[], true).keeping(&[*kept]);
        let mut text = String::new();
        for id in &ids {
            text.push_str(detokenizer.push(*id).expect("decodes"));
        }
        text.push_str(detokenizer.finish().expect("decodes"));
        ids.retain(|id| !others.contains(id));
        assert_eq!(text, tokenizer.decode(&ids, false).expect("decodes"), "{name}");
        compared += others.len();
    }
    assert!(compared > 2, "{compared} special tokens were left out");
}

#[test]
fn byte_level_decode_of_random_bytes_is_the_lossy_decode_of_the_bytes() {
    let tokenizer = from_gguf("bpe.json");
    let mut random = SplitMix64(7);
    for _ in 0..500 {
        let ids: Vec<u32> = (0..30).map(|_| random.index(tokenizer.vocab_size()) as u32).collect();
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|id| tokenizer.token_bytes(*id).expect("a token"))
            .collect();
        assert_eq!(
            tokenizer.decode(&ids, false).expect("decodes"),
            String::from_utf8_lossy(&bytes)
        );
    }
}

#[test]
fn emoji_over_several_tokens_comes_out_whole() {
    for (name, tokenizer) in tokenizers().into_iter().take(4) {
        let text = "a😀é👍🏽b";
        let ids = tokenizer.encode(text, false).expect("encodes");
        let pieces = pieces(&tokenizer, &[], &ids, false);
        assert_eq!(pieces.concat(), text, "{name}");
        assert!(
            pieces.iter().any(String::is_empty),
            "{name}: some token only began a character: {pieces:?}"
        );
        assert!(
            pieces.iter().all(|piece| !piece.contains('\u{fffd}')),
            "{name}: {pieces:?}"
        );
        assert!(pieces.iter().any(|piece| piece.starts_with('😀')), "{name}: {pieces:?}");
    }
}

#[test]
fn unfinished_bytes_at_the_end_become_replacement_characters_at_finish() {
    let tokenizer = from_gguf("bpe.json");
    let ids = tokenizer.encode("😀", false).expect("encodes");
    let (last, begun) = ids.split_last().expect("several tokens");
    assert_eq!(
        pieces(&tokenizer, &[], begun, false).join("|"),
        format!("{}\u{fffd}", "|".repeat(begun.len()))
    );
    // A letter right after them proves them ill-formed at once.
    let letter = tokenizer.encode("x", false).expect("encodes");
    let broken = [begun, &letter].concat();
    assert_eq!(pieces(&tokenizer, &[], &broken, false).concat(), "\u{fffd}x");
    assert_eq!(pieces(&tokenizer, &[], &[*last], false).concat(), "\u{fffd}");

    let pieces_of_bytes = from_gguf("spm.json");
    let byte = |value: u8| {
        pieces_of_bytes
            .token_to_id(&format!("<0x{value:02X}>"))
            .expect("a byte token")
    };
    let ids = [byte(0xC3), byte(0xA9), byte(0xF0), byte(0x9F), byte(0x98)];
    // One for each byte, as sentencepiece does; the good character before them is kept.
    assert_eq!(
        pieces(&pieces_of_bytes, &[], &ids, false),
        ["", "é", "", "", "", "\u{fffd}\u{fffd}\u{fffd}"]
    );
}

#[test]
fn leading_space_depends_on_what_stands_before() {
    let tokenizer = from_gguf("spm.json");
    let ids = tokenizer.encode("the dog", false).expect("encodes");
    assert_eq!(pieces(&tokenizer, &[], &ids, true).concat(), "the dog");
    let prompt = tokenizer.encode("and", true).expect("encodes");
    assert_eq!(pieces(&tokenizer, &prompt, &ids, true).concat(), " the dog");
    // A prompt of nothing but special tokens renders nothing.
    let bos = &prompt[..1];
    assert!(tokenizer.is_special(bos[0]));
    assert_eq!(pieces(&tokenizer, bos, &ids, true).concat(), "the dog");
}

#[test]
fn special_tokens_are_skipped_or_kept() {
    for (name, tokenizer) in tokenizers().into_iter().take(4) {
        let end = tokenizer.token_to_id("<|im_end|>").expect("in the vocabulary");
        let mut ids = tokenizer.encode("dog", false).expect("encodes");
        ids.push(end);
        assert_eq!(pieces(&tokenizer, &[], &ids, true).concat(), "dog", "{name}");
        assert_eq!(pieces(&tokenizer, &[], &ids, false).concat(), "dog<|im_end|>", "{name}");
    }
}

#[test]
fn a_skipped_token_does_not_break_a_character() {
    let tokenizer = from_gguf("bpe.json");
    let mut ids = tokenizer.encode("😀", false).expect("encodes");
    ids.insert(1, 1);
    assert_eq!(pieces(&tokenizer, &[], &ids, true).concat(), "😀");
}

#[test]
fn a_character_begun_in_the_prompt_is_completed() {
    let tokenizer = from_gguf("bpe.json");
    let ids = tokenizer.encode("x😀", false).expect("encodes");
    let letter = tokenizer.encode("y", false).expect("encodes");
    for split in 2..ids.len() {
        let (prompt, rest) = ids.split_at(split);
        assert_eq!(
            pieces(&tokenizer, prompt, rest, true).concat(),
            "😀",
            "split at {split}"
        );
        // The prompt's own loose bytes are not part of the output.
        assert_eq!(
            pieces(&tokenizer, prompt, &letter, true).concat(),
            "y",
            "split at {split}"
        );
        assert_eq!(pieces(&tokenizer, prompt, &[], true).concat(), "", "split at {split}");
    }
}

#[test]
fn an_id_without_a_token_gives_no_text() {
    for (name, tokenizer) in tokenizers() {
        let ids = [tokenizer.vocab_size() as u32, u32::MAX];
        assert_eq!(pieces(&tokenizer, &ids, &ids, true).concat(), "", "{name}");
    }
}

/// A byte-level vocabulary behind a decoder that is not recognised as such, so that the window decoder has bytes to
/// hold.
fn unrecognised_byte_level() -> Tokenizer {
    let bytes = std::fs::read(golden_path("bpe_tokenizer.json")).expect("the golden is committed");
    let mut json: serde_json::Value = serde_json::from_slice(&bytes).expect("the golden parses");
    json["decoder"] = serde_json::json!({"type": "Sequence", "decoders": [json["decoder"].clone()]});
    Tokenizer::from_json(json.to_string().as_bytes(), "a test").expect("loads")
}

#[test]
fn the_window_decoder_agrees_with_the_table_of_bytes() {
    let table = from_gguf("bpe.json");
    let window = unrecognised_byte_level();
    let mut random = SplitMix64(11);
    for _ in 0..300 {
        let ids: Vec<u32> = (0..25).map(|_| random.index(table.vocab_size()) as u32).collect();
        let expected = table.decode(&ids, false).expect("decodes");
        assert_eq!(window.decode(&ids, false).expect("decodes"), expected);
        assert_eq!(pieces(&window, &[], &ids, false).concat(), expected, "{ids:?}");
    }
    let ids = window.encode("a😀é好b", false).expect("encodes");
    let pieces = pieces(&window, &ids[..1], &ids[1..], false);
    assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
    assert_eq!(pieces.concat(), "😀é好b");
}

#[test]
fn the_window_decoder_does_not_hold_ill_formed_bytes_for_ever() {
    let window = unrecognised_byte_level();
    let emoji = window.encode("😀", false).expect("encodes");
    let begun = vec![emoji[0]; 200];
    let pieces = pieces(&window, &[], &begun, false);
    assert!(pieces[..100].iter().any(|piece| !piece.is_empty()), "{pieces:?}");
    let count = pieces.concat().chars().filter(|c| *c == '\u{fffd}').count();
    assert_eq!(count, 200);
}
