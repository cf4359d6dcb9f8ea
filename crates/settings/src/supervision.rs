//! The demands of the process that started the server, by variables: systemd, with its readiness
//! protocol, watchdog and passed sockets; or an older server that hands its sockets over. Pure:
//! variables and process ids are passed in.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use flags::Variables;

/// The variable by which a server tells its own process id to the one that takes over.
pub const PREDECESSOR: &str = "DEUTERON_HANDED_OVER_BY";

/// The demands of the process that started the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supervision {
    /// The socket for the server's state (`NOTIFY_SOCKET`); one that begins with `@` is abstract.
    pub notify_socket: Option<PathBuf>,
    /// The interval at which it must be told that the server works (`WATCHDOG_USEC`).
    pub watchdog: Option<Duration>,
    /// The endpoints of the passed descriptors, in their order, from descriptor 3 (`LISTEN_FDS`).
    pub passed: Vec<EndpointKind>,
    /// True if a server that this one takes over from started it, and sends its sockets over
    /// standard input.
    pub has_predecessor: bool,
}

/// The purpose of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointKind {
    /// HTTP first.
    Http,
    /// gRPC first.
    Grpc,
    /// Metrics.
    Metrics,
    /// The paths of SageMaker.
    SageMaker,
    /// The paths of Vertex AI.
    VertexAi,
    /// Changes of the server, on a Unix socket.
    Admin,
}

impl EndpointKind {
    /// All; descriptors without names are the first three, in this order.
    pub const ALL: [Self; 6] = [Self::Http, Self::Grpc, Self::Metrics, Self::SageMaker, Self::VertexAi, Self::Admin];

    /// Returns its name in `LISTEN_FDNAMES`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Metrics => "metrics",
            Self::SageMaker => "sagemaker",
            Self::VertexAi => "vertex-ai",
            Self::Admin => "admin",
        }
    }

    /// Returns the endpoint of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.name() == name)
    }
}

impl Supervision {
    /// Reads the variables; `own` and `parent` are the ids of this process and of the one that started it. The error is
    /// one line for a person.
    pub fn read(variables: Variables, own: u32, parent: u32) -> Result<Self, String> {
        let number = |name: &str| text(variables(name))?.parse::<u64>().ok();
        let has_predecessor = number(PREDECESSOR) == Some(parent.into());
        // Variables go on to every process that a process starts: those of another are not for this
        // one. A server that takes over has those of its predecessor.
        let is_own = |name: &str| has_predecessor || number(name).is_none_or(|id| id == u64::from(own));
        let watchdog = number("WATCHDOG_USEC").filter(|micros| *micros > 0 && is_own("WATCHDOG_PID"));
        let count = number("LISTEN_FDS").filter(|_| number("LISTEN_PID") == Some(own.into())).unwrap_or(0);
        let passed = if has_predecessor { Vec::new() } else { endpoints(count, text(variables("LISTEN_FDNAMES")))? };
        Ok(Self {
            notify_socket: variables("NOTIFY_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from),
            watchdog: watchdog.map(Duration::from_micros),
            passed,
            has_predecessor,
        })
    }
}

fn text(value: Option<OsString>) -> Option<String> {
    value.and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty())
}

