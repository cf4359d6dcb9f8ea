//! The reference of all kinds of steps, as Markdown and as a JSON schema, from their declarations.

use wire::json::writer;

use crate::KINDS;
use crate::fields::{Field, FieldDefault, FieldKind};
use crate::kind::{StepKind, StepPort};
use crate::limits::{CALL_TENSORS_MAX, PADDING_MULTIPLE_MAX, STEPS_MAX};
use crate::list::{call, padding};

/// The schema of a `steps.json` (JSON Schema 2020-12), for editors and for `check-jsonschema`.
pub fn schema() -> String {
    let mut out = String::from(
        "{\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n  \"title\": \"steps.json of Deuteron\",\n",
    );
    out += "  \"type\": \"object\",\n  \"required\": [\"steps\"],\n  \"additionalProperties\": false,\n  \"properties\": {\n";
    out += &format!(
        "    \"steps\": {{\n      \"type\": \"array\",\n      \"minItems\": 1,\n      \"maxItems\": {STEPS_MAX},\n"
    );
    out += "      \"items\": {\n        \"oneOf\": [\n";
    out += "          {\"type\": \"object\", \"required\": [\"step\"], \"additionalProperties\": false, \"properties\": {\n";
    out +=
        "            \"step\": {\"const\": \"model\", \"description\": \"The model between the steps runs here.\"},\n";
    padding_schema(&mut out);
    out += ",\n";
    call_schema(&mut out);
    for kind in KINDS {
        out += ",\n";
        step_schema(kind, &mut out);
    }
    out += "\n        ]\n      }\n    }\n  }\n}\n";
    out
}

/// The schema of the padding of the model's inputs, which ends its step.
fn padding_schema(out: &mut String) {
    *out += "            \"padding\": {\"type\": \"object\", \"required\": [\"inputs\", \"lengths\"], \"additionalProperties\": false, ";
    *out += &format!("\"description\": {}, \"properties\": {{\n", quoted(padding::ABOUT));
    *out += "              \"inputs\": {\"type\": \"object\", \"minProperties\": 1, \"additionalProperties\": {\"type\": \"number\"}},\n";
    *out += "              \"lengths\": {\"type\": \"string\"}, \"side\": {\"enum\": [\"left\", \"right\"]},\n";
    *out += &format!(
        "              \"multiple_of\": {{\"type\": \"integer\", \"minimum\": 1, \"maximum\": {PADDING_MULTIPLE_MAX}}}}}}}}}}}"
    );
}

/// The schema of a step that runs another model, whose ports are the tensors of that.
fn call_schema(out: &mut String) {
    let name = quoted(call::NAME);
    *out += "          {\"type\": \"object\", \"required\": [\"step\", \"model\", \"inputs\", \"outputs\"], ";
    *out += "\"additionalProperties\": false,\n           \"description\": ";
    *out += &quoted(call::ABOUT);
    *out += &format!(", \"properties\": {{\n            \"step\": {{\"const\": {name}}},\n");
    for (member, about) in CALL_TENSORS {
        *out += &format!(
            "            \"{member}\": {{\"type\": \"object\", \"minProperties\": 1, \"maxProperties\": {CALL_TENSORS_MAX}, \
             \"additionalProperties\": {{\"type\": \"string\"}}, \"description\": {}}},\n",
            quoted(about)
        );
    }
    let fields: Vec<_> = call::FIELDS.iter().map(|field| format!("            {}", field_schema(field))).collect();
    *out += &fields.join(",\n");
    *out += "}}";
}

/// The members of a step that runs another model, and what they connect.
const CALL_TENSORS: [(&str, &str); 2] = [
    ("inputs", "From inputs of the model to tensors of the list: `{\"pixels\": \"crops\"}`."),
    ("outputs", "From outputs of the model, which alone are computed, to tensors of the list."),
];

fn step_schema(kind: &StepKind, out: &mut String) {
    *out += "          {\"type\": \"object\", \"required\": [\"step\"";
    for field in kind.fields.iter().filter(|field| matches!(field.default, FieldDefault::Required)) {
        *out += &format!(", {}", quoted(field.name));
    }
    *out += "], \"additionalProperties\": false,\n           \"description\": ";
    *out += &quoted(kind.about);
    *out += ", \"properties\": {\n            \"step\": {\"const\": ";
    *out += &quoted(kind.name);
    *out += "},\n";
    for (one, several, ports) in [("input", "inputs", kind.inputs), ("output", "outputs", kind.outputs)] {
        if let Some(first) = ports.first() {
            *out += &format!("            \"{one}\": {},\n", name_schema(first));
        }
        let ports: Vec<_> = ports.iter().map(port_schema).collect();
        *out += &format!(
            "            \"{several}\": {{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {{{}}}}}",
            ports.join(", ")
        );
        *out += if one == "input" || !kind.fields.is_empty() { ",\n" } else { "\n" };
    }
    let fields: Vec<_> = kind.fields.iter().map(|field| format!("            {}", field_schema(field))).collect();
    *out += &fields.join(",\n");
    *out += "}}";
}

