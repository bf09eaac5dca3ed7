//! Reads typed values from a tree. After an error, reading continues with placeholders, so that a single run reports
//! all errors.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::document::errors::{ConfigLocation, Errors};
use crate::document::tree::{Entry, Node, Value, join};
use crate::document::units::{format_duration, format_size, parse_duration, parse_size};
use crate::mask;
use tickfleet_model::suggest;

pub(crate) struct Section<'a> {
    path: String,
    place: &'a ConfigLocation,
    entries: &'a [Entry],
    /// False if the value is not a mapping. That error is already noted, so missing fields are not reported.
    sound: bool,
    known: Vec<&'static str>,
    errors: &'a Errors,
}

impl<'a> Section<'a> {
    pub(crate) fn open(node: &'a Node, path: impl Into<String>, errors: &'a Errors) -> Self {
        let path = path.into();
        let sound = matches!(node.value, Value::Mapping(_) | Value::Null);
        if !sound {
            errors.push(&node.place, &path, node.describe(), "a mapping");
        }
        Self { path, place: &node.place, entries: node.entries(), sound, known: vec![], errors }
    }

    /// Null counts as missing.
    pub(crate) fn optional(&mut self, field: &'static str) -> Option<Cursor<'a>> {
        self.known.push(field);
        let entry = self.entries.iter().find(|entry| entry.key == field)?;
        let given = !matches!(entry.node.value, Value::Null);
        given.then(|| Cursor { node: &entry.node, path: join(&self.path, field), errors: self.errors })
    }

    pub(crate) fn required(&mut self, field: &'static str) -> Option<Cursor<'a>> {
        let found = self.optional(field);
        if found.is_none() && self.sound {
            let written = self.entries.iter().find(|entry| entry.key == field);
            let place = written.map_or(self.place, |entry| &entry.key_place);
            self.errors.push(place, &join(&self.path, field), "nothing", format!("a value: `{field}` is required"));
        }
        found
    }

    /// A misspelled setting would have no effect, so every unread field is an error.
    pub(crate) fn close(self) {
        for entry in self.entries.iter().filter(|entry| !self.known.contains(&entry.key.as_str())) {
            let expected = match self.known.as_slice() {
                [] => "no field here".to_owned(),
                known => format!("one of {}", suggest::list(known.iter().copied())),
            };
            let meant = suggest::closest(&entry.key, self.known.iter().copied());
            let found = format!("the unknown field `{}`", entry.key);
            self.errors.suggest(&entry.key_place, &join(&self.path, &entry.key), found, expected, meant);
        }
    }
}

#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    pub(crate) node: &'a Node,
    pub(crate) path: String,
    pub(crate) errors: &'a Errors,
}

impl<'a> Cursor<'a> {
    pub(crate) fn section(&self) -> Section<'a> {
        Section::open(self.node, self.path.clone(), self.errors)
    }

    pub(crate) fn refuse(&self, expected: impl Into<String>) {
        self.refuse_with(expected, None);
    }

    pub(crate) fn refuse_with(&self, expected: impl Into<String>, meant: Option<String>) {
        self.errors.suggest(&self.node.place, &self.path, self.found(), expected, meant);
    }

    /// Masks the text, because it may be a secret.
    fn found(&self) -> String {
        let shown = match &self.node.value {
            Value::Text(text) => mask::found(text, &self.path),
            _ => None,
        };
        match shown {
            Some(text) => Node { value: Value::Text(text), place: self.node.place.clone() }.describe(),
            None => self.node.describe(),
        }
    }

    pub(crate) fn text(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Text(text) => return Some(text),
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => self.refuse("text; put it in quotes"),
            Value::Null | Value::List(_) | Value::Mapping(_) => self.refuse("text"),
        }
        None
    }

    pub(crate) fn some_text(&self) -> Option<String> {
        let text = self.text()?;
        if text.trim().is_empty() {
            self.refuse("text that is not empty");
            return None;
        }
        Some(text.to_owned())
    }

    pub(crate) fn boolean(&self) -> Option<bool> {
        match (&self.node.value, self.variable_text()) {
            (Value::Boolean(value), _) => return Some(*value),
            (_, Some("true")) => return Some(true),
            (_, Some("false")) => return Some(false),
            _ => self.refuse("true or false"),
        }
        None
    }

    pub(crate) fn integer<T: TryFrom<i128>>(&self, min: i128, max: i128) -> Option<T> {
        let number = match (&self.node.value, self.variable_text()) {
            (Value::Integer(number), _) => Some(*number),
            (_, Some(text)) => text.parse().ok(),
            _ => None,
        };
        let read = number.filter(|number| (min..=max).contains(number)).and_then(|number| T::try_from(number).ok());
        if read.is_none() {
            self.refuse(format!("a whole number from {min} to {max}"));
        }
        read
    }

    pub(crate) fn duration(&self, min: Duration, max: Duration) -> Option<Duration> {
        let read = match &self.node.value {
            Value::Text(text) => parse_duration(text).filter(|duration| (min..=max).contains(duration)),
            _ => None,
        };
        if read.is_none() {
            let min = format_duration(min);
            let max = format_duration(max);
            self.refuse(format!("a duration from {min} to {max}, such as 250ms, 5s, 2m or 1h"));
        }
        read
    }

    pub(crate) fn size(&self, min: u64, max: u64) -> Option<u64> {
        let read = match &self.node.value {
            Value::Text(text) => parse_size(text).filter(|bytes| (min..=max).contains(bytes)),
            _ => None,
        };
        if read.is_none() {
            let min = format_size(min);
            let max = format_size(max);
            self.refuse(format!("a size from {min} to {max}, such as 64KiB or 1MiB"));
        }
        read
    }

    pub(crate) fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let words = || choices.iter().map(|(word, _)| *word);
            self.refuse_with(format!("one of {}", suggest::list(words())), suggest::closest(text, words()));
        }
        found
    }

    pub(crate) fn items(&self) -> Vec<Self> {
        let Value::List(items) = &self.node.value else {
            self.refuse("a list");
            return vec![];
        };
        let at = |(i, node)| Self { node, path: format!("{}[{i}]", self.path), errors: self.errors };
        items.iter().enumerate().map(at).collect()
    }

    pub(crate) fn members(&self) -> Vec<(&'a str, &'a ConfigLocation, Self)> {
        if !matches!(self.node.value, Value::Mapping(_)) {
            self.refuse("a mapping");
        }
        let at = |entry: &'a Entry| {
            let path = join(&self.path, &entry.key);
            (entry.key.as_str(), &entry.key_place, Self { node: &entry.node, path, errors: self.errors })
        };
        self.node.entries().iter().map(at).collect()
    }

    pub(crate) fn words(&self) -> BTreeSet<String> {
        let mut words = BTreeSet::new();
        for item in self.items() {
            if let Some(word) = item.some_text()
                && !words.insert(word)
            {
                item.refuse("each name once");
            }
        }
        words
    }

    /// Numbers and booleans from environment variables are texts, so this text must be parsed.
    fn variable_text(&self) -> Option<&'a str> {
        match (&self.node.place, &self.node.value) {
            (ConfigLocation::Environment(_), Value::Text(text)) => Some(text.trim()),
            _ => None,
        }
    }
}
