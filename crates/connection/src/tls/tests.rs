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

/// A client and a server, until both have nothing to say: the client's outcome, and whether its handshake is done.
fn meet(client: &mut TlsClient, server: &mut Server, plain: &mut Vec<u8>) -> Result<bool, TlsClientFault> {
    loop {
        let mut sent = Vec::new();
        client.take_output(&mut sent);
        server.receive(&sent);
        let answer = mem::take(&mut server.out);
        client.handle_input(&answer, plain)?;
        if sent.is_empty() && answer.is_empty() {
            return Ok(!client.is_handshaking());
        }
    }
}

fn tls_client(host: &str, trusted: TrustedServers<'_>, alpn: &[u8], wall: WallSeconds) -> TlsClient {
    let server = TlsServerName::parse(host).unwrap();
    TlsClient::new(&TlsClientConfig::new(server, trusted, None, &[alpn], wall).unwrap())
}

#[test]
fn a_client_meets_the_server_and_both_understand_each_other() {
    let authority = file("authority.pem");
    for alpn in [ALPN_H2, ALPN_HTTP1] {
        let mut client = tls_client("localhost", TrustedServers::Of(&authority), alpn, || 2_000_000_000);
        let mut server = Server::new(&server_config());
        let mut plain = Vec::new();
        assert_eq!(meet(&mut client, &mut server, &mut plain), Ok(true));
        assert_eq!(server.connection.has_negotiated_h2(), alpn == ALPN_H2);
        let question = vec![7; 100_000];
        client.encode_plain(&question);
        server.connection.encode_plain(&[9; 50_000], &mut server.out).unwrap();
        assert_eq!(meet(&mut client, &mut server, &mut plain), Ok(true));
        assert_eq!((server.plain, plain), (question, vec![9; 50_000]));
    }
}

#[test]
fn a_client_refuses_the_servers_that_it_cannot_trust() {
    let (authority, own, other) = (file("authority.pem"), file("server.pem"), file("client.pem"));
    let within: WallSeconds = || 2_000_000_000;
    let check = |host: &str, trusted: TrustedServers<'_>, wall: WallSeconds, want: Result<bool, TlsClientFault>| {
        let mut client = tls_client(host, trusted, ALPN_H2, wall);
        let got = meet(&mut client, &mut Server::new(&server_config()), &mut Vec::new());
        assert_eq!(got, want, "{host}");
    };
    let of = |pem| TrustedServers::Of(pem);
    check("127.0.0.1", of(&authority), within, Ok(true));
    check("localhost", of(&other), within, Err(TlsClientFault::Untrusted));
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    check("127.0.0.2", of(&authority), within, Err(TlsClientFault::WrongName(names)));
    check("localhost", of(&authority), || 1, Err(TlsClientFault::Expired));
    check("localhost", of(&authority), || u64::MAX / 2, Err(TlsClientFault::Expired));
    // Any server, by any name and at any time.
    check("example.com", TrustedServers::Any, || 1, Ok(true));
    // A certificate that is trusted by itself, for its names and until its end alone.
    check("localhost", of(&own), within, Ok(true));
    assert!(matches!(refused("127.0.0.2", of(&own), within), TlsClientFault::WrongName(_)));
    check("localhost", of(&own), || u64::MAX / 2, Err(TlsClientFault::Expired));
}

fn refused(host: &str, trusted: TrustedServers<'_>, wall: WallSeconds) -> TlsClientFault {
    let mut client = tls_client(host, trusted, ALPN_H2, wall);
    meet(&mut client, &mut Server::new(&server_config()), &mut Vec::new()).unwrap_err()
}

#[test]
fn what_a_client_cannot_use_is_told() {
    let authority = file("authority.pem");
    let mut client = tls_client("localhost", TrustedServers::Of(&authority), b"spdy/3", || 2_000_000_000);
    let got = meet(&mut client, &mut Server::new(&server_config()), &mut Vec::new());
    assert_eq!(got, Err(TlsClientFault::WrongProtocol));
    let mut client = tls_client("localhost", TrustedServers::Of(&authority), ALPN_H2, || 2_000_000_000);
    let plain = client.handle_input(b"HTTP/1.1 400 Bad Request\r\n\r\n", &mut Vec::new());
    assert_eq!(plain, Err(TlsClientFault::NotTls));
    assert_eq!(TlsServerName::parse("a b"), None);
    let fault = |trusted: &[u8], own| {
        let server = TlsServerName::parse("localhost").unwrap();
        let fault = TlsClientConfig::new(server, TrustedServers::Of(trusted), own, &[], || 0).unwrap_err();
        (fault.file, fault.text)
    };
    let (certificate, key) = (file("client.pem"), file("client.key"));
    assert_eq!(fault(&key, None).0, TlsFile::ServerRoots);
    let nothing = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert_eq!(fault(nothing, None), (TlsFile::ServerRoots, "has no valid certificate".to_owned()));
    assert_eq!(fault(&authority, Some((&certificate, &certificate))).0, TlsFile::Key);
    assert_eq!(fault(&authority, Some((&key, &key))).0, TlsFile::Certificate);
    assert!(fault(&authority, Some((&file("server.pem"), &key))).1.contains("is not that of the certificate"));
}
