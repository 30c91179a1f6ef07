#include "docs/examples/rrn/babi.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bench/temporary_folder.hpp"
#include "tests/catch.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::rrn {
namespace {

const std::string kStory =
    "1 Mary moved to the bathroom.\n"
    "2 John went back to the hallway.\n"
    "3 Where is Mary? \tbathroom\t1\n"
    "4 Mary went to the garden.\n"
    "5 Where is Mary?\tgarden\t4\n"
    "1 The office is east of the hallway.\n"
    "2 How do you go?\ts,e\t1\n";

TEST_CASE("questions know the facts before them in their story") {
  const std::vector<Question> questions = parse_babi("x", kStory);
  REQUIRE(questions.size() == 3);
  const Sentence mary{"mary", "moved", "to", "the", "bathroom"},
      john{"john", "went", "back", "to", "the", "hallway"},
      garden{"mary", "went", "to", "the", "garden"};
  CHECK(questions[0] == Question{{mary, john}, {"where", "is", "mary"}, "bathroom"});
  CHECK(questions[1] == Question{{mary, john, garden}, {"where", "is", "mary"}, "garden"});
  CHECK(questions[2].facts.size() == 1);
  CHECK(questions[2].answer == "s,e");
}

TEST_CASE("of a long story the last twenty facts are kept; other line ends are fine") {
  std::string text;
  for (int line = 1; line <= 25; ++line)
    text += std::to_string(line) + " Fact f" + std::to_string(line) + ".\r\n";
  const std::vector<Question> questions = parse_babi("x", text + "26 Which?\tall\t1");
  REQUIRE(questions.size() == 1);
  REQUIRE(questions[0].facts.size() == 20);
  CHECK(questions[0].facts.front() == Sentence{"fact", "f6"});
  CHECK(questions[0].facts.back() == Sentence{"fact", "f25"});
}

void refused(const std::string& text, const std::string& because) {
  INFO(text);
  CHECK_THROWS_AS(parse_babi("x", text), FileError);
  CHECK_THROWS_WITH(parse_babi("x", text),
                    Catch::Matchers::StartsWith("x, line ") && Catch::Matchers::Contains(because));
}

TEST_CASE("a damaged file is refused with its line") {
  refused("", "ended without a question");
  refused("1 A fact.\n", "ended without a question");
  refused("A fact.\n", "line 1: number 'A', expected 1 or 1");
  refused("2 A fact.\n", "number '2', expected 1 or 1");
  refused("1 A fact.\n3 A fact.\n", "line 2: number '3', expected 2 or 1");
  refused("99999999999999999999 A fact.\n", "number '99999999999999999999'");
  refused("-1 A fact.\n", "number '-1'");
  refused("1 A question?\tyes\t1\n", "a question before any fact");
  refused("1 A fact.\n2 A question?\t\t1\n", "a question without an answer");
  refused("1 A fact.\n2 A question\tyes\t1\n", "does not end with ?");
  refused("1 A fact.\n2 ?\tyes\t1\n", "a sentence without words");
  refused("1 A fact", "does not end with .");
  refused("1\n", "does not end with .");
  refused("1 .\n", "a sentence without words");
  refused(
      "1 A f\x80"
      "ct.\n",
      "a character of code 128");
  refused(std::string("1 A f\0ct.\n", 10), "a character of code 0");
  refused("1 " + std::string(41, 'a') + ".\n", "a word of 41 characters, expected at most 40");
  std::string many = "1";
  for (int i = 0; i < 65; ++i) many += " a";
  refused(many + ".\n", "a sentence of more than 64 words");
  for (std::size_t size = 0; size < kStory.size(); ++size) {
    // Every beginning of a file is read or refused.
    try {
      parse_babi("x", kStory.substr(0, size));
    } catch (const FileError&) {
    }
  }
}

TEST_CASE("a damaged file among the three is named") {
  const bench::TemporaryFolder folder("packrnn-babi");
  const auto write = [&](const char* name, const std::string& bytes) {
    const std::filesystem::path path = folder.path() / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  };
  const BabiFiles files{write("train.txt", kStory), write("valid.txt", kStory),
                        write("test.txt", kStory)};
  CHECK(read_babi(files).test.size() == 3);
  write("valid.txt", "");
  CHECK_THROWS_WITH(read_babi(files), "valid.txt, line 0: ended without a question");
  write("valid.txt", std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10));  // a packed file's header
  CHECK_THROWS_AS(read_babi(files), FileError);
  CHECK_THROWS_WITH(read_babi(files), Catch::Matchers::Contains("valid.txt"));
  CHECK_THROWS_AS(read_babi({files.train, folder.path(), files.test}), FileError);
}

