//! The packages of Python's index by the modules that they bring, as far as the names differ. Pure.

/// Modules whose package has another name.
const PACKAGES: &[(&str, &str)] = &[
    ("Crypto", "pycryptodome"),
    ("MeCab", "mecab-python3"),
    ("OpenSSL", "pyopenssl"),
    ("PIL", "pillow"),
    ("attr", "attrs"),
    ("bs4", "beautifulsoup4"),
    ("cairosvg", "CairoSVG"),
    ("clip", "openai-clip"),
    ("cupy", "cupy-cuda12x"),
    ("cv2", "opencv-python-headless"),
    ("dateutil", "python-dateutil"),
    ("docx", "python-docx"),
    ("dotenv", "python-dotenv"),
    ("faiss", "faiss-cpu"),
    ("fitz", "pymupdf"),
    ("git", "gitpython"),
    ("google", "protobuf"),
    ("grpc", "grpcio"),
    ("jwt", "pyjwt"),
    ("magic", "python-magic"),
    ("mpl_toolkits", "matplotlib"),
    ("msgpack_numpy", "msgpack-numpy"),
    ("pkg_resources", "setuptools"),
    ("pycocotools", "pycocotools"),
    ("pytorch_lightning", "pytorch-lightning"),
    ("redis", "redis"),
    ("serial", "pyserial"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("tensorflow", "tensorflow-cpu"),
    ("tritonclient", "tritonclient[all]"),
    ("whisper", "openai-whisper"),
    ("yaml", "pyyaml"),
    ("zmq", "pyzmq"),
];

/// Packages of other names that bring the same module.
const ALTERNATIVES: &[(&str, &[&str])] = &[
    ("clip", &["clip", "git-clip", "clip-git"]),
    ("cupy", &["cupy", "cupy-cuda11x"]),
    ("cv2", &["opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless"]),
    ("faiss", &["faiss-gpu", "faiss"]),
    ("onnxruntime", &["onnxruntime-gpu", "onnxruntime-openvino"]),
    ("tensorflow", &["tensorflow", "tensorflow-gpu"]),
    ("whisper", &["whisper", "whisper-git"]),
];

/// Packages that bring others with them.
const BROUGHT: &[(&str, &[&str])] = &[
    ("PIL", &["easyocr", "sentence-transformers", "timm", "torchvision", "ultralytics"]),
    (
        "huggingface_hub",
        &["accelerate", "datasets", "diffusers", "sentence-transformers", "timm", "tokenizers", "transformers"],
    ),
    (
        "numpy",
        &[
            "datasets",
            "diffusers",
            "librosa",
            "lightgbm",
            "onnx",
            "onnxruntime",
            "onnxruntime-gpu",
            "opencv-python",
            "opencv-python-headless",
            "openvino",
            "pandas",
            "scikit-image",
            "scikit-learn",
            "scipy",
            "sentence-transformers",
            "tensorflow",
            "tensorflow-cpu",
            "torchvision",
            "transformers",
            "ultralytics",
            "xgboost",
        ],
    ),
    ("requests", &["datasets", "tiktoken", "transformers", "ultralytics"]),
    ("scipy", &["librosa", "scikit-image", "scikit-learn", "sentence-transformers", "ultralytics", "xgboost"]),
    ("sklearn", &["librosa", "sentence-transformers"]),
    ("tokenizers", &["sentence-transformers", "transformers"]),
    (
        "torch",
        &[
            "accelerate",
            "easyocr",
            "sentence-transformers",
            "timm",
            "torchaudio",
            "torchvision",
            "ultralytics",
            "openai-whisper",
        ],
    ),
    ("tqdm", &["datasets", "nltk", "openai-whisper", "sentence-transformers", "transformers", "ultralytics"]),
    ("transformers", &["sentence-transformers"]),
    ("yaml", &["accelerate", "transformers", "ultralytics"]),
];

/// Modules that need an NVIDIA GPU and its software.
const ON_GPUS: [&str; 5] = ["cupy", "cudf", "pycuda", "tensorrt", "tensorrt_llm"];

/// Returns the package that brings a module.
pub fn package_of(module: &str) -> String {
    let known = PACKAGES.iter().find(|(name, _)| *name == module).map(|(_, package)| (*package).to_owned());
    known.unwrap_or_else(|| module.replace('_', "-"))
}

/// Returns true if one of these packages, by the names of the index, brings a module.
pub fn is_brought(module: &str, packages: &[String]) -> bool {
    let others = |table: &'static [(&str, &[&str])]| {
        table.iter().filter(|(name, _)| *name == module).flat_map(|(_, packages)| *packages).copied()
    };
    let package = package_of(module);
    let bare = package.split('[').next().unwrap_or_default().to_ascii_lowercase();
    let has = |name: &str| packages.iter().any(|have| have == name);
    has(&bare)
        || has(&module.to_ascii_lowercase().replace('_', "-"))
        || others(ALTERNATIVES).chain(others(BROUGHT)).any(has)
}

/// Returns true for a module that needs a GPU.
pub fn needs_gpu(module: &str) -> bool {
    ON_GPUS.contains(&module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_named_by_its_package_and_packages_bring_others() {
        assert_eq!(package_of("cv2"), "opencv-python-headless");
        assert_eq!(package_of("sentence_transformers"), "sentence-transformers");
        let check = |module: &str, packages: &[&str], want: bool| {
            let packages: Vec<_> = packages.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(is_brought(module, &packages), want, "{module}");
        };
        check("cv2", &["opencv-python"], true);
        check("PIL", &["pillow"], true);
        check("tritonclient", &["tritonclient"], true);
        check("numpy", &["transformers"], true);
        check("numpy", &["torch"], false);
        check("sentence_transformers", &["sentence-transformers"], true);
        check("torch", &[], false);
        assert!(needs_gpu("cupy") && !needs_gpu("torch"));
    }

    #[test]
    fn the_tables_are_sorted() {
        assert!(PACKAGES.is_sorted_by_key(|(module, _)| *module));
        assert!(
            ALTERNATIVES.is_sorted_by_key(|(module, _)| *module) && BROUGHT.is_sorted_by_key(|(module, _)| *module)
        );
    }
}
