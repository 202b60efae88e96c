// The Python module `riverrun._cpu`: find kernels, compile a plan, bind it, run it.

#include "convert.hpp"
#include "core_probe.hpp"
#include "probe.hpp"
#include "recode.hpp"
#include "thread_share.hpp"

using namespace riverrun;

namespace {

py::list kernel_table() {
  py::list out;
  for (const rr_kernel* k : all_kernels()) {
    py::dict row = kernel_row(*k);
    row["usable"] = usable(*k);
    out.append(row);
  }
  return out;
}

std::shared_ptr<BoundPlan> bind(std::shared_ptr<Plan> plan, const py::list& buffers,
                                const py::buffer& workspace) {
  std::vector<Buffer> memory;
  for (const auto& item : buffers) {
    const auto [data, size] = memory_of(item, false);
    memory.push_back({static_cast<char*>(data), size});
  }
  return std::make_shared<BoundPlan>(std::move(plan), memory, memory_of(workspace, true));
}

// Runs a plan so many times; "" or what failed, the nanoseconds of all runs, and the instructions
// of the calling thread, None where they are not counted.
py::tuple repeat(BoundPlan& plan, ThreadPool& pool, int64_t rows, int64_t runs) {
  std::string failed;
  int64_t instructions;
  std::chrono::nanoseconds took;
  {
    py::gil_scoped_release release;
    const Instructions counter;
    const auto began = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < runs && failed.empty(); ++i) failed = plan.run(pool, rows);
    took = std::chrono::steady_clock::now() - began;
    instructions = counter.count();
  }
  py::object counted = py::none();
  if (instructions >= 0) counted = py::int_(instructions);
  return py::make_tuple(to_text(failed), took.count(), counted);
}

BlockSize sized(BlockSize size, const char* what, int64_t n) {
  if (size.values == 0) throw py::value_error(std::string("no rows can be made ") + what);
  if (n < 1 || n % size.values != 0) throw py::value_error("rows should be whole blocks");
  return size;
}

