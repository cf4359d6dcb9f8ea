//! The archives that are unpacked, and those that are refused.

use tar::Header;

use super::testing::{TrialEntry, archive, directory, file, gzip, symlink};
use super::*;

/// Unpacks into a directory beside which a hostile entry would be found.
fn unpack_in<T>(
    name: &str,
    archive: &[u8],
    bounds: ArchiveBounds,
    look: impl FnOnce(&Path, Result<(), UnpackError>) -> T,
) -> T {
    let base = std::env::temp_dir().join(format!("deuteron-unpack-{name}-{}", std::process::id()));
    let root = base.join("a/b/root");
    fs::create_dir_all(&root).unwrap();
    let outcome = unpack(archive, &root, bounds);
    for (parent, only) in [(&base, "a"), (&base.join("a"), "b"), (&base.join("a/b"), "root")] {
        let names: Vec<_> = fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [only], "{name} has written outside");
    }
    let looked = look(&root, outcome);
    fs::remove_dir_all(&base).unwrap();
    looked
}

fn refusal(name: &str, archive: &[u8]) -> String {
    unpack_in(name, archive, ArchiveBounds::new(), |_, outcome| outcome.unwrap_err().to_string())
}

#[test]
fn an_environment_is_unpacked_with_its_modes_times_and_links() {
    let entries = [
        directory("./"),
        directory("./bin/"),
        TrialEntry { mode: 0o4755, ..file("./bin/python3.11", "program") },
        symlink("bin/python", "python3.11"),
        symlink("bin/python3", "/usr/bin/python3"),
        file("bin/activate", ""),
        TrialEntry { mode: 0o444, ..file("lib/python3.11/site-packages/a.py", "import b") },
        symlink("lib/python3.11/link", "../../bin/activate"),
        symlink("lib64", "lib"),
        TrialEntry { kind: EntryType::Link, link: "bin/python3.11".to_owned(), ..file("bin/hard", "") },
        TrialEntry { kind: EntryType::XGlobalHeader, ..file("pax_global_header", "11 comment=\n") },
        file("old/", ""),
    ];
    unpack_in("whole", &archive(&entries), ArchiveBounds::new(), |root, outcome| {
        outcome.unwrap();
        let mode = |name: &str| fs::symlink_metadata(root.join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(
            (mode("bin/python3.11"), mode("bin"), mode("lib64/python3.11/site-packages/a.py")),
            (0o755, 0o755, 0o444)
        );
        assert_eq!(fs::read_to_string(root.join("bin/python")).unwrap(), "program");
        assert_eq!(fs::read_to_string(root.join("bin/hard")).unwrap(), "program");
        assert_eq!(fs::read_link(root.join("bin/python3")).unwrap(), Path::new("/usr/bin/python3"));
        assert!(root.join("lib/python3.11/link").exists() && root.join("old").is_dir());
        let modified = fs::metadata(root.join("bin/activate")).unwrap().modified().unwrap();
        assert_eq!(modified, UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    });
}

#[test]
fn a_name_longer_than_a_header_is_unpacked() {
    let name = format!("lib/{}/x.py", "d".repeat(200));
    for header in [Header::new_gnu(), Header::new_ustar()] {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = header;
        header.set_size(1);
        header.set_mode(0o644);
        if header.as_ustar().is_some() {
            builder.append_pax_extensions([("path", name.as_bytes())]).unwrap();
            header.set_path("short").unwrap();
            header.set_cksum();
            builder.append(&header, &b"x"[..]).unwrap();
        } else {
            builder.append_data(&mut header, &name, &b"x"[..]).unwrap();
        }
        unpack_in("long", &gzip(&builder.into_inner().unwrap()), ArchiveBounds::new(), |root, outcome| {
            outcome.unwrap();
            assert_eq!(fs::read(root.join(&name)).unwrap(), b"x");
        });
    }
}

#[test]
fn of_two_entries_of_a_name_the_later_holds() {
    let link = |name: &str, link: &str| TrialEntry { kind: EntryType::Link, link: link.to_owned(), ..file(name, "") };
    // venv-pack writes `pyvenv.cfg` twice. What a link led to, and a hard link to the earlier file, stay as they are.
    let entries = [
        file("pyvenv.cfg", "home = /build"),
        link("kept", "pyvenv.cfg"),
        link("kept", "kept"),
        file("pyvenv.cfg", "home = /usr"),
        file("target", "target"),
        symlink("f", "target"),
        file("f", "later"),
        file("l", "earlier"),
        symlink("l", "target"),
    ];
    unpack_in("twice", &archive(&entries), ArchiveBounds::new(), |root, outcome| {
        outcome.unwrap();
        let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
        let got = ["pyvenv.cfg", "kept", "target", "f", "l"].map(read);
        assert_eq!(got, ["home = /usr", "home = /build", "target", "later", "target"]);
        assert!(fs::symlink_metadata(root.join("f")).unwrap().is_file());
    });
}

#[test]
fn a_hostile_entry_is_refused_by_name() {
    let kind = |kind, name: &str, link: &str| TrialEntry { kind, link: link.to_owned(), ..file(name, "") };
    let (outside, link) = ("has an absolute name or one with '..'", "is a link that leads out of the archive");
    let (below, other) = ("lies below a link or a file", "is neither a file, nor a directory, nor a link");
    let cases: &[(&[TrialEntry], &str, &str)] = &[
        (&[file("../x", "x")], "../x", outside),
        (&[file("a/../../x", "x")], "a/../../x", outside),
        (&[file("/tmp/x", "x")], "/tmp/x", outside),
        (&[directory("../d")], "../d", outside),
        (&[symlink("l", "/etc")], "l", link),
        (&[symlink("l", "..")], "l", link),
        (&[symlink("a/l", "../../x")], "a/l", link),
        (&[symlink("l", "")], "l", link),
        // Its target depends on links on the way.
        (&[directory("a/b"), symlink("a/b/up", "../.."), symlink("l", "a/b/up/../x")], "l", link),
        // The interpreter's link leads out, so nothing may be written through it.
        (&[symlink("bin/python", "/etc"), file("bin/python/x", "x")], "bin/python/x", below),
        (&[symlink("lib/python", "/usr/bin/python3")], "lib/python", link),
        (&[symlink("bin/python", "../../python")], "bin/python", link),
        (&[symlink("l", "a"), directory("a"), file("l/x", "x")], "l/x", below),
        (&[symlink("l", "a"), directory("a"), directory("l")], "l", below),
        (&[file("f", "x"), file("f/x", "x")], "f/x", below),
        (&[directory("f"), file("f", "y")], "f", "is there twice, first as a directory"),
        (&[directory("f"), symlink("f", "y")], "f", "is there twice, first as a directory"),
        // The later link must not lead out either.
        (&[file("l", "x"), symlink("l", "/etc")], "l", link),
        (&[kind(EntryType::Link, "h", "../x")], "h", link),
        (&[kind(EntryType::Link, "h", "/etc/passwd")], "h", link),
        (&[kind(EntryType::Link, "h", "absent")], "h", link),
        // At another place the same link leads out.
        (&[symlink("a/b/l", "../.."), kind(EntryType::Link, "h", "a/b/l")], "h", link),
        (&[symlink("l", "a"), file("a/f", "x"), kind(EntryType::Link, "h", "l/f")], "h", link),
        (&[kind(EntryType::Block, "dev", "")], "dev", other),
        (&[kind(EntryType::Char, "dev", "")], "dev", other),
        (&[kind(EntryType::Fifo, "pipe", "")], "pipe", other),
        (&[kind(EntryType::new(b'V'), "volume", "")], "volume", other),
    ];
    for (index, (entries, name, fault)) in cases.iter().enumerate() {
        let text = refusal(&format!("hostile-{index}"), &archive(entries));
        assert!(text.starts_with(&format!("its entry '{name}' {fault}")), "{entries:?}: {text}");
    }
}

#[test]
fn an_archive_has_a_most_of_entries_and_of_bytes() {
    let of = |entries, size, archive: &[u8]| {
        unpack_in("bounds", archive, ArchiveBounds { entries, size }, |_, outcome| outcome)
    };
    let two = archive(&[file("a", "12345"), file("b", "12345")]);
    assert!(of(2, 10, &two).is_ok());
    assert!(matches!(of(1, 10, &two), Err(UnpackError::Entries)));
    assert!(matches!(of(2, 9, &two), Err(UnpackError::Size)));
    // The size in a header counts, even if no contents follow.
    let mut header = Header::new_gnu();
    header.set_path("huge").unwrap();
    header.set_size(ARCHIVE_SIZE_MAX + 1);
    header.set_cksum();
    assert!(matches!(of(2, ARCHIVE_SIZE_MAX, &gzip(header.as_bytes())), Err(UnpackError::Size)));
}

#[test]
fn what_is_no_complete_archive_is_refused() {
    let broken = "it is not a complete .tar.gz archive: ";
    let check = |name: &str, archive: &[u8]| {
        let text = refusal(name, archive);
        assert!(text.starts_with(broken), "{name}: {text}");
        text
    };
    check("text", b"no archive");
    check("gzip", &gzip(&[b'x'; 600]));
    let whole = archive(&[file("a", &"contents".repeat(1_000))]);
    check("half", &whole[..whole.len() / 2]);
    let mut flipped = whole.clone();
    let checksum = flipped.len() - 6;
    flipped[checksum] ^= 1;
    check("checksum", &flipped);
    // A name that would be kept in memory.
    let long = TrialEntry { kind: EntryType::GNULongName, contents: vec![b'n'; 2 * 1024 * 1024], ..file("long", "") };
    let text = check("long name", &archive(&[long, file("a", "")]));
    assert!(text.ends_with("more bytes between two entries than names take"), "{text}");
}
