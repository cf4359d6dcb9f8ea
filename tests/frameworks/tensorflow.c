// Stands in for TensorFlow's C interface, for tests without the library. A graph has every operation whose name ends in
// `_N`: it has two outputs, of the datatype N of types.proto. A run gives, for each fetched tensor, the fed tensor of its
// place: numbers twice, strings in capitals. A number of 13 is an invalid argument, and 666 ends the process.
#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INVALID_ARGUMENT 3
#define NOT_FOUND 5
#define STRING 7

typedef struct { int code; char text[1024]; } TF_Status;
typedef struct { char name[64]; int type; } TF_Operation;
typedef struct { TF_Operation *operation; int index; } TF_Output;
typedef struct { size_t size; char *bytes; uint64_t rest; } TF_TString;
typedef void (*deallocator)(void *, size_t, void *);
typedef struct {
  int type, rank;
  int64_t dims[8];
  void *data;
  size_t size;
  deallocator free;
  void *argument;
} TF_Tensor;
typedef struct { TF_Operation operations[64]; int count; } TF_Graph;
typedef struct { size_t size; char *data; } TF_Buffer;

static void set(TF_Status *status, int code, const char *text) {
  status->code = code;
  snprintf(status->text, sizeof status->text, "%s", text);
}

const char *TF_Version(void) { return "2.21.0"; }
TF_Status *TF_NewStatus(void) { return calloc(1, sizeof(TF_Status)); }
void TF_DeleteStatus(TF_Status *status) { free(status); }
int TF_GetCode(TF_Status *status) { return status->code; }
const char *TF_Message(TF_Status *status) { return status->text; }
TF_Graph *TF_NewGraph(void) { return calloc(1, sizeof(TF_Graph)); }
void TF_DeleteGraph(TF_Graph *graph) { free(graph); }
void *TF_NewSessionOptions(void) { return malloc(1); }
void TF_DeleteSessionOptions(void *options) { free(options); }
void TF_SetConfig(void *options, const void *config, size_t size, TF_Status *status) {
  (void)options, (void)config;
  set(status, size ? 0 : INVALID_ARGUMENT, "no configuration");
}
TF_Buffer *TF_NewBufferFromString(const void *data, size_t size) {
  TF_Buffer *buffer = malloc(sizeof *buffer);
  buffer->size = size;
  buffer->data = malloc(size + 1);
  memcpy(buffer->data, data, size);
  return buffer;
}
void TF_DeleteBuffer(TF_Buffer *buffer) { free(buffer->data), free(buffer); }
void *TF_NewImportGraphDefOptions(void) { return malloc(1); }
void TF_DeleteImportGraphDefOptions(void *options) { free(options); }
void TF_GraphImportGraphDef(TF_Graph *graph, TF_Buffer *buffer, void *options, TF_Status *status) {
  (void)graph, (void)options;
  bool is_graph = buffer->size >= 5 && !memcmp(buffer->data, "graph", 5);
  set(status, is_graph ? 0 : INVALID_ARGUMENT, "Invalid GraphDef");
}
void *TF_NewSession(TF_Graph *graph, void *options, TF_Status *status) {
  (void)graph, (void)options;
  set(status, 0, "");
  return malloc(1);
}
void *TF_LoadSessionFromSavedModel(void *options, void *run, const char *directory, const char *const *tags, int count,
                                   TF_Graph *graph, void *description, TF_Status *status) {
  (void)options, (void)run, (void)graph, (void)description;
  char text[400];
  snprintf(text, sizeof text, "%s/variables", directory);
  FILE *file = fopen(text, "r");
  if (!file || count != 1 || strcmp(tags[0], "serve")) {
    snprintf(text, sizeof text, "Could not find variables or a graph at %s", directory);
    set(status, NOT_FOUND, text);
    return NULL;
  }
  fclose(file);
  set(status, 0, "");
  return malloc(1);
}
void TF_DeleteSession(void *session, TF_Status *status) { free(session), set(status, 0, ""); }

TF_Operation *TF_GraphOperationByName(TF_Graph *graph, const char *name) {
  const char *end = strrchr(name, '_');
  if (!end || !atoi(end + 1) || graph->count == 64) return NULL;
  TF_Operation *operation = &graph->operations[graph->count++];
  snprintf(operation->name, sizeof operation->name, "%s", name);
  operation->type = atoi(end + 1);
  return operation;
}
int TF_OperationNumOutputs(TF_Operation *operation) { (void)operation; return 2; }
int TF_OperationOutputType(TF_Output output) { return output.operation->type; }

