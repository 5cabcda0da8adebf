//! What is refused: by name, and before it costs time or memory.

mod common;

use std::time::{Duration, Instant};

use common::{Walk, compile, grammar, grammars, json, regex, tag};
use halyard_grammar::{Constraint, GrammarConfig, GrammarError, Limits, StructuredOutputs};
use serde_json::{Map, Value, json};

/// Checks that a constraint is refused with these words.
fn refused(constraint: Constraint, words: &[&str]) {
    let started = Instant::now();
    let error = compile(constraint.clone()).expect_err(words[0]).to_string();
    assert!(error.starts_with(constraint.field()), "{error}");
    for word in words {
        assert!(error.contains(word), "{error:?} lacks {word:?}");
    }
    assert!(error.len() < 1000, "{error}");
    // Generous: two cores that other tests use too.
    assert!(started.elapsed() < Duration::from_secs(20), "{error}");
}

#[test]
fn limits_are_named() {
    refused(
        Constraint::Json("[".repeat(100_000)),
        &["objects and lists within each other is 100000; at most 64"],
    );
    let deep = (0..65).fold(json!({}), |inner, _| json!({"items": inner}));
    refused(json(deep), &["is 66; at most 64"]);
    let wide = format!("{{\"title\": \"{}\"}}", "x".repeat(10 << 20));
    refused(Constraint::Json(wide), &["number of its bytes", "at most 524288"]);
    refused(regex(&"a".repeat(600_000)), &["at most 524288"]);
    refused(regex(&"a?".repeat(9_000)), &["is 18000; at most 16384"]);
    refused(
        json(json!({"pattern": "a?".repeat(9_000)})),
        &["bytes of a pattern is 18000"],
    );
    let patterns: Vec<Value> = (0..6)
        .map(|i| json!({"pattern": format!("{i}{}", "a?".repeat(7_000))}))
        .collect();
    refused(json(json!({"anyOf": patterns})), &["bytes of all its patterns"]);
    refused(
        grammar(&format!("root ::= \"{}\"", "a".repeat(40_000))),
        &["at most 32768"],
    );
    refused(regex(&"(".repeat(10_000)), &["groups within each other is 10000"]);
    refused(
        grammar(&format!("root ::= {}", "(".repeat(10_000))),
        &["groups within each other"],
    );
    refused(
        grammar(&format!("root ::= \"a\"{}", "*".repeat(10_000))),
        &["repetitions"],
    );
    refused(
        Constraint::Choice(vec!["a".to_string(); 10_001]),
        &["is 10001; at most 10000"],
    );
    refused(Constraint::Choice(Vec::new()), &["empty list"]);
    refused(
        grammar(&"a:b\n".repeat(5_001)),
        &["number of its rules is 5001; at most 5000"],
    );
    let references = vec![json!({"anyOf": vec![json!({"$ref": "#"}); 1_700]}); 3];
    refused(json(json!({"anyOf": references})), &["$refs is 5100; at most 5000"]);
    refused(
        json(json!({"required": vec!["a"; 2_001]})),
        &["entries of a list is 2001; at most 2000"],
    );
    refused(
        json(json!({"enum": vec!["a"; 10_001]})),
        &["values of an enum is 10001"],
    );
    let names: Map<String, Value> = (0..2_001).map(|i| (format!("p{i}"), json!({}))).collect();
    refused(json(json!({"properties": names})), &["entries of an object is 2001"]);
    let names: Map<String, Value> = (0..51).map(|i| (format!("^p{i}_"), json!({}))).collect();
    refused(
        json(json!({"patternProperties": names})),
        &["patternProperties is 51; at most 50"],
    );
    for multiple in [json!(99_999_989), json!(1e30), json!(1234.5678)] {
        refused(json(json!({"multipleOf": multiple})), &["multipleOf is above 100000"]);
    }
    let two = json!({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]});
    refused(json(two.clone()), &["multipleOf is above 100000"]);
    refused(
        grammar(&format!("start: \"x\" %json {two}")),
        &["multipleOf is above 100000"],
    );
    // The library's stack ends at a range of the least integer alone.
    let least = json!(i64::MIN);
    for schema in [
        json!({"const": least}),
        json!({"const": {"k": [1, least]}}),
        json!({"const": {"minimum": least}}),
        json!({"properties": {"p": {"enum": ["x", i64::MIN + 1]}}}),
        json!({"type": "integer", "minimum": least, "maximum": least}),
        json!({"type": "integer", "minimum": -1e19, "exclusiveMaximum": -1e19}),
    ] {
        refused(
            json(schema.clone()),
            &["an upper bound, which must be above -9223372036854775808"],
        );
        refused(grammar(&format!("start: \"x\" %json {schema}")), &["must be above"]);
    }
    let together = |i: usize| json!({"type": "string", "pattern": format!("a.{{{i}}}b")});
    let all: Vec<Value> = (0..9).map(together).collect();
    refused(json(json!({"allOf": all})), &["patterns for one text is 9; at most 8"]);
    let at = |i: usize| json!({"type": "object", "properties": {"p": together(i)}});
    let all: Vec<Value> = (0..9).map(at).collect();
    refused(json(json!({"allOf": all})), &["patterns for one text is 9; at most 8"]);
    let chain = |i: usize| {
        (
            format!("d{i}"),
            json!({"$ref": format!("#/$defs/d{}", i + 1), "pattern": format!("a.{{{i}}}b")}),
        )
    };
    let definitions: Map<String, Value> = (0..40).map(chain).collect();
    refused(
        json(json!({"$ref": "#/$defs/d0", "$defs": definitions})),
        &["patterns for one text is 80"],
    );
    let many: Vec<String> = (0..12).map(|i| format!("/a.{{{i}}}b/")).collect();
    refused(
        grammar(&format!("start: A\nA: {}", many.join(" & "))),
        &["number of & and ~ in it is 11"],
    );
    let tags = vec![json!({"begin": "<a>", "schema": {}, "end": ""}); 501];
    refused(
        tag(json!({"structures": tags, "triggers": ["<a"]})),
        &["triggers or tags is 501; at most 500"],
    );
    let deep = (0..81).fold(
        json!({"type": "any_text"}),
        |inner, _| json!({"type": "star", "content": inner}),
    );
    refused(tag(json!({"type": "structural_tag", "format": deep})), &["at most 80"]);
    for empty in [
        Constraint::Json(" ".to_string()),
        grammar("\n"),
        Constraint::StructuralTag(String::new()),
    ] {
        refused(empty, &["empty text"]);
    }
    refused(regex("a\0"), &["NUL"]);
}

