// attention of prompts over caches of halves or bf16.
#include "attention_prompt.cuh"
#include "prompt_exact.hpp"

namespace {

constexpr int64_t kFewestTokens = riverrun::kPromptGrid;
constexpr int kStaticBytes = 4 * 1024;  // of shared memory, beside what a launch asks for
constexpr int kMostSize = 256;          // elements of a head

template <int W, typename Number>
void run_sized(const Task& task, const rr_exec* exec) {
  const int64_t vectors = static_cast<int64_t>(task.tokens) * task.group;
  const int64_t apart = task.tokens * blocks_for(task.group, kTileRows);
  const int64_t dense = vectors / kTileRows + task.batch;
  const dim3 grid(static_cast<unsigned>(task.kv_heads),
                  static_cast<unsigned>(apart < dense ? apart : dense));
  allow_shared(prompt_kernel<W, Number>, PromptLayout<W>::bytes);
  RR_LAUNCH(exec, (prompt_kernel<W, Number>), grid, kStepThreads, PromptLayout<W>::bytes, task);
}

template <typename Number>
void run(const rr_node* node, const rr_exec* exec) {
  for (int i = 1; i < 3; ++i)
    if (reinterpret_cast<uintptr_t>(node->inputs[i].data) % 16 != 0)
      return exec->fail(exec, "attention: k and v need to start at multiples of 16 bytes");
  const Task task = read_task(node, exec);
  const int size = task.k.size > task.v.size ? task.k.size : task.v.size;
  if (size <= 64) return run_sized<64, Number>(task, exec);
  if (size <= 128) return run_sized<128, Number>(task, exec);
  run_sized<256, Number>(task, exec);
}

template <uint32_t dtype>
int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  if (!supports_attention(node, why, size)) return 0;
  if (in[1].dtype != dtype || in[2].dtype != dtype)
    return refuse(why, size, "k and v need to be both f16 or both bf16");
  if (in[0].shape[0] < kFewestTokens) return refuse(why, size, "a pass needs 64 tokens");
  for (int i = 1; i < 3; ++i)
    if (in[i].shape[2] > kMostSize || in[i].shape[2] % 8 != 0)
      return refuse(why, size, "a head needs a multiple of eight elements, and at most 256");
  if (in[5].shape[1] * attr_int(node, "page", 256) > INT32_MAX - kPromptKeys ||
      in[1].shape[0] > INT32_MAX)
    return refuse(why, size, "the block table and the pools may hold at most 2^31 positions");
  if (in[0].shape[0] * in[0].shape[1] / in[1].shape[1] > kTileRows * int64_t{32768})
    return refuse(why, size, "a pass may have at most four million queries of a key head");
  const int64_t most = in[1].shape[2] > in[2].shape[2] ? in[1].shape[2] : in[2].shape[2];
  const int bytes = most <= 64    ? PromptLayout<64>::bytes
                    : most <= 128 ? PromptLayout<128>::bytes
                                  : PromptLayout<256>::bytes;
  if (bytes + kStaticBytes > most_shared())
    return refuse(why, size, "a block of this card has too little shared memory");
  return 1;
}

}  // namespace

#define RR_ATTENTION_PROMPT(name, dtype, Number)                                          \
  RR_CUDA_KERNEL(                                                                         \
      name, riverrun::kPromptExact, "attention", "mma",                                   \
      "NMSE 1e-9: the same bits in any pass of a prompt, others than in passes of fewer " \
      "tokens",                                                                           \
      20, supports<dtype>, nullptr, run<Number>)

RR_ATTENTION_PROMPT(attention_prompt_f16, RR_F16, Halves)
RR_ATTENTION_PROMPT(attention_prompt_bf16, RR_BF16, Bf16s)
