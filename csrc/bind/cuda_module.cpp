// The Python module `riverrun._cuda`: cards and their memory, plans bound to it.

#include <optional>

#include "convert.hpp"
#include "dlpack.hpp"
#include "executor.hpp"

using namespace riverrun;

namespace {

#ifdef RR_EMULATE
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

using CardPtr = std::shared_ptr<Card>;
using MemoryPtr = std::shared_ptr<CardMemory>;

py::list kernel_table() {
  py::list out;
  for (const rr_kernel* k : all_kernels()) {
    py::dict row = kernel_row(*k);
    row["usable"] = true;
    out.append(row);
  }
  return out;
}

py::dict describe_card(int index) {
  const CardInfo info = card_info(index);
  py::dict out;
  out["name"] = info.name;
  out["major"] = info.major;
  out["minor"] = info.minor;
  out["multiprocessors"] = info.multiprocessors;
  out["total_bytes"] = info.total_bytes;
  return out;
}

// (memory, offset, size)
Region to_region(const py::handle& item) {
  const auto parts = item.cast<py::tuple>();
  Region region{parts[0].cast<MemoryPtr>(), parts[1].cast<int64_t>(), parts[2].cast<int64_t>()};
  if (region.offset < 0 || region.size < 0 || region.offset + region.size > region.memory->size())
    throw std::out_of_range("a part of device memory lies outside it");
  return region;
}

// (pinned memory, its offset, memory, offset, size)
std::vector<Transfer> to_transfers(const py::list& items) {
  std::vector<Transfer> out;
  for (const auto& item : items) {
    const auto parts = item.cast<py::tuple>();
    Transfer t{parts[0].cast<std::shared_ptr<PinnedMemory>>(), parts[1].cast<int64_t>(),
               to_region(py::make_tuple(parts[2], parts[3], parts[4]))};
    if (t.host_offset < 0 || t.host_offset + t.region.size > t.host->size())
      throw std::out_of_range("a part of pinned memory lies outside it");
    out.push_back(std::move(t));
  }
  return out;
}

// (memory, offset, source, its offset, size)
std::vector<DeviceCopy> to_copies(const py::list& items) {
  std::vector<DeviceCopy> out;
  for (const auto& item : items) {
    const auto parts = item.cast<py::tuple>();
    out.push_back({to_region(py::make_tuple(parts[0], parts[1], parts[4])),
                   to_region(py::make_tuple(parts[2], parts[3], parts[4]))});
  }
  return out;
}

// A stream as DLPack and __cuda_array_interface__ number them: 1 is the default one, 2 the thread's
// own, which are the handles that CUDA knows these by. The emulator has but the default one.
cudaStream_t to_stream(uintptr_t handle) {
  return handle <= (kEmulated ? 2 : 1) ? nullptr : reinterpret_cast<cudaStream_t>(handle);
}

// The owner is let go under Python's lock, which whoever frees memory last may lack.
MemoryPtr borrow(CardPtr card, uintptr_t address, int64_t size, const py::object& owner) {
  const auto release = [](void* object) {
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire lock;
    Py_DECREF(static_cast<PyObject*>(object));
  };
  const std::shared_ptr<void> kept(owner.inc_ref().ptr(), release);
  return std::make_shared<CardMemory>(std::move(card), reinterpret_cast<void*>(address), size,
                                      kept);
}

std::shared_ptr<BoundCuda> bind(std::shared_ptr<Plan> plan, CardPtr card, const py::list& buffers,
                                const py::tuple& workspace, const py::list& uploads,
                                const py::list& downloads, const py::list& copies, bool record,
                                bool overlap) {
  std::vector<Region> regions;
  for (const auto& item : buffers) regions.push_back(to_region(item));
  return std::make_shared<BoundCuda>(std::move(plan), std::move(card), std::move(regions),
                                     to_region(workspace), to_transfers(uploads),
                                     to_transfers(downloads), to_copies(copies), record, overlap);
}

void read(const CardMemory& memory, int64_t at, const py::buffer& to) {
  const auto [data, size] = memory_of(to, true);
  py::gil_scoped_release release;
  memory.read(at, data, size);
}

void write(CardMemory& memory, int64_t at, const py::buffer& from) {
  const auto [data, size] = memory_of(from, false);
  py::gil_scoped_release release;
  memory.write(at, data, size);
}

void bind_memory(py::module_& m) {
  py::class_<Card, CardPtr>(m, "Card", py::module_local())
      .def(py::init<int>())
      .def_property_readonly("index", &Card::index)
      .def_property_readonly("free_bytes", &Card::free_bytes)
      .def_property_readonly(
          "stream", [](const Card& card) { return reinterpret_cast<uintptr_t>(card.stream()); })
      .def("synchronize", &Card::synchronize, py::call_guard<py::gil_scoped_release>())
      .def(
          "follow", [](const Card& card, uintptr_t other) { card.follow(to_stream(other)); },
          py::arg("stream"))
      .def(
          "precede", [](const Card& card, uintptr_t other) { card.precede(to_stream(other)); },
          py::arg("stream"))
      .def("borrow", &borrow, py::arg("address"), py::arg("size"), py::arg("owner"))
      .def_static(
          "of", [](uintptr_t address) { return card_of(reinterpret_cast<void*>(address)); },
          py::arg("address"))
      .def_static("received", &dlpack::Received::from, py::arg("capsule"));
  py::class_<PinnedMemory, std::shared_ptr<PinnedMemory>>(m, "PinnedMemory", py::buffer_protocol(),
                                                          py::module_local())
      .def(py::init<int64_t>())
      .def_buffer([](PinnedMemory& memory) {
        return py::buffer_info(memory.data(), 1, py::format_descriptor<uint8_t>::format(), 1,
                               {memory.size()}, {1});
      });
  py::class_<CardMemory, MemoryPtr>(m, "CardMemory", py::module_local())
      .def(py::init<CardPtr, int64_t>())
      .def_property_readonly("size", &CardMemory::size)
      .def_property_readonly("card", &CardMemory::card)
      .def("dlpack", &dlpack::exported, py::arg("at"), py::arg("code"), py::arg("bits"),
           py::arg("shape"), py::arg("strides"))
      .def_property("constant", &CardMemory::constant, &CardMemory::set_constant)
      .def_property_readonly(
          "address",
          [](const CardMemory& memory) { return reinterpret_cast<uintptr_t>(memory.data()); })
      .def("read", &read, py::arg("at"), py::arg("to"))
      .def("write", &write, py::arg("at"), py::arg("from"))
      .def("fill", &CardMemory::fill, py::arg("at"), py::arg("size"), py::arg("value"))
      .def("copy", &CardMemory::copy, py::arg("at"), py::arg("source"), py::arg("source_at"),
           py::arg("size"));
}

}  // namespace

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "CUDA kernels and the plan executor of riverrun.";
  bind_common(m);
  dlpack::bind_received(m);
  bind_memory(m);
  py::register_local_exception<CudaError>(m, "CudaError", PyExc_RuntimeError);
  m.attr("emulated") = kEmulated;
  m.attr("architectures") = RR_CUDA_ARCHITECTURES;
  m.def("card_count", &card_count, "Number of cards; CudaError where there is none.");
  m.def("describe_card", &describe_card);
  m.def("kernels", &kernel_table, "All kernels of this build, best first within an op.");
  py::class_<KernelTable, std::shared_ptr<KernelTable>> table(m, "KernelTable", py::module_local());
  bind_table(table).def_static("all",
                               [] { return std::make_shared<KernelTable>(KernelTable::all()); });
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan", py::module_local())
      .def(py::init(&make_plan), py::arg("steps"), py::arg("n_buffers"), py::arg("max_threads"))
      .def_property_readonly("workspace_bytes", &Plan::workspace_bytes)
      .def("bind", &bind, py::arg("card"), py::arg("buffers"), py::arg("workspace"),
           py::arg("uploads"), py::arg("downloads"), py::arg("copies"), py::arg("record"),
           py::arg("overlap"));
  py::class_<BoundCuda, std::shared_ptr<BoundCuda>>(m, "BoundPlan", py::module_local())
      .def(
          "start",
          [](BoundCuda& plan, const std::optional<uintptr_t>& stream) {
            py::gil_scoped_release release;
            plan.start(stream ? to_stream(*stream) : plan.card().stream());
          },
          py::arg("stream") = py::none(), "Put a run on a stream, by default the card's.")
      .def_property_readonly("launches", &BoundCuda::launches)
      .def("finish", &BoundCuda::finish, py::call_guard<py::gil_scoped_release>(),
           "Wait for the stream; an empty text or what was wrong with the data of a run.")
      .def("profile", [](BoundCuda& plan) {
        std::vector<int64_t> nanoseconds;
        std::string failed;
        {
          py::gil_scoped_release release;
          failed = plan.profile(nanoseconds);
        }
        return py::make_tuple(failed, nanoseconds);
      });
}
