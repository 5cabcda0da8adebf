//! Stop strings: found wherever the text is cut, at a cost linear in the text.

use halyard_text::{StopChecker, StopOutcome, TextError};

/// Feeds `pieces` and returns all text shown and which stop string ended it.
fn run(stops: &[&str], include_stop: bool, pieces: &[&str]) -> (String, Option<usize>) {
    let mut checker = StopChecker::new(stops, include_stop).expect("no stop string is empty");
    let mut shown = String::new();
    for piece in pieces {
        match checker.push(piece) {
            StopOutcome::Text(text) => shown.push_str(&text),
            StopOutcome::Stop { index, text } => return (shown + &text, Some(index)),
        }
    }
    (shown + &checker.finish(), None)
}

fn text(value: &str) -> StopOutcome {
    StopOutcome::Text(value.to_owned())
}

#[test]
fn finds_a_stop_string_across_three_tokens() {
    let mut checker = StopChecker::new(&["<END>"], false).expect("valid");
    assert_eq!(checker.push("hello <"), text("hello "));
    assert_eq!(checker.push("EN"), text(""));
    assert_eq!(
        checker.push("D> more"),
        StopOutcome::Stop {
            index: 0,
            text: String::new()
        }
    );
    assert_eq!(checker.push("after"), text(""));
    assert_eq!(checker.finish(), "");
    assert_eq!(
        run(&["<END>"], true, &["hello <", "EN", "D> more"]),
        ("hello <END>".to_owned(), Some(0))
    );
}

#[test]
fn finds_overlapping_prefixes() {
    assert_eq!(
        run(&["aab"], false, &["a", "a", "a", "b", "c"]),
        ("a".to_owned(), Some(0))
    );
    assert_eq!(run(&["abababc"], false, &["ababab", "abc"]), ("ab".to_owned(), Some(0)));
}

#[test]
fn holds_back_only_what_may_become_a_stop_string() {
    let mut checker = StopChecker::new(&["\n\nUser:"], false).expect("valid");
    assert_eq!(checker.push("one\n"), text("one"));
    assert_eq!(checker.push("two\n\nUs"), text("\ntwo"));
    assert_eq!(checker.push("ual"), text("\n\nUsual"));
    assert_eq!(checker.push("\n\nUser"), text(""));
    assert_eq!(checker.finish(), "\n\nUser");
}

#[test]
fn the_first_complete_stop_string_wins_and_the_longer_of_two() {
    assert_eq!(
        run(&["world", "lo"], false, &["hello world"]),
        ("hel".to_owned(), Some(1))
    );
    assert_eq!(run(&["c", "abc", "bc"], false, &["xabc"]), ("x".to_owned(), Some(1)));
    assert_eq!(run(&["abcd", "bc"], false, &["abcd"]), ("a".to_owned(), Some(1)));
    assert_eq!(run(&["b", "b"], false, &["ab"]), ("a".to_owned(), Some(0)));
}

#[test]
fn the_result_does_not_depend_on_the_cuts() {
    let stops = ["aab", "ba c", "好的", "ab好"];
    let alphabet = ['a', 'b', ' ', 'c', '好', '的'];
    // All texts of a counter in base six, whole and character by character.
    for number in 0..6_u32.pow(6) {
        let text: String = (0..6)
            .map(|place| alphabet[(number / 6_u32.pow(place) % 6) as usize])
            .collect();
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        let whole = run(&stops, false, &[&text]);
        assert_eq!(run(&stops, false, &characters), whole, "{text:?}");
        // The plain definition: the stop string that ends first, the longer one at the same end.
        let ends = stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| text.find(stop).map(|at| (at + stop.len(), at, index)));
        let expected = match ends.min() {
            Some((_, at, index)) => (text[..at].to_owned(), Some(index)),
            None => (text.clone(), None),
        };
        assert_eq!(whole, expected, "{text:?}");
    }
}

#[test]
fn a_ten_megabyte_stop_string_costs_no_more_than_its_text() {
    // Quadratic work here would be 10^14 steps; linear work is done at once.
    let long = "a".repeat(10 << 20) + "b";
    let mut checker = StopChecker::new(&[&long], false).expect("valid");
    let mut shown = 0;
    let piece = "a".repeat(1 << 10);
    for _ in 0..(11 << 10) {
        let StopOutcome::Text(text) = checker.push(&piece) else {
            panic!("no stop yet")
        };
        shown += text.len();
    }
    assert_eq!(shown, 1 << 20);
    assert_eq!(
        checker.push("b"),
        StopOutcome::Stop {
            index: 0,
            text: String::new()
        }
    );
}

#[test]
fn a_long_hold_is_not_copied_for_each_token() {
    // The match stays a million characters long while single characters come and go.
    let long = "a".repeat(1 << 20) + "b";
    let mut checker = StopChecker::new(&[&long], false).expect("valid");
    assert_eq!(checker.push(&"a".repeat(1 << 20)), text(""));
    for _ in 0..1 << 20 {
        assert_eq!(checker.push("a"), text("a"));
    }
    assert_eq!(checker.finish().len(), 1 << 20);
}

#[test]
fn an_empty_stop_string_is_an_error() {
    let error = StopChecker::new(&["a", ""], false).expect_err("is empty");
    assert!(matches!(error, TextError::EmptyStopString { index: 1 }));
    assert!(error.to_string().contains("stop[1] is empty"));
}

#[test]
fn without_stop_strings_text_passes_at_once() {
    let mut checker = StopChecker::new::<&str>(&[], false).expect("valid");
    assert_eq!(checker.push("anything"), text("anything"));
}

#[test]
fn text_under_min_tokens_is_not_matched() {
    let mut checker = StopChecker::new(&["END"], false).expect("valid");
    assert_eq!(checker.pass("an END and EN"), "an END and EN");
    assert_eq!(
        checker.push("D"),
        text("D"),
        "a stop string that began under the minimum does not count"
    );
    assert_eq!(
        checker.push("END"),
        StopOutcome::Stop {
            index: 0,
            text: String::new()
        }
    );
}
