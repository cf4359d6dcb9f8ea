//! One script: a model, and requests that arrive at stated times. Played against a server it tells which requests ran
//! together, in the order in which the batches ended, and which were refused. Arrivals lie so far apart, and runs take
//! so long, that the noise of a busy machine changes nothing.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{
    http::{self, Connection, Response},
    repository::Flavour,
    server::Server,
};

/// Run time of a batch, in milliseconds; requests that arrive meanwhile wait.
const RUN_MS: u64 = 200;
/// Answers this close to each other are of one batch.
const TOGETHER_MAX: Duration = Duration::from_millis(20);
/// Most times that a script is played.
const PLAYS_MAX: usize = 3;
/// Time from the start of all threads to the first arrival.
const LEAD: Duration = Duration::from_millis(30);

/// One script.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Its model.
    pub name: &'static str,
    /// The largest batch.
    pub rows_max: u32,
    /// The rest of its `config.pbtxt`.
    pub config: &'static str,
    /// Separated by commas: milliseconds, a letter, and those of `rows=`, `columns=`, `priority=` and `timeout_us=`
    /// that differ from the default.
    pub arrivals: &'static str,
}

/// One request of a script.
#[derive(Clone, Debug)]
struct Arrival {
    at: Duration,
    name: &'static str,
    rows: usize,
    columns: usize,
    parameters: Value,
}

/// Outcome of a request, and its time.
type Outcome = (Arrival, Instant, Response);

impl Script {
    /// Writes its model into a repository.
    pub fn write(&self, flavour: Flavour, repository: &Path) {
        let Self { name, rows_max, config, .. } = self;
        let folder = repository.join(name);
        let backend = match flavour {
            Flavour::Deuteron => "identity",
            Flavour::Triton => "python",
        };
        let text = format!(
            "name: \"{name}\"\nbackend: \"{backend}\"\nmax_batch_size: {rows_max}\n\
             input {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }}\n\
             output {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }}\n\
             parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{RUN_MS}\" }} }}\n{config}\n"
        );
        fs::create_dir_all(folder.join("1")).expect("the folder is ours");
        fs::write(folder.join("config.pbtxt"), text).expect("the folder is ours");
        if flavour == Flavour::Triton {
            fs::write(folder.join("1/model.py"), include_str!("../../oracle/identity.py")).expect("the folder is ours");
        }
    }

    /// Plays it and returns the timeline. If the answers do not show the batches that the server counted, the machine
    /// was too busy to tell them apart, and it is played again.
    pub fn play(&self, server: &Server) -> String {
        // The first run of a model is not measured.
        let warm = Arrival { at: Duration::ZERO, name: "", rows: 1, columns: 1, parameters: json!({}) };
        let status = ask(server, self.name, &warm, Instant::now()).2.status;
        assert_eq!(status, 200, "{}", self.name);
        let mut told = self.play_once(server);
        for _ in 1..PLAYS_MAX {
            told = told.or_else(|_| self.play_once(server));
        }
        told.unwrap_or_else(|mixed| mixed)
    }

    fn play_once(&self, server: &Server) -> Result<String, String> {
        let before = self.sizes(server);
        let start = Instant::now() + LEAD;
        let outcomes: Vec<Outcome> = thread::scope(|scope| {
            let arrivals = self.arrivals().into_iter();
            let asked = arrivals.map(|arrival| scope.spawn(move || ask(server, self.name, &arrival, start)));
            let asked: Vec<_> = asked.collect();
            asked.into_iter().map(|asked| asked.join().expect("a request does not panic")).collect()
        });
        let after = self.sizes(server);
        let ran = after.iter().flat_map(|(size, count)| {
            let earlier = before.iter().find(|(other, _)| other == size).map_or(0, |(_, count)| *count);
            (earlier..*count).map(|_| *size)
        });
        tell(outcomes, &ran.collect::<Vec<_>>())
    }

    fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.split(", ").map(Arrival::parse).collect()
    }

    /// The batches that ran so far: the count of each size.
    fn sizes(&self, server: &Server) -> Vec<(u64, u64)> {
        let path = format!("/v2/models/{}/stats", self.name);
        let answer = http::get(server.http(), &path).expect("the server answers");
        let answer: Value = serde_json::from_slice(&answer.body).expect("statistics are JSON");
        let sizes = answer["model_stats"][0]["batch_stats"].as_array().expect("they have batch sizes").iter();
        let number = |of: &Value| of.as_u64().expect("statistics count");
        let size = |of: &Value| (number(&of["batch_size"]), number(&of["compute_infer"]["count"]));
        sizes.map(size).collect()
    }
}

/// The batches by the answers that came together, and the refusals. `ran` are the sizes that the server counted.
fn tell(mut outcomes: Vec<Outcome>, ran: &[u64]) -> Result<String, String> {
    outcomes.sort_by_key(|(_, at, _)| *at);
    let (served, mut refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|(.., answer)| answer.status == 200);
    let mut batches: Vec<Vec<&Arrival>> = Vec::new();
    let mut last = None;
    for (arrival, at, _) in &served {
        match batches.last_mut() {
            Some(batch) if last.is_some_and(|last| *at - last < TOGETHER_MAX) => batch.push(arrival),
            _ => batches.push(vec![arrival]),
        }
        last = Some(*at);
    }
    let mut sizes: Vec<u64> = batches.iter().map(|batch| batch.iter().map(|of| of.rows as u64).sum()).collect();
    sizes.sort_unstable();
    let name = |batch: &mut Vec<&Arrival>| {
        batch.sort_by_key(|arrival| arrival.name);
        batch.iter().map(|arrival| arrival.name).collect::<Vec<_>>().join("+")
    };
    let mut text = batches.iter_mut().map(name).collect::<Vec<_>>().join(" | ");
    refused.sort_by_key(|(arrival, ..)| arrival.name);
    for (arrival, _, answer) in refused {
        let _ = write!(text, "\n{}: {} {}", arrival.name, answer.status, String::from_utf8_lossy(&answer.body));
    }
    if sizes == ran { Ok(text) } else { Err(format!("{text}\nbut the server counts batches of {ran:?}")) }
}

impl Arrival {
    fn parse(text: &'static str) -> Self {
        let mut words = text.split(' ');
        let at = words.next().and_then(|word| word.parse().ok()).map(Duration::from_millis);
        let (Some(at), Some(name)) = (at, words.next()) else { panic!("{text:?} is no arrival") };
        let mut arrival = Self { at, name, rows: 1, columns: 1, parameters: json!({}) };
        for word in words {
            match word.split_once('=').and_then(|(key, value)| Some((key, value.parse::<usize>().ok()?))) {
                Some(("rows", rows)) => arrival.rows = rows,
                Some(("columns", columns)) => arrival.columns = columns,
                Some(("priority", priority)) => arrival.parameters["priority"] = json!(priority),
                Some(("timeout_us", timeout)) => arrival.parameters["timeout"] = json!(timeout),
                _ => panic!("{word:?} in {text:?}"),
            }
        }
        arrival
    }
}

/// Sends a request at its time, on an existing connection.
fn ask(server: &Server, model: &str, arrival: &Arrival, start: Instant) -> Outcome {
    let Arrival { rows, columns, parameters, .. } = arrival;
    let body = json!({
        "parameters": parameters,
        "inputs": [{
            "name": "INPUT0", "datatype": "FP32", "shape": [rows, columns], "data": vec![0.5; rows * columns]
        }],
    });
    let path = format!("/v2/models/{model}/infer");
    let request = http::request("POST", &path, &[], body.to_string().as_bytes());
    let mut connection = Connection::open(server.http()).expect("the server listens");
    thread::sleep((start + arrival.at).saturating_duration_since(Instant::now()));
    connection.send(&request).expect("the server reads");
    let answer = connection.receive().expect("the server answers");
    (arrival.clone(), Instant::now(), answer)
}
