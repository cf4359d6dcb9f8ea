// A stand-in for the part of PyTorch's C++ interface that the shim uses: tensors of the host's memory with counted
// storages, lists, dictionaries, and modules that are a few lines of text. Tests compile the shim against it, so that
// finding, compiling, keeping, loading and running are tried without a download. The shim relies on one property of it:
// the count of references to each storage.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <istream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace c10 {

enum class ScalarType : int8_t { Byte, Char, Short, Int, Long, Half, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool };
enum DeviceType : int8_t { kCPU };
enum Layout : int8_t { kStrided, kSparse };
enum class MemoryFormat { Contiguous };

struct Device {
  explicit Device(DeviceType) {}
  bool is_cpu() const { return true; }
};

struct Error : std::exception {
  Error(std::string message, std::string places) : message(message), all(message + "\n" + places) {}
  const char* what() const noexcept override { return all.c_str(); }
  const char* what_without_backtrace() const noexcept { return message.c_str(); }
  std::string message, all;
};

struct IntArrayRef {
  IntArrayRef(const int64_t* from, size_t count) : from(from), count(count) {}
  const int64_t* data() const { return from; }
  size_t size() const { return count; }
  const int64_t* from;
  size_t count;
};

// Memory that is freed with it, or that is somebody else's.
struct DataPtr {
  std::shared_ptr<char> owned;
  void* borrowed = nullptr;
  void* get() const { return owned ? owned.get() : borrowed; }
};

struct Allocator {
  DataPtr allocate(size_t size) {
    return {std::shared_ptr<char>(static_cast<char*>(std::malloc(size ? size : 1)), std::free)};
  }
};

Allocator* GetCPUAllocator();

struct Storage {
  struct Memory {
    DataPtr data;
    size_t size;
  };
  std::shared_ptr<Memory> memory;
  size_t use_count() const { return static_cast<size_t>(memory.use_count()); }
  size_t nbytes() const { return memory->size; }
  void* data() const { return memory->data.get(); }
  void set_data_ptr(DataPtr&& data) { memory->data = std::move(data); }
};

size_t size_of(ScalarType type);

}  // namespace c10

namespace at {

struct TensorOptions {
  TensorOptions dtype(c10::ScalarType wanted) const { return {wanted}; }
  c10::ScalarType type = c10::ScalarType::Float;
};

struct Tensor {
  struct Impl {
    c10::Storage storage;
    std::vector<int64_t> sizes;
    c10::ScalarType type;
    c10::Layout layout = c10::kStrided;
  };
  std::shared_ptr<Impl> impl;
  bool defined() const { return impl != nullptr; }
  c10::Storage storage() const { return impl->storage; }
  size_t use_count() const { return static_cast<size_t>(impl.use_count()); }
  c10::Layout layout() const { return impl->layout; }
  c10::Device device() const { return c10::Device(c10::kCPU); }
  Tensor cpu() const { return *this; }
  bool is_conj() const { return false; }
  bool is_neg() const { return false; }
  Tensor resolve_conj() const { return *this; }
  Tensor resolve_neg() const { return *this; }
  Tensor contiguous() const { return *this; }
  Tensor clone(c10::MemoryFormat = c10::MemoryFormat::Contiguous) const;
  int64_t numel() const;
  size_t nbytes() const { return static_cast<size_t>(numel()) * c10::size_of(impl->type); }
  void* data_ptr() const { return impl->storage.data(); }
  c10::IntArrayRef sizes() const { return {impl->sizes.data(), impl->sizes.size()}; }
  c10::ScalarType scalar_type() const { return impl->type; }
};

Tensor from_blob(void* data, c10::IntArrayRef sizes, TensorOptions options);
Tensor empty(c10::IntArrayRef sizes, TensorOptions options);
void set_num_threads(int count);
int get_num_threads();
void set_num_interop_threads(int count);

}  // namespace at

