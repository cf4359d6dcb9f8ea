// Stands in for OpenVINO's C interface, for tests without the library. A model is a text of lines:
//
//   input NAME TYPE SIZE...    TYPE is the place behind BOOL in ov_element_type_e: 0 BOOL, 3 FP32, 8 INT32, 9 INT64
//   output NAME TYPE SIZE...   -1 is a variable size
//   lies                       its outputs have one element more than they should
//   packs                      its outputs, of one dimension, have only the elements that are not 0
//
// Output i is twice input i, element by element; a value of 13 fails the run, 99 ends it with success before an output
// is complete, 77 has it wait until it is cancelled, and 666 ends the process. The outputs that a run wrote before it
// failed stay. As in the library with one thread, ov_infer_request_infer returns success for a run that failed. The
// number of BOOL is BOOLEAN, as releases differ in it. With KEEPS a compiled model has three times, and not twice, its
// inputs once a run of it failed, and calls itself 2025.4: that and older releases keep the state of a failed run in
// their operators.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef BOOLEAN
#define BOOLEAN 1
#endif
#ifdef KEEPS
#define VERSION "2025.4.0-0-stand-in"
#else
#define VERSION "2026.4.1-0-stand-in"
#endif
#define OK 0
#define FAILED -1
#define PORTS 8
#define RANK 8

typedef struct { int64_t rank; int64_t *dims; } ov_shape_t;
typedef struct { int64_t min, max; } ov_dimension_t;
typedef struct { ov_dimension_t rank; ov_dimension_t *dims; } ov_partial_shape_t;
typedef struct { const char *build, *description; } ov_version_t;

typedef struct { char name[64]; unsigned type, asked; int64_t rank, dims[RANK]; } port;
typedef struct { int inputs, outputs; port input[PORTS], output[PORTS]; bool lies, packs, *failed; } model;
// The contents that handles share: each handle is a pointer to one.
typedef struct { int references; unsigned type; int64_t rank, dims[RANK]; void *data; size_t capacity; bool owned; } tensor;
typedef struct { model model; tensor *input[PORTS], *output[PORTS]; volatile bool waits, cancelled; int status; } request;
typedef struct { model *model; int input; } steps;

static _Thread_local char message[1024];

static int fail(const char *text) {
  snprintf(message, sizeof message, "Exception from stand_in.c:1:\n%s\n", text);
  return FAILED;
}

static size_t size_of(unsigned type) {
  static const size_t sizes[] = {1, 2, 2, 4, 8, 0, 1, 2, 4, 8, 0, 0, 0, 0, 0, 1, 2, 4, 8};
  unsigned place = type - BOOLEAN;
  return place < sizeof sizes / sizeof *sizes ? sizes[place] : 0;
}

static size_t count_of(int64_t rank, const int64_t *dims) {
  size_t count = 1;
  for (int64_t i = 0; i < rank; i++) count *= (size_t)dims[i];
  return count;
}

static char *copy(const char *text) { return strdup(text); }

int ov_get_openvino_version(ov_version_t *version) {
  version->build = VERSION;
  version->description = "stand-in";
  return OK;
}
void ov_version_free(ov_version_t *version) { (void)version; }
const char *ov_get_error_info(int status) { return status == OK ? "success" : "general error"; }
const char *ov_get_last_err_msg(void) { return copy(message); }
void ov_free(const char *text) { free((void *)text); }

int ov_core_create(void **core) { *core = malloc(1); return OK; }
void ov_core_free(void *core) { free(core); }
int ov_core_add_extension(void *core, const char *path) { (void)core, (void)path; return fail("it is no extension"); }

