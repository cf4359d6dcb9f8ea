//! The contents of a store and of its mirror on disk: listings, the index of the mirror, and the
//! objects to fetch. Parses and compares its inputs; `control::repository::stores` reaches stores and writes
//! files.

pub mod credentials;
pub mod http_index;
pub mod index;
pub mod plan;

use crate::limits::STORE_PATH_SIZE_MAX;

/// One object of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreObject {
    /// Its path in the repository. One that ends in a slash is an empty directory.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// A value that changes when it does: its ETag, or the time of its last write.
    pub tag: String,
    /// The SHA-256 that it must have, in hexadecimal; empty if only the store's own answer has a
    /// checksum.
    pub sha256: String,
}

/// Checks the path of an object: it must stay in the repository, and be valid for a file.
///
/// # Errors
/// The fault of the path.
pub fn check_path(path: &str) -> Result<(), &'static str> {
    if path.len() > STORE_PATH_SIZE_MAX {
        return Err("its path is longer than a file's may be");
    }
    for part in path.strip_suffix('/').unwrap_or(path).split('/') {
        match part {
            "" => return Err("its path has an empty part"),
            "." | ".." => return Err("its path leads elsewhere"),
            part if part.len() > 255 => return Err("a part of its path is longer than a file's name may be"),
            part if part.chars().any(char::is_control) => return Err("its path has control characters"),
            _ => {}
        }
    }
    Ok(())
}

/// The directory in the repository that an object belongs to: a model, which changes as a whole. Empty for a file beside
/// the models.
pub fn group_of(path: &str) -> &str {
    path.split_once('/').map_or("", |(group, _)| group)
}

/// An ETag without its quotes and without the mark of a weak comparison.
pub fn plain_tag(tag: &str) -> &str {
    let tag = tag.strip_prefix("W/").unwrap_or(tag);
    tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag)
}

/// The MD5 in an ETag of S3, for an object that was written in one piece; others have a dash in theirs.
pub fn md5_of_tag(tag: &str) -> Option<String> {
    let tag = plain_tag(tag);
    (tag.len() == 32 && tag.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| tag.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_in_the_repository() {
        for path in ["m/1/model.onnx", "config.pbtxt", "m/1/", "m/..a/b", "m/a b/é", "m/1\\x"] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        let long = "x".repeat(256);
        let deep = "x/".repeat(2_001);
        for path in ["", "/", "/etc/passwd", "m//1", "..", "../x", "m/../../x", "m/./1", "m/1\0", "m/1\n", &long, &deep]
        {
            assert!(check_path(path).is_err(), "{path}");
        }
    }

    #[test]
    fn an_etag_is_compared_without_its_quotes_and_may_be_an_md5() {
        assert_eq!(
            (plain_tag("\"a\""), plain_tag("W/\"a\""), plain_tag("0x8D"), plain_tag("\"")),
            ("a", "a", "0x8D", "\"")
        );
        let md5 = "D41D8CD98F00B204E9800998ECF8427E";
        assert_eq!(md5_of_tag(&format!("\"{md5}\"")), Some(md5.to_lowercase()));
        assert_eq!((md5_of_tag("0x8D"), md5_of_tag("d41d8cd98f00b204e9800998ecf8427e-2")), (None, None));
    }
}
