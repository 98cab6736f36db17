//! What a channel program returns, as it is shown.
//!
//! Invariant: keys are shown in their order; what is shown as JSON is JSON, whatever the texts are.

/// A value that a program returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramValue {
    /// No value: that there is something.
    Present,
    /// Truth.
    Bool(bool),
    /// A number.
    Number(i64),
    /// Text.
    Text(String),
    /// Values by keys.
    List(Vec<(String, ProgramValue)>),
}

/// What is shown of a program that ended; `None`: it returned nothing.
pub fn shown(returned: Option<ProgramValue>, json: bool) -> String {
    let all = returned.map(|value| ("return".to_owned(), value)).into_iter().collect::<Vec<_>>();
    if json {
        let mut text = String::new();
        write_json(&ProgramValue::List(all), &mut text);
        return text;
    }
    if all.is_empty() {
        return "Channel program fully executed with no return value.\n".to_owned();
    }
    let mut text = "Channel program fully executed with return value:\n".to_owned();
    write_list(&all, 4, &mut text);
    text
}

fn write_list(all: &[(String, ProgramValue)], indent: usize, text: &mut String) {
    for (key, value) in all {
        text.extend(std::iter::repeat_n(' ', indent));
        text.push_str(key);
        match value {
            ProgramValue::Present => text.push('\n'),
            ProgramValue::Bool(truth) => text.push_str(&format!(": {truth}\n")),
            ProgramValue::Number(number) => text.push_str(&format!(": {number}\n")),
            ProgramValue::Text(value) => text.push_str(&format!(": '{value}'\n")),
            ProgramValue::List(inner) => {
                text.push_str(":\n");
                write_list(inner, indent + 4, text);
            }
        }
    }
}

fn write_json(value: &ProgramValue, text: &mut String) {
    match value {
        ProgramValue::Present => text.push_str("true"),
        ProgramValue::Bool(truth) => text.push_str(&truth.to_string()),
        ProgramValue::Number(number) => text.push_str(&number.to_string()),
        ProgramValue::Text(value) => write_json_text(value, text),
        ProgramValue::List(all) => {
            text.push('{');
            for (at, (key, value)) in all.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                write_json_text(key, text);
                text.push(':');
                write_json(value, text);
            }
            text.push('}');
        }
    }
}

fn write_json_text(value: &str, text: &mut String) {
    text.push('"');
    for letter in value.chars() {
        match letter {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            ' '..='~' => text.push(letter),
            other => {
                let mut units = [0; 2];
                for unit in other.encode_utf16(&mut units) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(all: &[(&str, ProgramValue)]) -> ProgramValue {
        ProgramValue::List(
            all.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        )
    }

    #[test]
    fn values_are_shown_line_by_line_and_as_json() {
        assert_eq!(shown(None, false), "Channel program fully executed with no return value.\n");
        assert_eq!(shown(None, true), "{}");
        let inner = list(&[("1", ProgramValue::Bool(false))]);
        let value = list(&[
            ("baz", ProgramValue::Number(-2)),
            ("foo", ProgramValue::Text("b\"a\u{1}ü𝄞\n".to_owned())),
            ("none", ProgramValue::Present),
            ("inner", inner),
        ]);
        let lines = "Channel program fully executed with return value:\n    return:\n        baz: -2\n        \
                     foo: 'b\"a\u{1}ü𝄞\n'\n        none\n        inner:\n            1: false\n";
        assert_eq!(shown(Some(value.clone()), false), lines);
        let json = shown(Some(value), true);
        let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(parsed["return"]["foo"], "b\"a\u{1}ü𝄞\n");
        assert_eq!(parsed["return"]["none"], true);
        let one = shown(Some(ProgramValue::Present), false);
        assert_eq!(one, "Channel program fully executed with return value:\n    return\n");
    }
}