int ov_core_read_model(void *core, const char *path, const char *weights, void **out) {
  (void)core, (void)weights;
  FILE *file = fopen(path, "r");
  if (!file) return fail("cannot open");
  model *m = calloc(1, sizeof *m);
  char line[256];
  while (fgets(line, sizeof line, file)) {
    // Models load on several threads.
    char *rest, *word = strtok_r(line, " \n", &rest);
    // The head of the protobuf field that a graph has the text in, and tags of IR, which only the server reads.
    if (!word || *word == 'J' || *word == '<') continue;
    if (!strcmp(word, "lies")) { m->lies = true; continue; }
    if (!strcmp(word, "packs")) { m->packs = true; continue; }
    bool is_input = !strcmp(word, "input");
    if (!is_input && strcmp(word, "output")) {
      char text[400];
      snprintf(text, sizeof text, "%s is no model", path);
      free(m), fclose(file);
      return fail(text);
    }
    port *p = is_input ? &m->input[m->inputs++] : &m->output[m->outputs++];
    snprintf(p->name, sizeof p->name, "%s", strtok_r(NULL, " \n", &rest));
    p->type = p->asked = BOOLEAN + (unsigned)atoi(strtok_r(NULL, " \n", &rest));
    while ((word = strtok_r(NULL, " \n", &rest))) p->dims[p->rank++] = atoll(word);
  }
  fclose(file);
  *out = m;
  return OK;
}

void ov_model_free(void *m) { free(m); }
int ov_model_inputs_size(void *m, size_t *count) { *count = (size_t)((model *)m)->inputs; return OK; }
int ov_model_outputs_size(void *m, size_t *count) { *count = (size_t)((model *)m)->outputs; return OK; }

static int take_port(const port *from, void **out) {
  port *p = malloc(sizeof *p);
  *p = *from;
  *out = p;
  return OK;
}
int ov_model_const_input_by_index(void *m, size_t i, void **out) { return take_port(&((model *)m)->input[i], out); }
int ov_model_const_output_by_index(void *m, size_t i, void **out) { return take_port(&((model *)m)->output[i], out); }

static int find_port(port *ports, int count, const char *name, void **out) {
  for (int i = 0; i < count; i++)
    if (!strcmp(ports[i].name, name)) return take_port(&ports[i], out);
  return fail("no such port");
}
int ov_model_const_input_by_name(void *m, const char *name, void **out) {
  return find_port(((model *)m)->input, ((model *)m)->inputs, name, out);
}
int ov_model_const_output_by_name(void *m, const char *name, void **out) {
  return find_port(((model *)m)->output, ((model *)m)->outputs, name, out);
}

int ov_model_reshape_by_port_indexes(void *of, const size_t *indexes, const ov_partial_shape_t *shapes, size_t count) {
  model *m = of;
  for (size_t i = 0; i < count; i++) {
    port *p = &m->input[indexes[i]];
    p->rank = shapes[i].rank.min;
    for (int64_t d = 0; d < p->rank; d++) p->dims[d] = shapes[i].dims[d].max;
    // The outputs' rows are those of the inputs.
    if (m->output[indexes[i]].rank) m->output[indexes[i]].dims[0] = p->dims[0];
  }
  return OK;
}

int ov_port_get_any_name(void *p, char **name) { *name = copy(((port *)p)->name); return OK; }
int ov_port_get_element_type(void *p, unsigned *type) { *type = ((port *)p)->type; return OK; }
int ov_port_get_partial_shape(void *of, ov_partial_shape_t *shape) {
  port *p = of;
  shape->rank.min = shape->rank.max = p->rank;
  shape->dims = malloc(RANK * sizeof *shape->dims);
  for (int64_t i = 0; i < p->rank; i++) {
    shape->dims[i].min = p->dims[i] < 0 ? 0 : p->dims[i];
    shape->dims[i].max = p->dims[i];
  }
  return OK;
}
void ov_partial_shape_free(ov_partial_shape_t *shape) { free(shape->dims); }
void ov_output_const_port_free(void *p) { free(p); }

