/* A backend in plain C: add, mul_mat and rms_norm on f32. The tests build it with different
 * switches to see that a library that cannot serve is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "riverrun.h"

static int is_dense(const rr_tensor* t) {
  int64_t step = 4;
  for (int i = t->rank - 1; i >= 0; --i) {
    if (t->shape[i] > 1 && t->strides[i] != step) return 0;
    step *= t->shape[i];
  }
  return t->dtype == RR_F32 && t->layout == RR_LAYOUT_PLAIN;
}

static int dense_f32_only(const rr_node* node, char* why, size_t size) {
  for (uint32_t i = 0; i < node->n_inputs; ++i) {
    if (node->inputs[i].dtype == RR_ABSENT || is_dense(&node->inputs[i])) continue;
    snprintf(why, size, "input %u is not dense f32", i);
    return 0;
  }
  return 1;
}

static int same_shapes(const rr_node* node, char* why, size_t size) {
  const rr_tensor *a = &node->inputs[0], *b = &node->inputs[1];
  if (!dense_f32_only(node, why, size)) return 0;
  if (a->rank == b->rank && !memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->rank))
    return 1;
#ifdef TOY_LONG_REASON
  memset(why, TOY_LONG_REASON, size);
#else
  snprintf(why, size, "no broadcasting");
#endif
  return 0;
}

static int64_t count(const rr_tensor* t) {
  int64_t n = 1;
  for (int i = 0; i < t->rank; ++i) n *= t->shape[i];
  return n;
}

/* This thread's part of n rows. */
static void part(const rr_exec* exec, int64_t n, int64_t* begin, int64_t* end) {
  *begin = n * exec->thread / exec->n_threads;
  *end = n * (exec->thread + 1) / exec->n_threads;
}

static void run_add(const rr_node* node, const rr_exec* exec) {
#ifdef TOY_FAILURE
  exec->fail(exec, TOY_FAILURE);
  return;
#endif
  const float *a = node->inputs[0].data, *b = node->inputs[1].data;
  float* y = node->outputs[0].data;
  int64_t begin, end;
  part(exec, count(&node->outputs[0]), &begin, &end);
  for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
}

static void run_mul_mat(const rr_node* node, const rr_exec* exec) {
  const rr_tensor *x = &node->inputs[0], *w = &node->inputs[1];
  const int64_t k = w->shape[1], m = w->shape[0];
  int64_t begin, end;
  part(exec, k ? count(x) / k : 0, &begin, &end);
  for (int64_t n = begin; n < end; ++n)
    for (int64_t row = 0; row < m; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += (double)((float*)x->data)[n * k + i] * ((float*)w->data)[row * k + i];
      ((float*)node->outputs[0].data)[n * m + row] = (float)sum;
    }
}

static void run_rms_norm(const rr_node* node, const rr_exec* exec) {
  const rr_tensor *x = &node->inputs[0], *w = &node->inputs[1];
  const int64_t d = x->shape[x->rank - 1];
  double eps = 0;
  int64_t begin, end;
  for (uint32_t i = 0; i < node->n_attrs; ++i)
    if (!strcmp(node->attrs[i].name, "eps")) eps = node->attrs[i].f;
  part(exec, d ? count(x) / d : 0, &begin, &end);
  for (int64_t n = begin; n < end; ++n) {
    const float* in = (const float*)x->data + n * d;
    float* out = (float*)node->outputs[0].data + n * d;
    double sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += (double)in[i] * in[i];
    const double scale = 1 / sqrt(sum / (double)d + eps);
    for (int64_t i = 0; i < d; ++i)
      out[i] = (float)(in[i] * scale * (w->dtype == RR_ABSENT ? 1 : ((float*)w->data)[i]));
  }
}

#ifndef TOY_KERNEL_SIZE
#define TOY_KERNEL_SIZE sizeof(rr_kernel)
#endif
#define KERNEL(name, supports, run) \
  {TOY_KERNEL_SIZE, RR_ROW_EXACT, name, "c99", "", 0, supports, NULL, NULL, run}

static const rr_kernel add = KERNEL("add", same_shapes, run_add);
static const rr_kernel mul_mat = KERNEL("mul_mat", dense_f32_only, run_mul_mat);
#ifdef TOY_DAMAGED
static const rr_kernel rms_norm = KERNEL(NULL, dense_f32_only, run_rms_norm);
#else
static const rr_kernel rms_norm = KERNEL("rms_norm", dense_f32_only, run_rms_norm);
#endif
static const rr_kernel* const kernels[] = {&add, &mul_mat, &rms_norm};

#ifndef TOY_SCORE
#define TOY_SCORE 1
#endif
#ifndef TOY_ABI
#define TOY_ABI RR_ABI_VERSION
#endif

#ifndef TOY_SIZE
#define TOY_SIZE sizeof(rr_plugin)
#endif
#ifndef TOY_NAME
#define TOY_NAME "toy"
#endif
#ifndef TOY_DESCRIPTION
#define TOY_DESCRIPTION "three ops in plain C"
#endif

static int score(void) { return TOY_SCORE; }

static const rr_plugin plugin = {
    TOY_SIZE, TOY_ABI, TOY_NAME, TOY_DESCRIPTION, score, 3, kernels};

#ifdef TOY_NOTHING
const rr_plugin* rr_plugin_get(void) { return score() > 1 ? &plugin : NULL; }
#elif !defined(TOY_SILENT)
const rr_plugin* rr_plugin_get(void) { return &plugin; }
#else
const rr_plugin* toy_get(void) { return &plugin; }
#endif
