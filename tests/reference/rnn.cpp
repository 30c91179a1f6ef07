#include "tests/reference/rnn.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace packrnn::reference {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument("reference: " + message);
}

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (std::int64_t extent : shape) product *= extent;
  return product;
}

template <typename Real>
using Vector = std::vector<Real>;

template <typename To, typename From>
Vector<To> convert(const Vector<From>& values) {
  Vector<To> converted;
  converted.reserve(values.size());
  for (From value : values) converted.push_back(static_cast<To>(value));
  return converted;
}

// A number that knows how it was made: the parameters, inputs and states are the first numbers on
// the tape, and every other is a function of at most two before it. With numbers of this kind the
// loops below are their own gradient.
class Recorded {
 public:
  Recorded() : Recorded(0.0) {}
  explicit Recorded(double value) : value_(value), place_(record({}, {}, 0.0, 0.0)) {}
  explicit operator double() const { return value_; }
  std::size_t place() const { return place_; }

  friend Recorded operator+(const Recorded& a, const Recorded& b) {
    return {a.value_ + b.value_, a, b, 1.0, 1.0};
  }
  friend Recorded operator-(const Recorded& a, const Recorded& b) {
    return {a.value_ - b.value_, a, b, 1.0, -1.0};
  }
  friend Recorded operator*(const Recorded& a, const Recorded& b) {
    return {a.value_ * b.value_, a, b, b.value_, a.value_};
  }
  friend Recorded operator/(const Recorded& a, const Recorded& b) {
    return {a.value_ / b.value_, a, b, 1.0 / b.value_, -a.value_ / (b.value_ * b.value_)};
  }
  friend Recorded operator-(const Recorded& a) { return {-a.value_, a, a, -1.0, 0.0}; }
  friend bool operator<(const Recorded& a, const Recorded& b) { return a.value_ < b.value_; }
  friend Recorded exp(const Recorded& a) {
    const double value = std::exp(a.value_);
    return {value, a, a, value, 0.0};
  }
  friend Recorded tanh(const Recorded& a) {
    const double value = std::tanh(a.value_);
    return {value, a, a, 1.0 - value * value, 0.0};
  }
  Recorded& operator+=(const Recorded& other) { return *this = *this + other; }

  // Forgets all numbers of this thread.
  static void forget() { tape().clear(); }

  // d (sum of seeds times the numbers at their places) / d (each number), from the last to the
  // first.
  static Vector<double> gradients(Vector<double> seeds) {
    seeds.resize(tape().size(), 0.0);
    for (std::size_t n = tape().size(); n-- > 0;) {
      const Step& made = tape()[n];
      for (std::size_t k = 0; k < 2; ++k)
        if (made.slope[k] != 0.0) seeds[made.from[k]] += made.slope[k] * seeds[n];
    }
    return seeds;
  }

 private:
  struct Step {
    std::size_t from[2];
    double slope[2];  // d this / d from
  };

  Recorded(double value, const Recorded& a, const Recorded& b, double by_a, double by_b)
      : value_(value), place_(record(a.place_, b.place_, by_a, by_b)) {}

  static Vector<Step>& tape() {
    thread_local Vector<Step> steps;
    return steps;
  }
  static std::size_t record(std::size_t a, std::size_t b, double by_a, double by_b) {
    tape().push_back({{a, b}, {by_a, by_b}});
    return tape().size() - 1;
  }

  double value_;
  std::size_t place_;
};

// Found by the type of their argument: of <cmath>, or of a Recorded number.
using std::exp;
using std::tanh;

template <typename Real>
Real sigmoid(Real a) {
  return Real(1) / (Real(1) + exp(-a));
}

// The parameters of one layer and direction. Absent biases are zeros, so that the cells below need
// no second form; an absent projection is an empty matrix.
template <typename Real>
struct CellWeights {
  Vector<Real> weight_ih, weight_hh, bias_ih, bias_hh, weight_hr;
};

