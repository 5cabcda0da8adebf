//! Answers written by hand, above all wrong ones, and what they mean.

/// One answer.
pub struct Case {
    /// The formats that read it so, by a blank.
    pub tools: &'static str,
    /// The format of reasoning, or none.
    pub reasoning: &'static str,
    /// Whether the prompt has opened reasoning.
    pub in_reasoning: Option<bool>,
    /// What the model wrote.
    pub text: &'static str,
    /// The events: T text, R reasoning, C call and its id after #, A arguments, E end of the call and its fault.
    pub events: &'static [&'static str],
}

const fn case(tools: &'static str, text: &'static str, events: &'static [&'static str]) -> Case {
    Case {
        tools,
        reasoning: "",
        in_reasoning: None,
        text,
        events,
    }
}

const fn thinks(
    tools: &'static str,
    reasoning: &'static str,
    in_reasoning: Option<bool>,
    text: &'static str,
    events: &'static [&'static str],
) -> Case {
    Case {
        tools,
        reasoning,
        in_reasoning,
        text,
        events,
    }
}

const HERMES: &str = "hermes qwen3_json granite4";

/// The table.
pub const CASES: &[Case] = &[
    case(HERMES, "", &[]),
    case(HERMES, " \n", &["T: \n"]),
    case(HERMES, "a < b <tool_cal l>\n", &["T:a < b <tool_cal l>\n"]),
];
