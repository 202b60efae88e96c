// A card, its memory, and pinned host memory. Everything on one card is ordered by one stream, and
// so is what other libraries do on streams of theirs once `follow` and `precede` were called.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace riverrun {

struct Fault;

class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws CudaError: "what: CUDA's own words".
void must(cudaError_t status, const std::string& what);

struct CardInfo {
  std::string name;
  int major, minor, multiprocessors;
  int64_t total_bytes;
};

// Number of cards; throws CudaError where there is no driver or no card.
int card_count();
CardInfo card_info(int index);
// The card that an address is memory of; -1 where it is none's.
int card_of(const void* address);

class Staging;

class Card : public std::enable_shared_from_this<Card> {
 public:
  explicit Card(int index);
  ~Card();
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  // Makes this the calling thread's card, as every entry from outside does.
  void use() const;
  int64_t free_bytes() const;
  void synchronize() const;
  // Copies to the card's memory through pinned memory, which is kept for the next time.
  void upload(char* to, const char* from, int64_t size);
  // What comes on the card's stream waits for what is on another stream of the card now; and the
  // other way round. Neither waits on the host.
  void follow(cudaStream_t other) const;
  void precede(cudaStream_t other) const;

  int index() const { return index_; }
  cudaStream_t stream() const { return stream_; }
  int multiprocessors() const { return info_.multiprocessors; }
  // Whether kernels may begin before those ahead of them have ended.
  bool overlaps() const { return info_.major >= 9; }
  // Where the kernels of one bound plan tell of bad data. Each has its own: plans that were started
  // one after another are waited for in any order.
  std::shared_ptr<Fault> fault();

 private:
  const int index_;
  CardInfo info_;
  cudaStream_t stream_ = nullptr;
  std::vector<Fault*> fault_blocks_, free_faults_;
  std::mutex faults_;
  std::mutex uploading_;
  std::unique_ptr<Staging> staging_;
};

// Page-locked host memory, which the card copies from and to in the background.
class PinnedMemory {
 public:
  explicit PinnedMemory(int64_t size);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  char* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  const int64_t size_;
};

// Memory of one card, zero when made. Offsets and sizes in bytes; std::out_of_range beyond it.
class CardMemory {
 public:
  CardMemory(std::shared_ptr<Card> card, int64_t size);
  // Memory that somebody else allocated on the card, and that owner keeps.
  CardMemory(std::shared_ptr<Card> card, void* data, int64_t size, std::shared_ptr<void> owner);
  ~CardMemory();
  CardMemory(const CardMemory&) = delete;
  CardMemory& operator=(const CardMemory&) = delete;

  // Return when the host memory may be used again. write streams through pinned memory.
  void read(int64_t at, void* to, int64_t size) const;
  void write(int64_t at, const void* from, int64_t size);
  // Take their turn on the stream.
  void fill(int64_t at, int64_t size, int value);
  void copy(int64_t at, const CardMemory& from, int64_t from_at, int64_t size);

  // That no kernel writes it, as its owner says.
  void set_constant(bool constant) { constant_ = constant; }
  bool constant() const { return constant_; }

  char* data() const { return data_; }
  int64_t size() const { return size_; }
  const std::shared_ptr<Card>& card() const { return card_; }

 private:
  void check(int64_t at, int64_t size) const;

  const std::shared_ptr<Card> card_;
  char* data_ = nullptr;
  const int64_t size_;
  const std::shared_ptr<void> owner_;
  bool constant_ = false;
};

}  // namespace riverrun
