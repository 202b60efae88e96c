// The Python module `riverrun._cuda`: cards and their memory, plans bound to it.

#include "convert.hpp"
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

std::shared_ptr<BoundCuda> bind(std::shared_ptr<Plan> plan, CardPtr card, const py::list& buffers,
                                const py::tuple& workspace, const py::list& uploads,
                                const py::list& downloads, bool record, bool overlap) {
  std::vector<Region> regions;
  for (const auto& item : buffers) regions.push_back(to_region(item));
  return std::make_shared<BoundCuda>(std::move(plan), std::move(card), std::move(regions),
                                     to_region(workspace), to_transfers(uploads),
                                     to_transfers(downloads), record, overlap);
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
      .def("synchronize", &Card::synchronize, py::call_guard<py::gil_scoped_release>());
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
  bind_memory(m);
  py::register_local_exception<CudaError>(m, "CudaError", PyExc_RuntimeError);
  m.attr("emulated") = kEmulated;
  m.attr("architectures") = RR_CUDA_ARCHITECTURES;
  m.def("card_count", &card_count, "Number of cards; CudaError where there is none.");
  m.def("describe_card", &describe_card);
  m.def("kernels", &kernel_table, "All kernels of this build, best first within an op.");
  py::class_<KernelTable, std::shared_ptr<KernelTable>>(m, "KernelTable", py::module_local())
      .def_static("all", [] { return std::make_shared<KernelTable>(KernelTable::all()); })
      .def("find", &find_kernel, py::arg("node"), py::arg("exact") = false,
           "(kernel index or -1, reasons) for a node; exact: row-exact kernels first.");
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan", py::module_local())
      .def(py::init(&make_plan), py::arg("steps"), py::arg("n_buffers"), py::arg("max_threads"),
           py::arg("table"))
      .def_property_readonly("workspace_bytes", &Plan::workspace_bytes)
      .def("bind", &bind, py::arg("card"), py::arg("buffers"), py::arg("workspace"),
           py::arg("uploads"), py::arg("downloads"), py::arg("record"), py::arg("overlap"));
  py::class_<BoundCuda, std::shared_ptr<BoundCuda>>(m, "BoundPlan", py::module_local())
      .def("start", &BoundCuda::start, py::call_guard<py::gil_scoped_release>(),
           "Put a run on the card's stream.")
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
