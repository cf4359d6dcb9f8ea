//! The report in JSON. Its members keep their names and meanings; later versions may add some.

use crate::control::check::cure::MissingPart;
use crate::control::check::{CheckedDeployment, CheckedModel, RepositoryCheck};
use crate::settings::deployment::FlagOutcome;
use crate::wire::json::writer;

/// The number of the schema: it changes if a member's meaning does.
const SCHEMA: u32 = 1;

/// Returns the text, with a line end.
pub fn text(check: &RepositoryCheck) -> String {
    let mut out = JsonMembers::default();
    out.number("schema", SCHEMA as usize);
    out.boolean("ok", check.is_clean());
    out.number("served", check.served());
    out.number("refused", check.models.len() - check.served());
    out.optional("fault", check.fault.as_deref());
    out.objects("models", check.models.iter().map(model));
    out.objects(
        "ignored",
        check.ignored.iter().map(|(name, why)| {
            let mut entry = JsonMembers::default();
            entry.text("name", name);
            entry.text("reason", why);
            entry
        }),
    );
    match &check.deployment {
        Some(found) => out.raw("deployment", &deployment(found).end()),
        None => out.raw("deployment", "null"),
    }
    out.end() + "\n"
}

fn model(model: &CheckedModel) -> JsonMembers {
    let mut out = JsonMembers::default();
    out.text("name", &model.name);
    out.text("backend", &model.backend);
    out.text("engine", &model.engine);
    let versions: Vec<_> = model.versions.iter().map(u64::to_string).collect();
    out.raw("versions", &format!("[{}]", versions.join(",")));
    out.text("verdict", model.verdict.name());
    out.optional("reason", model.reason.as_deref());
    out.optional("change", model.change.as_deref());
    out.objects(
        "missing",
        model.missing.iter().map(|MissingPart { kind, name }| {
            let mut part = JsonMembers::default();
            part.text("kind", kind.name());
            part.text("name", name);
            part
        }),
    );
    out.texts("warnings", &model.warnings);
    out.texts("notes", &model.notes);
    out
}

fn deployment(found: &CheckedDeployment) -> JsonMembers {
    let mut out = JsonMembers::default();
    out.optional("image", found.deployment.image.as_deref());
    out.objects(
        "flags",
        found.flags.iter().map(|flag| {
            let (outcome, reason) = match &flag.outcome {
                FlagOutcome::Taken => ("taken", None),
                FlagOutcome::Ignored(why) => ("ignored", Some(why.as_str())),
                FlagOutcome::Refused(why) => ("refused", Some(why.as_str())),
            };
            let mut entry = JsonMembers::default();
            entry.text("flag", &flag.text);
            entry.text("outcome", outcome);
            entry.optional("reason", reason);
            entry
        }),
    );
    out.texts("packages", &found.deployment.packages);
    out.texts("notes", &found.deployment.notes);
    out.text("command", &found.command_line());
    out.text("dockerfile", &found.dockerfile());
    out
}

/// An object that is written member by member.
#[derive(Default)]
struct JsonMembers {
    members: Vec<String>,
}

impl JsonMembers {
    fn raw(&mut self, name: &str, value: &str) {
        self.members.push(format!("{}:{value}", string(name)));
    }

    fn text(&mut self, name: &str, value: &str) {
        self.raw(name, &string(value));
    }

    fn optional(&mut self, name: &str, value: Option<&str>) {
        self.raw(name, &value.map_or_else(|| "null".to_owned(), string));
    }

    fn number(&mut self, name: &str, value: usize) {
        self.raw(name, &value.to_string());
    }

    fn boolean(&mut self, name: &str, value: bool) {
        self.raw(name, if value { "true" } else { "false" });
    }

    fn texts(&mut self, name: &str, values: &[String]) {
        let values: Vec<_> = values.iter().map(|value| string(value)).collect();
        self.raw(name, &format!("[{}]", values.join(",")));
    }

    fn objects(&mut self, name: &str, values: impl Iterator<Item = Self>) {
        let values: Vec<_> = values.map(Self::end).collect();
        self.raw(name, &format!("[{}]", values.join(",")));
    }

    fn end(self) -> String {
        format!("{{{}}}", self.members.join(","))
    }
}

fn string(text: &str) -> String {
    let mut out = Vec::new();
    writer::string(text, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}