int ov_preprocess_prepostprocessor_create(void *m, void **out) {
  steps *s = malloc(sizeof *s);
  s->model = malloc(sizeof(model));
  *s->model = *(model *)m;
  *out = s;
  return OK;
}
void ov_preprocess_prepostprocessor_free(void *s) { free(((steps *)s)->model), free(s); }
int ov_preprocess_prepostprocessor_get_input_info_by_index(void *s, size_t i, void **out) {
  steps *info = malloc(sizeof *info);
  *info = (steps){((steps *)s)->model, (int)i};
  *out = info;
  return OK;
}
void ov_preprocess_input_info_free(void *info) { free(info); }
int ov_preprocess_input_info_get_tensor_info(void *info, void **out) {
  steps *t = malloc(sizeof *t);
  *t = *(steps *)info;
  *out = t;
  return OK;
}
void ov_preprocess_input_tensor_info_free(void *t) { free(t); }
int ov_preprocess_input_tensor_info_set_element_type(void *of, unsigned type) {
  steps *t = of;
  t->model->input[t->input].asked = type;
  return OK;
}
int ov_preprocess_prepostprocessor_build(void *s, void **out) {
  model *m = malloc(sizeof *m);
  *m = *((steps *)s)->model;
  *out = m;
  return OK;
}

int ov_core_compile_model(void *core, void *m, const char *device, size_t count, void **out, ...) {
  (void)core, (void)count;
  if (strcmp(device, "CPU")) return fail("Device with this name is not registered");
  model *c = malloc(sizeof *c);
  *c = *(model *)m;
  c->failed = calloc(1, sizeof *c->failed); // Requests outlive the compiled model, and few are made.
  *out = c;
  return OK;
}
void ov_compiled_model_free(void *c) { free(c); }
int ov_compiled_model_create_infer_request(void *c, void **out) {
  request *r = calloc(1, sizeof *r);
  r->model = *(model *)c;
  *out = r;
  return OK;
}

static tensor *shared(tensor *t) {
  if (t) __atomic_add_fetch(&t->references, 1, __ATOMIC_SEQ_CST);
  return t;
}
void ov_tensor_free(void *of) {
  tensor *t = of;
  if (!t || __atomic_sub_fetch(&t->references, 1, __ATOMIC_SEQ_CST)) return;
  if (t->owned) free(t->data);
  free(t);
}
static void set(tensor **place, tensor *t) {
  shared(t);
  ov_tensor_free(*place);
  *place = t;
}

void ov_infer_request_free(void *of) {
  request *r = of;
  for (int i = 0; i < PORTS; i++) ov_tensor_free(r->input[i]), ov_tensor_free(r->output[i]);
  free(r);
}
int ov_infer_request_set_input_tensor_by_index(void *of, size_t i, void *t) {
  request *r = of;
  set(&r->input[i], t);
  if (r->input[i]->type != r->model.input[i].asked) return fail("the tensor's type is not the input's");
  return OK;
}
int ov_infer_request_set_output_tensor_by_index(void *of, size_t i, void *t) {
  request *r = of;
  set(&r->output[i], t);
  if (r->output[i]->type != r->model.output[i].type) return fail("the tensor's type is not the output's");
  return OK;
}

