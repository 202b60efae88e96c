// Which grids attention of passes of up to 512 tokens is: splits of fixed positions on tensor
// cores, then their merge. Files of kernels name the types of caches that they are for.
#pragma once

#include "attention_merge.cuh"

namespace {

constexpr int64_t kMostTokens = 512;
constexpr int64_t kRoundBytes = int64_t{128} << 20;  // of splits' results in one round
constexpr int kStaticBytes = 13 * 1024;  // of shared memory, beside what a launch asks for
constexpr int kMostSize = 256;           // elements of a head

// What follows from a node's shapes alone.
struct Shape {
  int64_t tokens, batch, kv_heads, group, splits, values;
  int room, tall;  // W, T

  int64_t rows() const { return 16 * tall; }
  int64_t tiles() const {
    const int64_t apart = tokens * ((group + rows() - 1) / rows());
    const int64_t dense = tokens * group / rows() + batch;
    return apart < dense ? apart : dense;
  }
  int64_t tile_rows() const { return tokens * group < rows() ? tokens * group : rows(); }
  int64_t tile_bytes() const {
    return kv_heads * splits * tile_rows() * (values + 2) * static_cast<int64_t>(sizeof(float));
  }
  // Tiles whose splits' results are kept at a time.
  int64_t round() const {
    const int64_t fit = kRoundBytes / tile_bytes(), all = tiles();
    return fit < 1 ? 1 : fit < all ? fit : all;
  }
};

int room_of(int64_t size) {
  return size <= 64 ? 64 : size <= 128 ? 128 : 256;
}

Shape shape_of(const rr_node* node) {
  const rr_tensor* in = node->inputs;
  const int64_t page = attr_int(node, "page", 256), size = in[0].shape[2];
  Shape s = {};
  s.tokens = in[0].shape[0];
  s.batch = in[3].shape[0] - 1;
  s.kv_heads = in[1].shape[1];
  s.group = in[0].shape[1] / s.kv_heads;
  s.values = in[2].shape[2];
  s.splits = Splits::of(static_cast<int>(in[5].shape[1] * page - 1)) + 1;
  s.room = room_of(size > s.values ? size : s.values);
  // So that most sequences have all their vectors in one tile.
  const int64_t sequences = s.batch < s.tokens ? s.batch : s.tokens;
  const int64_t vectors = sequences > 0 ? (s.tokens + sequences - 1) / sequences * s.group : 0;
  s.tall = vectors <= 16 ? 1 : vectors <= 32 ? 2 : 4;
  return s;
}

template <int W, uint32_t dtype, int T>
void run_sized(const Task& task, const Shape& shape, bool early, const rr_exec* exec) {
  constexpr int bytes = StepLayout<W, dtype, T>::bytes;
  int device = 0, processors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  allow_shared(step_kernel<W, dtype, T>, bytes);
  const int64_t round = shape.round(), rows = shape.tile_rows();
  StepJob job = {task, static_cast<float*>(exec->workspace), nullptr, 0, 0, static_cast<int>(rows),
                 early};
  job.marks = job.sums + round * shape.kv_heads * shape.splits * rows * shape.values;
  for (int64_t tile = 0; tile < shape.tiles(); tile += round) {
    const int64_t left = shape.tiles() - tile, tiles = left < round ? left : round;
    job.first_tile = static_cast<int>(tile);
    job.tiles = static_cast<int>(tiles);
    const int64_t units = tiles * shape.kv_heads * shape.splits;
    const int64_t most = static_cast<int64_t>(processors) * StepLayout<W, dtype, T>::blocks;
    const dim3 merging(static_cast<unsigned>(tiles * rows), static_cast<unsigned>(shape.kv_heads),
                       static_cast<unsigned>(blocks_for(shape.values, kMergeColumns)));
    RR_LAUNCH(exec, (step_kernel<W, dtype, T>), static_cast<unsigned>(units < most ? units : most),
              kStepThreads, bytes, job);
    RR_LAUNCH(exec, merge_splits<16 * T>, merging, kMergeThreads, 0, job);
  }
}

template <int W, uint32_t dtype>
void run_tall(const Task& task, const Shape& shape, bool early, const rr_exec* exec) {
  if (shape.tall == 1) return run_sized<W, dtype, 1>(task, shape, early, exec);
  if (shape.tall == 2) return run_sized<W, dtype, 2>(task, shape, early, exec);
  run_sized<W, dtype, 4>(task, shape, early, exec);
}

bool starts_well(const rr_tensor& pool) {
  return reinterpret_cast<uintptr_t>(pool.data) % 16 == 0;
}

template <uint32_t dtype>
void run(const rr_node* node, const rr_exec* exec) {
  const Shape shape = shape_of(node);
  if (shape.tokens == 0) return;
  if (!starts_well(node->inputs[1]) || !starts_well(node->inputs[2]))
    return exec->fail(exec, "attention: k and v need to start at multiples of 16 bytes");
  Task task = read_task(node, exec);
  task.splits = static_cast<int>(shape.splits);
  const rr_tensor* in = node->inputs;
  const bool early = in[3].constant && in[4].constant && in[5].constant;
  if (shape.room == 64) return run_tall<64, dtype>(task, shape, early, exec);
  if (shape.room == 128) return run_tall<128, dtype>(task, shape, early, exec);
  run_tall<256, dtype>(task, shape, early, exec);
}

template <uint32_t dtype>
int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  if (!supports_attention(node, why, size)) return 0;
  if (in[1].dtype != dtype || in[2].dtype != dtype)
    return refuse(why, size, "k and v need to be both f16, both bf16, both q8_0 or both q4_0");
  if (in[0].shape[0] > kMostTokens || in[3].shape[0] - 1 > kMostSequences)
    return refuse(why, size, "a pass may have at most 512 tokens and 512 sequences");
  if (in[1].shape[2] > kMostSize || in[2].shape[2] > kMostSize)
    return refuse(why, size, "a head may have at most 256 elements of keys and of values");
  if (in[1].shape[2] % 8 != 0 || in[2].shape[2] % 8 != 0)
    return refuse(why, size, "a head needs a multiple of eight elements of keys and of values");
  if (in[1].shape[0] > INT32_MAX) return refuse(why, size, "k and v may have at most 2^31 rows");
  const int64_t page = attr_int(node, "page", 256);
  if (page % kBlockKeys != 0)
    return refuse(why, size, "pages need to hold a multiple of 64 positions");
  if (in[5].shape[1] > INT32_MAX / page ||
      Splits::of(static_cast<int>(in[5].shape[1] * page - 1)) >= kMostSplits)
    return refuse(why, size, "the block table may hold at most two million positions");
  // Of every height of tiles: which it is follows from the rows, whose bits may not.
  const int room = room_of(in[1].shape[2] > in[2].shape[2] ? in[1].shape[2] : in[2].shape[2]);
  const int bytes = room == 64    ? StepLayout<64, dtype, 4>::bytes
                    : room == 128 ? StepLayout<128, dtype, 4>::bytes
                                  : StepLayout<256, dtype, 4>::bytes;
  if (bytes + kStaticBytes > most_shared())
    return refuse(why, size, "a block of this card has too little shared memory");
  return 1;
}

size_t workspace(const rr_node* node, int32_t) {
  const Shape shape = shape_of(node);
  return shape.tokens == 0 ? 0 : static_cast<size_t>(shape.round() * shape.tile_bytes());
}

}  // namespace

#define RR_ATTENTION_STEP(name, dtype)                                                       \
  RR_CUDA_KERNEL(name, RR_ROW_EXACT, "attention", "mma", "", 10, supports<dtype>, workspace, \
                 run<dtype>)
