// Questions about short stories. The bAbI tasks (J. Weston et al., "Towards AI-Complete Question
// Answering: A Set of Prerequisite Toy Tasks", 2015; data of Facebook, CC BY 3.0) are read from
// their files where those are found; stories of the same kinds are also made by rule.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "docs/examples/rrn/model.hpp"

namespace packrnn::rrn {

/// Older facts of a longer story are left out.
constexpr std::size_t kMostFacts = 20;

/// Words in lower case, without the marks at the ends of sentences.
using Sentence = std::vector<std::string>;
struct Question {
  std::vector<Sentence> facts;  // 1 to kMostFacts, in their order
  Sentence text;
  std::string answer;

  friend bool operator==(const Question&, const Question&) = default;
};

struct Babi {
  std::vector<Question> train, valid, test;
};

/// The questions in the text of a bAbI file: numbered lines, from 1 in each story, of which those
/// with tabs are questions. Throws FileError that says `name`, the line and what is wrong with it.
std::vector<Question> parse_babi(std::string_view name, std::string_view text);

struct BabiFiles {
  std::filesystem::path train, valid, test;
};
/// qa<task>_train.txt.gz, _valid and _test, or the same without .gz, where bench/data.hpp looks for
/// bAbI. Nothing where not all of them are.
std::optional<BabiFiles> find_babi(int task);
/// One line for the user that has not got them.
std::string babi_missing(int task);
/// Throws FileError.
Babi read_babi(const BabiFiles& files);

struct BabiSizes {
  std::size_t train = 9000, valid = 1000, test = 1000;
};
/// Stories made by rule, none of whose questions is in two parts:
///   1  where is somebody who went to places: the last one
///   2  where is a thing that people took, carried about and left
///   15 of whom somebody of some kind is afraid, when kinds are afraid of kinds
///   19 the two directions of the way from one place to another
/// Throws InvalidArgument for another task.
Babi make_babi(int task, std::uint64_t seed, const BabiSizes& sizes = {});

/// All words and answers, which are what the network may answer. The order is that of std::string.
class Vocabulary {
 public:
  explicit Vocabulary(const Babi& babi);

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(words_.size()); }
  /// Throws InvalidArgument for a word that is not in it.
  std::int64_t index(const std::string& word) const;

 private:
  std::vector<std::string> words_;
};

struct BabiBatch {
  Graphs graphs;                    // a node for each fact, every one joined to every one
  PackedSequence facts, questions;  // words; fact k of story g is sequence layout->row(g, k)
  Tensor position;                  // [M, 2 kMostFacts] f64: one-hot, the fact's place in its story
  Tensor answers;                   // [N] i64
};
/// Story g's facts take the places first[g], first[g] + 1, ..., where 0 <= first[g] <= kMostFacts.
BabiBatch make_batch(const Vocabulary& vocabulary, std::span<const Question* const> questions,
                     std::span<const std::int64_t> first);

class BabiModel {
 public:
  BabiModel(Making& making, std::int64_t words, std::int64_t hidden, Variant variant);

  /// Each sequence of words as the LSTM's state at its own end, [sequences, 32].
  Variable encode_facts(Tape& tape, const PackedSequence& words);
  /// Scores [N, words] after each step.
  std::vector<Variable> scores(Tape& tape, const BabiBatch& batch, std::int64_t steps);
  Models models();

 private:
  Variable encode(Tape& tape, Lstm& lstm, const PackedSequence& words);

  Embedding word_;
  Lstm fact_, question_;
  Mlp input_;
  Rrn rrn_;
  Mlp readout_;
};

}  // namespace packrnn::rrn
