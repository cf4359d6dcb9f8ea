//! The ONNX file of a folder: which one is run, and the roles of its inputs and outputs.

use base::error::Error;
use base::tensor::Datatype;

use crate::folder::HubFolder;

/// The inputs and outputs of an ONNX file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubGraph {
    /// Its path in the folder.
    pub file: String,
    /// Its inputs.
    pub inputs: Vec<GraphTensor>,
    /// Its outputs.
    pub outputs: Vec<GraphTensor>,
}

/// An input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphTensor {
    /// Its name.
    pub name: String,
    /// Its datatype.
    pub datatype: Datatype,
    /// Its dimensions with the axis of rows, -1 for one of variable size.
    pub shape: Vec<i64>,
}

/// The origin of a model's graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraphSource {
    /// An ONNX file of the folder, by its path.
    File(String),
    /// The folder has weights but no ONNX file: the path of the first file of weights.
    Weights(String),
}

/// Instructions of a processor that quantized files are made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFeatures {
    /// AVX2 of x86-64.
    pub has_avx2: bool,
    /// AVX-512 (F, BW, VL, DQ).
    pub has_avx512: bool,
    /// AVX-512 VNNI.
    pub has_avx512_vnni: bool,
    /// A 64-bit ARM processor.
    pub is_arm64: bool,
}

/// Files of full precision, which give the numbers that the model was published with: as exported, then as optimised.
const FULL: [&str; 5] =
    ["onnx/model.onnx", "model.onnx", "onnx/model_O3.onnx", "onnx/model_O2.onnx", "onnx/model_O1.onnx"];
/// Files of 8 bits that any processor runs.
const QUANTIZED: [&str; 4] =
    ["onnx/model_quantized.onnx", "model_quantized.onnx", "onnx/model_int8.onnx", "onnx/model_uint8.onnx"];
/// Files of half precision, which a CPU computes with conversions.
const HALF: [&str; 2] = ["onnx/model_fp16.onnx", "onnx/model_O4.onnx"];

/// Chooses the file that is run: of full precision if there is one, since quantized files give other numbers; otherwise the one
/// of 8 bits that was made for the processor; otherwise the only ONNX file, whatever its name.
///
/// # Errors
/// `InvalidArgument` if there is neither an ONNX file nor weights, or several files of other names.
pub fn choose(folder: &HubFolder<'_>, cpu: CpuFeatures) -> Result<GraphSource, Error> {
    let made_for = [
        (cpu.has_avx512_vnni, "onnx/model_qint8_avx512_vnni.onnx"),
        (cpu.has_avx512, "onnx/model_qint8_avx512.onnx"),
        (cpu.has_avx2, "onnx/model_quint8_avx2.onnx"),
        (cpu.is_arm64, "onnx/model_qint8_arm64.onnx"),
    ];
    let for_this = made_for.iter().filter(|(has, _)| *has).map(|(_, name)| *name);
    let wanted: Vec<&str> = FULL.into_iter().chain(for_this).chain(QUANTIZED).chain(HALF).collect();
    if let Some(name) = folder.first(&wanted) {
        return Ok(GraphSource::File(name.to_owned()));
    }
    let is_graph = |name: &&String| {
        let file = name.strip_prefix("onnx/").unwrap_or(name);
        file.ends_with(".onnx") && !file.contains('/')
    };
    let mut others: Vec<&str> = folder.names.iter().filter(is_graph).map(String::as_str).collect();
    others.sort_unstable();
    match others.as_slice() {
        [only] => return Ok(GraphSource::File((*only).to_owned())),
        [] => {}
        several => {
            let (known, names) = (FULL.join(", "), several.join(", "));
            return Err(Error::invalid(format!(
                "the folder has several ONNX files ({names}) and none of the usual names ({known}): rename the one to serve \
                 to model.onnx"
            )));
        }
    }
    let is_weights = |name: &&String| name.ends_with(".safetensors") || name.ends_with("pytorch_model.bin");
    match folder.names.iter().filter(is_weights).min() {
        Some(weights) => Ok(GraphSource::Weights(weights.clone())),
        None => Err(Error::invalid(
            "the folder has neither an ONNX file nor weights: expected onnx/model.onnx or model.onnx",
        )),
    }
}

/// Returns the refusal of a folder with weights alone.
pub fn no_graph(weights: &str) -> Error {
    Error::invalid(format!(
        "the folder has {weights} but no ONNX file: save the weights as safetensors with `model.save_pretrained(FOLDER)` of \
         transformers, or make an ONNX file with `optimum-cli export onnx --model FOLDER FOLDER/onnx`"
    ))
}

