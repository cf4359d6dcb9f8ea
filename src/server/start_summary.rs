//! The summary that a terminal shows when the server is ready: its addresses, the console, and the models. The log has
//! the same facts in lines for programs. Pure.

use std::net::SocketAddr;

use crate::control::thread::model_record::{ModelRecord, ModelRecords};
use crate::model::ModelSpec;
use crate::model::spec::{SERVED_ENGINE_PARAMETER, SERVED_ENGINE_VERSION_PARAMETER};
use crate::settings::EndpointKind;

/// Models in the table, at most: it is to fit on a screen.
const MODELS_SHOWN: usize = 20;
/// Characters of a reason.
const REASON_SHOWN: usize = 100;

/// One line of the table.
struct ModelRow {
    name: String,
    engine: String,
    instances: String,
    state: String,
}

/// Returns the summary.
pub(super) fn text(addresses: &[(EndpointKind, SocketAddr)], has_console: bool, models: &ModelRecords) -> String {
    let rows: Vec<_> = models.iter().map(|(name, model)| row(name, model)).collect();
    let mut out = String::from("\n");
    out += &table(&rows);
    for (endpoint, address) in addresses {
        out += &address_line(*endpoint, *address);
        if *endpoint == EndpointKind::Metrics && has_console {
            out += &format!("  {:<10} {}/\n", "console", url(*address));
        }
    }
    out.push('\n');
    out
}

fn address_line(endpoint: EndpointKind, address: SocketAddr) -> String {
    let (name, address) = match endpoint {
        EndpointKind::Grpc => ("gRPC", url(address).replacen("http://", "", 1)),
        EndpointKind::Http => ("HTTP", url(address)),
        EndpointKind::Metrics => ("metrics", format!("{}/metrics", url(address))),
        EndpointKind::SageMaker => ("SageMaker", url(address)),
        EndpointKind::VertexAi => ("Vertex AI", url(address)),
        EndpointKind::Admin => ("admin", url(address)),
    };
    format!("  {name:<10} {address}\n")
}

/// Returns the address that a program on this machine asks.
fn url(address: SocketAddr) -> String {
    let port = address.port();
    match address.ip() {
        ip if ip.is_unspecified() || ip.is_loopback() => format!("http://localhost:{port}"),
        _ => format!("http://{address}"),
    }
}

fn table(rows: &[ModelRow]) -> String {
    let width = |column: fn(&ModelRow) -> &str| rows.iter().map(|row| column(row).chars().count()).max().unwrap_or(0);
    let (name, engine) = (width(|row| &row.name), width(|row| &row.engine));
    let instances = width(|row| &row.instances);
    let line = |row: &ModelRow| {
        let line =
            format!("  {:<name$}  {:<engine$}  {:<instances$}  {}", row.name, row.engine, row.instances, row.state);
        line.trim_end().to_owned() + "\n"
    };
    let mut out: String = rows.iter().take(MODELS_SHOWN).map(line).collect();
    if rows.len() > MODELS_SHOWN {
        out += &format!("  and {} more\n", rows.len() - MODELS_SHOWN);
    }
    if !rows.is_empty() {
        out.push('\n');
    }
    out
}

fn row(name: &str, model: &ModelRecord) -> ModelRow {
    let (engine, instances, state) = match (model.serving.values().next_back(), &model.failure) {
        (Some(version), _) => {
            let spec = &version.served.spec;
            (engine(spec), instances(spec), "ready".to_owned())
        }
        (None, Some(why)) => (String::new(), String::new(), format!("failed: {}", shortened(why))),
        (None, None) => (String::new(), String::new(), "not loaded".to_owned()),
    };
    ModelRow { name: name.to_owned(), engine, instances, state }
}

fn engine(spec: &ModelSpec) -> String {
    let parameter = |name: &str| spec.parameters.get(name).map_or("", String::as_str);
    match parameter(SERVED_ENGINE_PARAMETER) {
        "" if spec.ensemble.is_some() => "ensemble".to_owned(),
        "" => spec.backend.clone(),
        engine => format!("{engine} {}", parameter(SERVED_ENGINE_VERSION_PARAMETER)),
    }
}

fn instances(spec: &ModelSpec) -> String {
    let of_group = |count: u32, gpus: usize| count as usize * gpus.max(1);
    let count: usize = spec.instance_groups.iter().map(|group| of_group(group.count, group.gpus.len())).sum();
    match count {
        _ if spec.ensemble.is_some() => String::new(),
        1 => "1 instance".to_owned(),
        count => format!("{count} instances"),
    }
}

/// Returns the first line of a reason, without its end if it is long.
fn shortened(why: &str) -> String {
    let line = why.lines().next().unwrap_or_default();
    let cut: String = line.chars().take(REASON_SHOWN).collect();
    if cut.len() < line.len() { cut + "…" } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::ConfigDraft;

    #[test]
    fn a_terminal_shows_where_to_ask_and_which_models_serve() {
        let address = |text: &str| text.parse().unwrap();
        let addresses = [
            (EndpointKind::Http, address("0.0.0.0:8000")),
            (EndpointKind::Grpc, address("127.0.0.1:8001")),
            (EndpointKind::Metrics, address("10.0.0.1:8002")),
        ];
        let failed = ModelRecord { failure: Some("no file\nmore".to_owned()), ..ModelRecord::default() };
        let models = ModelRecords::from([("bad".to_owned(), failed), ("idle".to_owned(), ModelRecord::default())]);
        expect_test::expect![[r#"

              bad       failed: no file
              idle      not loaded

              HTTP       http://localhost:8000
              gRPC       localhost:8001
              metrics    http://10.0.0.1:8002/metrics
              console    http://10.0.0.1:8002/

        "#]]
        // Without the indent of the lines, which a test's text has as well.
        .assert_eq(&text(&addresses, true, &models).replace("\n  ", "\n"));
        assert!(!text(&addresses, false, &ModelRecords::new()).contains("console"));
        let many = (0..30).map(|index| (format!("m{index}"), ModelRecord::default())).collect();
        assert!(text(&[], false, &many).contains("  and 10 more\n"));
        assert_eq!(shortened(&"x".repeat(200)).chars().count(), REASON_SHOWN + 1);
    }

    #[test]
    fn a_row_has_the_engine_and_the_number_of_instances() {
        let config = b"backend: 'identity' input { name: 'x' data_type: TYPE_FP32 dims: 1 } \
            output { name: 'y' data_type: TYPE_FP32 dims: 1 } instance_group { count: 2 kind: KIND_CPU }";
        let draft = ConfigDraft::new("m", Some(config), &[]).unwrap();
        let spec = draft.complete(None, &Default::default(), Default::default()).unwrap();
        assert_eq!((engine(&spec), instances(&spec)), ("identity".to_owned(), "2 instances".to_owned()));
        let decided =
            spec.with_parameters(&[(SERVED_ENGINE_PARAMETER, "onnxruntime"), (SERVED_ENGINE_VERSION_PARAMETER, "1.2")]);
        assert_eq!(engine(&decided.unwrap()), "onnxruntime 1.2");
    }
}
