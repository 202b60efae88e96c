/* The C ABI between riverrun and its kernels: C99, append-only, struct_size first.
 *
 * A kernel sees a node as plain data: tensors with dtype, layout, shape, byte strides and pointer,
 * an attribute block, and the number of rows that hold real tokens. Shapes are row-major (last
 * axis fastest). Kernels never abort: they refuse in `supports`, or report through `fail`. */
#ifndef RIVERRUN_H
#define RIVERRUN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RR_ABI_VERSION 1
#define RR_MAX_RANK 6

/* ggml tensor type ids; types without one start at 1000. */
enum {
  RR_F32 = 0,
  RR_F16 = 1,
  RR_Q4_0 = 2,
  RR_Q4_1 = 3,
  RR_Q5_0 = 6,
  RR_Q5_1 = 7,
  RR_Q8_0 = 8,
  RR_Q2_K = 10,
  RR_Q3_K = 11,
  RR_Q4_K = 12,
  RR_Q5_K = 13,
  RR_Q6_K = 14,
  RR_IQ2_XXS = 16,
  RR_IQ2_XS = 17,
  RR_IQ3_XXS = 18,
  RR_IQ4_NL = 20,
  RR_IQ3_S = 21,
  RR_IQ2_S = 22,
  RR_IQ4_XS = 23,
  RR_I8 = 24,
  RR_I16 = 25,
  RR_I32 = 26,
  RR_I64 = 27,
  RR_F64 = 28,
  RR_BF16 = 30,
  RR_MXFP4 = 39,
  RR_U8 = 1000,
  RR_ABSENT = 0xffff /* an optional input that is not given */
};

/* How a weight's bytes are arranged. 0 is the file's own order; others belong to one device.
 * ROWS8: what eight rows have of 256 values lies together, in as many bytes as in the file and an
 * order of the type's own; the next 256 values of these rows follow. The last rows are filled up to
 * eight with zeros. */
enum { RR_LAYOUT_PLAIN = 0, RR_LAYOUT_ROWS16 = 1, RR_LAYOUT_ROWS8 = 2 };

typedef struct rr_tensor {
  uint32_t dtype;
  uint32_t layout;
  int32_t rank;
  int32_t constant; /* 1 in run, where the executor knows that these bytes never change */
  int64_t shape[RR_MAX_RANK];
  int64_t strides[RR_MAX_RANK]; /* bytes; of a block type the last one is the block's bytes */
  void* data;
} rr_tensor;

enum { RR_ATTR_INT = 0, RR_ATTR_FLOAT = 1, RR_ATTR_TEXT = 2, RR_ATTR_INTS = 3 };

typedef struct rr_attr {
  const char* name;
  uint32_t kind;
  uint32_t count; /* of RR_ATTR_INTS */
  int64_t i;      /* RR_ATTR_INT; booleans are 0 and 1 */
  double f;
  const char* text;
  const int64_t* ints;
} rr_attr;

typedef struct rr_node {
  uint32_t struct_size;
  uint32_t n_inputs;
  uint32_t n_outputs;
  uint32_t n_attrs;
  const char* op;
  const rr_tensor* inputs;
  const rr_tensor* outputs;
  const rr_attr* attrs;
  int64_t rows; /* rows of axis 0 that are real; the rest is padding that nobody reads */
} rr_node;

/* One thread's part in one node. Every thread of n_threads calls run with its own rr_exec. */
typedef struct rr_exec {
  uint32_t struct_size;
  int32_t thread;
  int32_t n_threads;
  void* workspace; /* shared by the node's threads */
  size_t workspace_bytes;
  /* Waits for all n_threads. After fail, a kernel still meets every barrier. */
  void (*barrier)(const struct rr_exec* exec);
  /* Reports a failure; the message is copied. The step stops after this node. */
  void (*fail)(const struct rr_exec* exec, const char* message);
  void* impl;
  /* 0, 1, 2, ...: each number goes to one of the node's threads, whichever asks first. */
  int64_t (*take)(const struct rr_exec* exec);
  /* Each of 0 .. n - 1 goes to one of the node's threads: first to each, in order, those of its own
   * part, the thread-th of n_threads equal ones, and then what others have not come to; n when
   * none is left. A node asks with one n alone. */
  int64_t (*take_near)(const struct rr_exec* exec, int64_t n);
} rr_exec;

enum { RR_ROW_EXACT = 1 };

typedef struct rr_kernel {
  uint32_t struct_size;
  uint32_t flags;
  const char* op;
  const char* isa;   /* "base", "avx2", "avxvnni", "avx512", "avx512vnni", "dotprod", "i8mm" */
  const char* bound; /* where RR_ROW_EXACT is not set: by how much rows may differ */
  int32_t priority;
  /* 1: takes the node, and is right on it. 0: why says the reason. No side effect; data is null.
   * Constant inputs are first offered in the packed layout of their dtype, if there is one. */
  int (*supports)(const rr_node* node, char* why, size_t why_size);
  /* Optional: bytes of workspace. */
  size_t (*workspace)(const rr_node* node, int32_t n_threads);
  /* Optional: how many threads are of use; all when absent. */
  int32_t (*tasks)(const rr_node* node);
  void (*run)(const rr_node* node, const rr_exec* exec);
} rr_kernel;

/* Rearranges a weight [rows, cols] from plain layout; both callbacks are given whole tensors. */
typedef struct rr_packer {
  uint32_t struct_size;
  uint32_t dtype;
  uint32_t layout;
  size_t (*bytes)(int64_t rows, int64_t cols);
  void (*pack)(const void* plain, void* packed, int64_t rows, int64_t cols);
} rr_packer;

void rr_register_kernel(const rr_kernel* kernel);
void rr_register_packer(const rr_packer* packer);

/* A plug-in is a shared library that exports rr_plugin_get; the table and all that it points to
 * live as long as the library. Its kernels work on host memory and constants in plain layout. */
typedef struct rr_plugin {
  uint32_t struct_size;
  uint32_t abi_version; /* RR_ABI_VERSION of the header that it was built with */
  const char* name;     /* the device name, lower case */
  const char* description;
  /* How well it suits this machine; 0: not at all, and it is refused. */
  int (*score)(void);
  uint32_t n_kernels;
  const rr_kernel* const* kernels; /* of kernels of one op, the first that supports a node runs */
} rr_plugin;

const rr_plugin* rr_plugin_get(void);

#ifdef __cplusplus
}
#endif
#endif
