//! The flags of TLS, which all commands that ask a server have: each is declared once, for the settings of any of them.

use std::path::PathBuf;

use clap::{Arg, ArgMatches};

use crate::flags::Fallback::{Absent, Text};
use crate::flags::Takes::{One, Switch};
pub use crate::flags::Variables;
use crate::flags::{self, Flag, Section};
use crate::loadgen::settings::TlsFiles;

/// Settings of a command that asks a server.
pub trait HasTlsFiles {
    /// The files of TLS.
    fn tls_files(&mut self) -> &mut TlsFiles;
}

impl HasTlsFiles for TlsFiles {
    fn tls_files(&mut self) -> &mut TlsFiles {
        self
    }
}

const SECTIONS: &[Section<TlsFiles>] =
    &[Section { title: "TLS", flags: &[authorities(), certificate(), key(), insecure()] }];

/// The arguments of a command whose other ones are its own.
pub fn arguments() -> impl Iterator<Item = Arg> {
    flags::arguments(SECTIONS)
}

/// Reads these arguments. `has_tls` says if the server's address has TLS, and `variables` are those of the environment.
///
/// # Errors
/// A line for a person.
pub fn read(matches: &ArgMatches, has_tls: bool, variables: Variables<'_>) -> Result<TlsFiles, String> {
    let mut files = TlsFiles::default();
    flags::apply(SECTIONS, matches, &mut files)?;
    check(&files, has_tls)?;
    add_authorities(&mut files, variables);
    Ok(files)
}

/// The flag `--ca`.
pub const fn authorities<S: HasTlsFiles + 'static>() -> Flag<S> {
    Flag {
        names: &["ca", "ssl-https-ca-certificates-file", "ssl-grpc-root-certifications-file"],
        takes: One("FILE.pem"),
        default: Text("the file of SSL_CERT_FILE, or the system's authorities"),
        help: "With TLS: the authorities that certify the server, or its own certificate",
        apply: |settings, value| {
            settings.tls_files().authorities = Some(PathBuf::from(value));
            Ok(())
        },
    }
}

/// The flag `--cert`.
pub const fn certificate<S: HasTlsFiles + 'static>() -> Flag<S> {
    Flag {
        names: &["cert", "ssl-https-client-certificate-file", "ssl-grpc-certificate-chain-file"],
        takes: One("FILE.pem"),
        default: Absent,
        help: "With TLS: the client's certificate, for a server with mutual TLS",
        apply: |settings, value| {
            settings.tls_files().certificate = Some(PathBuf::from(value));
            Ok(())
        },
    }
}

/// The flag `--key`.
pub const fn key<S: HasTlsFiles + 'static>() -> Flag<S> {
    Flag {
        names: &["key", "ssl-https-private-key-file", "ssl-grpc-private-key-file"],
        takes: One("FILE.pem"),
        default: Absent,
        help: "With TLS: the key of the client's certificate",
        apply: |settings, value| {
            settings.tls_files().key = Some(PathBuf::from(value));
            Ok(())
        },
    }
}

/// The flag `--insecure`.
pub const fn insecure<S: HasTlsFiles + 'static>() -> Flag<S> {
    Flag {
        names: &["insecure"],
        takes: Switch,
        default: Absent,
        help: "With TLS: accept any certificate of the server, for tests only",
        apply: |settings, _| {
            settings.tls_files().is_insecure = true;
            Ok(())
        },
    }
}

/// Refuses flags of TLS that would have no effect: requests would go without it.
pub(super) fn check(files: &TlsFiles, has_tls: bool) -> Result<(), String> {
    let given = [
        ("ca", files.authorities.is_some()),
        ("cert", files.certificate.is_some()),
        ("key", files.key.is_some()),
        ("insecure", files.is_insecure),
    ];
    if let Some((flag, _)) = given.iter().find(|(_, is_given)| *is_given && !has_tls) {
        return Err(format!("--{flag} is for TLS: name the server as --url=https://HOST:PORT"));
    }
    if files.certificate.is_some() != files.key.is_some() {
        return Err("a client's certificate has a key: --cert and --key belong together".to_owned());
    }
    if files.is_insecure && files.authorities.is_some() {
        return Err("--insecure trusts any server; leave --ca out".to_owned());
    }
    Ok(())
}

/// Takes the authorities of the environment, as other programs do, unless the file would only be ignored.
pub(super) fn add_authorities(files: &mut TlsFiles, variables: Variables<'_>) {
    if files.authorities.is_none() && !files.is_insecure {
        files.authorities = variables("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    }
}
