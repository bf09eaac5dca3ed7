//! Values in conditions. JSON stays text until a condition reads it, and each read parses one level.

use std::borrow::Cow;
use std::fmt;
use std::rc::Rc;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use tickfleet_model::number::Number;

use crate::work::{Problem, Work};

/// Lists and objects are reference-counted, because conditions read them repeatedly.
#[derive(Debug, Clone)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Rc<[Value<'a>]>),
    Map(Rc<[(Cow<'a, str>, Value<'a>)]>),
    Json(&'a RawValue),
}

impl<'a> Value<'a> {
    pub(crate) fn text(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }

    pub(crate) fn texts(texts: impl Iterator<Item = &'a str>) -> Self {
        Self::List(texts.map(Self::text).collect())
    }

    pub(crate) fn nothing() -> Self {
        Self::Map(Rc::new([]))
    }

    pub(crate) fn opened(self, work: &mut Work) -> Result<Self, Problem> {
        let Self::Json(json) = self else { return Ok(self) };
        let text = json.get();
        work.spend_bytes(text.len())?;
        let unreadable = |error: serde_json::Error| Problem::Cannot(format!("invalid JSON ({error})"));
        Ok(match text.as_bytes().first() {
            Some(b'n') => Self::Null,
            Some(b't') => Self::Bool(true),
            Some(b'f') => Self::Bool(false),
            Some(b'"') => Self::Text(serde_json::from_str::<Key<'a>>(text).map_err(unreadable)?.0),
            Some(b'[') => {
                let items: Vec<&'a RawValue> = serde_json::from_str(text).map_err(unreadable)?;
                work.spend(items.len())?;
                Self::List(items.into_iter().map(Self::Json).collect())
            }
            Some(b'{') => {
                let Members(members) = serde_json::from_str(text).map_err(unreadable)?;
                work.spend(members.len())?;
                Self::Map(members.into_iter().map(|(key, json)| (key, Self::Json(json))).collect())
            }
            _ => Self::Number(Number::parse(text).ok_or_else(|| {
                Problem::Cannot("a number with more than 38 digits, or beyond 1e1000, cannot be compared".to_owned())
            })?),
        })
    }

    /// The caller must have parsed the first level of `self`.
    pub(crate) fn member(&self, name: &str, work: &mut Work) -> Result<Option<Self>, Problem> {
        let Self::Map(members) = self else {
            return Err(Problem::Cannot(format!("`{name}` is read from {}, which has no members", self.kind())));
        };
        work.spend(members.len())?;
        let mut found = members.iter().filter(|(key, _)| key == name);
        let first = found.next().map(|(_, value)| value.clone());
        if found.next().is_some() {
            return Err(Problem::Cannot(format!("`{name}` is given twice")));
        }
        Ok(first)
    }

    /// Numbers are compared by value. The order of members does not matter.
    pub(crate) fn equals(self, other: Self, work: &mut Work) -> Result<bool, Problem> {
        work.spend(1)?;
        Ok(match (self.opened(work)?, other.opened(work)?) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(one), Self::Bool(other)) => one == other,
            (Self::Number(one), Self::Number(other)) => one == other,
            (Self::Text(one), Self::Text(other)) => {
                work.spend_bytes(one.len().min(other.len()))?;
                one == other
            }
            (Self::List(one), Self::List(other)) => {
                let mut same = one.len() == other.len();
                for (one, other) in one.iter().zip(other.iter()) {
                    same = same && one.clone().equals(other.clone(), work)?;
                }
                same
            }
            (one @ Self::Map(_), Self::Map(others)) => {
                let mut same = matches!(&one, Self::Map(members) if members.len() == others.len());
                for (key, other) in others.iter() {
                    let Some(value) = one.member(key, work)?.filter(|_| same) else { return Ok(false) };
                    same = value.equals(other.clone(), work)?;
                }
                same
            }
            _ => false,
        })
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
            Self::Json(_) => "a value",
        }
    }
}

struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        from.deserialize_str(Text)
    }
}

struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((Key(key), value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    members.push((key, value));
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(Object)
    }
}
