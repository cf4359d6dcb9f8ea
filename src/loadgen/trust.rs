//! The files of TLS: the authorities that certify servers, and the certificate of the client with its key.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use crate::connection::tls::{ALPN_H2, ALPN_HTTP1, TlsClientConfig, TlsFile, TlsServerName, TrustedServers};
use crate::loadgen::settings::TlsFiles;
use crate::loadgen::target::Protocol;

/// The authorities that Linux distributions install, by where they do: Debian and Ubuntu, Fedora and RHEL, SUSE, Alpine.
const SYSTEM_AUTHORITIES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Reads the files for a server with TLS, by its host: a name or an address, without brackets.
///
/// # Errors
/// A line for the user: a file cannot be read or used, or the host cannot be in a certificate.
pub fn open(files: &TlsFiles, host: &str, protocol: Protocol) -> Result<TlsClientConfig, String> {
    let server = TlsServerName::parse(host)
        .ok_or_else(|| format!("'{host}' is neither a name nor an IP address, as a certificate has them"))?;
    let read = |flag: &str, path: &Path| {
        fs::read(path).map_err(|error| format!("--{flag}={} cannot be read: {error}", path.display()))
    };
    let authorities = files.authorities.as_deref().or_else(system_authorities);
    let roots = match authorities {
        _ if files.is_insecure => Vec::new(),
        Some(path) => read("ca", path)?,
        None => return Err("this system has no authorities of certificates: name a file of them with --ca".to_owned()),
    };
    let own = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => Some((read("cert", certificate)?, read("key", key)?)),
        _ => None,
    };
    let trusted = if files.is_insecure { TrustedServers::Any } else { TrustedServers::Of(&roots) };
    let alpn: &[&[u8]] = match protocol {
        Protocol::Grpc => &[ALPN_H2],
        Protocol::Http => &[ALPN_HTTP1],
    };
    let own = own.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
    TlsClientConfig::new(server, trusted, own, alpn, wall_seconds).map_err(|fault| {
        let (flag, path) = match fault.file {
            TlsFile::Certificate => ("cert", files.certificate.as_deref()),
            TlsFile::Key => ("key", files.key.as_deref()),
            TlsFile::ClientRoots | TlsFile::ServerRoots => ("ca", authorities),
        };
        format!("--{flag}={} {}", path.unwrap_or(Path::new("")).display(), fault.text)
    })
}

fn system_authorities<'a>() -> Option<&'a Path> {
    SYSTEM_AUTHORITIES.into_iter().map(Path::new).find(|path| path.is_file())
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid for a time of the wall clock")]
fn wall_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
