//! `hypotheses`: a text and labels to pairs for a network that was trained on entailment.

use base::error::Error;
use base::tensor::Tensor;

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{HYPOTHESES_MAX, HYPOTHESES_SIZE_MAX};
use crate::tensors::{of_strings, strings};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "hypotheses",
    about: "Makes a pair of each label, the text and a sentence that has the label, for a network that says whether the text \
            entails the sentence; as the pipeline `zero-shot-classification` of transformers.",
    inputs: &[
        StepPort { name: "text", about: "BYTES with one element: the text.", is_optional: false },
        StepPort { name: "labels", about: "BYTES [n]: 1 to 1024 labels.", is_optional: false },
        StepPort {
            name: "template",
            about: "BYTES with one element: the sentence, with `{}` for the label. That of the parameter without it.",
            is_optional: true,
        },
    ],
    outputs: &[
        StepPort { name: "texts", about: "BYTES [n]: the text for each label.", is_optional: false },
        StepPort { name: "hypotheses", about: "BYTES [n]: the sentences.", is_optional: false },
    ],
    fields: &[Field {
        name: "template",
        kind: FieldKind::Text,
        default: FieldDefault::Json("\"This example is {}.\""),
        about: "The sentence, with `{}` for the label: transformers' `hypothesis_template`.",
    }],
    is_short: true,
    build: |fields| Ok(Box::new(Hypotheses::build(fields)?)),
};

struct Hypotheses {
    template: String,
}

impl Hypotheses {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let template = fields.text("template");
        halves(&template).map_err(|why| fields.error("template", why))?;
        Ok(Self { template })
    }
}

/// The parts of a template before and behind the label.
fn halves(template: &str) -> Result<(&str, &str), &'static str> {
    const WRONG: &str = "must have {} once, for the label, and no other braces";
    let (before, behind) = template.split_once("{}").ok_or(WRONG)?;
    match before.contains(['{', '}']) || behind.contains(['{', '}']) {
        true => Err(WRONG),
        false => Ok((before, behind)),
    }
}

/// The only element of a tensor of strings.
fn single<'a>(port: &str, tensor: &'a Tensor) -> Result<&'a str, Error> {
    let elements = strings(port, tensor)?;
    let [element] = elements.as_slice() else {
        return Err(Error::invalid(format!("'{port}' must have 1 element, but it has {}", elements.len())));
    };
    std::str::from_utf8(element).map_err(|_| Error::invalid(format!("'{port}' is not UTF-8")))
}

impl Step for Hypotheses {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let [Some(text), Some(labels), template] = inputs else { return Ok(Vec::new()) };
        let text = single("text", text)?;
        let template = match template {
            Some(template) => single("template", template)?,
            None => &self.template,
        };
        let (before, behind) =
            halves(template).map_err(|why| Error::invalid(format!("'template' is {template:?}: it {why}")))?;
        let labels = strings("labels", labels)?;
        let count = labels.len();
        if !(1..=HYPOTHESES_MAX).contains(&count) {
            return Err(Error::invalid(format!("'labels' must have 1 to {HYPOTHESES_MAX} labels, but has {count}")));
        }
        let of_labels: usize = labels.iter().map(|label| label.len()).sum();
        let size = text.len().saturating_add(template.len()).saturating_mul(count).saturating_add(of_labels);
        if size > HYPOTHESES_SIZE_MAX {
            return Err(Error::invalid(format!(
                "the text and the sentences of {count} labels have {size} bytes, more than {HYPOTHESES_SIZE_MAX}"
            )));
        }
        let mut sentences = Vec::with_capacity(count);
        for (index, label) in labels.iter().enumerate() {
            let label = std::str::from_utf8(label);
            let label =
                label.map_err(|_| Error::invalid(format!("'labels' has the element {index} that is not UTF-8")))?;
            sentences.push(format!("{before}{label}{behind}"));
        }
        let texts = of_strings(&[count], std::iter::repeat_n(text, count));
        Ok(vec![Some(texts), Some(of_strings(&[count], sentences))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{built, fault, run};

    #[test]
    fn each_label_has_its_sentence() {
        let (text, labels) = (of_strings(&[1], ["a"]), of_strings(&[2], ["x", "{}"]));
        let both = |members: &str, template: Option<&Tensor>| {
            let mut inputs = vec![("text", &text), ("labels", &labels)];
            inputs.extend(template.map(|template| ("template", template)));
            let got = run("hypotheses", &inputs, &["texts", "hypotheses"], members).unwrap();
            assert_eq!(strings("", &got[0]).unwrap(), [b"a", b"a"]);
            strings("", &got[1])
                .unwrap()
                .iter()
                .map(|text| String::from_utf8_lossy(text).into_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(both("", None), ["This example is x.", "This example is {}."]);
        assert_eq!(both("\"template\": \"{}!\"", None), ["x!", "{}!"]);
        assert_eq!(both("", Some(&of_strings(&[1, 1], ["Über {}"]))), ["Über x", "Über {}"]);
    }

    #[test]
    fn faults_are_named() {
        let check = |text: &Tensor, labels: &Tensor, template: &str, want: &str| {
            let template = of_strings(&[1], [template]);
            let inputs = [("text", text), ("labels", labels), ("template", &template)];
            assert_eq!(fault("hypotheses", &inputs, &["texts"], ""), want);
        };
        let (text, label) = (of_strings(&[1], ["a"]), of_strings(&[1], ["x"]));
        check(&of_strings(&[2], ["a", "b"]), &label, "{}", "'text' must have 1 element, but it has 2");
        check(&of_strings(&[1], [b"\xff"]), &label, "{}", "'text' is not UTF-8");
        check(&text, &of_strings(&[1], [b"\xff"]), "{}", "'labels' has the element 0 that is not UTF-8");
        let braces = |template: &str| {
            format!("'template' is {template:?}: it must have {{}} once, for the label, and no other braces")
        };
        for template in ["no", "{} {}", "{0}", "{{}}"] {
            check(&text, &label, template, &braces(template));
        }
        check(&text, &of_strings::<&str>(&[0], []), "{}", "'labels' must have 1 to 1024 labels, but has 0");
        let many = of_strings(&[HYPOTHESES_MAX + 1], vec!["x"; HYPOTHESES_MAX + 1]);
        check(&text, &many, "{}", "'labels' must have 1 to 1024 labels, but has 1025");
        let long = of_strings(&[1], ["a".repeat(HYPOTHESES_SIZE_MAX / HYPOTHESES_MAX)]);
        let most = of_strings(&[HYPOTHESES_MAX], vec!["x"; HYPOTHESES_MAX]);
        let size = (HYPOTHESES_SIZE_MAX / HYPOTHESES_MAX + 2) * HYPOTHESES_MAX + HYPOTHESES_MAX;
        let want =
            format!("the text and the sentences of 1024 labels have {size} bytes, more than {HYPOTHESES_SIZE_MAX}");
        check(&long, &most, "{}", &want);
        let error = built("hypotheses", &["text", "labels"], &["texts"], "\"template\": \"x\"").err().unwrap();
        assert!(error.ends_with("must have {} once, for the label, and no other braces"), "{error}");
    }
}
