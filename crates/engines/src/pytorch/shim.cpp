// The C interface of PyTorch that Deuteron calls. The server compiles this file on the user's machine, against the
// torch that is there, since torch's own interface is C++ and differs between releases. Everything that throws is
// caught here: the text is kept for the thread that called.
//
// Memory: an input is borrowed for the length of a run. Whatever still refers to it afterwards, an output or an
// attribute of the module, gets a copy. An output is its own: what the module could change later was copied.

#include <cstdint>
#include <cstring>
#include <exception>
#include <istream>
#include <memory>
#include <streambuf>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/api/include/torch/version.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/profiling_graph_executor_impl.h>
#include <torch/csrc/jit/serialization/import.h>

#define DEUTERON_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Kind of an argument of `forward`.
enum ArgumentKind : int32_t { kOther = 0, kTensor = 1, kStrings = 2, kTensorsByName = 3 };

// Options of a module's run; the same bits as in the server's code.
enum RunOption : uint32_t {
  kUnoptimized = 1 << 0,
  kInferenceMode = 1 << 1,
  kSetsExecutor = 1 << 2,
  kExecutor = 1 << 3,
  kSetsProfiling = 1 << 4,
  kProfiling = 1 << 5,
  kSetsFuser = 1 << 6,
  kFuser = 1 << 7,
};

// torch's number of a list of strings; its own are 0 and more.
constexpr int32_t kStringsType = -1;

struct Argument {
  std::string name;
  std::string type;
  int32_t kind;
  // True if a run may write into it.
  bool is_written;
};

struct Model {
  torch::jit::Module module;
  std::vector<Argument> arguments;
  int32_t output_count;
};

struct Output {
  at::Tensor tensor;
  std::string strings;
  int64_t string_count = 0;
  bool is_strings = false;
};

thread_local std::string failure;

// Reads memory as a file, without a copy of it.
struct MemoryBuffer : std::streambuf {
  MemoryBuffer(const char* begin, size_t size) {
    char* start = const_cast<char*>(begin);
    setg(start, start, start + size);
  }
  pos_type seekoff(off_type offset, std::ios_base::seekdir way, std::ios_base::openmode) override {
    char* from = way == std::ios_base::beg ? eback() : way == std::ios_base::cur ? gptr() : egptr();
    if (offset < eback() - from || offset > egptr() - from) return pos_type(off_type(-1));
    setg(eback(), from + offset, egptr());
    return gptr() - eback();
  }
  pos_type seekpos(pos_type place, std::ios_base::openmode mode) override {
    return seekoff(off_type(place), std::ios_base::beg, mode);
  }
};

// Runs `body` and keeps its exception. A text of torch's ends with addresses in memory, which are dropped.
template <typename Body>
auto guarded(Body body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const c10::Error& error) {
    try { failure = error.what_without_backtrace(); } catch (...) { failure.clear(); }
  } catch (const std::exception& error) {
    try { failure = error.what(); } catch (...) { failure.clear(); }
  } catch (...) {
    try { failure = "torch threw what is no exception of C++"; } catch (...) { failure.clear(); }
  }
  return decltype(body())();
}

[[noreturn]] void refuse(const std::string& text) { throw std::runtime_error(text); }

int32_t kind_of(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return kTensor;
  if (auto list = type->cast<c10::ListType>()) {
    return list->getElementType()->kind() == c10::TypeKind::StringType ? kStrings : kOther;
  }
  if (auto dictionary = type->cast<c10::DictType>()) {
    bool is_named = dictionary->getKeyType()->kind() == c10::TypeKind::StringType;
    bool has_tensors = dictionary->getValueType()->kind() == c10::TypeKind::TensorType;
    return is_named && has_tensors ? kTensorsByName : kOther;
  }
  return kOther;
}

