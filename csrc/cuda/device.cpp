#include "device.hpp"

#include <string.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "fault.hpp"

namespace riverrun {

namespace {

constexpr int64_t kPiece = 16 << 20;

std::string mib(int64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace

// Two pinned pieces in turn: one is filled while the other is on its way.
class Staging {
 public:
  Staging() {
    for (auto& piece : pieces_) piece = std::make_unique<PinnedMemory>(kPiece);
    for (auto& event : events_)
      must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  }
  ~Staging() {
    for (auto& event : events_) cudaEventDestroy(event);
  }

  void send(char* to, const char* from, int64_t size, cudaStream_t stream) {
    for (int64_t at = 0; at < size; at += kPiece) {
      const int64_t n = std::min(kPiece, size - at);
      const int turn = static_cast<int>(at / kPiece % 2);
      must(cudaEventSynchronize(events_[turn]), "waiting for a copy");
      memcpy(pieces_[turn]->data(), from + at, n);
      must(cudaMemcpyAsync(to + at, pieces_[turn]->data(), n, cudaMemcpyHostToDevice, stream),
           "copying to the card");
      must(cudaEventRecord(events_[turn], stream), "recording an event");
    }
    must(cudaStreamSynchronize(stream), "copying to the card");
  }

 private:
  std::unique_ptr<PinnedMemory> pieces_[2];
  cudaEvent_t events_[2];
};

// Work that is enqueued on `after` from now on waits for what is on `before`.
void order(cudaStream_t before, cudaStream_t after) {
  if (before == after) return;
  cudaEvent_t event = nullptr;
  must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  cudaError_t status = cudaEventRecord(event, before);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(after, event, 0);
  cudaEventDestroy(event);
  must(status, "ordering two streams");
}

void must(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  std::string text = what + ": " + cudaGetErrorString(status);
  if (status == cudaErrorIllegalAddress || status == cudaErrorLaunchFailure)
    text += "; the card can no longer be used from this process, start it anew";
  throw CudaError(text);
}

int card_count() {
  int n = 0;
  must(cudaGetDeviceCount(&n), "looking for CUDA devices");
  return n;
}

CardInfo card_info(int index) {
  cudaDeviceProp p;
  must(cudaGetDeviceProperties(&p, index), "asking for device " + std::to_string(index));
  return {p.name, p.major, p.minor, p.multiProcessorCount, static_cast<int64_t>(p.totalGlobalMem)};
}

int card_of(const void* address) {
  cudaPointerAttributes found = {};
  if (cudaPointerGetAttributes(&found, address) != cudaSuccess) {
    cudaGetLastError();
    return -1;
  }
  return found.type == cudaMemoryTypeDevice ? found.device : -1;
}

constexpr int kFaultsInBlock = 64;  // a page and a half

Card::Card(int index) : index_(index), info_(card_info(index)) {
  use();
  must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

Card::~Card() {
  cudaSetDevice(index_);
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
  for (Fault* block : fault_blocks_) cudaFreeHost(block);
}

std::shared_ptr<Fault> Card::fault() {
  std::lock_guard<std::mutex> lock(faults_);
  if (free_faults_.empty()) {
    use();
    void* block = nullptr;
    must(cudaHostAlloc(&block, kFaultsInBlock * sizeof(Fault),
                       cudaHostAllocMapped | cudaHostAllocPortable),
         "allocating host memory");
    fault_blocks_.push_back(static_cast<Fault*>(block));
    for (int i = 0; i < kFaultsInBlock; ++i) free_faults_.push_back(fault_blocks_.back() + i);
  }
  Fault* one = free_faults_.back();
  free_faults_.pop_back();
  *one = Fault{};
  // It keeps the card, which holds its memory.
  return {one, [card = shared_from_this()](Fault* done) {
            std::lock_guard<std::mutex> lock(card->faults_);
            card->free_faults_.push_back(done);
          }};
}

void Card::use() const {
  must(cudaSetDevice(index_), "choosing device " + std::to_string(index_));
}

int64_t Card::free_bytes() const {
  use();
  size_t free = 0, total = 0;
  must(cudaMemGetInfo(&free, &total), "asking for free memory");
  return static_cast<int64_t>(free);
}

void Card::upload(char* to, const char* from, int64_t size) {
  use();
  const std::lock_guard<std::mutex> lock(uploading_);
  if (!staging_) staging_ = std::make_unique<Staging>();
  staging_->send(to, from, size, stream_);
}

void Card::synchronize() const {
  use();
  must(cudaStreamSynchronize(stream_), "waiting for device " + std::to_string(index_));
}

void Card::follow(cudaStream_t other) const {
  use();
  order(other, stream_);
}

void Card::precede(cudaStream_t other) const {
  use();
  order(stream_, other);
}

PinnedMemory::PinnedMemory(int64_t size) : size_(size) {
  if (size <= 0) return;
  must(cudaHostAlloc(reinterpret_cast<void**>(&data_), static_cast<size_t>(size),
                     cudaHostAllocPortable),
       "allocating " + mib(size) + " of pinned host memory");
  memset(data_, 0, static_cast<size_t>(size));
}

PinnedMemory::~PinnedMemory() {
  if (data_) cudaFreeHost(data_);
}

CardMemory::CardMemory(std::shared_ptr<Card> card, int64_t size)
    : card_(std::move(card)), size_(size) {
  if (size <= 0) return;
  card_->use();
  // Kernels may read all 16 bytes that memory's last ones lie in.
  const size_t whole = (static_cast<size_t>(size) + 15) / 16 * 16;
  const cudaError_t status = cudaMalloc(reinterpret_cast<void**>(&data_), whole);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw CudaError(mib(size) + " of device memory needed, " + mib(card_->free_bytes()) +
                    " free on device " + std::to_string(card_->index()));
  }
  must(status, "allocating " + mib(size) + " of device memory");
  fill(0, size, 0);
}

CardMemory::CardMemory(std::shared_ptr<Card> card, void* data, int64_t size,
                       std::shared_ptr<void> owner)
    : card_(std::move(card)),
      data_(static_cast<char*>(data)),
      size_(size),
      owner_(std::move(owner)) {}

CardMemory::~CardMemory() {
  if (!data_) return;
  // Whatever still uses the memory is on this stream.
  cudaSetDevice(card_->index());
  cudaStreamSynchronize(card_->stream());
  if (!owner_) cudaFree(data_);
}

void CardMemory::check(int64_t at, int64_t size) const {
  if (at < 0 || size < 0 || at > size_ || size > size_ - at)
    throw std::out_of_range("bytes " + std::to_string(at) + " to " + std::to_string(at + size) +
                            " of device memory of " + std::to_string(size_));
}

void CardMemory::read(int64_t at, void* to, int64_t size) const {
  check(at, size);
  if (size == 0) return;
  card_->use();
  must(cudaMemcpyAsync(to, data_ + at, size, cudaMemcpyDeviceToHost, card_->stream()),
       "copying from the card");
  card_->synchronize();
}

void CardMemory::write(int64_t at, const void* from, int64_t size) {
  check(at, size);
  if (size == 0) return;
  card_->use();
  if (size < kPiece / 16) {
    must(cudaMemcpyAsync(data_ + at, from, size, cudaMemcpyHostToDevice, card_->stream()),
         "copying to the card");
    card_->synchronize();
    return;
  }
  card_->upload(data_ + at, static_cast<const char*>(from), size);
}

void CardMemory::fill(int64_t at, int64_t size, int value) {
  check(at, size);
  if (size == 0) return;
  card_->use();
  must(cudaMemsetAsync(data_ + at, value, size, card_->stream()), "filling device memory");
}

void CardMemory::copy(int64_t at, const CardMemory& from, int64_t from_at, int64_t size) {
  check(at, size);
  from.check(from_at, size);
  if (size == 0) return;
  card_->use();
  must(cudaMemcpyAsync(data_ + at, from.data_ + from_at, size, cudaMemcpyDeviceToDevice,
                       card_->stream()),
       "copying on the card");
}

}  // namespace riverrun
