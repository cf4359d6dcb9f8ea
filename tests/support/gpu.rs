//! The example model on a GPU beside itself on the CPU: for the tests on hardware, and on the software GPU.

use super::folder::Folder;
use super::onnx::{FLOAT, Onnx};
use super::server::Server;
use super::{http, repository};

/// A repository with the example as it is, on the CPU, and under other names with other groups.
pub fn models(groups: &[(&str, &str)]) -> Folder {
    let folder = Folder::new("gpu");
    repository::add_example(folder.path(), "digits");
    let text = std::fs::read_to_string(folder.path().join("digits/config.pbtxt")).expect("the example is there");
    for (name, group) in groups {
        let to = folder.path().join(name);
        repository::copy(&folder.path().join("digits"), &to).expect("the folder is ours");
        let (before, _) = text.split_once("instance_group").expect("the example has one");
        let text = before.replace("name: \"digits\"", &format!("name: \"{name}\"")) + group;
        std::fs::write(to.join("config.pbtxt"), text).expect("the folder is ours");
    }
    folder
}

/// A model's answers: probabilities of a batch, and the three best classes of its rows.
pub fn answers(server: &Server, model: &str, rows: usize) -> (Vec<f64>, Vec<String>) {
    let pixels: Vec<String> = (0..rows * 64).map(|index| (index * 7 % 17).to_string()).collect();
    let ask = |outputs: &str| {
        let body = format!(
            r#"{{"inputs":[{{"name":"pixels","datatype":"FP32","shape":[{rows},64],"data":[{}]}}],"outputs":[{outputs}]}}"#,
            pixels.join(",")
        );
        let response = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes());
        let response = response.expect("the server answers");
        let text = String::from_utf8(response.body).expect("JSON is text");
        assert_eq!(response.status, 200, "{text}");
        let value = serde_json::from_str::<serde_json::Value>(&text).expect("the answer is JSON");
        value["outputs"][0]["data"].as_array().expect("an output has data").clone()
    };
    let floats =
        ask(r#"{"name":"probabilities"}"#).iter().map(|value| value.as_f64().expect("a probability")).collect();
    let classes = ask(r#"{"name":"probabilities","parameters":{"classification":1}}"#);
    // The number behind the probability: its last bits may differ.
    let index = |text: &serde_json::Value| {
        text.as_str().and_then(|text| text.split_once(':')).expect("a class is VALUE:INDEX").1.to_owned()
    };
    (floats, classes.iter().map(index).collect())
}

/// Compares a model with the example on the CPU.
pub fn check_alike(server: &Server, model: &str) {
    for rows in [1, 3, 64] {
        let ((got, got_classes), (want, want_classes)) =
            (answers(server, model, rows), answers(server, "digits", rows));
        assert_eq!((got.len(), got_classes), (want.len(), want_classes), "{model}");
        assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-5), "{model}: {got:?} for {want:?}");
    }
}

/// Layers of `width` columns, with biases and ReLU, and a softmax behind them: inputs `x`, outputs `y`, as wide.
pub fn dense(width: usize, layers: usize) -> Vec<u8> {
    let mut seed = 1_u64;
    let mut values = |count: usize, scale: f32| -> Vec<u8> {
        let mut value = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
        };
        (0..count).flat_map(|_| value().to_le_bytes()).collect()
    };
    let columns = i64::try_from(width).expect("a width");
    let mut onnx = Onnx::default();
    let mut from = "x".to_owned();
    for layer in 0..layers {
        let names = ["w", "b", "g", "r"].map(|kind| format!("{kind}{layer}"));
        let [weight, bias, product, cut] = names.each_ref().map(String::as_str);
        onnx = onnx
            .constant(weight, FLOAT, &[columns, columns], &values(width * width, (3.0 / width as f32).sqrt()))
            .constant(bias, FLOAT, &[columns], &values(width, 0.1))
            .node("Gemm", &[&from, weight, bias], &[product], &[("transB", i64::from(layer % 2 == 0))])
            .node("Relu", &[product], &[cut], &[]);
        from = cut.to_owned();
    }
    onnx.node("Softmax", &[&from], &["y"], &[("axis", -1)])
        .input("x", FLOAT, &[-1, columns])
        .output("y", FLOAT, &[-1, columns])
        .into_bytes()
}
