#include "docs/examples/rrn/babi.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace packrnn::rrn {
namespace {

constexpr std::int64_t kEncoding = 32;
constexpr auto kPlaces = static_cast<std::int64_t>(2 * kMostFacts);

constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

PackedSequence pack_words(const Vocabulary& vocabulary,
                          std::span<const Sentence* const> sentences) {
  std::vector<std::int64_t> lengths;
  for (const Sentence* sentence : sentences)
    lengths.push_back(static_cast<std::int64_t>(sentence->size()));
  PackedLayoutPtr layout = PackedLayout::make(lengths);
  Tensor words = Tensor::empty({layout->total()}, Dtype::i64);
  for (std::size_t n = 0; n < sentences.size(); ++n)
    for (std::int64_t t = 0; t < lengths[n]; ++t)
      words.values<std::int64_t>()[at(layout->row(static_cast<std::int64_t>(n), t))] =
          vocabulary.index((*sentences[n])[at(t)]);
  return {std::move(words), std::move(layout)};
}

}  // namespace

Vocabulary::Vocabulary(const Babi& babi) {
  for (const auto* part : {&babi.train, &babi.valid, &babi.test})
    for (const Question& question : *part) {
      for (const Sentence& fact : question.facts)
        words_.insert(words_.end(), fact.begin(), fact.end());
      words_.insert(words_.end(), question.text.begin(), question.text.end());
      words_.push_back(question.answer);
    }
  std::ranges::sort(words_);
  words_.erase(std::unique(words_.begin(), words_.end()), words_.end());
}

std::int64_t Vocabulary::index(const std::string& word) const {
  const auto found = std::ranges::lower_bound(words_, word);
  if (found == words_.end() || *found != word)
    throw InvalidArgument(fmt::format("the word '{}' is not in the vocabulary", word));
  return found - words_.begin();
}

BabiBatch make_batch(const Vocabulary& vocabulary, std::span<const Question* const> questions,
                     std::span<const std::int64_t> first) {
  std::map<std::size_t, std::vector<Edge>> edges;  // of complete graphs, by their size
  std::vector<Graph> graphs;
  std::vector<const Sentence*> texts;
  for (const Question* question : questions) {
    const std::size_t facts = question->facts.size();
    if (!edges.contains(facts)) edges[facts] = complete_graph(static_cast<std::int64_t>(facts));
    graphs.push_back({static_cast<std::int64_t>(facts), edges[facts]});
    texts.push_back(&question->text);
  }
  BabiBatch batch;
  batch.graphs = make_graphs(graphs);
  batch.questions = pack_words(vocabulary, texts);
  const PackedLayout& layout = *batch.graphs.layout;
  batch.position = Tensor::zeros({layout.total(), kPlaces}, Dtype::f64);
  batch.answers = Tensor::empty({layout.batch()}, Dtype::i64);
  std::vector<const Sentence*> facts(at(layout.total()));
  for (std::int64_t g = 0; g < layout.batch(); ++g) {
    const Question& question = *questions[at(g)];
    batch.answers.values<std::int64_t>()[at(g)] = vocabulary.index(question.answer);
    for (std::int64_t k = 0; k < layout.lengths()[at(g)]; ++k) {
      const std::int64_t row = layout.row(g, k);
      facts[at(row)] = &question.facts[at(k)];
      batch.position.values<double>()[at(row * kPlaces + first[at(g)] + k)] = 1.0;
    }
  }
  batch.facts = pack_words(vocabulary, facts);
  return batch;
}

BabiModel::BabiModel(Making& making, std::int64_t words, std::int64_t hidden, Variant variant)
    : word_(make_embedding(making, words, kEncoding)),
      fact_(make_lstm(making, kEncoding, kEncoding)),
      question_(make_lstm(making, kEncoding, kEncoding)),
      input_(making, std::array{2 * kEncoding + kPlaces, hidden, hidden, hidden, hidden}),
      rrn_(making, {.hidden = hidden, .edge_features = kEncoding, .variant = variant}),
      readout_(making, std::array{hidden, hidden, hidden, words}) {}

// [encode]
Variable BabiModel::encode(Tape& tape, Lstm& lstm, const PackedSequence& words) {
  const auto [output, state] = lstm.forward(tape, word_.forward(tape, words));
  return reshape(tape, state.h, {words.layout().batch(), kEncoding});
}
// [/encode]

Variable BabiModel::encode_facts(Tape& tape, const PackedSequence& words) {
  return encode(tape, fact_, words);
}

std::vector<Variable> BabiModel::scores(Tape& tape, const BabiBatch& batch, std::int64_t steps) {
  const Variable question = encode(tape, question_, batch.questions);
  const Variable x =
      input_.forward(tape, concat(tape, {encode_facts(tape, batch.facts),
                                         tape.constant(convert(batch.position, question.dtype())),
                                         gather_rows(tape, question, batch.graphs.graph)}));
  std::vector<Variable> scores;
  for (const Variable& h : rrn_.forward(tape, batch.graphs, x, question, steps))
    scores.push_back(
        readout_.forward(tape, sum_sequences(tape, PackedVariable{h, batch.graphs.layout})));
  return scores;
}

Models BabiModel::models() {
  Models models = {{"word.", &word_.parameters()},
                   {"fact.", &fact_.parameters()},
                   {"question.", &question_.parameters()}};
  input_.list(models, "input.");
  rrn_.list(models, "rrn.");
  readout_.list(models, "readout.");
  return models;
}

}  // namespace packrnn::rrn