template <typename Real>
struct State {
  Vector<Real> h, c;
};

// Adds dot products and remembers the largest partial sum.
template <typename Real>
struct Adder {
  double magnitude = 0.0;

  void note(Real partial) {
    magnitude = std::max(magnitude, std::abs(static_cast<double>(partial)));
  }

  // start + (row of the matrix) . v
  Real operator()(Real start, const Vector<Real>& matrix, std::size_t row, const Vector<Real>& v) {
    Real sum = start;
    note(sum);
    for (std::size_t k = 0; k < v.size(); ++k) {
      sum += matrix[row * v.size() + k] * v[k];
      note(sum);
    }
    return sum;
  }
};

// Row r of W_ih x + b_ih + W_hh h + b_hh, what every gate but the GRU's candidate needs.
template <typename Real>
Real preactivation(Adder<Real>& add, const CellWeights<Real>& w, std::size_t row,
                   const Vector<Real>& x, const Vector<Real>& h) {
  const Real from_input = add(w.bias_ih[row] + w.bias_hh[row], w.weight_ih, row, x);
  return add(from_input, w.weight_hh, row, h);
}

template <typename Real>
void lstm_step(Adder<Real>& add, const CellWeights<Real>& w, std::size_t H, const Vector<Real>& x,
               State<Real>& state) {
  Vector<Real> h(H), c(H);
  for (std::size_t u = 0; u < H; ++u) {
    const Real i = sigmoid(preactivation(add, w, 0 * H + u, x, state.h));
    const Real f = sigmoid(preactivation(add, w, 1 * H + u, x, state.h));
    const Real g = tanh(preactivation(add, w, 2 * H + u, x, state.h));
    const Real o = sigmoid(preactivation(add, w, 3 * H + u, x, state.h));
    c[u] = f * state.c[u] + i * g;
    add.note(c[u]);
    h[u] = o * tanh(c[u]);
  }
  if (!w.weight_hr.empty()) {
    Vector<Real> projected(w.weight_hr.size() / H);
    for (std::size_t p = 0; p < projected.size(); ++p) {
      projected[p] = add(Real(0), w.weight_hr, p, h);
    }
    h = projected;
  }
  state.h = h;
  state.c = c;
}

template <typename Real>
void gru_step(Adder<Real>& add, const CellWeights<Real>& w, std::size_t H, bool reset_before,
              const Vector<Real>& x, State<Real>& state) {
  Vector<Real> r(H), z(H), reset_h(H), h(H);
  for (std::size_t u = 0; u < H; ++u) {
    r[u] = sigmoid(preactivation(add, w, 0 * H + u, x, state.h));
    z[u] = sigmoid(preactivation(add, w, 1 * H + u, x, state.h));
    reset_h[u] = r[u] * state.h[u];
  }
  for (std::size_t u = 0; u < H; ++u) {
    const std::size_t row = 2 * H + u;
    const Real from_input = add(w.bias_ih[row], w.weight_ih, row, x);
    Real a;
    if (reset_before) {
      a = from_input + add(w.bias_hh[row], w.weight_hh, row, reset_h);
    } else {
      a = from_input + r[u] * add(w.bias_hh[row], w.weight_hh, row, state.h);
    }
    add.note(a);
    h[u] = (Real(1) - z[u]) * tanh(a) + z[u] * state.h[u];
  }
  state.h = h;
}

template <typename Real>
void rnn_step(Adder<Real>& add, const CellWeights<Real>& w, std::size_t H, bool relu,
              const Vector<Real>& x, State<Real>& state) {
  Vector<Real> h(H);
  for (std::size_t u = 0; u < H; ++u) {
    const Real a = preactivation(add, w, u, x, state.h);
    // Written so that NaN stays NaN, which std::max(a, 0) would not promise.
    if (relu) {
      h[u] = a < Real(0) ? Real(0) : a;
    } else {
      h[u] = tanh(a);
    }
  }
  state.h = h;
}