// For each argument, `self` included, true if a run may write into its memory.
std::vector<bool> written_arguments(const torch::jit::Module& module, size_t count) {
  std::vector<bool> written(count, true);
  try {
    auto graph = module.get_method("forward").graph()->copy();
    torch::jit::Inline(*graph);
    torch::jit::AliasDb aliases(graph);
    for (size_t i = 0; i < count && i < graph->inputs().size(); i++) {
      written[i] = aliases.hasWriters(graph->inputs()[i]);
    }
  } catch (const std::exception&) {
    written.assign(count, true);
  }
  return written;
}

void describe(Model& model) {
  const auto& schema = model.module.get_method("forward").function().getSchema();
  auto written = written_arguments(model.module, schema.arguments().size());
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto& argument = schema.arguments()[i];
    if (i == 0 && argument.type()->kind() == c10::TypeKind::ClassType) continue;
    auto kind = kind_of(argument.type());
    // The contents of a dictionary are not followed: they count as written.
    bool is_written = kind == kTensorsByName || written[i];
    model.arguments.push_back({argument.name(), argument.type()->str(), kind, is_written});
  }
  model.output_count = -1;
  if (schema.returns().size() == 1) {
    const auto& type = schema.returns()[0].type();
    if (auto tuple = type->cast<c10::TupleType>()) {
      model.output_count = static_cast<int32_t>(tuple->elements().size());
    } else if (type->kind() == c10::TypeKind::TensorType || kind_of(type) == kStrings) {
      model.output_count = 1;
    }
  }
}

void apply_options(uint32_t options) {
  torch::jit::setGraphExecutorOptimize(!(options & kUnoptimized));
  if (options & kSetsExecutor) torch::jit::getExecutorMode() = (options & kExecutor) != 0;
  if (options & kSetsProfiling) torch::jit::getProfilingMode() = (options & kProfiling) != 0;
  if (options & kSetsFuser) torch::jit::setTensorExprFuserEnabled((options & kFuser) != 0);
}

// The number of threads that a run computes on is a matter of the thread that calls.
void apply_threads(int32_t threads) {
  thread_local int32_t current = 0;
  if (threads > 0 && threads != current) {
    at::set_num_threads(threads);
    current = threads;
  }
}

}  // namespace

// An input of a run: `contents` are elements of torch's type `type`, or strings, each after its length (32 bits).
struct DeuteronTorchInput {
  const void* contents;
  uint64_t size;
  const int64_t* shape;
  uint64_t rank;
  int32_t type;
  // Its key where the module takes a dictionary.
  const char* name;
};

// An output of a run, which lives as long as its handle.
struct DeuteronTorchOutput {
  void* handle;
  const void* contents;
  uint64_t size;
  const int64_t* shape;
  uint64_t rank;
  int32_t type;
};