namespace c10 {

struct InferenceMode {
  explicit InferenceMode(bool is_on);
  ~InferenceMode();
};
struct NoGradGuard {
  NoGradGuard() {}
};

enum class TypeKind { TensorType, StringType, ListType, DictType, TupleType, ClassType, IntType };

struct Type;
using TypePtr = std::shared_ptr<Type>;
struct Type : std::enable_shared_from_this<Type> {
  Type(TypeKind kind, std::vector<TypePtr> parts = {}) : own(kind), parts(std::move(parts)) {}
  virtual ~Type() = default;
  TypeKind kind() const { return own; }
  std::string str() const;
  template <typename T>
  std::shared_ptr<T> cast() {
    return own == T::Kind ? std::static_pointer_cast<T>(shared_from_this()) : nullptr;
  }
  TypeKind own;
  std::vector<TypePtr> parts;
};
struct ListType : Type {
  static const TypeKind Kind = TypeKind::ListType;
  using Type::Type;
  TypePtr getElementType() const { return parts[0]; }
};
struct DictType : Type {
  static const TypeKind Kind = TypeKind::DictType;
  using Type::Type;
  TypePtr getKeyType() const { return parts[0]; }
  TypePtr getValueType() const { return parts[1]; }
};
struct TupleType : Type {
  static const TypeKind Kind = TypeKind::TupleType;
  using Type::Type;
  const std::vector<TypePtr>& elements() const { return parts; }
};

struct IValue;
template <typename T>
struct List {
  std::shared_ptr<std::vector<T>> elements = std::make_shared<std::vector<T>>();
  TypePtr type;
  void push_back(T element) { elements->push_back(std::move(element)); }
  size_t size() const { return elements->size(); }
  T get(size_t index) const { return elements->at(index); }
  TypePtr elementType() const { return type; }
};
template <typename K, typename V>
struct Dict {
  std::map<K, V> entries;
  void insert(K key, V value) { entries.insert({std::move(key), std::move(value)}); }
};

struct TupleOfValues;
struct IValue {
  enum Kind { kNone, kTensorValue, kString, kStrings, kOtherList, kTuple, kDict, kInt } kind = kNone;
  at::Tensor tensor;
  std::string string;
  List<std::string> strings;
  std::shared_ptr<TupleOfValues> tuple;
  Dict<std::string, at::Tensor> dictionary;
  IValue() {}
  IValue(at::Tensor tensor) : kind(kTensorValue), tensor(std::move(tensor)) {}
  IValue(std::string string) : kind(kString), string(std::move(string)) {}
  IValue(List<std::string> strings) : kind(kStrings), strings(std::move(strings)) {}
  IValue(Dict<std::string, at::Tensor> dictionary) : kind(kDict), dictionary(std::move(dictionary)) {}
  bool isTensor() const { return kind == kTensorValue; }
  bool isList() const { return kind == kStrings || kind == kOtherList; }
  bool isTuple() const { return kind == kTuple; }
  at::Tensor toTensor() const { return tensor; }
  const std::string& toStringRef() const { return string; }
  List<IValue> toList() const;
  const TupleOfValues& toTupleRef() const { return *tuple; }
};
struct TupleOfValues {
  std::vector<IValue> values;
  const std::vector<IValue>& elements() const { return values; }
};
inline List<IValue> IValue::toList() const {
  List<IValue> list;
  list.type = std::make_shared<Type>(kind == kStrings ? TypeKind::StringType : TypeKind::IntType);
  for (const auto& text : *strings.elements) list.push_back(IValue(text));
  return list;
}

struct Argument {
  std::string own_name;
  TypePtr own_type;
  const std::string& name() const { return own_name; }
  const TypePtr& type() const { return own_type; }
};
struct FunctionSchema {
  std::vector<Argument> own_arguments, own_returns;
  const std::vector<Argument>& arguments() const { return own_arguments; }
  const std::vector<Argument>& returns() const { return own_returns; }
};

}  // namespace c10

namespace torch::jit {

struct Value {
  bool is_written;
};
struct Graph {
  std::vector<std::shared_ptr<Value>> values;
  std::shared_ptr<Graph> copy() const { return std::make_shared<Graph>(*this); }
  std::vector<Value*> inputs() const {
    std::vector<Value*> inputs;
    for (const auto& value : values) inputs.push_back(value.get());
    return inputs;
  }
};
void Inline(Graph& graph);
struct AliasDb {
  explicit AliasDb(std::shared_ptr<Graph>) {}
  bool hasWriters(const Value* value) const { return value->is_written; }
};

struct Function {
  c10::FunctionSchema schema;
  const c10::FunctionSchema& getSchema() const { return schema; }
};
struct Program;
struct Method {
  std::shared_ptr<Program> program;
  std::shared_ptr<Graph> graph() const;
  const Function& function() const;
  c10::IValue operator()(std::vector<c10::IValue> inputs) const;
};
struct Module {
  std::shared_ptr<Program> program;
  Method get_method(const std::string&) const { return {program}; }
  void eval() {}
};
Module load(std::istream& file, c10::Device device);

void setGraphExecutorOptimize(bool is_on);
std::atomic<bool>& getExecutorMode();
std::atomic<bool>& getProfilingMode();
void setTensorExprFuserEnabled(bool is_on);

}  // namespace torch::jit