fn port_schema(port: &StepPort) -> String {
    format!("{}: {}", quoted(port.member()), name_schema(port))
}

/// The schema of the name of a tensor, or of the names for a list.
fn name_schema(port: &StepPort) -> String {
    let kind = match port.is_list() {
        true => r#""type": "array", "items": {"type": "string"}"#,
        false => r#""type": "string""#,
    };
    format!("{{{kind}, \"description\": {}}}", quoted(port.about))
}

fn field_schema(field: &Field) -> String {
    let kind = match field.kind {
        FieldKind::Bool => "\"type\": \"boolean\"".to_owned(),
        FieldKind::Choice(names) => {
            let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
            format!("\"enum\": [{}]", names.join(", "))
        }
        FieldKind::File | FieldKind::Text => "\"type\": \"string\"".to_owned(),
        FieldKind::Integer(least, most) => format!("\"type\": \"integer\", \"minimum\": {least}, \"maximum\": {most}"),
        FieldKind::Integers { count, least, most } => format!(
            "\"type\": \"array\", \"maxItems\": {count}, \"items\": {{\"type\": \"integer\", \"minimum\": {least}, \"maximum\": {most}}}"
        ),
        FieldKind::Json => "\"description\": \"any value\"".to_owned(),
        FieldKind::Number(least, most)
            if least.is_finite() && most.is_finite() && least > f64::MIN && most < f64::MAX =>
        {
            format!("\"type\": \"number\", \"minimum\": {least}, \"maximum\": {most}")
        }
        FieldKind::Number(..) => "\"type\": \"number\"".to_owned(),
        FieldKind::Numbers(count) => {
            format!("\"type\": \"array\", \"maxItems\": {count}, \"items\": {{\"type\": \"number\"}}")
        }
        FieldKind::Texts => "\"type\": [\"array\", \"object\"]".to_owned(),
    };
    let about = match field.kind {
        FieldKind::Json => String::new(),
        _ => format!(", \"description\": {}", quoted(field.about)),
    };
    let default = match field.default {
        FieldDefault::Json(text) => format!(", \"default\": {text}"),
        FieldDefault::Required | FieldDefault::Unset => String::new(),
    };
    format!("{}: {{{kind}{about}{default}}}", quoted(field.name))
}

/// The kinds in Markdown: a section for each, with tables of its tensors and parameters.
pub fn markdown() -> String {
    let (before, behind): (Vec<_>, Vec<_>) = KINDS.iter().partition(|kind| kind.name < call::NAME);
    let sections = before.into_iter().map(section).chain([call_section()]);
    sections.chain(behind.into_iter().map(section)).collect::<Vec<_>>().join("\n")
}

fn call_section() -> String {
    let mut out = format!("## `{}`\n\n{}\n\n| tensor | |\n|---|---|\n", call::NAME, call::ABOUT);
    for (member, about) in CALL_TENSORS {
        out += &format!("| `{member}` | {} |\n", cell(about));
    }
    out + &field_table(call::FIELDS)
}

fn section(kind: &StepKind) -> String {
    let mut out = format!("## `{}`\n\n{}\n\n| tensor | |\n|---|---|\n", kind.name, kind.about);
    for (direction, ports) in [("reads", kind.inputs), ("writes", kind.outputs)] {
        for port in ports {
            let optional = if port.is_optional { ", optional" } else { "" };
            let (name, list) = (port.member(), if port.is_list() { ", a list of names" } else { "" });
            out += &format!("| {direction} `{name}`{list}{optional} | {} |\n", cell(port.about));
        }
    }
    out + &field_table(kind.fields)
}

/// A table of parameters; empty without any.
fn field_table(fields: &[Field]) -> String {
    if fields.is_empty() {
        return String::new();
    }
    let mut out = "\n| parameter | value | default | |\n|---|---|---|---|\n".to_owned();
    for field in fields {
        let default = match field.default {
            FieldDefault::Json(text) => format!("`{text}`"),
            FieldDefault::Required => "must be given".to_owned(),
            FieldDefault::Unset => String::new(),
        };
        let expected = field.kind.expected().replace('"', "`");
        out += &format!("| `{}` | {} | {} | {} |\n", field.name, cell(&expected), cell(&default), cell(field.about));
    }
    out
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn quoted(text: &str) -> String {
    let mut out = Vec::new();
    writer::string(text, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "a test fails by panicking")]
mod tests;