fn endpoints(count: u64, names: Option<String>) -> Result<Vec<EndpointKind>, String> {
    let Some(names) = names.filter(|_| count > 0) else {
        let named = usize::try_from(count).ok().filter(|count| *count <= 3);
        let named = named.and_then(|count| EndpointKind::ALL.get(..count));
        return named.map(<[EndpointKind]>::to_vec).ok_or_else(|| {
            format!("{count} sockets were passed (LISTEN_FDS) without names: at most 3 are known by their order, http, grpc, metrics")
        });
    };
    let all = names.split(':').map(|name| {
        EndpointKind::from_name(name).ok_or_else(|| {
            format!("a passed socket has the name '{name}' (LISTEN_FDNAMES, FileDescriptorName=): expected http, grpc, metrics, sagemaker, vertex-ai or admin")
        })
    });
    let all = all.collect::<Result<Vec<_>, _>>()?;
    if u64::try_from(all.len()) != Ok(count) {
        return Err(format!("{count} sockets were passed (LISTEN_FDS), and {} have names (LISTEN_FDNAMES)", all.len()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &str) -> Result<Supervision, String> {
        let find = |name: &str| {
            let found = variables.split_whitespace().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            found.map(OsString::from)
        };
        Supervision::read(&find, 70, 7)
    }

    #[test]
    fn sockets_are_known_by_their_names_or_by_their_order() {
        use EndpointKind::{Grpc, Http, Metrics};
        let check = |variables: &str, want: &[EndpointKind]| {
            assert_eq!(read(variables).unwrap().passed, want, "{variables}");
        };
        check("", &[]);
        check("LISTEN_PID=70 LISTEN_FDS=1", &[Http]);
        check("LISTEN_PID=70 LISTEN_FDS=3", &[Http, Grpc, Metrics]);
        check("LISTEN_PID=70 LISTEN_FDS=2 LISTEN_FDNAMES=metrics:http", &[Metrics, Http]);
        check("LISTEN_PID=70 LISTEN_FDS=2 LISTEN_FDNAMES=http:http", &[Http, Http]);
        check("LISTEN_PID=70 LISTEN_FDS=0 LISTEN_FDNAMES=", &[]);
        check("LISTEN_PID=71 LISTEN_FDS=2", &[]); // another process's
        check("LISTEN_FDS=2", &[]);
    }

    #[test]
    fn what_a_passed_socket_is_for_must_be_clear() {
        let check = |variables: &str, want: &str| {
            let error = read(variables).unwrap_err();
            assert!(error.contains(want), "{variables}: {error}");
        };
        check("LISTEN_PID=70 LISTEN_FDS=1 LISTEN_FDNAMES=deuteron.socket", "'deuteron.socket'");
        check("LISTEN_PID=70 LISTEN_FDS=2 LISTEN_FDNAMES=http", "2 sockets were passed (LISTEN_FDS), and 1 have names");
        check("LISTEN_PID=70 LISTEN_FDS=4", "4 sockets were passed");
    }

    #[test]
    fn what_another_process_is_asked_for_is_not_asked_of_this_one() {
        let watchdog = |variables: &str| read(variables).unwrap().watchdog.map(|period| period.as_micros());
        assert_eq!(watchdog("WATCHDOG_USEC=20000000"), Some(20_000_000));
        assert_eq!(watchdog("WATCHDOG_USEC=20000000 WATCHDOG_PID=70"), Some(20_000_000));
        assert_eq!(watchdog("WATCHDOG_USEC=20000000 WATCHDOG_PID=69"), None);
        assert_eq!(watchdog("WATCHDOG_USEC=0"), None);
        assert_eq!(watchdog("WATCHDOG_USEC=often"), None);
        let after =
            read("WATCHDOG_USEC=9 WATCHDOG_PID=7 LISTEN_PID=70 LISTEN_FDS=1 DEUTERON_HANDED_OVER_BY=7").unwrap();
        let want =
            Supervision { watchdog: Some(Duration::from_micros(9)), has_predecessor: true, ..Supervision::default() };
        assert_eq!(after, want, "the predecessor's is asked of this one, and its sockets come another way");
        assert!(!read("DEUTERON_HANDED_OVER_BY=6").unwrap().has_predecessor, "a grandchild's");
    }

    #[test]
    fn who_is_told_may_be_a_path_or_an_abstract_name() {
        let socket = |variables: &str| read(variables).unwrap().notify_socket;
        assert_eq!(socket("NOTIFY_SOCKET=/run/notify"), Some(PathBuf::from("/run/notify")));
        assert_eq!(socket("NOTIFY_SOCKET=@name"), Some(PathBuf::from("@name")));
        assert_eq!(socket("NOTIFY_SOCKET="), None);
    }
}
