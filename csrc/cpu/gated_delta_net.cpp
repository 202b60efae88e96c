// gated_delta_net and delta_mix, token by token. A few value rows of one head go through several
// tokens while they lie in the first-level cache; where the state after a token belongs (a kept
// plane, or the plane that the newest one gets in the end) is also where the next token reads it.
// With a log the rows go through the whole pass so: what settles changes the state in place, and
// the rest goes on in scratch, so that the state is read once, and written once or, where nothing
// settles, not. Of long passes the tokens whose states all go to one place run on turned rows
// (delta_stretch.hpp), except for rows that do not fill a vector.

#include "delta_stretch.hpp"

namespace {

constexpr int kRows = kManyRegisters ? 8 : 4;  // value rows whose sums stay in registers
constexpr int64_t kPanel = 4 * kRows;          // value rows that stay in the first-level cache
constexpr int64_t kChunk = 8;                  // tokens whose prepared operands lie in scratch

// Where the state of sequence b lies after its token t, and before it.
float* state_after(const Task& task, int64_t b, int64_t t) {
  const int64_t age = task.batch.length(b) - 1 - t;
  return task.kept.target(b, age < task.kept.planes ? age : 0);
}

const float* state_before(const Task& task, int64_t b, int64_t t) {
  return t == 0 ? task.kept.source(b) : state_after(task, b, t - 1);
}

// Value rows begin .. end - 1 of one head in the pass of sequence b, and a thread's scratch.
struct Part {
  int64_t b, head, begin, end;
  Pass pass;
  Token* tokens;
  // operands: of each token; known: what each row says of the next token's key, as the token before
  // it left that; work: the working copy of a panel; turned: all rows, while they are turned.
  float *operands, *known, *work, *turned;
};

// Written where it belongs, field by field: a copy would wait for the stores it reads.
void set_token(const Task& task, const Part& part, int64_t t, const Keys& keys, Token& token) {
  const Pass& pass = part.pass;
  const int64_t row = task.batch.first(part.b) + t, at = part.head * task.size * task.size;
  token.keys = keys;
  token.from = state_before(task, part.b, t) + at;
  token.to = state_after(task, part.b, t) + at;
  token.v = head_ptr(*task.v, row, part.head);
  token.o = head_ptr(*task.o, row, part.head);
  token.beta = beta_at(task, row, part.head);
  token.wrote = nullptr;
  if (t < pass.direct) return;
  if (t > pass.direct || pass.held > 0) token.from = nullptr;
  token.to = nullptr;
  float* entry = task.replay.place(task.kept, pass, part.b, t);
  token.wrote = entry + (task.key_heads + part.head) * task.size;
}

// Keys and decay of a logged token. Of the threads that share the head the one that has its first
// row does it, and keys are logged by the first of the heads that read them.
void log_operands(const Task& task, const Part& part, int64_t t, const Keys& keys) {
  if (part.begin > 0) return;
  float* entry = task.replay.place(task.kept, part.pass, part.b, t);
  const int64_t decays = task.per_key ? task.size : 1, bytes = sizeof(float);
  if (leads_keys(task, part.head))
    memcpy(entry + key_head(task, part.head) * task.size, keys.k,
           static_cast<size_t>(task.size * bytes));
  memcpy(entry + (task.key_heads + task.heads) * task.size + part.head * decays, keys.decay,
         static_cast<size_t>(decays * bytes));
}

// Brings the state of a later group of rows nearer. A pass of one token takes a quarter (AVX-512)
// to a third (AVX2) less time so where the state comes from memory. Beyond the last row it does no
// harm. Always inline: compilers drop calls of a function that does nothing but prefetch.
inline __attribute__((always_inline)) void fetch_rows(const Task& task, const float* from) {
  const float* at = from + 2 * kRows * task.size;
  for (int64_t i = 0; i < kRows * task.size; i += 16) __builtin_prefetch(at + i);
}

// Where a panel of value rows lies before and after a token or some entries.
struct Move {
  const float* from;
  float* to;
  bool first;  // nothing has brought the rows into the cache before
};

// Value rows j .. j + R - 1.
template <int R>
void step_at(const Task& task, const Step& step, int64_t j, const float* from, float* to) {
  const Token& token = step.token;
  float d[R], *known = step.known + j;
  if (step.first) predict<R>(task, token.keys, from, known);
  for (int r = 0; r < R; ++r) d[r] = token.beta * (token.v[j + r] - known[r]);
  if (token.wrote) memcpy(token.wrote + j, d, sizeof d);
  if (step.next)
    update<R, true>(task, token.keys, step.next, from, to, d, token.o + j, known);
  else
    update<R, false>(task, token.keys, nullptr, from, to, d, token.o + j, known);
}

// Value rows begin .. end - 1. Groups of rows depend on one another only from token to token.
void step_rows(const Task& task, const Step& step, int64_t begin, int64_t end, Move move) {
  int64_t j = begin;
  const auto rows = [&](auto take, int64_t count) {
    take(task, step, j, move.from, move.to);
    move.from += count * task.size;
    move.to += count * task.size;
    j += count;
  };
  while (j + kRows <= end) {
    if (move.first) fetch_rows(task, move.from);
    rows(step_at<kRows>, kRows);
  }
  while (j + 4 <= end) rows(step_at<4>, 4);
  while (j < end) rows(step_at<1>, 1);
}

void advance_rows(const Task& task, const Entries& entries, int64_t begin, int64_t end, Move move) {
  int64_t j = begin;
  for (; j + kRows <= end; j += kRows) {
    if (move.first) fetch_rows(task, move.from);
    advance<kRows>(task, entries, j, move.from, move.to);
    move.from += kRows * task.size;
    move.to += kRows * task.size;
  }
  for (; j < end; ++j) {
    advance<1>(task, entries, j, move.from, move.to);
    move.from += task.size;
    move.to += task.size;
  }
}

// Brings a share of the rows of the token kChunk behind token t nearer: that of value rows begin ..
// end - 1, for many lines at once would wait for one another. Tokens lie a page or more apart,
// where the hardware does not see them coming: passes of hundreds of tokens take a third less time
// so. Always inline: compilers drop calls of a function that does nothing but prefetch.
inline __attribute__((always_inline)) void fetch_ahead(const Task& task, const Part& part,
                                                       int64_t t, int64_t begin, int64_t end) {
  if (t + kChunk >= part.pass.tokens) return;
  const int64_t row = task.batch.first(part.b) + t + kChunk, of = key_head(task, part.head);
  const float *q = head_ptr(*task.q, row, of), *k = head_ptr(*task.k, row, of);
  const float *v = head_ptr(*task.v, row, part.head), *o = head_ptr(*task.o, row, part.head);
  const int64_t rows = part.end - part.begin, last = (end - part.begin) * task.size / rows;
  for (int64_t i = (begin - part.begin) * task.size / rows / 16 * 16; i < last; i += 16) {
    __builtin_prefetch(q + i);
    __builtin_prefetch(k + i);
    __builtin_prefetch(v + i);
    __builtin_prefetch(o + i);
  }
}

// Brings what the next head reads or writes of a sequence's log nearer. Stores wait for lines that
// are not there, and those of the working copy wait behind them: where log and state come from
// memory, a pass of one token takes a tenth less time so. Always inline, like the others.
inline __attribute__((always_inline)) void fetch_log(const Task& task, const Part& part) {
  const Pass& pass = part.pass;
  const int64_t read = pass.folded + pass.held, head = part.head + 1;
  if (head == task.heads) return;
  for (int64_t e = 0; e < read + pass.logged(); ++e) {
    const float* entry = task.replay.entry(task.kept, part.b, e);
    const float* k = entry + key_head(task, head) * task.size;
    const float* d = entry + (task.key_heads + head) * task.size;
    for (int64_t i = 0; i < task.size; i += 16) {
      __builtin_prefetch(k + i, 1);
      __builtin_prefetch(d + i, 1);
    }
  }
}

// Folds, for value rows begin .. end - 1, before the first token.
void fold_rows(const Task& task, const Part& part, int64_t begin, int64_t end) {
  const Pass& pass = part.pass;
  float* state = task.kept.target(part.b, 0) + (part.head * task.size + begin) * task.size;
  const Entries entries = entries_of(task, part.b, 0, pass.folded, part.head);
  advance_rows(task, entries, begin, end, {state, state, true});
}

// Held entries, from the state to the working copy, before the first token that is logged.
void hold_rows(const Task& task, const Part& part, int64_t begin, int64_t end) {
  const Pass& pass = part.pass;
  const float* state = task.kept.source(part.b) + (part.head * task.size + begin) * task.size;
  const Entries entries = entries_of(task, part.b, pass.folded, pass.held, part.head);
  advance_rows(task, entries, begin, end, {state, part.work, pass.folded == 0});
}

// Tokens t .. t + n - 1, whose operands are prepared with those of the token after them, for value
// rows begin .. end - 1.
void run_panel(const Task& task, const Part& part, int64_t t, int64_t n, int64_t begin,
               int64_t end) {
  const Pass& pass = part.pass;
  if (t == 0 && pass.folded > 0) fold_rows(task, part, begin, end);
  for (int64_t i = 0; i < n; ++i) {
    if (t + i == pass.direct && pass.held > 0) hold_rows(task, part, begin, end);
    fetch_ahead(task, part, t + i, begin, end);
    const Token& token = part.tokens[i];
    const float* from = token.from ? token.from + begin * task.size : part.work;
    float* to = token.to ? token.to + begin * task.size : part.work;
    const float* next = t + i + 1 < pass.tokens ? part.tokens[i + 1].keys.decayed_k : nullptr;
    const Step step = {token, next, part.known, t + i == 0};
    step_rows(task, step, begin, end, {from, to, t + i + pass.folded + pass.held == 0});
  }
}

// Tokens at the front of a pass whose states all go to one place, or none where turning rows does
// not pay.
int64_t stretch_of(const Task& task, const Pass& pass) {
  const int64_t kept = task.kept.planes > 1 ? task.kept.planes : 0, older = pass.tokens - kept;
  const int64_t n = pass.direct < older ? pass.direct : older;
  return n < kStretch ? 0 : n;
}

// Tokens t .. t + n - 1 of a stretch, for V vectors of value rows from row j on.
template <int V>
void run_turned(const Task& task, const Part& part, int64_t t, int64_t n, int64_t j) {
  const int64_t stretch = stretch_of(task, part.pass), at = j * task.size;
  float* turned = part.turned + (j - part.begin) * task.room;
  if (t == 0) {
    if (part.pass.folded > 0) fold_rows(task, part, j, j + V * kLanes);
    predict_rows<V>(task, part.tokens[0].keys, part.tokens[0].from + at, part.known + j);
    turn_in<V>(task, part.tokens[0].from + at, turned);
  }
  for (int64_t i = 0; i < n; ++i) {
    fetch_ahead(task, part, t + i, j, j + V * kLanes);
    // What a token that does not exist is said of is never read.
    const bool last = t + i + 1 == part.pass.tokens;
    const float* next = part.tokens[last ? i : i + 1].keys.decayed_k;
    stretch_at<V>(task, {part.tokens[i], next, part.known, false}, j, turned);
  }
  if (t + n == stretch) turn_out<V>(task, turned, part.tokens[n - 1].to + at);
}

// The same of all rows that fill vectors; returns the first of the others.
int64_t run_stretch(const Task& task, const Part& part, int64_t t, int64_t n) {
  int64_t j = part.begin;
  for (; j + kRowVecs * kLanes <= part.end; j += kRowVecs * kLanes)
    run_turned<kRowVecs>(task, part, t, n, j);
  for (; j + kLanes <= part.end; j += kLanes) run_turned<1>(task, part, t, n, j);
  return j;
}

// Operands of tokens t .. t + n - 1, and of the one behind them.
void prepare_tokens(const Task& task, const Part& part, int64_t t, int64_t n) {
  for (int64_t i = 0; i <= n && t + i < part.pass.tokens; ++i) {
    const Keys keys = keys_at(task, part.operands, i);
    prepare(task, task.batch.first(part.b) + t + i, part.head, keys);
    set_token(task, part, t + i, keys, part.tokens[i]);
    if (i < n && t + i >= part.pass.direct) log_operands(task, part, t + i, keys);
  }
}

// All of a sequence's pass for a part of a head. Tokens that are logged are the last chunk, or of
// it, for there are no more of them than entries.
void run_part(const Task& task, const Part& part) {
  const Pass& pass = part.pass;
  const int64_t most = task.replay.entries > kChunk ? task.replay.entries : kChunk;
  const int64_t stretch = stretch_of(task, pass);
  int64_t t = 0;
  fetch_log(task, part);
  do {
    int64_t n = pass.tokens - t, j = part.begin;
    if (t < stretch)
      n = stretch - t < kChunk ? stretch - t : kChunk;
    else if (n > most)
      n = n - pass.logged() < kChunk ? n - pass.logged() : kChunk;
    prepare_tokens(task, part, t, n);
    if (t < stretch) j = run_stretch(task, part, t, n);
    for (; j < part.end; j += kPanel)
      run_panel(task, part, t, n, j, j + kPanel < part.end ? j + kPanel : part.end);
    t += n;
  } while (t < pass.tokens);
}

// About how much longer a pass takes than that of one token; entries take half a token's time.
int64_t cost_of(const Pass& pass) {
  return pass.idle() ? 0 : pass.tokens + (pass.folded + pass.held + 1) / 2;
}

// Units are blocks of kRows value rows, in order of sequence, head and row, and cost as much as
// their sequence's pass. A thread takes those that start in its part of the whole cost.
void run_own(const Task& task, const rr_exec* exec, Part part) {
  const int64_t per_head = (task.size + kRows - 1) / kRows, per_token = per_head * task.heads;
  int64_t whole = 0, cost = 0;
  for (int64_t b = 0; b < task.batch.count; ++b) whole += cost_of(task.replay.pass(task.batch, b));
  const Range own = split(exec, whole * per_token);
  for (part.b = 0; part.b < task.batch.count; ++part.b) {
    part.pass = task.replay.pass(task.batch, part.b);
    const int64_t each = cost_of(part.pass);
    if (each == 0) continue;
    const auto unit_at = [&](int64_t at) {
      const int64_t unit = at <= cost ? 0 : (at - cost + each - 1) / each;
      return unit < per_token ? unit : per_token;
    };
    const int64_t last = unit_at(own.end);
    for (int64_t unit = unit_at(own.begin); unit < last;) {
      const int64_t first = unit % per_head;
      const int64_t count = last - unit < per_head - first ? last - unit : per_head - first;
      const int64_t end = (first + count) * kRows;
      part.head = unit / per_head;
      part.begin = first * kRows;
      part.end = end < task.size ? end : task.size;
      run_part(task, part);
      unit += count;
    }
    cost += each * per_token;
  }
}

void clear_padding(const Task& task, const rr_exec* exec) {
  const int64_t first = task.batch.tokens();
  const Range rows = split(exec, task.o->shape[0] - first);
  for (int64_t i = first + rows.begin; i < first + rows.end; ++i)
    for (int64_t h = 0; h < task.heads; ++h)
      memset(head_ptr(*task.o, i, h), 0, static_cast<size_t>(task.size) * sizeof(float));
}

// Floats from a thread's turned rows to the next thread's scratch: without them two threads take a
// tenth longer, supposedly for the hardware fetches ahead into lines that the other thread writes.
constexpr int64_t kApart = 4096;

// Floats of each thread's scratch, in whole cache lines.
struct Scratch {
  int64_t operands, tokens, known, work, turned;

