//! Mutation of a JSON value with the schema of other values. A field changes to a boundary value, or to a value that a field of this name
//! has elsewhere. Lists lose, repeat and exchange members. A result that serde cannot read does not follow the schema and is dropped.

use std::collections::BTreeMap;

use nodescope_hypercall::Function;
use serde_json::Value;

use crate::choices::Choices;

/// Maximum number of members that one mutation adds to a list.
const GROWTH: usize = 40;

/// Values that fields have in JSON values seen so far, by the fields' names.
#[derive(Debug, Default)]
pub struct Vocabulary {
    values: BTreeMap<String, Vec<Value>>,
}

/// Maximum number of values that are remembered for each field name.
const REMEMBERED: usize = 40;

impl Vocabulary {
    /// Adds to the vocabulary the fields of a JSON value, at all depths.
    pub fn learn(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let known = self.values.entry(name.clone()).or_default();
                    if known.len() < REMEMBERED && !known.contains(value) {
                        known.push(value.clone());
                    }
                    self.learn(value);
                }
            }
            Value::Array(members) => members.iter().for_each(|member| self.learn(member)),
            _ => {}
        }
    }
}

/// A step from a value to one of its fields or members.
#[derive(Clone, Debug)]
enum Step {
    Field(String),
    Member(usize),
}

/// Changes one randomly chosen part of a value.
pub fn mutate(value: &mut Value, vocabulary: &Vocabulary, choices: &mut Choices<'_>) {
    let mut places = Vec::new();
    collect(value, &mut Vec::new(), &mut places);
    let Some(place) = choices.of(&places) else {
        return;
    };
    let name = place.iter().rev().find_map(|step| match step {
        Step::Field(name) => Some(name.as_str()),
        Step::Member(_) => None,
    });
    let Some(part) = reach(value, place) else {
        return;
    };
    if let Some(known) = name.and_then(|name| vocabulary.values.get(name))
        && choices.once_in(4)
        && !matches!(place.last(), Some(Step::Member(_)))
    {
        *part = choices.of(known).cloned().unwrap_or_default();
        return;
    }
    change(part, name.unwrap_or_default(), choices);
}

fn collect(value: &Value, way: &mut Vec<Step>, places: &mut Vec<Vec<Step>>) {
    if !way.is_empty() {
        places.push(way.clone());
    }
    let mut into = |step: Step, value: &Value| {
        way.push(step);
        collect(value, way, places);
        way.pop();
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                into(Step::Field(name.clone()), value);
            }
        }
        Value::Array(members) => {
            // The first 64 members of a long list suffice.
            for (at, member) in members.iter().enumerate().take(64) {
                into(Step::Member(at), member);
            }
        }
        _ => {}
    }
}

fn reach<'a>(mut value: &'a mut Value, place: &[Step]) -> Option<&'a mut Value> {
    for step in place {
        value = match step {
            Step::Field(name) => value.get_mut(name)?,
            Step::Member(at) => value.get_mut(*at)?,
        };
    }
    Some(value)
}

fn change(part: &mut Value, name: &str, choices: &mut Choices<'_>) {
    match part {
        Value::Null => *part = choices.number(0).into(),
        Value::Bool(is) => *is = !*is,
        Value::Number(number) => {
            let new = choices.number(number.as_u64().unwrap_or(0));
            *part = match (number.is_f64(), choices.below(3)) {
                (true, _) => (f64::from_bits(new)).into(),
                (false, 0) => (new as u32).into(),
                (false, 1) => (new as u16).into(),
                (false, _) => new.into(),
            };
        }
        Value::String(_) if name == "function" => {
            let function = choices.of(Function::ALL).copied();
            *part = serde_json::to_value(function).unwrap_or_default();
        }
        Value::String(text) => match choices.below(4) {
            0 => text.clear(),
            1 => *text = text.repeat(1 + choices.below(300)),
            2 => text.push_str("\u{1b}[31m\0\n\"<&\u{fffd}"),
            _ => text.insert_str(0, "../"),
        },
        Value::Array(members) => match choices.below(5) {
            0 => members.clear(),
            1 if !members.is_empty() => drop(members.remove(choices.below(members.len()))),
            2 if members.len() > 1 => {
                let (a, b) = (choices.below(members.len()), choices.below(members.len()));
                members.swap(a, b);
            }
            _ => {
                let one = choices.of(members).cloned();
                // The members of an empty list may be numbers or ranks; both are tried.
                let one = one.unwrap_or_else(|| match choices.once_in(2) {
                    true => choices.number(0).into(),
                    false => serde_json::json!({ "Rank": choices.below(9) }),
                });
                let count = 1 + choices.below(GROWTH);
                members.extend(std::iter::repeat_n(one, count));
            }
        },
        Value::Object(fields) => {
            // Removes a field, or turns an enum variant with content into an empty object.
            let names: Vec<String> = fields.keys().cloned().collect();
            if let Some(name) = choices.of(&names) {
                fields.remove(name);
            }
        }
    }
}
