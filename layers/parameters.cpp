#include "packrnn/layers/parameters.hpp"

#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "packrnn/kernels/recurrent.hpp"
#include "packrnn/runtime/device_queue.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

// On the queue's device, uninitialised.
Tensor empty_on(DeviceQueue& queue, const Shape& shape, Dtype dtype) {
  auto storage = std::make_shared<Buffer>(queue.allocate(Tensor::bytes_of(shape, dtype)));
  void* const data = storage->data();
  return Tensor::share(std::move(storage), data, shape, dtype);
}

Tensor to_host(DeviceQueue& queue, const Tensor& tensor) {
  Tensor result = Tensor::empty(tensor.shape(), tensor.dtype());
  queue.download(result.span().raw(), tensor.view().raw(), result.view().bytes());
  return result;
}

// "a, b, c", cut at a length that a person still reads.
std::string list(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 100;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMost; ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMost) text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

bool ends_with_name(std::string_view text, std::string_view name) {
  return text.size() > name.size() && text.ends_with(name);
}

}  // namespace

Parameters::Parameters(std::vector<Declaration> declarations, Dtype dtype) {
  expects(is_floating(dtype), "dtype of parameters is {}, expected a floating one", name_of(dtype));
  const auto unit = static_cast<std::int64_t>(kAlignment / size_of(dtype));
  std::int64_t size = 0;
  state_->entries.reserve(declarations.size());
  for (Declaration& declaration : declarations) {
    expects(!declaration.name.empty(), "a parameter needs a name");
    expects(!contains(declaration.name), "two parameters are named {}", declaration.name);
    const std::int64_t elements = declaration.shape.elements();
    expects(elements <= std::numeric_limits<std::int64_t>::max() / 16 - size,
            "parameter {} of shape {} is too large", declaration.name, declaration.shape.str());
    state_->entries.push_back({std::move(declaration.name), declaration.shape, size});
    size += (elements + unit - 1) / unit * unit;
  }
  state_->values = Tensor::zeros(Shape{size}, dtype);
  state_->dtype = dtype;
}

std::optional<std::size_t> Parameters::find(std::string_view name) const noexcept {
  // Tens of names at most: a search is as fast as a map, and keeps the order.
  for (std::size_t i = 0; i < state_->entries.size(); ++i)
    if (state_->entries[i].name == name) return i;
  return std::nullopt;
}

std::size_t Parameters::index(std::string_view name) const {
  const std::optional<std::size_t> i = find(name);
  if (!i) {
    std::vector<std::string> names;
    for (const Entry& entry : state_->entries) names.push_back(entry.name);
    throw InvalidArgument(
        fmt::format("no parameter is named \"{}\"; there are: {}", name, list(names)));
  }
  return *i;
}

TensorView Parameters::part(const TensorView& flat, const Entry& entry) {
  return flat.rows(entry.offset, entry.offset + entry.shape.elements()).reshape(entry.shape);
}

TensorSpan Parameters::part(const TensorSpan& flat, const Entry& entry) {
  return flat.rows(entry.offset, entry.offset + entry.shape.elements()).reshape(entry.shape);
}

const Parameters::Entry& Parameters::entry(std::int64_t i) const {
  expects(i >= 0 && i < count(), "parameter number {} out of {}", i, count());
  return state_->entries[static_cast<std::size_t>(i)];
}

const std::string& Parameters::name(std::int64_t i) const { return entry(i).name; }

TensorView Parameters::value(std::int64_t i) const { return part(values(), entry(i)); }

TensorView Parameters::value(std::string_view name) const {
  return part(values(), state_->entries[index(name)]);
}

Dtype Parameters::gradient_dtype() const noexcept { return kernels::cell_dtype(dtype()); }

TensorSpan Parameters::gradients() {
  if (!has_gradients()) {
    DeviceQueue* const queue = state_->queue.get();
    state_->gradients = queue ? empty_on(*queue, values().shape(), gradient_dtype())
                              : Tensor::empty(values().shape(), gradient_dtype());
    zero_gradients();
  }
  return state_->gradients;
}

TensorSpan Parameters::gradient(std::int64_t i) { return part(gradients(), entry(i)); }

TensorSpan Parameters::gradient(std::string_view name) {
  return part(gradients(), state_->entries[index(name)]);
}

void Parameters::zero_gradients() {
  if (!has_gradients()) return;
  const TensorSpan all = gradients();
  if (const DeviceQueue* const queue = state_->queue.get())
    gpu::fill(all.raw(), 0, all.bytes(), queue->stream());
  else
    std::memset(all.raw(), 0, all.bytes());
}

void Parameters::to(Context& context) {
  const std::shared_ptr<DeviceQueue> from = state_->queue, to = context.shared_queue();
  if (device() == context.device()) return;
  const auto moved = [&](const Tensor& tensor) {
    if (!tensor.defined()) return Tensor();
    Tensor host = from ? to_host(*from, tensor) : tensor.clone();
    if (!to) return host;
    Tensor result = empty_on(*to, host.shape(), host.dtype());
    to->upload(result.span().raw(), host.view().raw(), host.view().bytes());
    return result;
  };
  Tensor values = moved(state_->values), gradients = moved(state_->gradients);
  state_->values = std::move(values);
  state_->gradients = std::move(gradients);
  state_->queue = to;
}