TEST_CASE("the real files are the published ones") {
  struct Known {
    int task;
    std::size_t words, fewest, most;  // facts
  };
  for (const auto& [task, words, fewest, most] :
       {Known{1, 19, 2, 10}, Known{15, 0, 8, 8}, Known{19, 0, 5, 5}, Known{2, 0, 2, 20}}) {
    const auto files = find_babi(task);
    if (!files) PACKRNN_SKIP(babi_missing(task));
    const Babi babi = read_babi(*files);
    CHECK(babi.train.size() == 9000);
    CHECK(babi.valid.size() == 1000);
    CHECK(babi.test.size() == 1000);
    const auto by_facts = [](const Question& a, const Question& b) {
      return a.facts.size() < b.facts.size();
    };
    CHECK(std::ranges::min_element(babi.train, by_facts)->facts.size() == fewest);
    CHECK(std::ranges::max_element(babi.train, by_facts)->facts.size() == most);
    if (words > 0) CHECK(Vocabulary(babi).size() == static_cast<std::int64_t>(words));
  }
}

// Stories made by rule, solved apart from what made them ------------------------------------------

std::string where_is(const Question& question, const std::string& who) {
  for (auto fact = question.facts.rbegin(); fact != question.facts.rend(); ++fact)
    if (fact->front() == who && (*fact)[fact->size() - 3] == "to") return fact->back();
  return "nowhere";
}

std::string solve_1(const Question& question) { return where_is(question, question.text.back()); }

std::string solve_2(const Question& question) {
  const std::string& thing = question.text.back();
  for (std::size_t i = question.facts.size(); i-- > 0;) {
    const Sentence& fact = question.facts[i];
    if (fact.back() != thing) continue;
    const std::set<std::string> leaves{"left", "dropped", "put"};
    Question until = question;
    if (leaves.contains(fact[1])) until.facts.resize(i);
    return where_is(until, fact.front());
  }
  return "nowhere";
}

std::string solve_15(const Question& question) {
  const std::map<std::string, std::string> plural{
      {"cat", "cats"}, {"dog", "dogs"}, {"goose", "geese"}, {"mouse", "mice"}};
  std::string kind;
  for (const Sentence& fact : question.facts)
    if (fact.front() == question.text[2]) kind = fact.back();
  for (const Sentence& fact : question.facts)
    if (fact.front() == plural.at(kind))
      for (const auto& [one, many] : plural)
        if (many == fact.back()) return one;
  return "nobody";
}

std::string solve_19(const Question& question) {
  const std::map<std::string, std::string> opposite{
      {"north", "south"}, {"south", "north"}, {"east", "west"}, {"west", "east"}};
  std::map<std::pair<std::string, std::string>, std::string> way;  // (from, to)
  std::set<std::string> rooms;
  for (const Sentence& fact : question.facts) {
    way[{fact[6], fact[1]}] = fact[3];
    way[{fact[1], fact[6]}] = opposite.at(fact[3]);
    rooms.insert({fact[1], fact[6]});
  }
  for (const std::string& over : rooms)
    if (way.contains({question.text[6], over}) && way.contains({over, question.text[9]}))
      return way[{question.text[6], over}].substr(0, 1) + "," +
             way[{over, question.text[9]}].substr(0, 1);
  return "nowhere";
}

