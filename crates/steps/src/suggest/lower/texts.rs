//! Steps on texts: `tokenize`, `detokenize`, `ctc`, `parse` and `template`.

use crate::suggest::library::quoted;
use crate::suggest::lower::labels::list_of;
use crate::suggest::lower::{MadeTensor, StepLowering};
use crate::suggest::op::{Dim, ExprId, JsonTemplate, Kind, Op};
use crate::suggest::value::NOT_ASCII;
use base::tensor::Datatype;

impl StepLowering<'_, '_> {
    /// The step `tokenize`.
    pub fn tokens(&mut self, id: ExprId) -> Result<MadeTensor, String> {
        let expression = self.machine.graph.get(id).clone();
        let Op::Tokens(form) = &expression.op else { return Err("this is no tokenizer".to_owned()) };
        let mut fields = form.fields.clone();
        let mut inputs = Vec::new();
        let mut rows = Dim::Known(1);
        for (port, input) in ["text", "pair"].into_iter().zip(&expression.inputs) {
            let (text, prefix) = self.prefixed(*input);
            match prefix {
                Some(prefix) if port == "text" => fields.push(("prefix", quoted(&prefix))),
                Some(_) => return Err("a text before the second of a pair has no parameter".to_owned()),
                None => {}
            }
            let (name, shape) = self.raw(text)?;
            let (name, count) = self.as_rows(name, &shape, id)?;
            rows = count;
            inputs.push((port, vec![name]));
        }
        let own = self.machine.graph.shape(id);
        let lead = expression.inputs.first().map_or(0, |text| self.machine.graph.rank(*text));
        let mut shape = vec![rows];
        shape.extend(own.get(lead..).unwrap_or_default());
        let name = self.grouped_step("tokenize", inputs, form.port, fields, id, form.call)?;
        Ok((name, shape))
    }

    /// Has the tokenizer give INT32 itself where all of its outputs become that.
    pub fn merge_token_casts(&mut self) {
        let int32 = vec![("datatype", quoted("INT32"))];
        let all = self.steps.clone();
        for step in all.iter().filter(|step| step.kind == "tokenize") {
            let mut casts = Vec::new();
            for (_, output) in &step.outputs {
                let mut readers =
                    all.iter().filter(|other| other.inputs.iter().any(|(_, names)| names.contains(output)));
                match (readers.next(), readers.next()) {
                    (Some(cast), None) if cast.kind == "cast" && cast.fields == int32 => casts.push(cast),
                    _ => {
                        casts.clear();
                        break;
                    }
                }
            }
            let name = |output: &String| {
                let cast = casts.iter().find(|cast| cast.inputs.iter().any(|(_, names)| names.contains(output)));
                cast.and_then(|cast| cast.outputs.first()).map_or_else(|| output.clone(), |(_, name)| name.clone())
            };
            if casts.is_empty() {
                continue;
            }
            let mut merged = step.clone();
            merged.outputs = step.outputs.iter().map(|(port, output)| (*port, name(output))).collect();
            merged.fields.extend(int32.clone());
            casts.iter().for_each(|cast| merged.lines.extend(&cast.lines));
            self.steps.retain(|other| !casts.contains(&other));
            self.steps.iter_mut().filter(|other| *other == step).for_each(|other| *other = merged.clone());
        }
    }

    /// The text without a constant before it.
    fn prefixed(&self, mut id: ExprId) -> (ExprId, Option<String>) {
        let graph = &self.machine.graph;
        let mut prefix = None;
        while let (Op::Prefix(_) | Op::Decode | Op::Encode | Op::View, Some(below)) = (graph.op(id), graph.operand(id))
        {
            if let Op::Prefix(text) = graph.op(id) {
                // The outer one comes first.
                let outer: String = prefix.unwrap_or_default();
                prefix = Some(format!("{outer}{text}"));
            }
            id = below;
        }
        (id, prefix)
    }

