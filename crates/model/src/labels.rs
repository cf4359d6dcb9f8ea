//! Label file of a classification output (`label_filename`): one label a line, in the order of the classes.

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

    /// The label of a class, if it has one.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.names.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }
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
}
