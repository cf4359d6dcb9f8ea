//! Triton's file of credentials (`TRITON_CLOUD_CREDENTIAL_PATH`): for each kind of store the
//! credentials by prefix of a URL. The longest matching prefix wins; an empty one matches all.

use base::error::Error;
use wire::json::{Document, JsonValue, ValueKind};

/// The credentials of one store. Nothing shows them: there is no `Debug`.
pub enum StoreCredentials {
    /// Of Azure.
    Azure {
        /// The account.
        account: String,
        /// Its key; empty for the identity of the machine.
        key: String,
        /// The client id of that identity, if there are several.
        client_id: String,
    },
    /// The path of a file of Google's.
    Gcs(String),
    /// Of S3; an empty value is left to the environment.
    S3 {
        /// The id of the key.
        key_id: String,
        /// The key.
        secret_key: String,
        /// The region.
        region: String,
        /// The token of a session.
        session_token: String,
        /// A profile of the tools of AWS.
        profile: String,
    },
}

/// Finds the credentials of a store. `kind` is its scheme, `url` the URL that the server was given.
///
/// # Errors
/// `InvalidArgument` if the file is not what Triton reads. It quotes nothing of it.
pub fn find(text: &[u8], kind: &str, url: &str) -> Result<Option<StoreCredentials>, Error> {
    let wrong = |why: &str| Error::invalid(format!("the file of TRITON_CLOUD_CREDENTIAL_PATH cannot be read: {why}"));
    // The position of the fault, but not the content there.
    let document = Document::parse(text, &[]).map_err(|_| wrong("it is not JSON"))?;
    if !matches!(document.root().kind(), ValueKind::Object) {
        return Err(wrong("expected an object with 's3', 'gs' or 'as'"));
    }
    let Some(of_kind) = document.root().get(kind) else { return Ok(None) };
    let fitting = of_kind.members().filter(|(begin, _)| url.starts_with(begin));
    let Some((_, found)) = fitting.max_by_key(|(begin, _)| begin.len()) else { return Ok(None) };
    let read = match kind {
        "as" => azure(found),
        "gs" => found.as_str().map(|path| StoreCredentials::Gcs(path.to_owned())),
        "s3" => s3(found),
        _ => None,
    };
    let form = match kind {
        "as" => "expected {\"account_str\", \"account_key\"} or {\"account_str\", \"auth_type\": \"managed_identity\"}",
        "gs" => "expected the path of a file",
        _ => "expected {\"secret_key\", \"key_id\", \"region\", \"session_token\", \"profile\"}, all of them text",
    };
    read.map(Some).ok_or_else(|| wrong(&format!("in '{kind}', {form}")))
}

fn s3(found: JsonValue<'_, '_>) -> Option<StoreCredentials> {
    let [key_id, secret_key, region, session_token, profile] =
        texts(found, ["key_id", "secret_key", "region", "session_token", "profile"])?;
    // One without the other would be half of two identities.
    (key_id.is_empty() == secret_key.is_empty()).then_some(())?;
    Some(StoreCredentials::S3 { key_id, secret_key, region, session_token, profile })
}

fn azure(found: JsonValue<'_, '_>) -> Option<StoreCredentials> {
    let [account, key, kind, client_id] = texts(found, ["account_str", "account_key", "auth_type", "client_id"])?;
    let is_of_machine = kind == "managed_identity";
    (!account.is_empty() && (is_of_machine || !key.is_empty())).then_some(())?;
    Some(StoreCredentials::Azure { account, key: if is_of_machine { String::new() } else { key }, client_id })
}

/// The texts of an object, each empty if it is missing.
fn texts<const N: usize>(found: JsonValue<'_, '_>, names: [&str; N]) -> Option<[String; N]> {
    matches!(found.kind(), ValueKind::Object).then_some(())?;
    let mut texts = [const { String::new() }; N];
    for (text, name) in texts.iter_mut().zip(names) {
        if let Some(value) = found.get(name) {
            value.as_str()?.clone_into(text);
        }
    }
    Some(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Triton's documentation.
    const FILE: &str = r#"{
        "gs": {
            "": "PATH_TO_GOOGLE_APPLICATION_CREDENTIALS",
            "gs://gcs-bucket-002": "PATH_TO_GOOGLE_APPLICATION_CREDENTIALS_2"
        },
        "s3": {
            "": {"secret_key": "SECRET", "key_id": "ID", "region": "us-east-1", "session_token": "", "profile": ""},
            "s3://s3-bucket-002": {"secret_key": "SECRET2", "key_id": "ID2", "region": "us-west-2", "session_token": "TOKEN"},
            "s3://s3-bucket-002/deep": {"secret_key": "SECRET3", "key_id": "ID3"}
        },
        "as": {
            "": {"account_str": "ACCOUNT", "account_key": "KEY"},
            "as://Account-002/Container": {"account_str": "", "account_key": ""},
            "as://machine": {"account_str": "machine", "auth_type": "managed_identity", "client_id": "CLIENT"}
        }
    }"#;

    fn found(text: &str, kind: &str, url: &str) -> String {
        match find(text.as_bytes(), kind, url) {
            Ok(None) => "none".to_owned(),
            Ok(Some(StoreCredentials::Azure { account, key, client_id })) => format!("{account} {key} {client_id}"),
            Ok(Some(StoreCredentials::Gcs(path))) => path,
            Ok(Some(StoreCredentials::S3 { key_id, secret_key, region, session_token, profile })) => {
                format!("{key_id} {secret_key} {region} {session_token} {profile}")
            }
            Err(error) => error.text().to_owned(),
        }
    }

    #[test]
    fn the_longest_beginning_that_fits_is_taken() {
        for (kind, url, want) in [
            ("s3", "s3://other/models", "ID SECRET us-east-1  "),
            ("s3", "s3://s3-bucket-002/models", "ID2 SECRET2 us-west-2 TOKEN "),
            ("s3", "s3://s3-bucket-002/deep/models", "ID3 SECRET3   "),
            ("gs", "gs://gcs-bucket-001", "PATH_TO_GOOGLE_APPLICATION_CREDENTIALS"),
            ("gs", "gs://gcs-bucket-002/models", "PATH_TO_GOOGLE_APPLICATION_CREDENTIALS_2"),
            ("as", "as://any/container", "ACCOUNT KEY "),
            ("as", "as://machine/container", "machine  CLIENT"),
            ("https", "https://host/models", "none"),
        ] {
            assert_eq!(found(FILE, kind, url), want, "{url}");
        }
        assert_eq!(found(r#"{"s3": {"s3://b": {}}}"#, "s3", "s3://c"), "none");
    }

    #[test]
    fn what_is_wrong_is_said_without_a_secret() {
        for (text, kind) in [
            ("SECRET", "s3"),
            ("[]", "s3"),
            (r#"{"s3": {"": "SECRET"}}"#, "s3"),
            (r#"{"s3": {"": {"key_id": "SECRET"}}}"#, "s3"),
            (r#"{"s3": {"": {"key_id": 7}}}"#, "s3"),
            (r#"{"gs": {"": {"SECRET": 1}}}"#, "gs"),
            (r#"{"as": {"": {"account_key": "SECRET"}}}"#, "as"),
            (r#"{"as": {"": {"account_str": "a"}}}"#, "as"),
        ] {
            let why = found(text, kind, "s3://b");
            assert!(why.starts_with("the file of TRITON_CLOUD_CREDENTIAL_PATH cannot be read: "), "{text}: {why}");
            assert!(!why.contains("SECRET"), "{why}");
        }
    }
}