  int64_t floats() const { return operands + tokens + known + work + turned; }
};

Scratch scratch_of(const rr_node* node) {
  const auto lines = [](int64_t floats) { return (floats + 15) / 16 * 16; };
  const int64_t size = node->inputs[2].shape[2];
  const rr_tensor& log = memory_of(node)[5];
  const int64_t entries = present(log) ? log.shape[1] : 0;
  const int64_t most = (entries > kChunk ? entries : kChunk) + 1;
  return {lines(most * 4 * padded(size)), lines(most * sizeof(Token) / sizeof(float)), lines(size),
          entries > 0 ? lines(kPanel * size) : 0,
          node->inputs[2].shape[0] < kStretch ? 0 : lines(size * padded(size)) + kApart};
}

void run(const rr_node* node, const rr_exec* exec) {
  const Task task = read_task(node);
  if (!check_batch(task.batch, task.v->shape[0], exec) ||
      !check_replay(task.replay, task.batch, exec) ||
      !check_kept(task.kept, task.batch, exec, task.replay.folded))
    return;
  const Scratch scratch = scratch_of(node);
  float* own = static_cast<float*>(exec->workspace) + exec->thread * scratch.floats();
  Part part = {};
  part.operands = own;
  part.tokens = reinterpret_cast<Token*>(own + scratch.operands);
  part.known = own + scratch.operands + scratch.tokens;
  part.work = part.known + scratch.known;
  part.turned = part.work + scratch.work;
  run_own(task, exec, part);
  clear_padding(task, exec);
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  return static_cast<size_t>(n_threads * scratch_of(node).floats()) * sizeof(float);
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& v = node->inputs[2];
  const int64_t size = v.shape[2], rows = v.shape[1] * size;
  const rr_tensor* memory = memory_of(node);
  const int64_t folds = present(memory[5]) ? memory[1].shape[0] : 0;
  const int64_t work = (v.shape[0] + folds) * rows * size;
  return static_cast<int32_t>(work < 32768 ? 1 : (rows + kRows - 1) / kRows);
}

// Threads make keys and queries again for each value head that reads them, and for each part of
// one: rather than to meet once more, in a short pass.
constexpr int64_t kShortPass = 64;

int supports_mix(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  if (in[0].shape[0] > kShortPass) return refuse(why, size, "it takes passes of up to 64 rows");
  if (!supports_mix_operands(in, why, size)) return 0;
  return supports_rule_operands(in, memory_of(node), why, size);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "gated_delta_net", supports_rule, workspace, tasks, run)
RR_KERNEL(kernel_mix, RR_ROW_EXACT, "delta_mix", supports_mix, workspace, tasks, run)