TEST_CASE("made stories have the answers that their facts give, and no question in two parts") {
  struct Kind {
    int task;
    std::string (*solve)(const Question&);
    std::size_t answers, fewest, most;  // facts
  };
  for (const auto& [task, solve, answers, fewest, most] :
       {Kind{1, solve_1, 6, 2, 10}, Kind{2, solve_2, 6, 4, 20}, Kind{15, solve_15, 4, 8, 8},
        Kind{19, solve_19, 12, 5, 5}}) {
    INFO("task " << task);
    const Babi babi = make_babi(task, 3, {.train = 4000, .valid = 500, .test = 500});
    std::set<std::string> found;
    std::set<std::size_t> facts;
    std::vector<Question> earlier;
    for (const auto* part : {&babi.train, &babi.valid, &babi.test}) {
      REQUIRE(part->size() == (part == &babi.train ? 4000 : 500));
      for (const Question& question : *part) {
        REQUIRE(solve(question) == question.answer);
        REQUIRE(std::ranges::find(earlier, question) == earlier.end());
        found.insert(question.answer);
        facts.insert(question.facts.size());
      }
      earlier.insert(earlier.end(), part->begin(), part->end());
    }
    CHECK(found.size() == answers);
    CHECK(*facts.begin() == fewest);
    CHECK(*facts.rbegin() == most);
    CHECK(make_babi(task, 3, {.train = 5, .valid = 1, .test = 1}).train[4] == babi.train[4]);
    CHECK(make_babi(task, 4, {.train = 5, .valid = 1, .test = 1}).train[4] != babi.train[4]);
  }
  CHECK_THROWS_WITH(make_babi(3, 1),
                    Catch::Matchers::Contains("task is 3, expected 1, 2, 15 or 19"));
}

// The network ------------------------------------------------------------------------------------

TEST_CASE("a fact is encoded the same whatever longer facts stand beside it") {
  Making making{.generator = Generator(1)};
  BabiModel model(making, 20, 16, Variant::paper);
  Context context = tests::cpu_context();
  const auto encoded = [&](const std::vector<std::vector<std::int64_t>>& facts) {
    std::vector<Tensor> tensors;
    std::vector<TensorView> views;
    for (const auto& fact : facts)
      tensors.push_back(Tensor::from(fact, {static_cast<std::int64_t>(fact.size())}));
    for (const Tensor& tensor : tensors) views.push_back(tensor.view());
    Tape tape(context);
    const Variable state = model.encode_facts(tape, pack_sequence(context, views));
    const auto values = state.value().values<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> two = encoded({{3, 1, 4}, {1, 5, 9, 2}});
  std::vector<float> more = encoded({{3, 1, 4}, {1, 5, 9, 2}, {6, 5, 3, 5, 8, 9, 7}, {9}});
  REQUIRE(two.size() == 64);
  CHECK(encoded({{3, 1, 5}, {1, 5, 9, 2}}) != two);  // the last word counts
  more.resize(two.size());
  CHECK(more == two);
}

TEST_CASE("a batch has a node for each fact, and the fact's place") {
  const std::vector<Question> questions = parse_babi("x", kStory);
  const Babi babi{questions, {}, {}};
  const Vocabulary vocabulary(babi);
  const std::vector<const Question*> all{&questions[2], &questions[1]};
  const BabiBatch batch = make_batch(vocabulary, all, std::vector<std::int64_t>{20, 3});
  const PackedLayout& layout = *batch.graphs.layout;
  CHECK(layout.total() == 4);
  CHECK(batch.graphs.from.size(0) == 1 + 9);
  CHECK(batch.answers.values<std::int64_t>()[0] == vocabulary.index("s,e"));
  const auto place = [&](std::int64_t story, std::int64_t fact) {
    const TensorView row =
        batch.position.view().rows(layout.row(story, fact), layout.row(story, fact) + 1);
    return std::ranges::max_element(row.values<double>()) - row.values<double>().begin();
  };
  CHECK(place(0, 0) == 20);
  CHECK(place(1, 0) == 3);
  CHECK(place(1, 2) == 5);
  const auto row = layout.row(1, 2);  // "mary went to the garden"
  CHECK(batch.facts.lengths()[static_cast<std::size_t>(row)] == 5);
  CHECK(batch.facts.data()
            .values<std::int64_t>()[static_cast<std::size_t>(batch.facts.layout().row(row, 4))] ==
        vocabulary.index("garden"));
  CHECK_THROWS_WITH(vocabulary.index("cellar"), Catch::Matchers::Contains("'cellar'"));
}

}  // namespace
}  // namespace packrnn::rrn
