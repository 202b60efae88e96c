// gated_delta_net for prompts, in chunks of 64 tokens on warpgroups. One kernel prepares all chunks
// at once, another takes rows of the state through those of a sequence. Sequences whose tokens do
// not all change the committed state go token by token, as do entries of a log, before the chunks.
#include <algorithm>

#include "gated_delta_net_wgmma_prepare.cuh"
#include "gated_delta_net_wgmma_walk.cuh"
#include "prompt_exact.hpp"

namespace {

template <int S>
constexpr int kPrepareBytes = sizeof(PrepareShared<S>) + kImageAlignment;
template <int S>
constexpr int kWalkBytes = sizeof(WalkShared<S>) + kImageAlignment;

// Why this device does not run walk_tokens, or nullptr.
const char* device_refusal() {
#if !defined(RR_EMULATE) && !defined(RR_BUILT_90A)
  return "chunks on warpgroups need code built for sm_90a";
#else
  int device = 0, limit = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
#ifdef RR_BUILT_90A
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major != 9) return "chunks on warpgroups are for cards of compute capability 9.0";
#endif
  return limit < kWalkBytes<128> ? "chunks on warpgroups need 215 KiB of shared memory" : nullptr;
#endif
}

int supports(const rr_node* node, char* why, size_t size) {
  if (!supports_pass(node, why, size)) return 0;
  const rr_tensor* in = node->inputs;
  if (in[2].shape[2] != 64 && in[2].shape[2] != 128)
    return refuse(why, size, "chunks are for heads of 64 or 128 values");
  if (in[3].rank != 2) return refuse(why, size, "chunks need one decay for all keys of a head");
  if (in[7].rank != 2) return refuse(why, size, "chunks leave no states after single tokens");
  if (in[2].shape[0] < kChunk) return refuse(why, size, "chunks are for 64 rows or more");
  const char* complaint = device_refusal();
  return complaint ? refuse(why, size, complaint) : 1;
}

// Chunks of a launch, which lie in the workspace: those of 2048 tokens, of some sequences.
int64_t chunks_at_once(const rr_node* node) {
  return std::min<int64_t>(40, most_chunks(node->inputs[2].shape[0], node->inputs[6].shape[0]));
}

template <int S>
struct Workspace {
  Tokens<S>* tokens;
  Relations* relations;
  Factors* factors;
  size_t bytes;
};

// memory: null where only the size matters.
template <int S>
Workspace<S> workspace_at(const rr_node* node, void* memory) {
  const size_t chunks = chunks_at_once(node), heads = node->inputs[2].shape[1];
  const size_t of_tokens = chunks * node->inputs[0].shape[1] * sizeof(Tokens<S>);
  const size_t of_relations = chunks * heads * sizeof(Relations);
  const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
  return {reinterpret_cast<Tokens<S>*>(at), reinterpret_cast<Relations*>(at + of_tokens),
          reinterpret_cast<Factors*>(at + of_tokens + of_relations),
          of_tokens + of_relations + chunks * heads * sizeof(Factors)};
}

size_t workspace(const rr_node* node, int32_t) {
  return node->inputs[2].shape[2] == 64 ? workspace_at<64>(node, nullptr).bytes
                                        : workspace_at<128>(node, nullptr).bytes;
}

template <int S>
void run_chunks(const rr_node* node, const rr_exec* exec, const Task& task) {
  const Workspace<S> ready = workspace_at<S>(node, exec->workspace);
  const Prepared<S> prepared = {ready.tokens, ready.relations, ready.factors};
  const int64_t blocks = int64_t{task.all.batch.count} * task.heads * (S / kWalkRows);
  const int64_t all = most_chunks(task.all.batch.rows, task.all.batch.count);
  const int64_t at_once = chunks_at_once(node);
  allow_shared(prepare_tokens<S>, kPrepareBytes<S>);
  allow_shared(walk_tokens<S>, kWalkBytes<S>);
  for (int64_t at = 0; at < all; at += at_once) {
    const int first = static_cast<int>(at), slots = static_cast<int>(std::min(at_once, all - at));
    const dim3 chunks(static_cast<unsigned>(slots), static_cast<unsigned>(task.key_heads));
    RR_LAUNCH(exec, (prepare_tokens<S>), chunks, kPrepareThreads, kPrepareBytes<S>, task,
              ready.tokens, ready.relations, ready.factors, first);
    RR_LAUNCH(exec, (walk_tokens<S>), dim3(static_cast<unsigned>(blocks)), kWalkThreads,
              kWalkBytes<S>, task, prepared, first, slots);
  }
}

void run(const rr_node* node, const rr_exec* exec) {
  Task task = read_task(node, exec);
  task.chunk = task.whole_state && aligned(task.o) ? 1 : 0;
  if (task.size == 64) {
    launch_pass<Shape<8, 2, 1>, false>(exec, task);
    if (task.chunk > 0) run_chunks<64>(node, exec, task);
  } else {
    launch_pass_128<false>(exec, task);
    if (task.chunk > 0) run_chunks<128>(node, exec, task);
  }
}

}  // namespace

RR_CUDA_KERNEL(gated_delta_net_wgmma, riverrun::kPromptExact, "gated_delta_net", "wgmma",
               "NMSE 1e-9: operands of two bf16, and sums of a chunk in another order", 20,
               supports, workspace, run)