#[test]
fn features_are_refused_by_name() {
    for (schema, words) in [
        (json!({"not": {}, "type": "string"}), "\"not\""),
        (json!({"if": {}, "then": {}}), "\"if\""),
        (json!({"type": "array", "uniqueItems": true}), "\"uniqueItems\""),
        (json!({"type": "array", "contains": {}}), "\"contains\""),
        (json!({"type": "object", "propertyNames": {}}), "\"propertyNames\""),
        (json!({"dependentRequired": {"a": ["b"]}}), "\"dependentRequired\""),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "number"}, {"minimum": 1}]}),
            "oneOf",
        ),
        (
            json!({"$ref": "https://example.com/schema"}),
            "https://example.com/schema",
        ),
        (json!({"$ref": "file:///etc/passwd"}), "file:///etc/passwd"),
        (json!({"$ref": "#/$defs/none"}), "none"),
        (json!({"type": "strange"}), "strange"),
        (json!({"type": "string", "format": "json-pointer"}), "json-pointer"),
        (json!({"type": "string", "pattern": "(?=a)"}), "look-around"),
        (json!({"x-guidance": {"lenient": true}}), "x-guidance"),
        (json!(false), "false"),
        (json!([]), "a list"),
        (json!("text"), "a text"),
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), "minimum"),
        (
            json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
            "nsatisfiable",
        ),
        (json!({"enum": []}), ""),
        (json!({"$ref": "#"}), "no token"),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            "no token",
        ),
        (json!({"allOf": [{"$ref": "#"}, {"type": "object"}]}), ""),
    ] {
        refused(json(schema), &[words]);
    }
    refused(Constraint::Json("{".to_string()), &["no JSON"]);
    refused(regex("(?=a)a"), &["look-around"]);
    refused(regex("(a)\\1"), &["backreferences"]);
    refused(regex("\\bword"), &["lookarounds"]);
    refused(regex("a(?P<stop>b)"), &["stop"]);
    refused(regex("(a"), &["unclosed group"]);
    for (text, words) in [
        ("root = \"a\"", "Expected token ':'"),
        ("root: \"a\"", "no start rule"),
        ("start: missing", "missing"),
        ("start: start", "no token"),
        ("{\"grammars\": []}", "list of grammars"),
        ("other ::= \"a\"", "`root`"),
        ("root ::= missing", "`missing`"),
        ("root ::= \"a\"\nroot ::= \"b\"", "defined twice"),
        ("root ::= \"a", "line 1, column 12"),
        ("root ::= [b-a]", "is empty"),
        ("root ::= []", "is empty"),
        ("root ::= \"a\"\n  )", "line 2, column 3"),
        ("root ::= \"a\"{3,2}", "smaller number first"),
        ("root ::= \"a\"{1000000}", "0 to 10000"),
        ("root ::= \"\\q\"", "`\\q`"),
        ("root ::= (= \"a\")", "look-ahead"),
        ("root ::= TagDispatch((\"a\", b))", "TagDispatch"),
        ("root ::= root", "no token"),
    ] {
        refused(grammar(text), &[words]);
    }
    let format = |format: Value| tag(json!({"type": "structural_tag", "format": format}));
    for (wrong, words) in [
        (tag(json!({"type": "structural_tag"})), "neither"),
        (tag(json!({"format": {"type": "any_text"}})), "type must be"),
        (tag(json!([])), "type must be"),
        (format(json!({"type": "any_tokens"})), "\"any_tokens\""),
        (format(json!({"type": "any_text", "max_tokens": 5})), "`max_tokens`"),
        (
            format(json!({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"})),
            "qwen_xml",
        ),
        (
            format(json!({"type": "json_schema", "json_schema": {"not": {}}})),
            "\"not\"",
        ),
        (format(json!({"type": "tag", "begin": "a", "end": "b"})), "`content`"),
        (format(json!({"type": "token", "token": "none such"})), "none such"),
        (format(json!({"type": "regex", "pattern": "(?=a)"})), "look-around"),
        (format(json!({"type": "grammar", "grammar": "root ::="})), ""),
        (
            format(json!({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "regex", "pattern": "a"}]})),
            "free text",
        ),
        (
            tag(json!({"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<b"]})),
            "none of the triggers",
        ),
        (tag(json!({"structures": [], "triggers": []})), "one trigger"),
        (tag(json!({"structures": [{"begin": 5}], "triggers": ["a"]})), "`begin`"),
    ] {
        if words.is_empty() {
            let _ = compile(wrong);
        } else {
            refused(wrong, &[words]);
        }
    }
}

