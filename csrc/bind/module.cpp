// The Python module `riverrun._cpu`: find kernels, compile a plan, bind it, run it.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "plan.hpp"
#include "probe.hpp"
#include "registry.hpp"

namespace py = pybind11;
using namespace riverrun;

namespace {

// (dtype id, layout, shape, byte strides), or None for an absent input.
rr_tensor to_tensor(const py::handle& item) {
  rr_tensor t{};
  if (item.is_none()) {
    t.dtype = RR_ABSENT;
    return t;
  }
  const auto parts = item.cast<py::tuple>();
  const auto shape = parts[2].cast<std::vector<int64_t>>();
  const auto strides = parts[3].cast<std::vector<int64_t>>();
  if (shape.size() > RR_MAX_RANK || strides.size() != shape.size())
    throw py::value_error("a tensor's shape and strides should have the same rank, at most 6");
  t.dtype = parts[0].cast<uint32_t>();
  t.layout = parts[1].cast<uint32_t>();
  t.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  std::copy(strides.begin(), strides.end(), t.strides);
  return t;
}

std::vector<rr_tensor> to_tensors(const py::list& items) {
  std::vector<rr_tensor> out;
  for (const auto& item : items) out.push_back(to_tensor(item));
  return out;
}

std::shared_ptr<NodeData> make_node(const std::string& op, const py::list& inputs,
                                    const py::list& outputs, const py::dict& attributes) {
  auto node = std::make_shared<NodeData>(op, to_tensors(inputs), to_tensors(outputs));
  for (const auto& [key, value] : attributes) {
    const auto name = key.cast<std::string>();
    if (py::isinstance<py::bool_>(value) || py::isinstance<py::int_>(value))
      node->add_int(name, value.cast<int64_t>());
    else if (py::isinstance<py::float_>(value))
      node->add_float(name, value.cast<double>());
    else if (py::isinstance<py::str>(value))
      node->add_text(name, value.cast<std::string>());
    else
      node->add_ints(name, value.cast<std::vector<int64_t>>());
  }
  return node;
}

std::vector<Location> to_locations(const py::list& items) {
  std::vector<Location> out;
  for (const auto& item : items) {
    Location at;
    if (!item.is_none()) {
      const auto pair = item.cast<std::pair<int32_t, int64_t>>();
      at.buffer = pair.first;
      at.offset = pair.second;
    }
    out.push_back(at);
  }
  return out;
}

// (node, kernel index, input locations, output locations, label, rowwise) per step.
std::shared_ptr<Plan> make_plan(const py::list& steps, int32_t n_buffers, int max_threads,
                                const KernelTable& table) {
  std::vector<PlanNode> nodes;
  for (const auto& item : steps) {
    const auto parts = item.cast<py::tuple>();
    PlanNode node;
    node.data = parts[0].cast<std::shared_ptr<NodeData>>();
    node.kernel = table.kernels().at(parts[1].cast<size_t>());
    node.inputs = to_locations(parts[2].cast<py::list>());
    node.outputs = to_locations(parts[3].cast<py::list>());
    node.label = parts[4].cast<std::string>();
    node.rowwise = parts[5].cast<bool>();
    nodes.push_back(std::move(node));
  }
  return std::make_shared<Plan>(std::move(nodes), n_buffers, max_threads);
}

std::pair<void*, int64_t> memory_of(const py::handle& object, bool writable) {
  const auto info = py::reinterpret_borrow<py::buffer>(object).request(writable);
  return {info.ptr, info.size * info.itemsize};
}

py::tuple find(const KernelTable& table, const NodeData& node) {
  std::string reasons;
  const int index = table.find(node.view(), reasons);
  return py::make_tuple(index, reasons);
}

py::list kernel_table() {
  py::list out;
  for (const rr_kernel* k : all_kernels()) {
    py::dict row;
    row["op"] = k->op;
    row["isa"] = k->isa;
    row["priority"] = k->priority;
    row["row_exact"] = (k->flags & RR_ROW_EXACT) != 0;
    row["bound"] = k->bound;
    row["usable"] = usable(*k);
    out.append(row);
  }
  return out;
}

void pack(uint32_t dtype, uint32_t layout, const py::buffer& plain, const py::buffer& packed,
          int64_t rows, int64_t cols) {
  const rr_packer* p = find_packer(dtype, layout);
  if (!p) throw py::value_error("no packer for this dtype and layout");
  const auto from = memory_of(plain, false);
  const auto to = memory_of(packed, true);
  if (to.second < static_cast<int64_t>(p->bytes(rows, cols)))
    throw py::value_error("the packed buffer is too small");
  py::gil_scoped_release release;
  p->pack(from.first, to.first, rows, cols);
}

std::shared_ptr<BoundPlan> bind(std::shared_ptr<Plan> plan, const py::list& buffers,
                                const py::buffer& workspace) {
  std::vector<std::pair<void*, int64_t>> memory;
  for (const auto& item : buffers) memory.push_back(memory_of(item, false));
  return std::make_shared<BoundPlan>(std::move(plan), std::move(memory),
                                     memory_of(workspace, true));
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "CPU kernels and the plan executor of riverrun.";
  m.attr("abi_version") = RR_ABI_VERSION;
  m.def("kernels", &kernel_table, "All kernels of this build, best first within an op.");
  m.def("isas", &usable_isas, "Instruction-set levels in use, lowest first.");
  m.def(
      "packed_bytes",
      [](uint32_t dtype, uint32_t layout, int64_t rows, int64_t cols) -> size_t {
        const rr_packer* found = find_packer(dtype, layout);
        return found ? found->bytes(rows, cols) : 0;
      },
      "Bytes of a weight [rows, cols] in a packed layout; 0 where there is no packer.");
  m.def("pack", &pack);

  py::class_<NodeData, std::shared_ptr<NodeData>>(m, "Node").def(
      py::init(&make_node), py::arg("op"), py::arg("inputs"), py::arg("outputs"),
      py::arg("attributes"));
  py::class_<KernelTable, std::shared_ptr<KernelTable>>(m, "KernelTable")
      .def_static(
          "builtin", [] { return std::make_shared<KernelTable>(KernelTable::builtin()); },
          "This build's kernels that the processor can run.")
      .def_static(
          "of_plugin",
          [](uintptr_t address) {
            return std::make_shared<KernelTable>(*reinterpret_cast<const rr_plugin*>(address));
          },
          "The kernels of an rr_plugin at an address; ValueError where the table is damaged.")
      .def("find", &find, "(kernel index or -1, reasons) for a node.");
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan")
      .def(py::init(&make_plan), py::arg("steps"), py::arg("n_buffers"), py::arg("max_threads"),
           py::arg("table"))
      .def_property_readonly("workspace_bytes", &Plan::workspace_bytes)
      .def("bind", &bind, py::keep_alive<0, 2>(), py::keep_alive<0, 3>());
  py::class_<ThreadPool, std::shared_ptr<ThreadPool>>(m, "ThreadPool")
      .def(py::init<int>())
      .def_property_readonly("size", &ThreadPool::size);
  py::class_<BoundPlan, std::shared_ptr<BoundPlan>>(m, "BoundPlan")
      .def(
          "run",
          [](BoundPlan& plan, ThreadPool& pool, int64_t rows) {
            py::gil_scoped_release release;
            return plan.run(pool, rows);
          },
          "Run all nodes; returns an empty text or what failed.")
      .def("profile", [](BoundPlan& plan, ThreadPool& pool, int64_t rows) {
        std::vector<int64_t> nanoseconds;
        std::string failed;
        {
          py::gil_scoped_release release;
          failed = plan.run(pool, rows, &nanoseconds);
        }
        return py::make_tuple(failed, nanoseconds);
      });
  m.def("fma_rate", &fma_rate, py::call_guard<py::gil_scoped_release>(),
        "f32 operations a second that the pool's threads reach in multiply-adds on registers.");
}
