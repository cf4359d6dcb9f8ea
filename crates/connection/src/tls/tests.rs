//! Scripts for the machine, with rustls' client at the other end.

use std::fs;
use std::path::Path;

use super::fuzz::{Server, client_config, server_config};
use super::*;

fn file(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tls").join(name)).unwrap()
}

fn fault(certificate: &[u8], key: &[u8], client_roots: Option<&[u8]>) -> TlsFileFault {
    TlsConfig::new(&TlsPem { certificate, key, client_roots }, &[], || 0).unwrap_err()
}

#[test]
fn files_that_do_not_serve_are_told_by_their_name_and_never_by_their_contents() {
    let (certificate, key, roots) = (file("server.pem"), file("server.key"), file("authority.pem"));
    let config =
        TlsConfig::new(&TlsPem { certificate: &certificate, key: &key, client_roots: Some(&roots) }, &[], || 0);
    assert!(config.unwrap().expires_at().is_some_and(|at| at > 4_000_000_000));
    let check = |fault: TlsFileFault, file, text: &str| {
        assert_eq!(fault.file, file, "{fault:?}");
        assert!(fault.text.contains(text), "{fault:?}");
        assert!(!fault.text.contains("MIG"), "{fault:?}");
    };
    let cut = &key[..key.len() / 2];
    check(fault(b"", &key, None), TlsFile::Certificate, "has no certificate");
    check(fault(&key, &key, None), TlsFile::Certificate, "has no certificate");
    check(fault(&certificate[..certificate.len() / 2], &key, None), TlsFile::Certificate, "is damaged");
    check(fault(&certificate, &certificate, None), TlsFile::Key, "has no private key that can be read");
    check(fault(&certificate, cut, None), TlsFile::Key, "is damaged");
    check(fault(&certificate, &file("client.key"), None), TlsFile::Key, "is not that of the certificate");
    check(fault(&certificate, &key, Some(&key)), TlsFile::ClientRoots, "has no certificate");
    let encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    check(fault(&certificate, encrypted, None), TlsFile::Key, "without a passphrase");
    let nothing = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    check(fault(nothing, &key, None), TlsFile::Certificate, "an invalid certificate");
    check(fault(&certificate, &key, Some(nothing)), TlsFile::ClientRoots, "an invalid certificate");
    let unknown = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    check(fault(&certificate, unknown, None), TlsFile::Key, "of a kind that is not known");
}

/// The bytes with which a client begins.
fn client_hello() -> Vec<u8> {
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let config = std::sync::Arc::new(client_config(rustls::ProtocolVersion::TLSv1_3));
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_client_hello_in_records_of_one_byte_is_understood() {
    let hello = client_hello();
    let mut server = Server::new(&server_config());
    for byte in &hello[5..] {
        server.receive(&[HANDSHAKE_RECORD, 3, 1, 0, 1, *byte]);
    }
    assert_eq!(server.fault, None);
    assert_eq!(server.out.first(), Some(&HANDSHAKE_RECORD), "the server answers with its own");
}

#[test]
fn a_handshake_message_that_never_ends_meets_its_bound() {
    let mut server = Server::new(&server_config());
    // A hello that says it has 64 KiB, in records of one byte.
    let mut message = [&[1, 0, 0xff, 0xff][..], &[0; 70_000]].concat().into_iter();
    while server.fault.is_none() {
        let Some(byte) = message.next() else { panic!("the bound was passed") };
        server.receive(&[HANDSHAKE_RECORD, 3, 1, 0, 1, byte]);
    }
    assert!(server.fault.is_some_and(|fault| fault.text.contains("too large")));
    assert!(server.connection.held_size() <= TLS_INPUT_SIZE_MAX);
}

#[test]
fn bytes_that_are_no_tls_end_in_one_alert() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[HANDSHAKE_RECORD, 3, 1, 0xff, 0xff, 1, 2, 3]] {
        let mut server = Server::new(&server_config());
        server.receive(bytes);
        assert_eq!(server.fault.as_ref().map(|fault| fault.kind), Some(TlsFaultKind::Malformed), "{bytes:?}");
        assert_eq!((server.out.first(), server.out.len()), (Some(&0x15), 7), "{:?}", server.out);
    }
}

#[test]
fn a_client_that_speaks_nothing_of_ours_is_told_so() {
    let mut config = client_config(rustls::ProtocolVersion::TLSv1_2);
    config.alpn_protocols = vec![b"spdy/3".to_vec()];
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    let mut server = Server::new(&server_config());
    server.receive(&bytes);
    assert_eq!(server.fault.map(|fault| fault.kind), Some(TlsFaultKind::Incompatible));
    // RFC 7301 §3.2: no_application_protocol.
    assert_eq!(server.out.last(), Some(&120));
}

#[test]
fn the_corpus_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/tls");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let seed = fs::read(entry.unwrap().path()).unwrap();
        fuzz_connection(&seed);
        // The seed cut in half, and with one byte changed.
        fuzz_connection(&seed[..seed.len() / 2]);
        for at in [0, seed.len() / 3, seed.len().saturating_sub(1)] {
            let mut changed = seed.clone();
            if let Some(byte) = changed.get_mut(at) {
                *byte ^= 0x41;
            }
            fuzz_connection(&changed);
        }
        count += 1;
    }
    assert!(count >= 5, "{count} seeds");
}