impl HubGraph {
    /// Names and shapes of tensors, for an error.
    pub fn listed(tensors: &[GraphTensor]) -> String {
        let listed = tensors.iter().map(|tensor| format!("'{}' {:?}", tensor.name, tensor.shape));
        listed.collect::<Vec<_>>().join(", ")
    }

    /// An error about the file.
    pub fn wrong(&self, why: &str) -> Error {
        Error::invalid(format!("{}: {why}", self.file))
    }

    /// The output with one of these names, else the only one of numbers with `rank` dimensions that `fits`.
    ///
    /// # Errors
    /// `InvalidArgument` with the outputs of the file if there is no such output, or several.
    pub fn output(
        &self,
        names: &[&str],
        rank: usize,
        fits: impl Fn(&GraphTensor) -> bool,
    ) -> Result<&GraphTensor, Error> {
        let is_float = |tensor: &&GraphTensor| {
            matches!(tensor.datatype, Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64 | Datatype::Bf16)
        };
        let of_rank = || self.outputs.iter().filter(is_float).filter(|tensor| tensor.shape.len() == rank);
        if let Some(named) = names.iter().find_map(|name| of_rank().find(|tensor| tensor.name == *name)) {
            return Ok(named);
        }
        let mut others = of_rank().filter(|tensor| fits(tensor));
        match (others.next(), others.next()) {
            (Some(only), None) => Ok(only),
            (first, _) => {
                let what = if first.is_some() { "several outputs" } else { "no output" };
                let (names, listed) = (names.join(" or "), Self::listed(&self.outputs));
                Err(self.wrong(&format!("it has {what} of {rank} dimensions that can be {names}: it has {listed}")))
            }
        }
    }

    /// The last dimension of a tensor; `None` if it is of variable size.
    pub fn last_dimension(tensor: &GraphTensor) -> Option<usize> {
        tensor.shape.last().and_then(|size| usize::try_from(*size).ok())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn chosen(names: &str, cpu: CpuFeatures) -> String {
        let names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
        let folder = HubFolder { names: &names, read: &|_, _| Err("not read".to_owned()) };
        match choose(&folder, cpu) {
            Ok(GraphSource::File(file)) => file,
            Ok(GraphSource::Weights(file)) => format!("weights {file}"),
            Err(error) => error.text().to_owned(),
        }
    }

    #[test]
    fn full_precision_comes_first_and_then_the_file_for_the_processor() {
        let old = CpuFeatures::default();
        let avx2 = CpuFeatures { has_avx2: true, ..old };
        let vnni = CpuFeatures { has_avx512: true, has_avx512_vnni: true, ..avx2 };
        let all = "onnx/model.onnx onnx/model_O4.onnx onnx/model_O3.onnx onnx/model_qint8_avx512_vnni.onnx \
                   onnx/model_quint8_avx2.onnx onnx/model_qint8_arm64.onnx model.onnx model.safetensors";
        assert_eq!(chosen(all, vnni), "onnx/model.onnx");
        let without = |name: &str| all.split_whitespace().filter(|have| *have != name).collect::<Vec<_>>().join(" ");
        assert_eq!(chosen(&without("onnx/model.onnx"), vnni), "model.onnx");
        let int8 = "onnx/model_O4.onnx onnx/model_qint8_avx512_vnni.onnx onnx/model_quint8_avx2.onnx onnx/model_qint8_arm64.onnx";
        assert_eq!(chosen(int8, vnni), "onnx/model_qint8_avx512_vnni.onnx");
        assert_eq!(chosen(int8, avx2), "onnx/model_quint8_avx2.onnx");
        assert_eq!(chosen(int8, CpuFeatures { is_arm64: true, ..old }), "onnx/model_qint8_arm64.onnx");
        assert_eq!(chosen(int8, old), "onnx/model_O4.onnx");
        assert_eq!(chosen("onnx/model_O2.onnx onnx/model_quantized.onnx", vnni), "onnx/model_O2.onnx");
        assert_eq!(chosen("config.json paraphrase.onnx", old), "paraphrase.onnx");
        assert_eq!(chosen("config.json model.safetensors deep/x/model.onnx", old), "weights model.safetensors");
        assert!(chosen("b.onnx onnx/a.onnx", old).contains("several ONNX files (b.onnx, onnx/a.onnx)"));
        assert!(chosen("config.json", old).contains("neither an ONNX file nor weights"));
    }
}
