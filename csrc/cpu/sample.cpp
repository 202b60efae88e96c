// sample: a row at a time, its weights formed anew in f64 wherever they are summed up.

#include "ops/sample.hpp"

#include "kernel.hpp"

namespace {

uint32_t high_product(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}

// The number in [0, 1) of a seed and a position: Philox4x32-10, see graph/random.py.
double uniform(uint32_t seed_low, uint32_t seed_high, uint32_t position) {
  uint32_t c[4] = {position, 0, 0, 0}, k[2] = {seed_low, seed_high};
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = high_product(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
    const uint32_t high1 = high_product(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
    c[0] = high1 ^ c[1] ^ k[0];
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ k[1];
    c[3] = low0;
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  const uint64_t bits = (static_cast<uint64_t>(c[1]) << 32 | c[0]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// The first candidates of a row, at a temperature.
struct Weights {
  const float* logits;
  double temperature;

  double operator()(int64_t i) const {
    const double below = static_cast<double>(logits[i]) - static_cast<double>(logits[0]);
    return below == below ? exp(below / temperature) : 0.0;
  }

  double total(int64_t n) const {
    double running = 0.0;
    for (int64_t i = 0; i < n; ++i) running += (*this)(i);
    return running;
  }
};

// How many of the candidates count for a row that asks for top_k.
int64_t counted(int64_t candidates, int64_t top_k) {
  if (top_k < 1) return 1;
  return top_k < candidates ? top_k : candidates;
}

// How many of n leading candidates it takes to sum up to top_p of their weight.
int64_t reaching(const Weights& weight, int64_t n, double top_p) {
  const double target = top_p * weight.total(n);
  double running = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    running += weight(i);
    if (running >= target) return i + 1;
  }
  return n;
}

// How many of n leading candidates have at least min_p of the first one's weight, but one at least.
int64_t likely(const float* logits, int64_t n, double min_p) {
  const float least = static_cast<float>(static_cast<double>(logits[0]) + log(min_p));
  int64_t i = 0;
  while (i < n && logits[i] >= least) ++i;
  return i < 1 ? 1 : i;
}

int64_t draw(const Weights& weight, int64_t n, double u) {
  const double target = u * weight.total(n);
  double running = 0.0;
  int64_t last = 0;  // the one that brings the sum to what it is
  for (int64_t i = 0; i < n; ++i) {
    const double before = running;
    running += weight(i);
    if (running > target) return i;
    if (running > before) last = i;
  }
  return last;
}

double number(const rr_tensor& t, int64_t r) {
  return static_cast<const double*>(t.data)[r];
}

uint32_t word(const rr_tensor& t, int64_t i) {
  return static_cast<const uint32_t*>(t.data)[i];
}

int64_t chosen(const rr_tensor* in, int64_t r) {
  const double temperature = number(in[kTemperature], r), top_p = number(in[kTopP], r);
  if (!(temperature > 0.0)) return 0;
  const auto* logits = reinterpret_cast<const float*>(row_ptr(in[kLogits], r));
  int64_t n = counted(in[kLogits].shape[1], static_cast<const int32_t*>(in[kTopK].data)[r]);
  if (top_p < 1.0) n = reaching({logits, 1.0}, n, top_p);
  n = likely(logits, n, number(in[kMinP], r));
  const double u =
      uniform(word(in[kSeed], 2 * r), word(in[kSeed], 2 * r + 1), word(in[kPosition], r));
  return draw({logits, temperature}, n, u);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor* in = node->inputs;
  const Range rows = split(exec, real_rows(node, in[kLogits]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const auto* ids = reinterpret_cast<const int32_t*>(row_ptr(in[kIds], r));
    *reinterpret_cast<int32_t*>(row_ptr(node->outputs[0], r)) = ids[chosen(in, r)];
  }
}

int32_t tasks(const rr_node* node) {
  const int64_t rows = node->inputs[kLogits].shape[0];
  return numel(node->inputs[kLogits]) < 2048 ? 1 : static_cast<int32_t>(rows < 64 ? rows : 64);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "sample", supports, nullptr, tasks, run)