/// A constraint that is taken, or not: in either case within time and memory. Follows it for some tokens.
fn bounded(constraint: Constraint) {
    let started = Instant::now();
    let (tokenizer, grammars) = grammars("llama", GrammarConfig::default());
    let what: String = format!("{constraint:?}").chars().take(80).collect();
    if let Ok(grammar) = grammars.compile(&constraint.into()) {
        let mut mask = vec![0; 14];
        let mut matcher = grammar.matcher();
        let mut tokens = Vec::new();
        let letter = tokenizer.encode("a", false).expect("tokens");
        for _ in 0..50 {
            mask.fill(0);
            if matcher.next_mask(&tokens, &mut mask).is_err()
                || mask[letter[0] as usize / 32] >> (letter[0] % 32) & 1 == 0
            {
                break;
            }
            tokens = letter.clone();
        }
    }
    // Generous: a library that is not optimised, and two cores that other tests use too.
    assert!(
        started.elapsed() < Duration::from_secs(30),
        "{what}: {:?}",
        started.elapsed()
    );
}

#[test]
fn bombs_are_bounded() {
    let base = peak_bytes();
    for pattern in [
        "(a{1,1000}){1,1000}",
        "(((((a{1,100}){1,100}){1,100}){1,100}){1,100})",
        "((a*)*)*b",
        "(x+x+)+y",
        ".*a.{30}",
        "(.|\n){0,10000}x(.{1,1000}y){1,1000}",
        "(a|aa|aaa|b?a){200,400}",
        r"(\w?\s?){300}",
    ] {
        bounded(regex(pattern));
    }
    bounded(regex(&"a?".repeat(8_000)));
    bounded(regex(&"(a|bb)?".repeat(2_000)));
    bounded(regex(&"[ab]".repeat(4_000)));
    bounded(regex(&"a".repeat(16_000)));
    bounded(regex(
        &(0..2_700).map(|i| format!("w{i}")).collect::<Vec<_>>().join("|"),
    ));
    let chain = |definition: &dyn Fn(usize) -> Value| {
        let mut definitions = Map::new();
        for i in 0..4_900 {
            definitions.insert(format!("d{i}"), definition(i + 1));
        }
        definitions.insert("d4900".to_string(), json!({"type": "null"}));
        json(json!({"$ref": "#/$defs/d0", "$defs": definitions}))
    };
    bounded(chain(&|next| json!({"$ref": format!("#/$defs/d{next}")})));
    bounded(chain(
        &|next| json!({"type": "object", "properties": {"a": {"$ref": format!("#/$defs/d{next}")}}}),
    ));
    bounded(chain(
        &|next| json!({"type": "string", "allOf": [{"$ref": format!("#/$defs/d{next}")}]}),
    ));
    let doubling =
        |i: usize| json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"$ref": format!("#/$defs/d{}", i + 1)}]});
    let mut definitions: Map<String, Value> = (0..60).map(|i| (format!("d{i}"), doubling(i))).collect();
    definitions.insert(
        "d60".to_string(),
        json!({"type": "object", "properties": {"a": {"type": "string"}}}),
    );
    bounded(json(json!({"$ref": "#/$defs/d0", "$defs": definitions})));
    let many = (0..1_900)
        .map(|i| (format!("p{i}"), json!({"type": "string", "maxLength": 50})))
        .collect::<Map<_, _>>();
    bounded(json(json!({"type": "object", "properties": many})));
    let any: Vec<Value> = (0..1_900)
        .map(|i| json!({"type": "object", "properties": {format!("k{i}"): {}}}))
        .collect();
    bounded(json(json!({"anyOf": any})));
    bounded(json(
        json!({"type": "object", "required": (0..2_000).map(|i| format!("r{i}")).collect::<Vec<_>>()}),
    ));
    bounded(json(json!({"type": "number", "multipleOf": 99_991})));
    bounded(json(json!({"oneOf": any})));
    bounded(json(
        json!({"type": "array", "minItems": 1_000_000_000, "items": {"type": "string", "minLength": 1_000_000}}),
    ));
    for kind in ["A", "a"] {
        let mut text = format!("start: {kind}0\n");
        for i in 0..1_900 {
            text.push_str(&format!("{kind}{i}: \"x\" {kind}{}\n", i + 1));
        }
        bounded(grammar(&format!("{text}{kind}1900: \"y\"\n")));
    }
    let mut text = String::from("root ::= r0\n");
    for i in 0..900 {
        text.push_str(&format!("r{i} ::= r{0} r{0} | \"a\" r0\n", i + 1));
    }
    bounded(grammar(&format!("{text}r900 ::= \"a\"\n")));
    bounded(grammar(
        "root ::= r{10000}\nr ::= s{10000} r?\ns ::= t{10000} r\nt ::= \"a\" | r",
    ));
    bounded(Constraint::Choice(
        (0..10_000).map(|i| format!("a choice {i}")).collect(),
    ));
    let used = peak_bytes() - base;
    assert!(used < 1 << 30, "{} MiB at most", used >> 20);
}