// Rows of n values of one type to rows of another; "" or what is wrong with the values.
std::string recode_rows(ThreadPool& pool, uint32_t from, const py::buffer& source, uint32_t to,
                        const py::buffer& result, const py::object& importance, int64_t matrix_rows,
                        int64_t n) {
  const BlockSize in = sized(source_block(from), "of this type", n);
  const BlockSize out = sized(result_block(to), "in this type", n);
  const auto [read, read_bytes] = memory_of(source, false);
  const auto [written, written_bytes] = memory_of(result, true);
  const int64_t rows = read_bytes / (n / in.values * in.bytes);
  if (rows * (n / in.values * in.bytes) != read_bytes ||
      rows * (n / out.values * out.bytes) != written_bytes || matrix_rows < 1)
    throw py::value_error("both buffers should hold the same number of whole rows");
  Recoding job{from,
               to,
               static_cast<const uint8_t*>(read),
               static_cast<uint8_t*>(written),
               nullptr,
               rows,
               matrix_rows,
               n};
  if (!importance.is_none()) {
    const auto [weights, bytes] = memory_of(importance, false);
    if (bytes / static_cast<int64_t>(n * sizeof(float)) * matrix_rows < rows)
      throw py::value_error("the importance should have n values for each matrix");
    job.importance = static_cast<const float*>(weights);
  }
  py::gil_scoped_release release;
  return recode(pool, job);
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "CPU kernels and the plan executor of riverrun.";
  bind_common(m);
  m.def("kernels", &kernel_table, "All kernels of this build, best first within an op.");
  m.def("isas", &usable_isas, "Instruction-set levels in use, lowest first.");
  py::class_<KernelTable, std::shared_ptr<KernelTable>> table(m, "KernelTable", py::module_local());
  bind_table(table)
      .def_static(
          "builtin", [] { return std::make_shared<KernelTable>(KernelTable::builtin()); },
          "This build's kernels that the processor can run.")
      .def_static(
          "of_plugin",
          [](uintptr_t address) {
            return std::make_shared<KernelTable>(*reinterpret_cast<const rr_plugin*>(address));
          },
          "The kernels of an rr_plugin at an address; ValueError where the table is damaged.");
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan", py::module_local())
      .def(py::init(&make_plan), py::arg("steps"), py::arg("n_buffers"), py::arg("max_threads"))
      .def_property_readonly("workspace_bytes", &Plan::workspace_bytes)
      .def("bind", &bind, py::keep_alive<0, 2>(), py::keep_alive<0, 3>());
  py::register_exception<ThreadLimit>(m, "ThreadLimit", PyExc_RuntimeError);
  py::class_<ThreadShare>(m, "ThreadShare")
      .def(py::init<int>(), py::arg("most"))
      .def_property_readonly("threads", &ThreadShare::threads)
      .def(
          "learn",
          [](ThreadShare& share, uintptr_t job, int64_t took, int64_t slept) {
            using std::chrono::nanoseconds;
            share.learn(reinterpret_cast<void*>(job), nanoseconds(took), nanoseconds(slept));
          },
          py::arg("job"), py::arg("took"), py::arg("slept"),
          "Note a job that took so many nanoseconds, of which thread 0 slept a part.");
  py::class_<ThreadPool, std::shared_ptr<ThreadPool>>(m, "ThreadPool")
      .def(py::init<int, bool>(), py::arg("n_threads"), py::arg("all") = false,
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("size", &ThreadPool::size);
  py::class_<BoundPlan, std::shared_ptr<BoundPlan>>(m, "BoundPlan")
      .def(
          "run",
          [](BoundPlan& plan, ThreadPool& pool, int64_t rows) {
            std::string failed;
            {
              py::gil_scoped_release release;
              failed = plan.run(pool, rows);
            }
            return to_text(failed);
          },
          "Run all nodes; returns an empty text or what failed.")
      .def("repeat", &repeat, py::arg("pool"), py::arg("rows"), py::arg("runs"))
      .def("profile", [](BoundPlan& plan, ThreadPool& pool, int64_t rows) {
        std::vector<int64_t> nanoseconds;
        std::string failed;
        {
          py::gil_scoped_release release;
          failed = plan.run(pool, rows, &nanoseconds);
        }
        return py::make_tuple(to_text(failed), nanoseconds);
      });
  m.def("recode_rows", &recode_rows, py::arg("pool"), py::arg("from_"), py::arg("source"),
        py::arg("to"), py::arg("result"), py::arg("importance"), py::arg("matrix_rows"),
        py::arg("n"));
  m.def("encodable", [](uint32_t dtype) { return result_block(dtype).values > 0; });
  m.def("decodable", [](uint32_t dtype) { return source_block(dtype).values > 0; });
  m.def(
      "read_rate",
      [](ThreadPool& pool, const py::buffer& memory, int repetitions) {
        const auto [at, bytes] = memory_of(memory, false);
        if (reinterpret_cast<uintptr_t>(at) % 64)
          throw py::value_error("the memory should start at a multiple of 64");
        py::gil_scoped_release release;
        return read_rate(pool, static_cast<const uint8_t*>(at), bytes, repetitions);
      },
      py::arg("pool"), py::arg("memory"), py::arg("repetitions"),
      "Bytes a second that the pool's threads read of memory.");
  m.def("clock_rate", &clock_rate, py::call_guard<py::gil_scoped_release>(),
        "Cycles a second of the calling thread's core.");
  m.def(
      "dot_peak",
      [](bool wide) {
        const Peak peak = [&] {
          py::gil_scoped_release release;
          return dot_peak(wide);
        }();
        return py::make_tuple(peak.instruction, peak.rate);
      },
      py::arg("wide"), "The dot instruction, and the products a second of one core.");
  m.def("fma_rate", &fma_rate, py::call_guard<py::gil_scoped_release>(),
        "f32 operations a second that the pool's threads reach in multiply-adds on registers.");
}
