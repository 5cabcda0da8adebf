//! Constraints of structured output: compiled, and followed for some tokens.

use std::path::Path;

use halyard_engine::{Constraint, GrammarConfig, StructuredOutputs};
use halyard_grammar::Grammars;
use halyard_text::Tokenizer;
use serde_json::json;

use crate::target::{Case, Outcome, fixture_bytes, outcome};

/// Tokens of the vocabulary, and the one that ends a text.
const VOCAB: u32 = 448;
const END: u32 = 2;
/// Tokens for which a constraint is followed.
const TOKENS: usize = 24;

fn grammars() -> (Tokenizer, Grammars) {
    let tokenizer =
        Tokenizer::from_json(&fixture_bytes("models/llama/tokenizer.json"), "a fixture").expect("it parses");
    let config = GrammarConfig {
        max_kept: 4,
        ..GrammarConfig::default()
    };
    let grammars = Grammars::new(&tokenizer, VOCAB, &[END], config);
    (tokenizer, grammars)
}

/// Compiles a constraint and follows it: some token may come at any time, and none breaks it.
fn follow(grammars: &Grammars, asked: &StructuredOutputs) -> Outcome {
    let compiled = grammars.compile(asked);
    if let Ok(grammar) = &compiled {
        let mut matcher = grammar.matcher();
        let mut mask = vec![0; VOCAB.div_ceil(32) as usize];
        let mut last = Vec::new();
        for step in 0..TOKENS {
            mask.fill(0);
            if matcher.next_mask(&last, &mut mask).is_err() {
                break;
            }
            let allowed: Vec<u32> = (0..VOCAB)
                .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
                .collect();
            assert!(!allowed.is_empty(), "nothing may come, without a word");
            last = vec![allowed[step * 7919 % allowed.len()]];
            if last == [END] {
                break;
            }
        }
    }
    outcome(&compiled.map(drop))
}

pub fn constraint_seeds() -> Vec<Vec<u8>> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 5, "pattern": "^a"},
        "b": {"type": "array", "items": {"$ref": "#/$defs/c"}, "minItems": 1, "maxItems": 3},
        "d": {"enum": [1, "x", null]}},
        "required": ["a"], "additionalProperties": false, "$defs": {"c": {"type": "number", "minimum": 0.5,
        "multipleOf": 0.5}}, "patternProperties": {"^x": {"type": "boolean"}}});
    let more = json!({"anyOf": [{"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}, {"const": {"k": [1]}},
        {"type": "string", "format": "date-time"}, {"prefixItems": [{"type": "null"}], "items": false}], "title": "t"});
    let tag = json!({"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "tag", "begin": "<a>", "content": {"type": "any_text", "excludes": ["no"]},
            "end": ["</a>", "<|im_end|>"]},
        {"type": "or", "elements": [{"type": "const_string", "value": "x"}, {"type": "regex", "pattern": "[0-9]+"},
            {"type": "repeat", "min": 1, "max": 3, "content": {"type": "grammar", "grammar": "root ::= \"q\" root?"}}]},
        {"type": "triggered_tags", "triggers": ["<t"], "tags": [{"begin": "<t>", "content": {"type": "json_schema",
            "json_schema": {"type": "integer"}}, "end": ""}], "at_least_one": true, "stop_after_first": false}]}});
    let legacy =
        json!({"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<"]});
    let seeds = [
        Constraint::Json(schema.to_string()),
        Constraint::Json(more.to_string()),
        Constraint::StructuralTag(tag.to_string()),
        Constraint::StructuralTag(legacy.to_string()),
    ];
    let text = |constraint: Constraint| match constraint {
        Constraint::Json(text) | Constraint::StructuralTag(text) => text.into_bytes(),
        _ => Vec::new(),
    };
    seeds.map(text).to_vec()
}

/// A JSON schema or a structural tag.
pub fn constraint(_: &Path) -> Case {
    let (_tokenizer, grammars) = grammars();
    Box::new(move |input| {
        let Ok(text) = std::str::from_utf8(input) else {
            return Outcome::Refused;
        };
        let is_tag = text.contains("structur");
        let constraint = if is_tag {
            Constraint::StructuralTag
        } else {
            Constraint::Json
        };
        let asked = StructuredOutputs {
            disable_additional_properties: input.len() % 2 == 1,
            ..constraint(text.to_owned()).into()
        };
        follow(&grammars, &asked)
    })
}

pub fn grammar_seeds() -> Vec<Vec<u8>> {
    [
        "root ::= expr (\"+\" expr)* # a sum\nexpr ::= [0-9]{1,3} | \"(\" ws root ws \")\"\nws ::= [ \\t]*\n",
        "root ::= item{2,4} | .? [^a-z\\n\\u00e9]\nitem ::= \"a\\\"b\" | item \"c\"\n",
        "start: A (\",\" b)* %json {\"type\": \"integer\"}\nA: /[a-z]+/ & ~/abc/\nb: \"x\"{1,3} | A?\n%ignore / /\n",
        "start: text \"<t>\" <|im_end|>\ntext[lazy]: /(.|\\n)*<t>/\n",
        "(a|b){2,5}[^x-z]*\\d+(foo|bar)?",
        "\\w+@(?i:example)\\.com|[\\u{e9}\\s]{0,9}$",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// A grammar in Lark or GBNF, or a regular expression.
pub fn grammar(_: &Path) -> Case {
    let (_tokenizer, grammars) = grammars();
    Box::new(move |input| {
        let Ok(text) = std::str::from_utf8(input) else {
            return Outcome::Refused;
        };
        let is_grammar = text.contains(':');
        let constraint = if is_grammar {
            Constraint::Grammar
        } else {
            Constraint::Regex
        };
        follow(&grammars, &constraint(text.to_owned()).into())
    })
}