namespace {

c10::List<std::string> read_strings(const DeuteronTorchInput& input) {
  c10::List<std::string> strings;
  auto at = static_cast<const char*>(input.contents);
  for (uint64_t left = input.size; left > 0;) {
    uint32_t size;
    if (left < sizeof size) refuse("a string is cut off");
    std::memcpy(&size, at, sizeof size);
    if (left - sizeof size < size) refuse("a string is cut off");
    strings.push_back(std::string(at + sizeof size, size));
    at += sizeof size + size;
    left -= sizeof size + size;
  }
  return strings;
}

at::Tensor borrow(const DeuteronTorchInput& input, bool is_written) {
  c10::IntArrayRef shape(input.shape, input.rank);
  auto type = static_cast<c10::ScalarType>(input.type);
  // An empty tensor has no memory to borrow.
  if (input.size == 0) return at::empty(shape, at::TensorOptions().dtype(type));
  auto tensor = at::from_blob(const_cast<void*>(input.contents), shape, at::TensorOptions().dtype(type));
  return is_written ? tensor.clone() : tensor;
}

// Gives what still refers to a borrowed input a copy of it.
void release(at::Tensor& tensor) {
  auto storage = tensor.storage();
  // One is the tensor's, the other that of this function.
  if (storage.use_count() <= 2 && tensor.use_count() == 1) return;
  auto copy = c10::GetCPUAllocator()->allocate(storage.nbytes());
  std::memcpy(copy.get(), storage.data(), storage.nbytes());
  storage.set_data_ptr(std::move(copy));
}

Output output_of(const c10::IValue& value, const std::string& place) {
  Output output;
  if (value.isTensor()) {
    output.tensor = value.toTensor();
    return output;
  }
  if (value.isList()) {
    auto list = value.toList();
    if (list.elementType()->kind() != c10::TypeKind::StringType) {
      refuse("output" + place + " must be of type Tensor or List[str], received List[" + list.elementType()->str() + "]");
    }
    output.is_strings = true;
    output.string_count = static_cast<int64_t>(list.size());
    for (size_t i = 0; i < list.size(); i++) {
      auto string = list.get(i).toStringRef();
      auto size = static_cast<uint32_t>(string.size());
      output.strings.append(reinterpret_cast<const char*>(&size), sizeof size).append(string);
    }
    return output;
  }
  refuse("output" + place +
         " must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a List / "
         "Dictionary of Tensors or a Scalar");
}

std::vector<Output> outputs_of(const c10::IValue& value) {
  std::vector<Output> outputs;
  if (!value.isTuple()) {
    outputs.push_back(output_of(value, ""));
    return outputs;
  }
  size_t index = 0;
  for (const auto& element : value.toTupleRef().elements()) {
    outputs.push_back(output_of(element, " at index " + std::to_string(index++)));
  }
  return outputs;
}

// Makes an output one's own, in rows of the host's memory.
void settle(Output& output) {
  if (output.is_strings) return;
  auto& tensor = output.tensor;
  if (!tensor.defined() || tensor.layout() != c10::kStrided) refuse("an output is no dense tensor");
  if (!tensor.device().is_cpu()) tensor = tensor.cpu();
  if (tensor.is_conj() || tensor.is_neg()) tensor = tensor.resolve_conj().resolve_neg();
  tensor = tensor.contiguous();
  // Beside this tensor only this line refers to memory that is not shared.
  auto storage = tensor.storage();
  if (storage.use_count() > 2 || tensor.use_count() > 1) tensor = tensor.clone(c10::MemoryFormat::Contiguous);
}

c10::IValue argument(const Model& model, const std::vector<at::Tensor>& tensors, const DeuteronTorchInput* inputs,
                     size_t index) {
  if (model.arguments[index].kind == kStrings) return read_strings(inputs[index]);
  return tensors[index];
}

std::vector<Output> run(Model& model, const DeuteronTorchInput* inputs, size_t count, uint32_t options) {
  bool is_dictionary = model.arguments.size() == 1 && model.arguments[0].kind == kTensorsByName;
  if (!is_dictionary && count != model.arguments.size()) refuse("the number of inputs is not that of the arguments");
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < count; i++) {
    bool is_strings = inputs[i].type == kStringsType;
    if (!is_dictionary && is_strings != (model.arguments[i].kind == kStrings)) refuse("an input is of another kind");
    bool is_written = is_dictionary || model.arguments[i].is_written;
    tensors.push_back(is_strings ? at::Tensor() : borrow(inputs[i], is_written));
  }
  std::vector<Output> outputs;
  std::exception_ptr thrown;
  try {
    apply_options(options);
    c10::InferenceMode inference((options & kInferenceMode) != 0);
    c10::NoGradGuard no_gradients;
    std::vector<c10::IValue> stack;
    if (is_dictionary) {
      c10::Dict<std::string, at::Tensor> dictionary;
      for (size_t i = 0; i < count; i++) dictionary.insert(inputs[i].name, tensors[i]);
      stack.emplace_back(std::move(dictionary));
    } else {
      for (size_t i = 0; i < count; i++) stack.push_back(argument(model, tensors, inputs, i));
    }
    outputs = outputs_of(model.module.get_method("forward")(std::move(stack)));
    for (auto& output : outputs) settle(output);
  } catch (...) {
    thrown = std::current_exception();
  }
  for (auto& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0) release(tensor);
  }
  if (thrown) std::rethrow_exception(thrown);
  return outputs;
}

}  // namespace

