// Memory of a card as other libraries pass it around: the capsules of DLPack named "dltensor",
// which every version of its protocol takes and gives (https://dmlc.github.io/dlpack).
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "device.hpp"

namespace riverrun {
namespace dlpack {

namespace py = pybind11;

// The ABI's structures under its own names.
struct DLDevice {
  int32_t device_type, device_id;
};

struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

constexpr int32_t kDLCUDA = 2;
constexpr const char *kFresh = "dltensor", *kUsed = "used_dltensor";

struct Exported {
  DLManagedTensor tensor;
  std::shared_ptr<CardMemory> memory;
  std::vector<int64_t> shape, strides;
};

// A capsule that nobody took frees what it holds; who takes it calls the deleter itself.
inline void drop_capsule(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kFresh)) return;
  auto* tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kFresh));
  tensor->deleter(tensor);
}

// A capsule of a part of device memory, which it keeps. strides: in elements.
inline py::object exported(std::shared_ptr<CardMemory> memory, int64_t at, int code, int bits,
                           std::vector<int64_t> shape, std::vector<int64_t> strides) {
  if (shape.size() != strides.size()) throw py::value_error("as many strides as axes are needed");
  auto own = std::make_unique<Exported>();
  own->memory = std::move(memory);
  own->shape = std::move(shape);
  own->strides = std::move(strides);
  DLTensor& t = own->tensor.dl_tensor;
  t.data = own->memory->data() + at;
  t.device = {kDLCUDA, own->memory->card()->index()};
  t.ndim = static_cast<int32_t>(own->shape.size());
  t.dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
  t.shape = own->shape.data();
  t.strides = own->strides.data();
  t.byte_offset = 0;
  own->tensor.manager_ctx = own.get();
  own->tensor.deleter = [](DLManagedTensor* self) {
    delete static_cast<Exported*>(self->manager_ctx);
  };
  PyObject* capsule = PyCapsule_New(&own->tensor, kFresh, &drop_capsule);
  if (!capsule) throw py::error_already_set();
  own.release();
  return py::reinterpret_steal<py::object>(capsule);
}

// A tensor of another library's, kept until this goes.
class Received {
 public:
  // Takes a capsule over. Throws std::invalid_argument for others than unused ones.
  static std::unique_ptr<Received> from(const py::object& capsule) {
    if (!PyCapsule_IsValid(capsule.ptr(), kFresh))
      throw py::value_error("expected a capsule named \"dltensor\" that nobody has used");
    auto* tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kFresh));
    if (PyCapsule_SetName(capsule.ptr(), kUsed) != 0) throw py::error_already_set();
    return std::unique_ptr<Received>(new Received(tensor));
  }
  ~Received() {
    if (tensor_->deleter) tensor_->deleter(tensor_);
  }
  Received(const Received&) = delete;
  Received& operator=(const Received&) = delete;

  const DLTensor& tensor() const { return tensor_->dl_tensor; }

 private:
  explicit Received(DLManagedTensor* tensor) : tensor_(tensor) {}
  DLManagedTensor* const tensor_;
};

inline py::tuple to_tuple(const int64_t* values, int32_t n) {
  py::tuple out(n);
  for (int32_t i = 0; i < n; ++i) out[i] = values[i];
  return out;
}

inline void bind_received(py::module_& m) {
  py::class_<Received>(m, "Received", py::module_local())
      .def_property_readonly("address",
                             [](const Received& r) {
                               return reinterpret_cast<uintptr_t>(r.tensor().data) +
                                      r.tensor().byte_offset;
                             })
      .def_property_readonly("device",
                             [](const Received& r) {
                               const DLDevice& at = r.tensor().device;
                               return py::make_tuple(at.device_type, at.device_id);
                             })
      .def_property_readonly("dtype",
                             [](const Received& r) {
                               const DLDataType& type = r.tensor().dtype;
                               return py::make_tuple(type.code, type.bits, type.lanes);
                             })
      .def_property_readonly(
          "shape", [](const Received& r) { return to_tuple(r.tensor().shape, r.tensor().ndim); })
      .def_property_readonly("strides", [](const Received& r) -> py::object {
        if (!r.tensor().strides) return py::none();
        return to_tuple(r.tensor().strides, r.tensor().ndim);
      });
}

}  // namespace dlpack
}  // namespace riverrun
