#include <cstdlib>
#include <map>
#include <mutex>

#include "streams.hpp"

using emulate::set_error;

namespace {

constexpr size_t kAlign = 256;

struct Block {
  size_t size;
  int device;
  cudaMemoryType type;
  bool owned;
};

std::mutex mutex;

// Never destroyed: memory may be freed by what outlives this file's statics.
std::map<uintptr_t, Block>& blocks() {
  static auto* all = new std::map<uintptr_t, Block>;
  return *all;
}

size_t total_memory() {
  const char* text = getenv("RIVERRUN_EMULATE_MEMORY");
  return text ? strtoull(text, nullptr, 10) : size_t{8} << 30;
}

size_t used_memory(int device) {
  size_t used = 0;
  for (const auto& [at, block] : blocks())
    if (block.type == cudaMemoryTypeDevice && block.device == device) used += block.size;
  return used;
}

uintptr_t number(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory);
}

// The block that holds this address, or the end.
std::map<uintptr_t, Block>::iterator find(const void* memory) {
  auto it = blocks().upper_bound(number(memory));
  if (it == blocks().begin()) return blocks().end();
  --it;
  const bool inside = number(memory) < it->first + std::max<size_t>(it->second.size, 1);
  return inside ? it : blocks().end();
}

cudaError_t allocate(void** memory, size_t size, cudaMemoryType type) {
  if (!memory) return set_error(cudaErrorInvalidValue);
  if (const cudaError_t error = emulate::forbid_capture()) return error;
  *memory = nullptr;
  if (size == 0) return cudaSuccess;
  std::lock_guard<std::mutex> lock(mutex);
  const int device = emulate::current_device();
  const size_t total = total_memory();
  if (type == cudaMemoryTypeDevice && (size > total || used_memory(device) > total - size))
    return set_error(cudaErrorMemoryAllocation);
  // The exact size, so that AddressSanitizer sees what lies beyond it.
  if (posix_memalign(memory, kAlign, size) != 0) return set_error(cudaErrorMemoryAllocation);
  memset(*memory, 0xFF, size);
  blocks()[number(*memory)] = {size, device, type, true};
  return cudaSuccess;
}

cudaError_t release(void* memory, cudaMemoryType type) {
  if (const cudaError_t error = emulate::forbid_capture()) return error;
  if (!memory) return cudaSuccess;
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = blocks().find(number(memory));
  if (it == blocks().end() || it->second.type != type || !it->second.owned)
    return set_error(cudaErrorInvalidValue);
  blocks().erase(it);
  free(memory);
  return cudaSuccess;
}

bool is_device(const void* memory) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = find(memory);
  return it != blocks().end() && it->second.type == cudaMemoryTypeDevice;
}

// What CUDA would refuse of one side of a copy: a range that leaves its allocation, or device
// memory where the kind says host memory.
cudaError_t wrong_side(const void* memory, size_t size, bool host, bool any) {
  if (!memory || emulate::leaves_allocation(memory, size)) return cudaErrorInvalidValue;
  if (any || !host) return cudaSuccess;
  return is_device(memory) ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t check_copy(const void* to, const void* from, size_t to_size, size_t from_size,
                       cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    return cudaErrorInvalidMemcpyDirection;
  const bool any = kind == cudaMemcpyDefault;
  const bool from_host = kind == cudaMemcpyHostToHost || kind == cudaMemcpyHostToDevice;
  const bool to_host = kind == cudaMemcpyHostToHost || kind == cudaMemcpyDeviceToHost;
  if (const cudaError_t error = wrong_side(to, to_size, to_host, any)) return error;
  return wrong_side(from, from_size, from_host, any);
}

}  // namespace

bool emulate::leaves_allocation(const void* memory, size_t size) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = find(memory);
  return it != blocks().end() && number(memory) + size > it->first + it->second.size;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> lock(mutex);
  const size_t used = used_memory(emulate::current_device());
  *total = total_memory();
  *free = *total > used ? *total - used : 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t size) {
  return allocate(memory, size, cudaMemoryTypeDevice);
}

cudaError_t cudaFree(void* memory) {
  return release(memory, cudaMemoryTypeDevice);
}

cudaError_t cudaHostAlloc(void** memory, size_t size, unsigned) {
  return allocate(memory, size, cudaMemoryTypeHost);
}

cudaError_t cudaMallocHost(void** memory, size_t size) {
  return cudaHostAlloc(memory, size, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* memory) {
  return release(memory, cudaMemoryTypeHost);
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = find(host);
  if (it == blocks().end() || it->second.type != cudaMemoryTypeHost)
    return set_error(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, size_t size, unsigned) {
  if (!memory || !size) return set_error(cudaErrorInvalidValue);
  if (const cudaError_t error = emulate::forbid_capture()) return error;
  std::lock_guard<std::mutex> lock(mutex);
  if (find(memory) != blocks().end()) return set_error(cudaErrorHostMemoryAlreadyRegistered);
  blocks()[number(memory)] = {size, emulate::current_device(), cudaMemoryTypeHost, false};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = blocks().find(number(memory));
  if (it == blocks().end() || it->second.owned) return set_error(cudaErrorHostMemoryNotRegistered);
  blocks().erase(it);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  std::lock_guard<std::mutex> lock(mutex);
  void* const address = const_cast<void*>(memory);
  const auto it = find(memory);
  if (it == blocks().end()) {
    *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, address};
    return cudaSuccess;
  }
  const bool device = it->second.type == cudaMemoryTypeDevice;
  *attributes = {it->second.type, it->second.device, address, device ? nullptr : address};
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (size == 0) return cudaSuccess;
  if (const cudaError_t error = check_copy(to, from, size, size, kind)) return set_error(error);
  return emulate::enqueue(stream, [=] { memmove(to, from, size); });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  if (const cudaError_t error = emulate::forbid_capture()) return error;
  if (const cudaError_t error = cudaMemcpyAsync(to, from, size, kind)) return error;
  return emulate::fault();
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (width == 0 || height == 0) return cudaSuccess;
  if (width > to_pitch || width > from_pitch) return set_error(cudaErrorInvalidPitchValue);
  const size_t to_size = to_pitch * (height - 1) + width;
  const size_t from_size = from_pitch * (height - 1) + width;
  if (const cudaError_t error = check_copy(to, from, to_size, from_size, kind))
    return set_error(error);
  return emulate::enqueue(stream, [=] {
    for (size_t row = 0; row < height; ++row)
      memmove(static_cast<char*>(to) + row * to_pitch,
              static_cast<const char*>(from) + row * from_pitch, width);
  });
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  if (const cudaError_t error = emulate::forbid_capture()) return error;
  const cudaError_t error =
      cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
  return error ? error : emulate::fault();
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t size, cudaStream_t stream) {
  for (int device : {to_device, from_device})
    if (device < 0 || device >= emulate::device_count()) return set_error(cudaErrorInvalidDevice);
  return cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                           size_t size) {
  if (const cudaError_t error = emulate::forbid_capture()) return error;
  const cudaError_t error = cudaMemcpyPeerAsync(to, to_device, from, from_device, size, nullptr);
  return error ? error : emulate::fault();
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  if (size == 0) return cudaSuccess;
  if (!to || emulate::leaves_allocation(to, size)) return set_error(cudaErrorInvalidValue);
  return emulate::enqueue(stream, [=] { memset(to, value, size); });
}

cudaError_t cudaMemset(void* to, int value, size_t size) {
  if (const cudaError_t error = emulate::forbid_capture()) return error;
  if (const cudaError_t error = cudaMemsetAsync(to, value, size)) return error;
  return emulate::fault();
}