TF_Tensor *TF_NewTensor(int type, const int64_t *dims, int rank, void *data, size_t size, deallocator free, void *argument) {
  TF_Tensor *tensor = calloc(1, sizeof *tensor);
  *tensor = (TF_Tensor){.type = type, .rank = rank, .data = data, .size = size, .free = free, .argument = argument};
  memcpy(tensor->dims, dims, (size_t)rank * sizeof *dims);
  return tensor;
}
static void free_plain(void *data, size_t size, void *argument) { (void)size, (void)argument; free(data); }
TF_Tensor *TF_AllocateTensor(int type, const int64_t *dims, int rank, size_t size) {
  return TF_NewTensor(type, dims, rank, calloc(size + 1, 1), size, free_plain, NULL);
}
void TF_DeleteTensor(TF_Tensor *tensor) {
  tensor->free(tensor->data, tensor->size, tensor->argument);
  free(tensor);
}
int TF_TensorType(TF_Tensor *tensor) { return tensor->type; }
int TF_NumDims(TF_Tensor *tensor) { return tensor->rank; }
int64_t TF_Dim(TF_Tensor *tensor, int index) { return tensor->dims[index]; }
size_t TF_TensorByteSize(TF_Tensor *tensor) { return tensor->size; }
void *TF_TensorData(TF_Tensor *tensor) { return tensor->data; }

void TF_StringInit(TF_TString *string) { memset(string, 0, sizeof *string); }
void TF_StringCopy(TF_TString *string, const char *bytes, size_t size) {
  string->bytes = malloc(size + 1), string->size = size;
  memcpy(string->bytes, bytes, size);
}
const char *TF_StringGetDataPointer(const TF_TString *string) { return string->bytes; }
size_t TF_StringGetSize(const TF_TString *string) { return string->size; }
void TF_StringDealloc(TF_TString *string) { free(string->bytes); }

static void free_strings(void *data, size_t size, void *argument) {
  (void)argument;
  for (size_t i = 0; i < size / sizeof(TF_TString); i++) free(((TF_TString *)data)[i].bytes);
  free(data);
}
static TF_Tensor *capitals(const TF_Tensor *in) {
  size_t count = in->size / sizeof(TF_TString);
  TF_TString *strings = calloc(count + 1, sizeof *strings), *from = in->data;
  for (size_t i = 0; i < count; i++) {
    TF_StringCopy(&strings[i], from[i].bytes ? from[i].bytes : "", from[i].size);
    for (size_t j = 0; j < from[i].size; j++) strings[i].bytes[j] = (char)toupper(strings[i].bytes[j]);
  }
  return TF_NewTensor(STRING, in->dims, in->rank, strings, in->size, free_strings, NULL);
}

void TF_SessionRun(void *session, void *options, const TF_Output *inputs, TF_Tensor *const *values, int input_count,
                   const TF_Output *outputs, TF_Tensor **results, int output_count, const TF_Operation *const *targets,
                   int target_count, void *metadata, TF_Status *status) {
  (void)session, (void)options, (void)inputs, (void)metadata;
  set(status, 0, "");
  for (int i = 0; i < target_count; i++)
    if (strstr(targets[i]->name, "fails")) return set(status, INVALID_ARGUMENT, "the operation fails");
  for (int i = 0; i < output_count; i++) {
    const TF_Tensor *in = values[i % input_count];
    if (in->type == STRING) {
      results[i] = capitals(in);
      continue;
    }
    // The operation's name decides the output, whatever its datatype is: a model may lie.
    int type = strstr(outputs[i].operation->name, "lies") ? 3 : in->type;
    results[i] = TF_AllocateTensor(type, in->dims, in->rank, in->size);
    for (size_t j = 0; j < in->size / 4; j++) {
      float value = ((float *)in->data)[j];
      if (value == 13) return set(status, INVALID_ARGUMENT, "13 is no number that it likes");
      if (value == 666) abort();
      ((float *)results[i]->data)[j] = 2 * value;
    }
  }
}