template <typename Real>
void step(Adder<Real>& add, const Config& config, const CellWeights<Real>& w, const Vector<Real>& x,
          State<Real>& state) {
  const auto H = static_cast<std::size_t>(config.hidden_size);
  switch (config.cell) {
    case Cell::lstm:
      lstm_step(add, w, H, x, state);
      break;
    case Cell::gru:
      gru_step(add, w, H, false, x, state);
      break;
    case Cell::gru_reset_before:
      gru_step(add, w, H, true, x, state);
      break;
    case Cell::rnn_tanh:
      rnn_step(add, w, H, false, x, state);
      break;
    case Cell::rnn_relu:
      rnn_step(add, w, H, true, x, state);
      break;
  }
}

void check_parameters(const Config& config, std::span<const Parameter> given) {
  const std::vector<Parameter> expected = parameters(config);
  require(given.size() == expected.size(), std::to_string(given.size()) + " parameters, expected " +
                                               std::to_string(expected.size()));
  for (std::size_t p = 0; p < given.size(); ++p) {
    require(given[p].name == expected[p].name,
            "parameter " + given[p].name + ", expected " + expected[p].name);
    require(
        given[p].shape == expected[p].shape && given[p].value.size() == expected[p].value.size(),
        "parameter " + given[p].name + " has the wrong shape");
  }
}

// What a run depends on, as numbers of one kind.
template <typename Real>
struct Given {
  std::vector<Vector<Real>> parameters;
  Vector<Real> x, h0, c0;

  Given(std::span<const Parameter> list, const Sequence& sequence)
      : x(convert<Real>(sequence.x)),
        h0(convert<Real>(sequence.h0)),
        c0(convert<Real>(sequence.c0)) {
    for (const Parameter& parameter : list) parameters.push_back(convert<Real>(parameter.value));
  }
};

template <typename Real>
struct Outcome {
  Vector<Real> y, h_n, c_n, cells;
  double magnitude = 0.0;
};

template <typename Real>
std::vector<CellWeights<Real>> sort_by_cell(const Config& config,
                                            const std::vector<Vector<Real>>& parameters) {
  const auto rows = static_cast<std::size_t>(config.gates() * config.hidden_size);
  std::vector<CellWeights<Real>> cells;
  std::size_t next = 0;
  for (std::int64_t n = 0; n < config.num_layers * config.directions(); ++n) {
    CellWeights<Real> w;
    w.weight_ih = parameters[next++];
    w.weight_hh = parameters[next++];
    w.bias_ih.assign(rows, Real(0));
    w.bias_hh.assign(rows, Real(0));
    if (config.bias) {
      w.bias_ih = parameters[next++];
      w.bias_hh = parameters[next++];
    }
    if (config.proj_size > 0) w.weight_hr = parameters[next++];
    cells.push_back(w);
  }
  return cells;
}

// Row n of a state [L*D, width], or zeros when no state was given.
template <typename Real>
Vector<Real> state_row(const Vector<Real>& states, std::size_t n, std::size_t width) {
  Vector<Real> row(width, Real(0));
  if (states.empty()) return row;
  for (std::size_t u = 0; u < width; ++u) row[u] = states[n * width + u];
  return row;
}

template <typename Real>
void append(Vector<Real>& to, const Vector<Real>& values) {
  to.insert(to.end(), values.begin(), values.end());
}

void check(const Config& config, std::span<const Parameter> parameters, const Sequence& sequence) {
  check_parameters(config, parameters);
  const auto rows = static_cast<std::size_t>(config.num_layers * config.directions());
  const auto H = static_cast<std::size_t>(config.hidden_size);
  require(sequence.x.size() % static_cast<std::size_t>(config.input_size) == 0,
          "x is not a whole number of steps");
  require(sequence.h0.empty() ||
              sequence.h0.size() == rows * static_cast<std::size_t>(config.state_size()),
          "h0 has the wrong size");
  require(sequence.c0.empty() || (config.cell == Cell::lstm && sequence.c0.size() == rows * H),
          "c0 has the wrong size, or the cell has no c");
}