/// Most memory that this process has had.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("a peak");
    line.split_whitespace()
        .nth(1)
        .and_then(|kb| kb.parse::<u64>().ok())
        .expect("a number")
        << 10
}

#[test]
fn a_constraint_is_compiled_once_and_kept() {
    let (_, grammars) = grammars(
        "llama",
        GrammarConfig {
            max_kept: 2,
            ..GrammarConfig::default()
        },
    );
    let asked = |pattern: &str| StructuredOutputs::from(regex(pattern));
    assert!(grammars.kept(&asked("a")).is_none());
    grammars.compile(&asked("a")).expect("a regex");
    assert!(grammars.kept(&asked("a")).is_some_and(|kept| kept.is_ok()));
    // Faults are kept too.
    grammars.compile(&asked("(")).err().expect("no regex");
    assert!(grammars.kept(&asked("(")).is_some_and(|kept| kept.is_err()));
    // "a" was used later than "(".
    assert!(grammars.kept(&asked("a")).is_some());
    grammars.compile(&asked("b")).expect("a regex");
    assert!(grammars.kept(&asked("(")).is_none());
    assert!(grammars.kept(&asked("a")).is_some() && grammars.kept(&asked("b")).is_some());
    // Many threads that ask for one get one.
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| grammars.compile(&asked("c{3}")).map(drop).expect("a regex"));
        }
    });
}

