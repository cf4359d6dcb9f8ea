//! Labels of a classification output: of a label file (`label_filename`), one label a line, in the order of the classes, or the
//! `id2label` of a `config.json` of Hugging Face's libraries.

use wire::json::{Document, JsonValue};

/// Labels by class index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    names: Vec<String>,
}

impl Labels {
    /// Reads a label file; an empty line is a class without a label.
    pub fn from_text(text: &str) -> Self {
        Self { names: text.lines().map(|line| line.trim_end().to_owned()).collect() }
    }

    /// Labels from the names of the classes.
    pub const fn from_names(names: Vec<String>) -> Self {
        Self { names }
    }

    /// The number of classes.
    pub const fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns true if there are no classes.
    pub const fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The label of a class, if it has one.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.names.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// The classes in a `config.json` of Hugging Face's libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassNames {
    /// Their names.
    pub labels: Labels,
    /// True if its model is a classifier, so that its only output has these classes.
    pub is_classifier: bool,
}

impl ClassNames {
    /// Reads `id2label`: an object from the indices 0, 1, … to names. `None` without one, or if the file is not of these
    /// libraries.
    pub fn from_hub_config(file: &[u8]) -> Option<Self> {
        let document = hub_config(file)?;
        let root = document.root();
        let names = root.get("id2label")?;
        let mut labels = vec![None; names.members().count()];
        for (index, label) in names.members() {
            *labels.get_mut(index.parse::<usize>().ok()?)? = Some(label.as_str()?.to_owned());
        }
        let labels = Labels::from_names(labels.into_iter().collect::<Option<Vec<_>>>()?);
        let is_classifier =
            |name: JsonValue<'_, '_>| name.as_str().is_some_and(|name| name.ends_with("Classification"));
        let is_classifier = root.get("architectures").is_some_and(|names| names.elements().any(is_classifier));
        (!labels.is_empty()).then_some(Self { labels, is_classifier })
    }
}

fn hub_config(file: &[u8]) -> Option<Document<'_>> {
    let document = Document::parse(file, &[]).ok()?;
    let root = document.root();
    (root.get("architectures").is_some() || root.get("model_type").is_some()).then_some(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_classes_and_empty_ones_have_no_label() {
        let labels = Labels::from_text("zero\r\none\n\nthree");
        let got: Vec<_> = (0..5).map(|index| labels.get(index)).collect();
        assert_eq!(got, [Some("zero"), Some("one"), None, Some("three"), None]);
    }

    #[test]
    fn classes_of_a_hub_config_are_read_without_a_gap() {
        let read = |text: &str| {
            let names = ClassNames::from_hub_config(text.as_bytes())?;
            let labels: Vec<_> = (0..names.labels.len()).map_while(|index| names.labels.get(index)).collect();
            Some(format!("{} {}", labels.join(" "), names.is_classifier))
        };
        let bert = r#""architectures": ["BertForSequenceClassification"]"#;
        let check = |rest: &str, want: Option<&str>| {
            assert_eq!(read(&format!("{{{bert}, {rest}}}")).as_deref(), want, "{rest}");
        };
        check(r#""id2label": {"1": "good", "0": "bad"}"#, Some("bad good true"));
        for wrong in [r#"{"1": "good"}"#, r#"{"0": 1}"#, r#"{"4294967295": "a"}"#, "{}", "3", r#"{"a": "b"}"#] {
            check(&format!(r#""id2label": {wrong}"#), None);
        }
        check(r#""hidden_size": 4"#, None);
        assert_eq!(read(r#"{"model_type": "bert", "id2label": {"0": "a"}}"#).as_deref(), Some("a false"));
        // Not of these libraries, or no JSON.
        assert_eq!(read(r#"{"id2label": {"0": "a"}}"#), None);
        assert!(hub_config(b"{\"name\": \"m\", \"backend\": \"onnxruntime\"}").is_none() && hub_config(b"{").is_none());
    }
}