    /// A tensor of strings as `[rows]` or `[rows, 1]`, and the number of rows.
    pub fn as_rows(&mut self, name: String, shape: &[Dim], id: ExprId) -> Result<(String, Dim), String> {
        let shape: Vec<_> = shape.iter().map(|dim| self.machine.graph.resolved(*dim)).collect();
        match shape.as_slice() {
            [rows] | [rows, Dim::Known(1)] => Ok((name, *rows)),
            several => {
                let open: Vec<_> = several.iter().filter(|dim| **dim != Dim::Known(1)).collect();
                let rows = match open.as_slice() {
                    [] => Dim::Known(1),
                    [one] => **one,
                    _ => return Err("texts in several axes".to_owned()),
                };
                let fields = vec![("reshape", "[-1]".to_owned())];
                Ok((self.step("shape", vec![("input", vec![name])], "output", fields, id)?, rows))
            }
        }
    }

    pub fn text(&mut self, id: ExprId) -> Result<MadeTensor, String> {
        let expression = self.machine.graph.get(id).clone();
        let shape = self.machine.graph.shape(id);
        let operand = expression.inputs.first().copied();
        match (&expression.op, operand) {
            (Op::Detokenize { file, skips_special }, Some(ids)) => {
                let mut fields = vec![("file", quoted(file))];
                if !skips_special {
                    fields.push(("skip_special_tokens", "false".to_owned()));
                }
                let (name, made) = self.raw(ids)?;
                let made = made.get(..made.len().saturating_sub(1)).unwrap_or_default().to_vec();
                let name = self.step("detokenize", vec![("ids", vec![name])], "text", fields, id)?;
                Ok((name, made))
            }
            (Op::Ctc(form), Some(logits)) => {
                let mut fields = vec![match self.vocabulary_file(&form.vocabulary) {
                    Some(name) => ("vocabulary_file", quoted(&name)),
                    None => ("vocabulary", list_of(&form.vocabulary)),
                }];
                if form.blank != 0 {
                    fields.push(("blank", form.blank.to_string()));
                }
                if !form.separator.is_empty() {
                    fields.push(("separator", quoted(&form.separator)));
                }
                let logits = self.without_activation(logits);
                let input = self.lower(logits)?;
                let mut made = self.machine.graph.shape(logits);
                made.truncate(made.len().saturating_sub(2));
                let name = self.step("ctc", vec![("logits", vec![input])], "text", fields, id)?;
                Ok((name, made))
            }
            (Op::Parse { path, datatype }, Some(json)) => {
                let (name, made) = self.raw(json)?;
                let mut fields = Vec::new();
                if !path.is_empty() {
                    fields.push(("path", quoted(path)));
                }
                fields.push(("datatype", quoted(datatype.name())));
                if matches!(datatype, Datatype::Int64 | Datatype::Int32) {
                    self.machine.assume("integers of JSON are written as such");
                }
                let name = self.step("parse", vec![("json", vec![name])], "value", fields, id)?;
                Ok((name, made))
            }
            (Op::Dumps(template), _) => self.template(id, template, &expression.inputs, &shape),
            _ => Err("this text has no step".to_owned()),
        }
    }

    /// Logits below a softmax, which changes no symbol of CTC's text.
    fn without_activation(&self, id: ExprId) -> ExprId {
        let graph = &self.machine.graph;
        match (graph.op(id), graph.operand(id)) {
            (Op::Softmax(-1), Some(below)) => below,
            _ => id,
        }
    }

    fn vocabulary_file(&self, vocabulary: &[String]) -> Option<String> {
        let found = self
            .machine
            .files
            .iter()
            .find(|(_, text)| crate::ctc::symbols_of(text.as_bytes()).is_ok_and(|known| known == vocabulary));
        found.map(|(name, _)| name.clone())
    }

