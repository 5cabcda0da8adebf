//! What is redacted and what is left, and that no cut of a text changes that.

use halyard_io_processor_redact::patterns::MAX_HELD;
use halyard_io_processor_redact::redactor::Redactor;
use proptest::prelude::*;

const R: &str = "[REDACTED]";

fn pem(label: &str) -> String {
    format!(
        "-----BEGIN {label}-----\nProc-Type: \
         4,ENCRYPTED\n\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAo+/==\n-----END {label}-----"
    )
}

/// Texts and what becomes of them; `#` stands for the replacement.
fn cases() -> Vec<(String, String)> {
    let key = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8";
    let upper = "ABCDEFGH12345678";
    let mut cases: Vec<(String, String)> = [
        ("Write to bob@example.com now", "Write to # now"),
        ("bob@example.com", "#"),
        ("bob@example.com.", "#."),
        ("<mailto:first.last+tag@sub.example.co.uk>", "<mailto:#>"),
        ("a@b.cc,c@d.ee;e@f.gg", "#,#;#"),
        ("...bob_x@example.com", "...#"),
        ("b@пример.com and größe@example.de", "b@пример.com and größ#"),
        ("bob@xn--e1afmkfd.xn--p1ai!", "#!"),
        ("bob@example.com-", "#-"),
        ("bob@example.c0m", "bob@example.c0m"),
        (
            "at @ sign, root@localhost, a@b, @handle, x@.com, x@-a.com",
            "at @ sign, root@localhost, a@b, @handle, x@.com, x@-a.com",
        ),
        ("no@no@example.com", "no@#"),
        ("", ""),
        (
            "The Bearer of bad news, a risk-assessment-framework-thing",
            "The Bearer of bad news, a risk-assessment-framework-thing",
        ),
        ("Bearer  short", "Bearer  short"),
        ("sk-short AKIA123 ghp_abc", "sk-short AKIA123 ghp_abc"),
        (
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        ),
        (
            "------ a rule ------ and -----BEGIN ----- or -----BEGIN PRIVATE KEYS",
            "------ a rule ------ and -----BEGIN ----- or -----BEGIN PRIVATE KEYS",
        ),
    ]
    .map(|(text, expected)| (text.to_owned(), expected.to_owned()))
    .into();
    for start in [
        "sk-",
        "sk-proj-",
        "ghp_",
        "gho_",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "AIza",
        "hf_",
        "npm_",
    ] {
        cases.push((format!("key={start}{key}, ok"), "key=#, ok".to_owned()));
        cases.push((format!("{start}{key}{key}"), "#".to_owned()));
        cases.push((format!("x{start}{key}"), format!("x{start}{key}")));
    }
    cases.push((format!("AKIA{upper} ASIA{upper}XX."), "# #.".to_owned()));
    cases.push((
        format!("Authorization: bearer \t{key}.{key}/=\r\n"),
        "Authorization: bearer \t#\r\n".to_owned(),
    ));
    cases.push((
        format!("Bearer sk-{key} und schöne Grüße"),
        "Bearer # und schöne Grüße".to_owned(),
    ));
    for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"] {
        cases.push((format!("see\n{}\nend", pem(label)), "see\n#\nend".to_owned()));
    }
    cases.push((pem("EC PRIVATE KEY").replace('\n', "\\n") + "\"}", "#\"}".to_owned()));
    cases.push((pem("PRIVATE KEY")[..60].to_owned(), "#".to_owned()));
    cases.push((
        "-----BEGIN PRIVATE KEY-----\nMIIE (cut) bob@example.com".to_owned(),
        "#(cut) #".to_owned(),
    ));
    let long = "x".repeat(100);
    cases.push((format!("{long}@example.com"), format!("{}#", &long[..36])));
    cases
}

#[test]
fn secrets_go_and_everything_else_stays() {
    for (text, expected) in cases() {
        assert_eq!(Redactor::whole(R, &text), expected.replace('#', R), "{text:?}");
    }
}

/// The text in pieces that end at these places, which are moved to whole characters; holds the bound on what is held
/// back.
fn pieces(text: &str, cuts: &[usize]) -> String {
    let mut cuts: Vec<usize> = cuts
        .iter()
        .map(|cut| {
            (*cut..=text.len())
                .find(|at| text.is_char_boundary(*at))
                .unwrap_or(text.len())
        })
        .collect();
    cuts.push(text.len());
    cuts.sort_unstable();
    let (mut redactor, mut shown, mut start) = (Redactor::new(R), String::new(), 0);
    for cut in cuts {
        shown.push_str(&redactor.push(&text[start..cut]));
        assert!(
            redactor.held_len() <= MAX_HELD,
            "{} bytes held of {text:?}",
            redactor.held_len()
        );
        start = cut;
    }
    shown.push_str(&redactor.finish());
    assert_eq!(redactor.held_len(), 0);
    shown
}

#[test]
fn every_cut_in_two_and_every_character_alone_give_the_whole_texts_answer() {
    let all: Vec<String> = cases().into_iter().map(|(text, _)| text).collect();
    for text in all.iter().chain([&all.join(" "), &all.concat()]) {
        let whole = Redactor::whole(R, text);
        let each: Vec<usize> = (0..text.len()).collect();
        assert_eq!(pieces(text, &each), whole, "{text:?} character by character");
        // Of the long texts a part of the cuts, as each costs the whole text.
        let step = text.len() / 400 + 1;
        for cut in (0..text.len()).step_by(step) {
            assert_eq!(pieces(text, &[cut]), whole, "{text:?} cut at {cut}");
        }
    }
}

/// Parts of secrets and what stands around them.
fn fragment() -> impl Strategy<Value = String> {
    let parts = vec![
        "bob",
        "@",
        ".",
        "example",
        ".com",
        "-",
        "_",
        "sk-",
        "AKIA",
        "ABCDEFGH12345678",
        "ghp_",
        "a1B2c3D4e5F6g7H8i9",
        "Bearer",
        " ",
        "\n",
        "é",
        "日本",
        "-----",
        "-----BEGIN ",
        "PRIVATE KEY",
        "-----END ",
        "MIIE+/=",
        "\"",
        "%",
        "xn--",
        "BLOCK",
    ];
    prop_oneof![8 => proptest::sample::select(parts).prop_map(str::to_owned), 1 => "[a-zA-Z0-9@.-]{0,90}"]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_cut_changes_the_answer(parts in prop::collection::vec(fragment(), 0..24),
        cuts in prop::collection::vec(0usize..400, 0..12)) {
        let text = parts.concat();
        prop_assert_eq!(pieces(&text, &cuts), Redactor::whole(R, &text));
    }
}
