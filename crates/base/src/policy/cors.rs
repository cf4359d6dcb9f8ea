//! The origins whose pages may read answers in a browser (CORS). Values of a flag; `protocol::cors` applies them.

/// Origins of pages, as browsers write them in the header `Origin`. The default allows none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsOrigins {
    /// True if every page may read answers.
    is_any: bool,
    origins: Vec<String>,
}

/// Origins in all values of the flag: each request with an origin is compared with all of them.
pub const CORS_ORIGINS_MAX: usize = 64;

impl CorsOrigins {
    /// Adds origins, with commas between, or `*` for all.
    ///
    /// # Errors
    ///
    /// A text on what is not an origin, or on too many.
    pub fn add(&mut self, list: &str) -> Result<(), String> {
        for origin in list.split(',').map(str::trim) {
            if origin == "*" {
                self.is_any = true;
                continue;
            }
            if !is_origin(origin) {
                return Err(format!(
                    "'{origin}' is not an origin: expected * or scheme://host[:port] in lower case without a path, such as \
                     https://app.example.com"
                ));
            }
            if self.origins.len() >= CORS_ORIGINS_MAX {
                return Err(format!("more than {CORS_ORIGINS_MAX} origins: use * and keys, or a proxy"));
            }
            self.origins.push(origin.to_owned());
        }
        Ok(())
    }

    /// Returns true if no page of another origin may read answers.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        !self.is_any && self.origins.is_empty()
    }

    /// Returns true if every page may read answers.
    pub const fn is_any(&self) -> bool {
        self.is_any
    }

    /// Returns true if pages of this origin may read answers.
    pub fn allows(&self, origin: &[u8]) -> bool {
        self.is_any || self.origins.iter().any(|have| have.as_bytes() == origin)
    }
}

/// Returns true for `scheme://host[:port]` as browsers write it (RFC 6454 §6.2).
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else { return false };
    let is_host = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase() || b"-._:[]".contains(&byte);
    let is_scheme = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    !scheme.is_empty() && !host.is_empty() && scheme.bytes().all(is_scheme) && host.bytes().all(is_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_compared_as_browsers_write_them() {
        let mut origins = CorsOrigins::default();
        assert!(origins.is_empty() && !origins.allows(b"https://a"));
        origins.add("https://a.example.com, http://localhost:3000").unwrap();
        origins.add("http://[::1]:8080").unwrap();
        for allowed in ["https://a.example.com", "http://localhost:3000", "http://[::1]:8080"] {
            assert!(origins.allows(allowed.as_bytes()), "{allowed}");
        }
        for other in
            ["", "null", "*", "https://a.example.com.evil", "http://a.example.com", "https://a.example.com:443"]
        {
            assert!(!origins.allows(other.as_bytes()), "{other}");
        }
        assert!(!origins.is_empty() && !origins.is_any());
        origins.add("*").unwrap();
        assert!(origins.is_any() && origins.allows(b"null"));
    }

    #[test]
    fn what_is_no_origin_and_too_many_are_refused() {
        let add = |list: &str| CorsOrigins::default().add(list);
        for bad in
            ["", "a.example.com", "https://", "://a", "https://a/", "https://A", "https://a b", "null", "https://a,"]
        {
            let text = add(bad).unwrap_err();
            assert!(text.contains("is not an origin: expected * or scheme://host[:port]"), "{bad}: {text}");
        }
        let list = vec!["https://a"; CORS_ORIGINS_MAX].join(",");
        assert_eq!(add(&list), Ok(()));
        let text = add(&format!("{list},https://b")).unwrap_err();
        assert_eq!(text, "more than 64 origins: use * and keys, or a proxy");
    }
}