template <typename Real>
Outcome<Real> run_as(const Config& config, const Given<Real>& given) {
  const bool lstm = config.cell == Cell::lstm;
  const auto I = static_cast<std::size_t>(config.input_size);
  const auto H = static_cast<std::size_t>(config.hidden_size);
  const auto P = static_cast<std::size_t>(config.state_size());
  const auto L = static_cast<std::size_t>(config.num_layers);
  const auto D = static_cast<std::size_t>(config.directions());
  const std::size_t T = given.x.size() / I;

  const std::vector<CellWeights<Real>> cells = sort_by_cell<Real>(config, given.parameters);
  Adder<Real> add;
  Outcome<Real> result;

  std::vector<Vector<Real>> input(T);  // one vector per step
  for (std::size_t t = 0; t < T; ++t) {
    for (std::size_t k = 0; k < I; ++k) {
      input[t].push_back(given.x[t * I + k]);
    }
  }

  for (std::size_t layer = 0; layer < L; ++layer) {
    std::vector<Vector<Real>> output(T, Vector<Real>(D * P));
    std::vector<Vector<Real>> cell_states(T, Vector<Real>(D * H));
    for (std::size_t direction = 0; direction < D; ++direction) {
      const std::size_t n = layer * D + direction;
      State<Real> state{state_row<Real>(given.h0, n, P), state_row<Real>(given.c0, n, H)};
      for (std::size_t s = 0; s < T; ++s) {
        const std::size_t t = direction == 0 ? s : T - 1 - s;
        step(add, config, cells[n], input[t], state);
        for (std::size_t u = 0; u < P; ++u) output[t][direction * P + u] = state.h[u];
        for (std::size_t u = 0; u < H; ++u) cell_states[t][direction * H + u] = state.c[u];
      }
      append(result.h_n, state.h);
      if (lstm) append(result.c_n, state.c);
    }
    if (lstm) {
      for (const Vector<Real>& row : cell_states) append(result.cells, row);
    }
    input = output;
  }
  for (const Vector<Real>& row : input) append(result.y, row);
  result.magnitude = add.magnitude;
  return result;
}

template <typename Real>
Result plain(const Outcome<Real>& outcome) {
  return {convert<double>(outcome.y), convert<double>(outcome.h_n), convert<double>(outcome.c_n),
          convert<double>(outcome.cells), outcome.magnitude};
}

// Puts each seed at the place of its number.
void seed(Vector<double>& seeds, const Vector<Recorded>& numbers, const std::vector<double>& by,
          const char* name) {
  require(by.empty() || by.size() == numbers.size(),
          std::string("the gradient of ") + name + " has the wrong size");
  for (std::size_t n = 0; n < by.size(); ++n) {
    const std::size_t place = numbers[n].place();
    if (place >= seeds.size()) seeds.resize(place + 1, 0.0);
    seeds[place] += by[n];
  }
}

}  // namespace

std::int64_t Config::gates() const {
  if (cell == Cell::lstm) return 4;
  if (cell == Cell::gru || cell == Cell::gru_reset_before) return 3;
  return 1;
}

std::int64_t Config::directions() const { return bidirectional ? 2 : 1; }

std::int64_t Config::state_size() const { return proj_size > 0 ? proj_size : hidden_size; }

