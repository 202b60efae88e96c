#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include "streams.hpp"

namespace {

constexpr size_t kShared = 48 << 10, kSharedMost = 227 << 10, kSharedOfSystem = 1 << 10;
constexpr int kProcessors = 4, kL2 = 50 << 20, kCapability = 90;
constexpr int kThreads = 1024, kThreadsProcessor = 2048, kRegisters = 65536;
constexpr int kVersion = 13000;

thread_local int device_now = 0;
thread_local cudaError_t last_error = cudaSuccess;
std::atomic<cudaError_t> fault_now{cudaSuccess};

std::mutex mutex;

std::map<const void*, size_t>& shared_limits() {
  static auto* all = new std::map<const void*, size_t>;
  return *all;
}

// Of a block that asks for it, static and dynamic together.
size_t shared_most() {
  const char* text = getenv("RIVERRUN_EMULATE_SHARED");
  return text ? std::max(kShared, static_cast<size_t>(strtoull(text, nullptr, 10))) : kSharedMost;
}

// Ten times the compute capability.
int capability() {
  const char* text = getenv("RIVERRUN_EMULATE_CAPABILITY");
  return text ? static_cast<int>(10 * strtod(text, nullptr) + 0.5) : kCapability;
}

struct Words {
  cudaError_t error;
  const char *name, *text;
};

const Words kWords[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "an argument is not acceptable"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of device memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "no such grid or block"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "rows are wider than their pitch"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "no such kind of copy"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "there is no device"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "no device has this number"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "no such object"},
    {cudaErrorNotReady, "cudaErrorNotReady", "the work is not finished"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "a kernel used an illegal address"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "the devices see each other already"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "the memory is registered already"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "the memory is not registered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress",
     "a kernel used a misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "a kernel failed while it ran"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "not permitted while a stream captures"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "the capture became invalid by an earlier error"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "the capture did not begin in this stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent", "the event was recorded in a capture"},
};

const Words& words(cudaError_t error) {
  static const Words unknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  for (const Words& w : kWords)
    if (w.error == error) return w;
  return unknown;
}

bool bad_device(int device) {
  return device < 0 || device >= emulate::device_count();
}

}  // namespace

namespace emulate {

cudaError_t set_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void set_fault(cudaError_t error) {
  fault_now = error;
  set_error(error);
}

cudaError_t fault() {
  return set_error(fault_now);
}

size_t shared_limit(const void* function) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = shared_limits().find(function);
  // Without a function nobody can have asked for more.
  if (it == shared_limits().end()) return function ? kShared : shared_most();
  return std::min(std::max(it->second, kShared), shared_most());
}

int device_count() {
  const char* text = getenv("RIVERRUN_EMULATE_DEVICES");
  return text ? std::max(0, atoi(text)) : 1;
}

int current_device() {
  return device_now;
}

}  // namespace emulate

using emulate::set_error;

const char* cudaGetErrorString(cudaError_t error) {
  return words(error).text;
}

const char* cudaGetErrorName(cudaError_t error) {
  return words(error).name;
}

cudaError_t cudaPeekAtLastError() {
  return last_error;
}

// Unlike on a device, where a failed kernel spoils the process, the error is over when taken: tests
// of failures go on.
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  fault_now = cudaSuccess;
  return error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulate::device_count();
  return *count ? cudaSuccess : set_error(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (bad_device(device)) return set_error(cudaErrorInvalidDevice);
  device_now = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_now;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (bad_device(device)) return set_error(cudaErrorInvalidDevice);
  const int before = device_now;
  size_t free = 0, total = 0;
  device_now = device;
  cudaMemGetInfo(&free, &total);
  device_now = before;
  cudaDeviceProp p{};
  snprintf(p.name, sizeof(p.name), "emulated");
  p.totalGlobalMem = total;
  p.sharedMemPerBlock = kShared;
  p.sharedMemPerBlockOptin = shared_most();
  p.sharedMemPerMultiprocessor = shared_most() + kSharedOfSystem;
  p.regsPerBlock = p.regsPerMultiprocessor = kRegisters;
  p.warpSize = 32;
  p.maxThreadsPerBlock = kThreads;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = kThreads;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.major = capability() / 10;
  p.minor = capability() % 10;
  p.multiProcessorCount = kProcessors;
  p.canMapHostMemory = p.concurrentKernels = p.asyncEngineCount = p.unifiedAddressing = 1;
  p.pciBusID = device;
  p.memoryBusWidth = 64;
  p.l2CacheSize = kL2;
  p.maxThreadsPerMultiProcessor = kThreadsProcessor;
  p.totalConstMem = 64 << 10;
  *properties = p;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (const cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
  const std::pair<cudaDeviceAttr, int> all[] = {
      {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
      {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(p.sharedMemPerBlock)},
      {cudaDevAttrWarpSize, p.warpSize},
      {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
      {cudaDevAttrIntegrated, p.integrated},
      {cudaDevAttrCanMapHostMemory, p.canMapHostMemory},
      {cudaDevAttrL2CacheSize, p.l2CacheSize},
      {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
      {cudaDevAttrAsyncEngineCount, p.asyncEngineCount},
      {cudaDevAttrUnifiedAddressing, p.unifiedAddressing},
      {cudaDevAttrComputeCapabilityMajor, p.major},
      {cudaDevAttrComputeCapabilityMinor, p.minor},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, static_cast<int>(p.sharedMemPerMultiprocessor)},
      {cudaDevAttrPageableMemoryAccess, p.pageableMemoryAccess},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(p.sharedMemPerBlockOptin)},
  };
  for (const auto& [name, number] : all) {
    if (name != attribute) continue;
    *value = number;
    return cudaSuccess;
  }
  return set_error(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  if (bad_device(device)) return set_error(cudaErrorInvalidDevice);
  snprintf(text, static_cast<size_t>(size), "0000:%02X:00.0", static_cast<unsigned>(device));
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (bad_device(device) || bad_device(peer)) return set_error(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  static auto* enabled = new std::set<std::pair<int, int>>;
  if (bad_device(peer) || peer == device_now) return set_error(cudaErrorInvalidDevice);
  if (flags) return set_error(cudaErrorInvalidValue);
  std::lock_guard<std::mutex> lock(mutex);
  const bool is_new = enabled->insert({device_now, peer}).second;
  return is_new ? cudaSuccess : set_error(cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = emulate::forbid_capture()) return error;
  return emulate::fault();
}

cudaError_t cudaDeviceReset() {
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned) {
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > shared_most())
    return set_error(cudaErrorInvalidValue);
  std::lock_guard<std::mutex> lock(mutex);
  shared_limits()[function] = static_cast<size_t>(value);
  return cudaSuccess;
}