    /// The step `template`: a text for each row.
    fn template(
        &mut self,
        id: ExprId,
        template: &JsonTemplate,
        tensors: &[ExprId],
        shape: &[Dim],
    ) -> Result<MadeTensor, String> {
        let (template, is_ascii) = match template {
            JsonTemplate::Table(members) => match members.as_slice() {
                [(mark, inner)] if mark == NOT_ASCII => (inner, false),
                _ => (template, true),
            },
            _ => (template, true),
        };
        let ([] | [_]) = shape else { return Err("JSON texts in several axes".to_owned()) };
        let mut names = Vec::new();
        for tensor in tensors {
            names.push(self.template_tensor(*tensor, shape.len())?);
        }
        let text = template_text(template, &names)?;
        let mut fields = vec![("template", text), ("per_row", "true".to_owned())];
        if !is_ascii {
            fields.push(("ascii", "false".to_owned()));
        }
        let mut listed = Vec::new();
        for name in names {
            if !listed.contains(&name) {
                listed.push(name);
            }
        }
        let name = self.step("template", vec![("tensors", listed)], "json", fields, id)?;
        Ok((name, vec![shape.first().copied().unwrap_or(Dim::Known(1))]))
    }

    /// A tensor of a template, with an axis of rows.
    fn template_tensor(&mut self, id: ExprId, lead: usize) -> Result<String, String> {
        let graph = &self.machine.graph;
        if matches!(graph.kind(id), Kind::Json) {
            return Err("a JSON value is written as it was read".to_owned());
        }
        // Conversions of a number that JSON writes alike.
        let mut below = id;
        while let (Op::Cast, Some(operand), Kind::Number(Datatype::Fp64), Kind::Number(Datatype::Fp32)) = (
            graph.op(below),
            graph.operand(below),
            graph.kind(below),
            graph.operand(below).map_or(Kind::Json, |id| graph.kind(id)),
        ) {
            below = operand;
        }
        let is_activated = graph.any_below(below, &mut |expression| {
            matches!(expression.op, Op::Softmax(_) | Op::Sigmoid | Op::Pool(_) | Op::Normalize(_))
        });
        if is_activated && matches!(graph.kind(below), Kind::Number(Datatype::Fp32 | Datatype::Fp64)) {
            self.machine.assume("floats in the JSON text are those of the steps, whose last digits may differ");
        }
        let (name, made) = self.raw(below)?;
        let want = self.machine.graph.shape(below);
        let want: Vec<_> = match lead {
            0 => std::iter::once(Dim::Known(1)).chain(want).collect(),
            _ => want,
        };
        self.fit((name, made), &want, below)
    }
}

/// The template in JSON.
fn template_text(template: &JsonTemplate, names: &[String]) -> Result<String, String> {
    let name =
        |place: &usize| names.get(*place).map(|name| quoted(name)).ok_or_else(|| "a tensor is missing".to_owned());
    Ok(match template {
        JsonTemplate::Literal(text) => text.clone(),
        JsonTemplate::List(items) => {
            let items = items.iter().map(|item| template_text(item, names)).collect::<Result<Vec<_>, _>>()?;
            format!("[{}]", items.join(", "))
        }
        JsonTemplate::Table(members) => {
            let reserved = ["tensor", "each"];
            if members.iter().any(|(member, _)| reserved.contains(&member.as_str())) {
                return Err("a member of the JSON text has a name that a template reserves".to_owned());
            }
            let members = members
                .iter()
                .map(|(member, value)| Ok(format!("{}: {}", quoted(member), template_text(value, names)?)));
            format!("{{{}}}", members.collect::<Result<Vec<_>, String>>()?.join(", "))
        }
        JsonTemplate::Tensor(place, None) => format!("{{\"tensor\": {}}}", name(place)?),
        JsonTemplate::Tensor(place, Some(places)) => format!("{{\"tensor\": {}, \"round\": {places}}}", name(place)?),
        JsonTemplate::Each(over, inner) => {
            format!("{{\"each\": {}, \"over\": {}}}", template_text(inner, names)?, name(over)?)
        }
    })
}