std::vector<Parameter> parameters(const Config& config) {
  require(config.input_size > 0 && config.hidden_size > 0 && config.num_layers > 0,
          "sizes must be positive");
  require(config.proj_size == 0 || config.cell == Cell::lstm, "only the LSTM has a projection");
  require(config.proj_size >= 0 && config.proj_size < config.hidden_size,
          "proj_size must be below hidden_size");
  const std::int64_t rows = config.gates() * config.hidden_size;
  const std::int64_t P = config.state_size();

  std::vector<Parameter> list;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    const auto count = static_cast<std::size_t>(elements(shape));
    list.push_back({name, std::move(shape), std::vector<double>(count, 0.0)});
  };
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::int64_t width = layer == 0 ? config.input_size : config.directions() * P;
    for (std::int64_t direction = 0; direction < config.directions(); ++direction) {
      const std::string suffix = "_l" + std::to_string(layer) + (direction == 1 ? "_reverse" : "");
      add("weight_ih" + suffix, {rows, width});
      add("weight_hh" + suffix, {rows, P});
      if (config.bias) add("bias_ih" + suffix, {rows});
      if (config.bias) add("bias_hh" + suffix, {rows});
      if (config.proj_size > 0) add("weight_hr" + suffix, {P, config.hidden_size});
    }
  }
  return list;
}

Result run(const Config& config, std::span<const Parameter> parameters, const Sequence& sequence) {
  check(config, parameters, sequence);
  return plain(run_as(config, Given<double>(parameters, sequence)));
}

Gradients gradients(const Config& config, std::span<const Parameter> parameters,
                    const Sequence& sequence, const OutputGradients& by) {
  check(config, parameters, sequence);
  Recorded::forget();
  const Given<Recorded> given(parameters, sequence);
  const Outcome<Recorded> outcome = run_as(config, given);
  Vector<double> seeds;
  seed(seeds, outcome.y, by.y, "y");
  seed(seeds, outcome.h_n, by.h_n, "h_n");
  seed(seeds, outcome.c_n, by.c_n, "c_n");
  const Vector<double> all = Recorded::gradients(std::move(seeds));
  const auto of = [&](const Vector<Recorded>& numbers) {
    Vector<double> values;
    for (const Recorded& number : numbers) values.push_back(all[number.place()]);
    return values;
  };
  Gradients result{{parameters.begin(), parameters.end()}, of(given.x), of(given.h0), of(given.c0)};
  for (std::size_t p = 0; p < result.parameters.size(); ++p)
    result.parameters[p].value = of(given.parameters[p]);
  Recorded::forget();
  return result;
}

Result run_in_float(const Config& config, std::span<const Parameter> parameters,
                    const Sequence& sequence) {
  check(config, parameters, sequence);
  return plain(run_as(config, Given<float>(parameters, sequence)));
}

std::vector<double> linear(const std::vector<double>& weight, const std::vector<double>& bias,
                           const std::vector<double>& x, std::int64_t in, std::int64_t out) {
  require(in > 0 && out >= 0, "linear sizes must be positive");
  const auto I = static_cast<std::size_t>(in);
  const auto O = static_cast<std::size_t>(out);
  require(weight.size() == O * I, "linear weight has the wrong size");
  require(bias.empty() || bias.size() == O, "linear bias has the wrong size");
  require(x.size() % I == 0, "linear x is not a whole number of rows");
  std::vector<double> y;
  for (std::size_t r = 0; r < x.size() / I; ++r) {
    for (std::size_t o = 0; o < O; ++o) {
      double sum = bias.empty() ? 0.0 : bias[o];
      for (std::size_t k = 0; k < I; ++k) sum += weight[o * I + k] * x[r * I + k];
      y.push_back(sum);
    }
  }
  return y;
}

std::vector<double> column(const std::vector<double>& values, std::int64_t N, std::int64_t width,
                           std::int64_t n, std::int64_t count) {
  require(n >= 0 && n < N && width >= 0 && count >= 0, "column outside the batch");
  require(count * N * width <= static_cast<std::int64_t>(values.size()),
          "column longer than the batch");
  std::vector<double> result;
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::int64_t u = 0; u < width; ++u) {
      result.push_back(values[static_cast<std::size_t>((t * N + n) * width + u)]);
    }
  }
  return result;
}

}  // namespace packrnn::reference
