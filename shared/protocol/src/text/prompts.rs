//! The prompts that describe tools to a model without function calling.

use tickfleet_model::ToolSpec;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts {
    tools: String,
    tool: String,
    none: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no {placeholder} in the prompt")]
pub struct PromptError {
    pub file: &'static str,
    pub placeholder: &'static str,
}

impl Default for Prompts {
    fn default() -> Self {
        let [tools, tool, none] = Self::BUILT_IN.map(|(_, text)| text.to_owned());
        Self { tools, tool, none }
    }
}

impl Prompts {
    /// Each file and its built-in text. Placeholders: `{tools}` in `tools.txt`; `{name}`, `{description}` and
    /// `{arguments}` in `tool.txt`.
    pub const BUILT_IN: [(&'static str, &'static str); 3] = [
        ("tools.txt", include_str!("../../../../config/prompts/tools.txt")),
        ("tool.txt", include_str!("../../../../config/prompts/tool.txt")),
        ("no_tools.txt", include_str!("../../../../config/prompts/no_tools.txt")),
    ];

    /// `texts` have the order of [`Self::BUILT_IN`]. Fails with the first text without a required placeholder.
    pub fn new(texts: [String; 3]) -> Result<Self, PromptError> {
        let [tools, tool, none] = texts;
        for (file, text, placeholder) in
            [("tools.txt", &tools, "{tools}"), ("tool.txt", &tool, "{name}"), ("tool.txt", &tool, "{arguments}")]
        {
            if !text.contains(placeholder) {
                return Err(PromptError { file, placeholder });
            }
        }
        Ok(Self { tools, tool, none })
    }

    #[must_use]
    pub fn describe(&self, tools: &[&ToolSpec]) -> String {
        if tools.is_empty() {
            return self.none.clone();
        }
        let mut sorted = tools.to_vec();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        let one = |tool: &&ToolSpec| {
            let arguments = tool.input_schema.to_string();
            let description = tool.description.trim();
            let text =
                fill(&self.tool, &[("name", &tool.name), ("description", description), ("arguments", &arguments)]);
            text.trim_end().to_owned()
        };
        let list = sorted.iter().map(one).collect::<Vec<_>>().join("\n\n");
        fill(&self.tools, &[("tools", &list)])
    }
}

/// A placeholder inside an inserted value is not replaced.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len() + values.iter().map(|(_, value)| value.len()).sum::<usize>());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let found = values.iter().find_map(|(name, value)| {
            Some((value, after.strip_prefix(*name).and_then(|rest| rest.strip_prefix('}'))?))
        });
        match found {
            Some((value, behind)) => {
                filled.push_str(value);
                rest = behind;
            }
            None => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;
    use crate::definitions::test_tool;

    #[test]
    fn the_tool_list_is_sorted_and_an_empty_list_is_a_sentence() {
        let b = test_tool("b_tool");
        let a = test_tool("a.tool");
        let text = Prompts::default().describe(&[&b, &a]);
        let first = text.find("a.tool: Adds.").unwrap();
        let second = text.find("b_tool: Adds.").unwrap();
        assert!(first < second && text.contains(r#"{"tool": ""#) && text.contains(r#""properties":{"a""#), "{text}");
        assert_eq!(Prompts::default().describe(&[]), "You have no tools. Answer in plain words.\n");
    }

    #[test]
    fn a_placeholder_in_a_tool_description_is_not_expanded() {
        let mut tool = test_tool("t");
        tool.description = "Takes {arguments} and {name}.".into();
        let prompts = Prompts::new(["{x} {tools}{".into(), "{name}|{description}|{arguments}".into(), String::new()]);
        let text = prompts.unwrap().describe(&[&tool]);
        assert!(text.starts_with("{x} t|Takes {arguments} and {name}.|{") && text.ends_with('{'), "{text}");
    }

    #[test]
    fn a_prompt_that_hides_the_tools_is_refused() {
        let texts = |tools: &str, tool: &str| Prompts::new([tools.into(), tool.into(), String::new()]);
        assert_eq!(texts("no list", "{name}{arguments}").unwrap_err().placeholder, "{tools}");
        assert_eq!(texts("{tools}", "{name}").unwrap_err().to_string(), "no {arguments} in the prompt");
    }
}
