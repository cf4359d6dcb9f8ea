//! The spaces that texts of tokens lose: `clean_up_tokenization` of transformers' `tokenization_utils_base.py`.

/// The replacements, in their order.
const REPLACEMENTS: [(&str, &str); 10] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

/// Returns the text without those spaces.
pub fn cleaned(text: String) -> String {
    REPLACEMENTS.iter().fold(text, |text, (from, to)| if text.contains(from) { text.replace(from, to) } else { text })
}
