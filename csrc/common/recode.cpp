#include "recode.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include "recoder.hpp"
#include "registry.hpp"

namespace {

constexpr int64_t kPieceValues = 1 << 16;

// Function-local so that kernel files may register in any order of static initialisation.
std::vector<const RowRecoder*>& table() {
  static std::vector<const RowRecoder*> recoders;
  return recoders;
}

const RowRecoder& best() {
  static const RowRecoder* const found = [] {
    const auto& isas = riverrun::usable_isas();
    const RowRecoder* most = nullptr;
    for (const RowRecoder* r : table())
      if (std::find(isas.begin(), isas.end(), r->isa) != isas.end() &&
          (most == nullptr || r->priority > most->priority))
        most = r;
    return most;
  }();
  if (found == nullptr) throw std::runtime_error("this build has no encoders of blocks");
  return *found;
}

struct Shared {
  const RowRecoder& recoder;
  const riverrun::Recoding& job;
  riverrun::BlockSize from, to;
  std::vector<float> scratch;  // n floats for each thread
  std::atomic<int64_t> next{0};
  std::mutex lock;
  std::string failed;
};

void work(void* context, int thread, int) {
  Shared& shared = *static_cast<Shared*>(context);
  const riverrun::Recoding& job = shared.job;
  float* scratch = shared.scratch.data() + thread * job.n;
  const int64_t piece = std::max<int64_t>(1, kPieceValues / std::max<int64_t>(1, job.n));
  const int64_t read = job.n / shared.from.values * shared.from.bytes;
  const int64_t written = job.n / shared.to.values * shared.to.bytes;
  for (;;) {
    const int64_t first = shared.next.fetch_add(piece);
    if (first >= job.n_rows) return;
    for (int64_t r = first; r < std::min(first + piece, job.n_rows); ++r) {
      const float* importance =
          job.importance ? job.importance + r / job.matrix_rows * job.n : nullptr;
      const char* why = shared.recoder.row(job.from, job.source + r * read, job.to,
                                           job.result + r * written, importance, scratch, job.n);
      if (why == nullptr) continue;
      const std::lock_guard<std::mutex> held(shared.lock);
      if (shared.failed.empty()) shared.failed = "row " + std::to_string(r) + ": " + why;
      shared.next.store(job.n_rows);
      return;
    }
  }
}

}  // namespace

void register_recoder(const RowRecoder* recoder) {
  table().push_back(recoder);
}

namespace riverrun {

BlockSize source_block(uint32_t dtype) {
  BlockSize size;
  best().takes(dtype, &size.values, &size.bytes);
  return size;
}

BlockSize result_block(uint32_t dtype) {
  BlockSize size;
  best().gives(dtype, &size.values, &size.bytes);
  return size;
}

std::string recode(ThreadPool& pool, const Recoding& job) {
  Shared shared{best(), job, source_block(job.from), result_block(job.to), {}, {}, {}, {}};
  shared.scratch.resize(static_cast<size_t>(pool.size() * job.n));
  pool.run(work, &shared);
  return shared.failed;
}

}  // namespace riverrun