void Parameters::hold_up(Context& context) const {
  if (const auto waiting = context.shared_queue(); waiting && state_->queue)
    waiting->wait_for(*state_->queue);
}

Tensor Parameters::host_values() const {
  const Tensor& values = state_->values;
  if (state_->queue) return to_host(*state_->queue, values);
  return Tensor::share(values.storage(), const_cast<void*>(values.view().raw()), values.shape(),
                       values.dtype());
}

template <class Assign>
void Parameters::change_on_host(Assign&& assign) {
  Tensor values = host_values();
  assign(values.span());
  if (state_->queue)
    state_->queue->upload(state_->values.span().raw(), values.view().raw(), values.view().bytes());
  ++state_->version;
}

TensorSpan Parameters::change_values() {
  ++state_->version;
  return state_->values;
}

TensorSpan Parameters::change_value(std::int64_t i) {
  const Entry& which = entry(i);
  return part(change_values(), which);
}

bool Parameters::contains(std::string_view name) const noexcept { return find(name).has_value(); }

std::string Parameters::mismatch(const Entry& entry, const TensorView& value) {
  if (!value.defined()) return fmt::format("{} is not defined", entry.name);
  if (value.shape() != entry.shape)
    return fmt::format("{} is {}, expected {}", entry.name, value.shape().str(), entry.shape.str());
  if (!is_floating(value.dtype()))
    return fmt::format("{} is {}, expected a floating dtype", entry.name, name_of(value.dtype()));
  if (value.device() != Device::cpu())
    return fmt::format("{} lies on {}, expected cpu", entry.name, value.device().name());
  return {};
}

void Parameters::fill_uniform(Generator& generator, double bound) {
  change_on_host([&](const TensorSpan& values) {
    for (const Entry& entry : state_->entries)
      packrnn::fill_uniform(generator, part(values, entry), -bound, bound);
  });
}

void Parameters::set(std::string_view name, const TensorView& value) {
  const Entry& entry = state_->entries[index(name)];
  const std::string problem = mismatch(entry, value);
  expects(problem.empty(), "{}", problem);
  change_on_host([&](const TensorSpan& values) {
    const bool own = overlap(value, values);
    convert_into(own ? Tensor::copy_of(value).view() : value, part(values, entry));
  });
}

StateDict Parameters::state_dict(std::string_view prefix) const {
  StateDict state;
  state.reserve(state_->entries.size());
  const Tensor all = host_values();
  for (const Entry& entry : state_->entries)
    state.push_back({std::string(prefix) + entry.name, Tensor::copy_of(part(all.view(), entry))});
  return state;
}

LoadReport Parameters::load(const StateDict& source, const LoadOptions& options) {
  LoadReport report;
  std::vector<std::string> duplicate;
  std::vector<std::string> wrong;
  std::vector<const Tensor*> found(state_->entries.size(), nullptr);
  std::map<std::string_view, std::size_t> ours;
  for (std::size_t i = 0; i < state_->entries.size(); ++i) ours.emplace(state_->entries[i].name, i);
  std::map<std::string_view, int> times;

  for (const NamedTensor& item : source) {
    if (!item.name.starts_with(options.prefix)) continue;
    const int before = times[item.name]++;
    if (before == 1) duplicate.push_back(item.name);
    if (before > 0) continue;
    const auto known = ours.find(std::string_view(item.name).substr(options.prefix.size()));
    if (known == ours.end()) {
      report.unexpected.push_back(item.name);
      continue;
    }
    const Entry& entry = state_->entries[known->second];
    found[known->second] = &item.tensor;
    if (std::string problem = mismatch(entry, item.tensor); !problem.empty())
      wrong.push_back(options.prefix + problem);
  }
  for (std::size_t i = 0; i < state_->entries.size(); ++i)
    if (found[i] == nullptr) report.missing.push_back(options.prefix + state_->entries[i].name);

  // Nothing found is never what the caller wanted, strict or not.
  const bool nothing = !state_->entries.empty() && report.missing.size() == state_->entries.size();
  const bool incomplete = !report.missing.empty() || !report.unexpected.empty();
  if (!duplicate.empty() || !wrong.empty() || nothing || (options.strict && incomplete)) {
    std::string message = "the state dict does not fit the parameters; nothing was loaded";
    const auto section = [&message](std::string_view title, const std::vector<std::string>& items) {
      if (!items.empty()) message += fmt::format("\n  {}: {}", title, list(items));
    };
    section("missing", report.missing);
    section("unexpected", report.unexpected);
    section("more than once", duplicate);
    section("wrong", wrong);
    if (nothing) message += prefix_hint(source);
    throw InvalidArgument(message);
  }

  change_on_host([&](const TensorSpan& values) {
    for (std::size_t i = 0; i < state_->entries.size(); ++i)
      if (found[i] != nullptr) convert_into(*found[i], part(values, state_->entries[i]));
  });
  return report;
}

std::string Parameters::prefix_hint(const StateDict& source) const {
  const std::string& first = state_->entries.front().name;
  for (const NamedTensor& item : source) {
    if (item.name == first) return "\n  hint: the names are there without a prefix";
    if (ends_with_name(item.name, first))
      return fmt::format("\n  hint: such names are there with the prefix \"{}\"",
                         item.name.substr(0, item.name.size() - first.size()));
  }
  return {};
}

}  // namespace packrnn