#[test]
fn compiling_has_a_deadline() {
    let (_, grammars) = grammars(
        "llama",
        GrammarConfig {
            max_compile_time: Duration::from_nanos(1),
            max_waiting: 1,
            ..GrammarConfig::default()
        },
    );
    let error = grammars.compile(&regex("a").into()).err().expect("no time");
    assert_eq!(
        error,
        GrammarError::Late {
            field: "regex",
            limit: Duration::from_nanos(1)
        }
    );
    // It is compiled all the same, and there for those that ask later.
    let asked = regex("a").into();
    let there = (0..2_000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        grammars.kept(&asked).is_some()
    });
    assert!(there);
}

/// A text whose lexer needs too many states ends with a reason, and the constraint is compiled anew for the next one.
#[test]
fn a_grammar_that_fails_is_not_kept() {
    let config = GrammarConfig {
        limits: Limits {
            max_states: 300,
            ..Limits::default()
        },
        ..GrammarConfig::default()
    };
    let (tokenizer, grammars) = grammars("llama", config);
    let asked = StructuredOutputs::from(regex("(a|b)*a(a|b){12}"));
    let grammar = grammars.compile(&asked).expect("a regex");
    let mut matcher = grammar.matcher();
    let letters = [
        tokenizer.encode("a", false).expect("tokens"),
        tokenizer.encode("b", false).expect("tokens"),
    ];
    let mut mask = vec![0; 14];
    let mut tokens = Vec::new();
    let mut seed = 1_u32;
    let reason = (0..3_000).find_map(|_| {
        mask.fill(0);
        let failed = matcher.next_mask(&tokens, &mut mask).err();
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        tokens.clone_from(&letters[(seed >> 31) as usize]);
        failed
    });
    let reason = reason.expect("too many states");
    assert!(reason.contains("cannot go on") && reason.contains("states"), "{reason}");
    assert!(grammars.kept(&asked).is_none(), "it is compiled anew");
    let again = grammars.compile(&asked).expect("a regex");
    assert!(!Walk::new(again.matcher(), 448).allowed().is_empty());
}
