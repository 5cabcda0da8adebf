//! The dataset `burstgpt`: lengths of requests and answers that a real service saw, from BurstGPT's CSV files. As in
//! vLLM the rows of GPT-4 that were answered are taken, and prompts are runs of token ids: the i-th begins at id i.

use crate::cli::bench::serve::dataset_file::DatasetFile;
use crate::error::ServerError;

const MODEL: &str = "Model";
const REQUEST: &str = "Request tokens";
const RESPONSE: &str = "Response tokens";
/// The model whose rows are taken.
const TAKEN: &str = "GPT-4";

/// Lengths of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Tokens of its prompt, 1 at least.
    pub prompt: u32,
    /// Tokens of its answer, 1 at least.
    pub answer: u32,
}

/// The rows to choose from, in the file's order. Columns are found by their names, so files with more of them fit too.
///
/// # Errors
/// A file without these columns; a row with another number of fields or without numbers.
pub(super) fn rows(file: &DatasetFile) -> Result<Vec<Row>, ServerError> {
    let mut lines = file.lines()?;
    let head = lines.next().ok_or_else(|| file.bad("it is empty"))??.1;
    let head: Vec<&str> = head.trim().trim_start_matches('\u{feff}').split(',').collect();
    let column = |name: &str| {
        let found = head.iter().position(|title| title.trim() == name);
        found.ok_or_else(|| file.bad_line(1, &format!("no column `{name}`; BurstGPT's CSV files have it")))
    };
    let (model, request, response) = (column(MODEL)?, column(REQUEST)?, column(RESPONSE)?);
    let mut rows = Vec::new();
    for line in lines {
        let (number, line) = line?;
        let fields: Vec<&str> = line.trim_end_matches(['\r', '\n']).split(',').map(str::trim).collect();
        if fields.len() != head.len() {
            let reason = format!("{} fields, the first line has {}", fields.len(), head.len());
            return Err(file.bad_line(number, &reason));
        }
        if fields[model] != TAKEN {
            continue;
        }
        let length = |column: usize| {
            // Tables that were written anew may have 12.0.
            let value = fields[column].parse::<f64>().ok().filter(|value| value.fract() == 0.0);
            let value = value.filter(|value| (0.0..=f64::from(u32::MAX)).contains(value));
            let reason = || {
                format!(
                    "`{}` in column `{}` is no number of tokens",
                    fields[column],
                    head[column].trim()
                )
            };
            value
                .map(|value| value as u32)
                .ok_or_else(|| file.bad_line(number, &reason()))
        };
        let row = Row {
            prompt: length(request)?,
            answer: length(response)?,
        };
        // An answer of no token is a request that failed.
        if row.prompt > 0 && row.answer > 0 {
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The prompt at a place among all: `len` ids from its number on, below `vocab_size`.
pub(super) fn prompt(index: usize, len: u32, vocab_size: u32) -> Vec<u32> {
    let first = index as u64;
    let ids = first..first + u64::from(len);
    ids.map(|id| (id % u64::from(vocab_size)) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::serve::dataset_file::tests::Written;

    fn error(name: &str, text: &str) -> String {
        let file = Written::new(name, text.as_bytes());
        rows(&file.0).expect_err("refused").to_string()
    }

    #[test]
    fn answered_rows_of_one_model_are_taken_by_the_names_of_columns() {
        let first = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                     5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,87,0,87,API log\n\
                     47,GPT-4,30,7,37,API log\n48,GPT-4,12.0,3,15,API log\n49,GPT-4,0,3,3,API log\n";
        let expected = [(30, 7), (12, 3)].map(|(prompt, answer)| Row { prompt, answer });
        let file = Written::new("burst", first.as_bytes());
        assert_eq!(rows(&file.0).expect("rows"), expected);
        // The second edition has more columns.
        let second = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n\
                      47,s,0.1,GPT-4,30,7,37,API log\r\n";
        let file = Written::new("burst2", second.as_bytes());
        assert_eq!(rows(&file.0).expect("rows"), expected[..1]);
    }

    #[test]
    fn what_is_no_such_file_is_told_with_its_line() {
        assert!(error("burst-empty", "").contains("it is empty"));
        assert!(error("burst-head", "a,b\n1,2\n").contains("line 1: no column `Model`"));
        let head = "Model,Request tokens,Response tokens\n";
        let told = error("burst-fields", &format!("{head}GPT-4,1\n"));
        assert!(told.contains("line 2: 2 fields, the first line has 3"), "{told}");
        for bad in ["x", "-1", "1.5", "inf", "5000000000"] {
            let told = error("burst-number", &format!("{head}GPT-4,{bad},1\n"));
            assert!(
                told.contains(&format!("line 2: `{bad}` in column `Request tokens`")),
                "{told}"
            );
        }
    }

    #[test]
    fn prompts_are_runs_of_ids() {
        assert_eq!(prompt(3, 4, 5), [3, 4, 0, 1]);
        assert!(prompt(3, 0, 5).is_empty());
    }
}