static double get(unsigned type, const void *data, size_t i) {
  switch (type - BOOLEAN) {
    case 3: return ((const float *)data)[i];
    case 4: return ((const double *)data)[i];
    case 8: return ((const int32_t *)data)[i];
    case 9: return (double)((const int64_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
  }
}
static void put(unsigned type, void *data, size_t i, double value) {
  switch (type - BOOLEAN) {
    case 0: ((uint8_t *)data)[i] = value != 0 ? 7 : 0; break; // Any value but 0 is true.
    case 3: ((float *)data)[i] = (float)value; break;
    case 4: ((double *)data)[i] = value; break;
    case 8: ((int32_t *)data)[i] = (int32_t)value; break;
    case 9: ((int64_t *)data)[i] = (int64_t)value; break;
    default: ((uint8_t *)data)[i] = (uint8_t)value; break;
  }
}

static void resize(tensor *t, int64_t rank, const int64_t *dims) {
  size_t size = count_of(rank, dims) * size_of(t->type);
  t->rank = rank;
  memcpy(t->dims, dims, (size_t)rank * sizeof *dims);
  if (size <= t->capacity) return;
  free(t->data);
  t->data = calloc(size + 1, 1);
  t->capacity = size;
}

static int compute(request *r) {
  for (int o = 0; o < r->model.outputs; o++) {
    tensor *in = r->input[o % r->model.inputs];
    if (!r->output[o]) {
      r->output[o] = calloc(1, sizeof(tensor));
      *r->output[o] = (tensor){.references = 1, .type = r->model.output[o].type, .owned = true};
    }
    tensor *out = r->output[o];
    size_t count = count_of(in->rank, in->dims), kept = 0;
    int64_t dims[RANK];
    memcpy(dims, in->dims, sizeof dims);
    for (size_t i = 0; i < count; i++) {
      double value = get(in->type, in->data, i);
      if (value == 13 && i == 0) return fail("13 is no number that it likes");
      if (value == 99 && i == 0) return OK;
      kept += value != 0;
    }
    if (r->model.packs) dims[0] = (int64_t)kept;
    if (r->model.lies) dims[in->rank - 1]++;
    resize(out, in->rank, dims);
    kept = 0;
    for (size_t i = 0; i < count; i++) {
      double value = get(in->type, in->data, i);
      if (value == 13) return fail("13 is no number that it likes");
      if (value == 666) abort();
      if (value == 77) r->waits = true;
      if (!r->model.packs || value != 0) put(out->type, out->data, kept++, (*r->model.failed ? 3 : 2) * value);
    }
  }
  return OK;
}
static int run(request *r) {
  int status = compute(r);
#ifdef KEEPS
  *r->model.failed |= status != OK;
#endif
  return status;
}
int ov_infer_request_infer(void *of) {
  run(of);
  return OK;
}
int ov_infer_request_start_async(void *of) {
  request *r = of;
  r->waits = r->cancelled = false;
  r->status = run(r);
  return OK;
}
int ov_infer_request_wait(void *of) {
  request *r = of;
  while (r->waits && !r->cancelled) usleep(1000);
  return r->waits ? fail("Infer Request was canceled") : r->status;
}
int ov_infer_request_cancel(void *r) { ((request *)r)->cancelled = true; return OK; }
int ov_infer_request_get_output_tensor_by_index(void *of, size_t i, void **out) {
  *out = shared(((request *)of)->output[i]);
  return OK;
}

static int new_tensor(unsigned type, ov_shape_t shape, void *data, bool owned, void **out) {
  if (!size_of(type)) return fail("such a tensor cannot be made");
  tensor *t = calloc(1, sizeof *t);
  t->references = 1, t->type = type, t->rank = shape.rank, t->owned = owned;
  memcpy(t->dims, shape.dims, (size_t)shape.rank * sizeof *shape.dims);
  t->data = owned ? calloc(count_of(shape.rank, shape.dims) + 1, 8) : data;
  t->capacity = owned ? count_of(shape.rank, shape.dims) * size_of(type) : 0;
  *out = t;
  return OK;
}
int ov_tensor_create(unsigned type, ov_shape_t shape, void **out) { return new_tensor(type, shape, NULL, true, out); }
int ov_tensor_create_from_host_ptr(unsigned type, ov_shape_t shape, void *data, void **out) {
  return new_tensor(type, shape, data, false, out);
}
int ov_tensor_get_shape(void *of, ov_shape_t *shape) {
  tensor *t = of;
  shape->rank = t->rank;
  shape->dims = malloc(RANK * sizeof *shape->dims);
  memcpy(shape->dims, t->dims, sizeof t->dims);
  return OK;
}
int ov_shape_free(ov_shape_t *shape) { free(shape->dims); return OK; }
int ov_tensor_get_element_type(void *t, unsigned *type) { *type = ((tensor *)t)->type; return OK; }
int ov_tensor_get_size(void *of, size_t *count) {
  tensor *t = of;
  *count = count_of(t->rank, t->dims);
  return OK;
}
int ov_tensor_get_byte_size(void *of, size_t *size) {
  tensor *t = of;
  *size = count_of(t->rank, t->dims) * size_of(t->type);
  return OK;
}
int ov_tensor_data(void *t, void **data) { *data = ((tensor *)t)->data; return OK; }