// The version of this interface: the server refuses another.
DEUTERON_EXPORT uint32_t deuteron_torch_interface() { return 1; }

DEUTERON_EXPORT const char* deuteron_torch_version() { return TORCH_VERSION; }

// Why the last call of this thread failed.
DEUTERON_EXPORT const char* deuteron_torch_failure(uint64_t* size) {
  *size = failure.size();
  return failure.data();
}

// Loads a TorchScript file from memory, which is not needed afterwards; null where it fails.
DEUTERON_EXPORT void* deuteron_torch_load(const void* file, uint64_t size, uint32_t options) {
  return guarded([&]() -> void* {
    apply_options(options);
    c10::InferenceMode inference((options & kInferenceMode) != 0);
    MemoryBuffer buffer(static_cast<const char*>(file), size);
    std::istream stream(&buffer);
    auto model = std::make_unique<Model>(Model{torch::jit::load(stream, c10::Device(c10::kCPU)), {}, -1});
    model->module.eval();
    describe(*model);
    return model.release();
  });
}

DEUTERON_EXPORT void deuteron_torch_unload(void* model) {
  guarded([&] { delete static_cast<Model*>(model); });
}

DEUTERON_EXPORT uint64_t deuteron_torch_argument_count(const void* model) {
  return static_cast<const Model*>(model)->arguments.size();
}

// An argument of `forward`; its texts live as long as the model.
DEUTERON_EXPORT int32_t deuteron_torch_argument(const void* model, uint64_t index, const char** name, const char** type) {
  const auto& argument = static_cast<const Model*>(model)->arguments.at(index);
  *name = argument.name.c_str();
  *type = argument.type.c_str();
  return argument.kind;
}

// The outputs that `forward` declares; -1 where it leaves that open.
DEUTERON_EXPORT int32_t deuteron_torch_output_count(const void* model) {
  return static_cast<const Model*>(model)->output_count;
}

// Runs a module. Returns the list of outputs, to be ended by `deuteron_torch_end_run`, or null where it fails.
DEUTERON_EXPORT void* deuteron_torch_run(void* model, const DeuteronTorchInput* inputs, uint64_t count, uint32_t options,
                                         int32_t threads) {
  return guarded([&]() -> void* {
    apply_threads(threads);
    return new std::vector<Output>(run(*static_cast<Model*>(model), inputs, count, options));
  });
}

DEUTERON_EXPORT uint64_t deuteron_torch_run_count(const void* run) {
  return static_cast<const std::vector<Output>*>(run)->size();
}

// Takes an output of a run, to be freed by `deuteron_torch_free`; false where it fails.
DEUTERON_EXPORT bool deuteron_torch_take(void* run, uint64_t index, DeuteronTorchOutput* taken) {
  return guarded([&] {
    auto output = std::make_unique<Output>(std::move(static_cast<std::vector<Output>*>(run)->at(index)));
    if (output->is_strings) {
      *taken = {nullptr, output->strings.data(), output->strings.size(), &output->string_count, 1, kStringsType};
    } else {
      const auto& tensor = output->tensor;
      *taken = {nullptr, tensor.data_ptr(), tensor.nbytes(), tensor.sizes().data(), tensor.sizes().size(),
                static_cast<int32_t>(tensor.scalar_type())};
    }
    taken->handle = output.release();
    return true;
  });
}

DEUTERON_EXPORT void deuteron_torch_end_run(void* run) {
  guarded([&] { delete static_cast<std::vector<Output>*>(run); });
}

DEUTERON_EXPORT void deuteron_torch_free(void* handle) {
  guarded([&] { delete static_cast<Output*>(handle); });
}

// The threads on which parts of a module run side by side. The first call of a process holds; false where it comes late.
DEUTERON_EXPORT bool deuteron_torch_set_interop_threads(int32_t threads) {
  return guarded([&] {
    at::set_num_interop_threads(threads);
    return true;
  });
}
